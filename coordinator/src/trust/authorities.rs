//! The authorities of a cluster: one, or two while the authority is changed.
//!
//! *Stable*: one authority vouches for the server and issues all certificates. *Changing*: the
//! serving authority still vouches for the server, because there are callers that know no other. The
//! next one issues everything else, and the certificates of both are accepted. The next authority
//! also certifies the key of the serving one, so a caller that knows only the next one's pin can
//! connect before and after the end of the change. When the change ends, the next authority serves,
//! and the one before is trusted no more.
//!
//! `settings.json` says which authorities there are, and is replaced at once. It is written after
//! the files that it speaks of, and the files that it no longer speaks of are removed after it.

use std::{collections::BTreeSet, path::Path};

use muster_rpc::{
    identity::TrustDomain,
    tls::{Pair, Pin},
};
use serde::{Deserialize, Serialize};

use super::{
    authority::{Authority, Description},
    files::{TrustError, lock, read_json, write_json},
};

pub(super) const SETTINGS: &str = "settings.json";

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Settings {
    trust_domain: String,
    /// DNS names and IP addresses at which agents and users call the coordinator.
    names: Vec<String>,
    /// When the serving authority was made.
    made_us: u64,
    /// Which one it is, of all that this cluster has had.
    #[serde(default = "first")]
    number: u32,
    /// The authority that comes after it, while the authority is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Next>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Next {
    number: u32,
    made_us: u64,
}

fn first() -> u32 {
    1
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Server {
    chain: String,
    key: String,
    names: Vec<String>,
    /// The authority that vouches for it, and those that are sent along.
    #[serde(default)]
    authorities: Vec<Pin>,
    not_before_us: u64,
    not_after_us: u64,
}

/// The authorities of a trust folder, as they are on disk.
#[derive(Debug)]
pub struct Authorities {
    domain: TrustDomain,
    settings: Settings,
    serving: Authority,
    next: Option<Authority>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl Settings {
    fn serving<'a>(&self, domain: &'a TrustDomain) -> Description<'a> {
        Description {
            domain,
            number: self.number,
            made_us: self.made_us,
        }
    }
}

impl Next {
    fn describe(self, domain: &TrustDomain) -> Description<'_> {
        Description {
            domain,
            number: self.number,
            made_us: self.made_us,
        }
    }
}

impl Authorities {
    /// Makes an authority there, or opens what is there and adds names. Says whether it is new.
    pub(super) fn init(
        folder: &Path,
        domain: Option<&str>,
        names: &[String],
        now_us: u64,
    ) -> Result<(Self, bool), TrustError> {
        if Self::open(folder)?.is_some() {
            let _one = lock_settings(folder)?;
            let mut there = Self::must_open(folder)?;
            let own = there.domain.to_string();
            if domain.is_some_and(|domain| domain != own) {
                return Err(TrustError::OtherDomain(own));
            }
            for name in names {
                if !there.settings.names.contains(name) {
                    there.settings.names.push(name.clone());
                }
            }
            there.settings.write(folder)?;
            return Ok((there, false));
        }
        let settings = Settings {
            trust_domain: domain.unwrap_or("muster").to_owned(),
            names: names.to_vec(),
            made_us: now_us,
            number: first(),
            next: None,
        };
        // Before anything is written: an authority with a wrong domain could never be opened.
        let domain = settings.trust_domain.parse().map_err(TrustError::Domain)?;
        Authority::make(folder, settings.serving(&domain))?;
        // Written last: without it nothing was made.
        settings.write(folder)?;
        Ok((Self::must_open(folder)?, true))
    }

    /// `None`: none was ever made there.
    pub(super) fn open(folder: &Path) -> Result<Option<Self>, TrustError> {
        let path = folder.join(SETTINGS);
        let Some(settings) = read_json::<Settings>(&path)? else {
            return Ok(None);
        };
        let domain: TrustDomain =
            settings
                .trust_domain
                .parse()
                .map_err(|e| TrustError::Malformed {
                    path,
                    why: format!("{e}"),
                })?;
        let serving = Authority::open(folder, settings.serving(&domain))?;
        let next = settings
            .next
            .map(|next| Authority::open(folder, next.describe(&domain)))
            .transpose()?;
        Ok(Some(Self {
            domain,
            settings,
            serving,
            next,
        }))
    }

    fn must_open(folder: &Path) -> Result<Self, TrustError> {
        Self::open(folder)?.ok_or_else(|| TrustError::NotThere(folder.to_owned()))
    }

