//! Certificates that a site issues itself: the coordinator's, in files that the site replaces, and
//! those of hosts and users, by authorities of the site. Nothing is issued here.
//!
//! The files are looked at every second. They may be replaced one after the other, so what does not
//! fit together is an error only if it stays so.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use muster_rpc::{
    tls::{ClientTls, Pair, ServerTls, TlsError, Trust, dns_names},
    uri_names::UriNames,
};
use tracing::{error, info};

use super::files::{TrustError, Version, version};

/// Looks at files that do not fit together before that is an error: seconds, because there is a look
/// every second.
const PATIENCE: u32 = 10;

/// What a site gives, all PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteFiles {
    /// The coordinator's certificate, followed by those between it and the authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authorities that vouch for it. `None`: nobody here need know them.
    pub authorities: Option<PathBuf>,
    /// The authorities of hosts' and users' certificates. `None`: certificates prove nothing.
    pub client_authorities: Option<PathBuf>,
    /// What stands in those certificates.
    pub names: UriNames,
}

/// The content of the files.
#[derive(Clone, Debug)]
struct Content {
    own: Pair,
    authorities: String,
    clients: Option<String>,
}

#[derive(Debug)]
pub(super) struct Site {
    files: SiteFiles,
    kept: Mutex<Kept>,
}

/// What was taken last.
#[derive(Debug)]
struct Kept {
    versions: Versions,
    authorities: String,
    /// The first DNS name of the coordinator's certificate.
    name: Option<String>,
    /// Looks in a row that found files that cannot be taken.
    refused: u32,
}

type Versions = [Option<Version>; 4];

impl Site {
    pub(super) fn open(files: SiteFiles) -> Result<(Self, ServerTls), TrustError> {
        let versions = files.versions();
        let content = files.read()?;
        let clients = content.clients.as_deref();
        let tls = ServerTls::new(files.names.clone(), &content.own, clients)
            .map_err(|e| files.refused(&e))?;
        let kept = Mutex::new(Kept::of(versions, &content));
        Ok((Self { files, kept }, tls))
    }

    /// Takes files that were replaced. What they said before holds until they can be taken.
    pub(super) fn look(&self, tls: &ServerTls) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let versions = self.files.versions();
        if versions == kept.versions {
            return;
        }
        let taken = self.files.read().and_then(|content| {
            tls.replace(&content.own, content.clients.as_deref())
                .map_err(|e| self.files.refused(&e))?;
            Ok(content)
        });
        match taken {
            Ok(content) => {
                info!("the certificates of this site have changed");
                *kept = Kept::of(versions, &content);
            }
            Err(e) => {
                kept.refused += 1;
                if kept.refused == PATIENCE {
                    error!(
                        "the changed certificates are not taken: {e}; what was there before still holds, and the coordinator would not start again"
                    );
                }
            }
        }
    }

    /// The authorities that vouch for the coordinator, PEM; empty if none are known.
    pub(super) fn authorities(&self) -> String {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.authorities.clone()
    }

    /// The name at which the coordinator is called.
    pub(super) fn name(&self) -> Option<String> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.name.clone()
    }
}

impl Kept {
    fn of(versions: Versions, content: &Content) -> Self {
        Self {
            versions,
            authorities: content.authorities.clone(),
            name: dns_names(&content.own.chain).into_iter().next(),
            refused: 0,
        }
    }
}

impl SiteFiles {
    fn versions(&self) -> Versions {
        let of = |path: Option<&PathBuf>| path.and_then(|path| version(path));
        [
            of(Some(&self.certificate)),
            of(Some(&self.key)),
            of(self.authorities.as_ref()),
            of(self.client_authorities.as_ref()),
        ]
    }

    /// The authorities were read already, so it is about the coordinator's own certificate.
    fn refused(&self, why: &TlsError) -> TrustError {
        malformed(&self.certificate)(why.to_string())
    }

    fn read(&self) -> Result<Content, TrustError> {
        let authorities = self.authorities.as_deref().map(bundle).transpose()?;
        Ok(Content {
            own: Pair {
                chain: text(&self.certificate)?,
                key: text(&self.key)?,
            },
            authorities: authorities.unwrap_or_default(),
            clients: self.client_authorities.as_deref().map(bundle).transpose()?,
        })
    }
}

/// Certificates of authorities. Others are told them, so no secret may be in that file.
fn bundle(path: &Path) -> Result<String, TrustError> {
    let text = text(path)?;
    if text.contains("PRIVATE KEY") {
        let why = "holds a private key; only certificates of authorities belong there".into();
        return Err(malformed(path)(why));
    }
    ClientTls::new(&Trust::Authorities(text.clone()), None)
        .map_err(|e| malformed(path)(e.to_string()))?;
    Ok(text)
}

fn malformed(path: &Path) -> impl Fn(String) -> TrustError {
    move |why| TrustError::Malformed {
        path: path.to_owned(),
        why,
    }
}

fn text(path: &Path) -> Result<String, TrustError> {
    fs::read_to_string(path).map_err(|why| TrustError::File {
        path: path.to_owned(),
        why,
    })
}

#[cfg(test)]
mod tests;
