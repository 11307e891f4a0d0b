//! The cluster's own authorities, in the trust folder of a coordinator that serves. Commands change
//! the folder meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use muster_core::{fleet::worker_pod, id::node_name_error};
use muster_rpc::{
    identity::{Kind, Principal},
    tls::{Pair, Pin, ServerTls, Shown},
    uri_names::UriNames,
};
use tracing::{error, info};

use super::{
    JoinError, LEAF_LIFE, TokenError,
    authorities::{Authorities, SETTINGS},
    authority::{Point, point},
    files::{TrustError, Version, now_us, version},
    grants::Grants,
    issued::{Certificate, Issued},
    lock_tokens, tokens,
};

/// A certificate that was issued, with what its owner must know to use it.
#[derive(Debug)]
pub(crate) struct Certified {
    pub(crate) principal: Principal,
    pub(crate) chain: String,
    pub(crate) authorities: String,
    pub(crate) not_before_us: u64,
    pub(crate) not_after_us: u64,
}

/// What a join has used up and noted, to be undone if its certificate is not given.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) certified: Certified,
    token: tokens::Stored,
    key: Pin,
    is_new: bool,
}

#[derive(Debug)]
pub(super) struct Own {
    folder: PathBuf,
    authorities: RwLock<Arc<Authorities>>,
    /// Counts the changes of the authorities, from 1.
    changes: AtomicU64,
    /// The version of the settings that these authorities are of.
    read: Mutex<Option<Version>>,
    issued: Issued,
    shown: Mutex<New>,
    pub(super) life: Duration,
}

/// Certificates of the next authority that were shown, by the hash of their key.
#[derive(Debug, Default)]
struct New {
    to_note: BTreeMap<Pin, Principal>,
    noted: BTreeSet<Pin>,
}

impl Own {
    /// Opens the authorities of this folder, and serves with their certificate. `None`: `init` never
    /// ran there.
    pub(super) fn open(folder: &Path) -> Result<Option<(Self, ServerTls)>, TrustError> {
        let read = version(&folder.join(SETTINGS));
        let Some(authorities) = Authorities::open(folder)? else {
            return Ok(None);
        };
        let own = authorities.server_pair(folder, now_us())?;
        let names = UriNames::of_domain(authorities.domain());
        let tls = ServerTls::new(names, &own, Some(&authorities.bundle()))?;
        let own = Self {
            issued: Issued::new(folder),
            shown: Mutex::default(),
            authorities: RwLock::new(Arc::new(authorities)),
            changes: AtomicU64::new(1),
            read: Mutex::new(read),
            life: LEAF_LIFE,
            folder: folder.to_owned(),
        };
        Ok(Some((own, tls)))
    }

    pub(super) fn authorities(&self) -> Arc<Authorities> {
        let authorities = self.authorities.read();
        authorities.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often the authorities have changed, counted from 1.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Takes what commands have changed in the folder, and notes which certificates were shown.
    pub(super) fn look(&self, tls: &ServerTls) {
        self.look_at_authorities(tls);
        self.note_shown();
    }

    fn look_at_authorities(&self, tls: &ServerTls) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let version = version(&self.folder.join(SETTINGS));
        // A file that is gone changes nothing, as with the roles.
        if version == *read || version.is_none() {
            return;
        }
        *read = version;
        match self.take_authorities(tls) {
            Ok(()) => info!("the authorities or the names of this coordinator have changed"),
            Err(e) => error!(
                "the change of the authority is not taken: {e}; what was there before still holds, and the coordinator would not start again"
            ),
        }
    }

    fn take_authorities(&self, tls: &ServerTls) -> Result<(), TrustError> {
        let Some(authorities) = Authorities::open(&self.folder)? else {
            return Ok(());
        };
        self.serve_with(&authorities, tls)?;
        *self
            .authorities
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(authorities);
        self.changes.fetch_add(1, Ordering::AcqRel);
        *self.shown() = New::default();
        Ok(())
    }

    /// Gives the server another certificate if two thirds of its certificate's life are over.
    pub(super) fn renew_server(&self, tls: &ServerTls) -> Result<(), TrustError> {
        self.serve_with(&self.authorities(), tls)
    }

    fn serve_with(&self, authorities: &Authorities, tls: &ServerTls) -> Result<(), TrustError> {
        let own: Pair = authorities.server_pair(&self.folder, now_us())?;
        Ok(tls.replace(&own, Some(&authorities.bundle()))?)
    }