    /// Makes the next authority. A crash before the settings are written has changed nothing.
    pub(super) fn rotate(folder: &Path, now_us: u64) -> Result<Self, TrustError> {
        let _one = lock_settings(folder)?;
        let there = Self::must_open(folder)?;
        if there.next.is_some() {
            return Err(TrustError::Changing);
        }
        let mut settings = there.settings;
        let next = Next {
            number: settings.number + 1,
            made_us: now_us,
        };
        Authority::make(folder, next.describe(&there.domain))?;
        settings.next = Some(next);
        settings.write(folder)?;
        Self::must_open(folder)
    }

    /// Lets the next authority take the place of the serving one. `may`: asked whether it may, while
    /// nobody else can change the settings. A crash after the settings are written leaves only files
    /// that nobody reads.
    pub(super) fn finish(
        folder: &Path,
        may: impl FnOnce(&Self) -> Result<(), TrustError>,
    ) -> Result<Self, TrustError> {
        let _one = lock_settings(folder)?;
        let there = Self::must_open(folder)?;
        let next = there.settings.next.ok_or(TrustError::NotChanging)?;
        may(&there)?;
        let settings = Settings {
            number: next.number,
            made_us: next.made_us,
            next: None,
            ..there.settings.clone()
        };
        settings.write(folder)?;
        Authority::remove(folder, there.settings.serving(&there.domain))?;
        Self::must_open(folder)
    }

    pub fn domain(&self) -> &TrustDomain {
        &self.domain
    }

    pub fn names(&self) -> &[String] {
        &self.settings.names
    }

    /// The one that vouches for the server.
    pub fn serving(&self) -> &Authority {
        &self.serving
    }

    /// The one that takes its place when the change ends. `None`: there is no change.
    pub fn next(&self) -> Option<&Authority> {
        self.next.as_ref()
    }

    /// The one that issues certificates to hosts and users.
    pub fn issuing(&self) -> &Authority {
        self.next.as_ref().unwrap_or(&self.serving)
    }

    fn all(&self) -> impl Iterator<Item = &Authority> {
        [&self.serving].into_iter().chain(&self.next)
    }

    /// The certificates of all, PEM.
    pub fn bundle(&self) -> String {
        self.all().map(Authority::certificate).collect()
    }

    pub fn pins(&self) -> BTreeSet<Pin> {
        self.all().map(Authority::pin).collect()
    }

    /// What a machine without a certificate knows the coordinator by, from now on.
    pub fn pin(&self) -> Pin {
        self.issuing().pin()
    }

    /// Whether this is the first authority of the cluster, or the change from it.
    pub(super) fn is_first(&self) -> bool {
        self.settings.number == first()
    }

    pub fn endpoint(&self, port: u16) -> String {
        let name = self.settings.names.first().map_or("localhost", |name| name);
        if name.contains(':') {
            format!("https://[{name}]:{port}")
        } else {
            format!("https://{name}:{port}")
        }
    }

    /// The server's certificate on disk. A new one is made if there is none, if two thirds of its
    /// life are over, or if it is for other names or of other authorities.
    pub(super) fn server_pair(&self, folder: &Path, now_us: u64) -> Result<Pair, TrustError> {
        let path = folder.join("server.json");
        let names = &self.settings.names;
        let authorities: Vec<Pin> = self.all().map(Authority::pin).collect();
        if let Some(server) = read_json::<Server>(&path)? {
            let due = server.not_before_us + (server.not_after_us - server.not_before_us) / 3 * 2;
            if server.names == *names
                && server.authorities == authorities
                && now_us < due
                && now_us >= server.not_before_us
            {
                return Ok(Pair {
                    chain: server.chain,
                    key: server.key,
                });
            }
        }
        let (mut pair, (not_before_us, not_after_us)) = self.serving.serve(names, now_us)?;
        // Callers that know only a pin need the authority's certificate, and by these certificates
        // all callers learn which authorities there are.
        pair.chain += &self.bundle();
        if let Some(next) = &self.next {
            pair.chain += &next.vouch_for(&self.serving)?;
        }
        let server = Server {
            chain: pair.chain.clone(),
            key: pair.key.clone(),
            names: names.clone(),
            authorities,
            not_before_us,
            not_after_us,
        };
        write_json(&path, &server)?;
        Ok(pair)
    }
}

impl Settings {
    fn write(&self, folder: &Path) -> Result<(), TrustError> {
        write_json(&folder.join(SETTINGS), self)
    }
}

/// Commands that change the settings take turns.
fn lock_settings(folder: &Path) -> Result<std::fs::File, TrustError> {
    if !folder.join(SETTINGS).exists() {
        return Err(TrustError::NotThere(folder.to_owned()));
    }
    lock(&folder.join("settings.lock"))
}

#[cfg(test)]
mod tests;
