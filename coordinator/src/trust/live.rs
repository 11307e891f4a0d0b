//! The trust folder of a coordinator that serves. Commands change the folder meanwhile, so it is
//! looked at every second, and what has changed holds from then on.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use muster_core::id::node_name_error;
use muster_rpc::{
    identity::{Kind, Principal},
    tls::{Pin, ServerTls, Shown},
};
use tracing::{error, info};

use super::{
    FOLDER, JoinError, LEAF_LIFE, TokenError,
    authorities::{Authorities, SETTINGS},
    authority::{Point, point},
    files::{TrustError, Version, now_us, version, write},
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

#[derive(Debug)]
pub struct Trust {
    folder: PathBuf,
    authorities: RwLock<Arc<Authorities>>,
    /// Counts the changes of the authorities, from 1.
    changes: AtomicU64,
    /// The version of the settings that these authorities are of.
    read: Mutex<Option<Version>>,
    tls: ServerTls,
    grants: Grants,
    issued: Issued,
    shown: Mutex<New>,
    life: Duration,
}

/// Certificates of the next authority that were shown, by the hash of their key.
#[derive(Debug, Default)]
struct New {
    to_note: BTreeMap<Pin, Principal>,
    noted: BTreeSet<Pin>,
}

impl Trust {
    /// Opens the authorities in this state directory. `None`: `init` never ran there.
    pub fn open(state_dir: &Path) -> Result<Option<Self>, TrustError> {
        let folder = state_dir.join(FOLDER);
        let read = version(&folder.join(SETTINGS));
        let Some(authorities) = Authorities::open(&folder)? else {
            return Ok(None);
        };
        let own = authorities.server_pair(&folder, now_us())?;
        let tls = ServerTls::new(authorities.domain().clone(), &own, &authorities.bundle())?;
        Ok(Some(Self {
            grants: Grants::new(&folder)?,
            issued: Issued::new(&folder),
            shown: Mutex::default(),
            authorities: RwLock::new(Arc::new(authorities)),
            changes: AtomicU64::new(1),
            read: Mutex::new(read),
            life: LEAF_LIFE,
            tls,
            folder,
        }))
    }

    /// Issues certificates of this life to hosts and users.
    pub fn with_life(self, life: Duration) -> Self {
        Self { life, ..self }
    }

    pub fn tls(&self) -> &ServerTls {
        &self.tls
    }

    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    pub(crate) fn authorities(&self) -> Arc<Authorities> {
        let authorities = self.authorities.read();
        authorities.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All authorities that may vouch for this coordinator, PEM.
    pub(crate) fn bundle(&self) -> String {
        self.authorities().bundle()
    }

    /// How often the authorities have changed, counted from 1.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Takes what commands have changed in the folder, and notes which certificates were shown. The
    /// disk may be slow, so this is not for the thread that answers calls.
    pub fn look(&self) {
        self.grants.look();
        self.look_at_authorities();
        self.note_shown();
    }

    fn look_at_authorities(&self) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let version = version(&self.folder.join(SETTINGS));
        // A file that is gone changes nothing, as with the roles.
        if version == *read || version.is_none() {
            return;
        }
        *read = version;
        match self.take_authorities() {
            Ok(()) => info!("the authorities or the names of this coordinator have changed"),
            Err(e) => error!(
                "the change of the authority is not taken: {e}; what was there before still holds, and the coordinator would not start again"
            ),
        }
    }

    fn take_authorities(&self) -> Result<(), TrustError> {
        let Some(authorities) = Authorities::open(&self.folder)? else {
            return Ok(());
        };
        let own = authorities.server_pair(&self.folder, now_us())?;
        self.tls.replace(&own, &authorities.bundle())?;
        *self
            .authorities
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(authorities);
        self.changes.fetch_add(1, Ordering::AcqRel);
        *self.shown() = New::default();
        Ok(())
    }

    /// Gives the server another certificate if two thirds of its certificate's life are over.
    pub fn renew_server(&self) -> Result<(), TrustError> {
        let authorities = self.authorities();
        let own = authorities.server_pair(&self.folder, now_us())?;
        Ok(self.tls.replace(&own, &authorities.bundle())?)
    }

    /// A call came over a connection that began with this certificate. If it is of the next
    /// authority, its owner does not need the old one any more.
    pub(crate) fn hear(&self, principal: &Principal, shown: &Shown) {
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
    pub(crate) fn join(
        &self,
        token: &str,
        name: &str,
        public_key: &[u8],
    ) -> Result<Certified, JoinError> {
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
        if let Some(why) = node_name_error(name).filter(|_| token.kind == Kind::Host) {
            return Err(JoinError::NodeName(name.to_owned(), why));
        }
        let principal = Principal::new(token.kind, name)?;
        if token.name.is_none() && self.issued.is_taken(&principal) {
            return Err(JoinError::Taken(principal));
        }
        tokens::use_up(&self.folder, &token)?;
        // Whoever made the token may have given a role just before.
        self.grants.look();
        Ok(self.issue(principal, (&key, Pin::of_key(public_key)), None)?)
    }

    /// A new certificate for somebody who has one, in place of the one that was shown.
    pub(crate) fn renew(
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

    /// Notes where the coordinator serves, for the commands that print it.
    pub fn note_endpoint(&self, port: u16) -> Result<String, TrustError> {
        let endpoint = self.authorities().endpoint(port);
        write(&self.folder.join("endpoint"), &format!("{endpoint}\n"))?;
        Ok(endpoint)
    }
}