    /// A call came over a connection that began with this certificate. If it is of the next
    /// authority, its owner does not need the old one any more.
    pub(super) fn hear(&self, principal: &Principal, shown: &Shown) {
        let authorities = self.authorities();
        if authorities.next().map(|next| next.pin()) != Some(shown.authority) {
            return;
        }
        let mut new = self.shown();
        if !new.noted.contains(&shown.key) {
            new.to_note.insert(shown.key, principal.clone());
        }
    }

    fn note_shown(&self) {
        let all = std::mem::take(&mut self.shown().to_note);
        for (key, principal) in all {
            match self.issued.shown(&principal, key) {
                Ok(()) => drop(self.shown().noted.insert(key)),
                // Its next call brings it here again.
                Err(e) => error!("note the certificate of {principal}: {e}"),
            }
        }
    }

    fn shown(&self) -> std::sync::MutexGuard<'_, New> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges a token for a certificate. The token is used up before anything else is done.
    pub(super) fn join(
        &self,
        grants: &Grants,
        (token, name): (&str, &str),
        public_key: &[u8],
    ) -> Result<Joined, JoinError> {
        // One join at a time, so that a token is never used more often than it may be, and none of a
        // token that is being deleted.
        let _one = lock_tokens(&self.folder)?;
        let key = point(public_key).ok_or(JoinError::Key)?;
        let token = tokens::look(&self.folder, token, now_us())?;
        let name = match (&token.name, name) {
            (Some(of), "") => of,
            (Some(of), name) if of == name => of,
            (Some(of), name) => return Err(JoinError::OtherName(of.clone(), name.to_owned())),
            (None, _) if token.kind == Kind::User => return Err(TokenError::Unknown.into()),
            (None, "") => return Err(JoinError::NoName),
            (None, name) => name,
        };
        let why = node_name_error(name).or_else(|| {
            // Only the API server says who is a pod.
            let is_pod = worker_pod::is_pod(&name.into());
            is_pod.then(|| "names of worker pods end like this".to_owned())
        });
        if let Some(why) = why.filter(|_| token.kind == Kind::Host) {
            return Err(JoinError::NodeName(name.to_owned(), why));
        }
        let principal = Principal::new(token.kind, name)?;
        let is_new = !self.issued.is_taken(&principal);
        if token.name.is_none() && !is_new {
            return Err(JoinError::Taken(principal));
        }
        tokens::use_up(&self.folder, &token)?;
        // Whoever made the token may have given a role just before.
        grants.look();
        let pin = Pin::of_key(public_key);
        Ok(Joined {
            certified: self.issue(principal, (&key, pin), None)?,
            token,
            key: pin,
            is_new,
        })
    }

    /// Undoes a join whose certificate is not given to anybody.
    pub(super) fn take_back(&self, joined: &Joined) -> Result<(), TrustError> {
        let _one = lock_tokens(&self.folder)?;
        let principal = &joined.certified.principal;
        self.issued
            .take_back(principal, joined.key, joined.is_new)?;
        tokens::give_back(&self.folder, &joined.token)
    }

    /// A new certificate for somebody who has one, in place of the one that was shown.
    pub(super) fn renew(
        &self,
        principal: &Principal,
        public_key: &[u8],
        instead: Option<Pin>,
    ) -> Result<Certified, JoinError> {
        let key = point(public_key).ok_or(JoinError::Key)?;
        let key = (&key, Pin::of_key(public_key));
        Ok(self.issue(principal.clone(), key, instead)?)
    }

    fn issue(
        &self,
        principal: Principal,
        (point, key): (&Point, Pin),
        instead: Option<Pin>,
    ) -> Result<Certified, TrustError> {
        let (authorities, now_us) = (self.authorities(), now_us());
        let by = authorities.issuing();
        let whom = (&principal, authorities.domain());
        let leaf = by.issue(whom, point, (now_us, self.life))?;
        let certificate = Certificate {
            key,
            authority: by.pin(),
            issued_us: now_us,
            not_after_us: leaf.not_after_us,
            instead,
        };
        // Nobody has a certificate that is not recorded.
        self.issued.add(&principal, certificate, now_us)?;
        Ok(Certified {
            principal,
            chain: leaf.chain,
            authorities: authorities.bundle(),
            not_before_us: leaf.not_before_us,
            not_after_us: leaf.not_after_us,
        })
    }
}
