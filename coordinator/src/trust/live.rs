//! What a coordinator that serves has of its trust folder, and whose certificates it serves with:
//! those of the cluster's own authority, or those of the site. Commands change the folder meanwhile,
//! and the site its files, so both are looked at every second, and what has changed holds from then
//! on.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_rpc::{
    identity::Principal,
    tls::{Pin, ServerTls, Shown},
};
use tonic::Status;

use super::{
    ENDPOINT, FOLDER, JoinError,
    files::{TrustError, write},
    grants::Grants,
    own::{Certified, Joined, Own},
    site::{Site, SiteFiles},
};

#[derive(Debug)]
pub struct Trust {
    folder: PathBuf,
    tls: ServerTls,
    grants: Grants,
    by: By,
}

/// Whose certificates they are.
#[derive(Debug)]
enum By {
    Own(Box<Own>),
    Site(Box<Site>),
}

impl Trust {
    /// Opens the authorities in this state directory. `None`: `init` never ran there.
    pub fn open(state_dir: &Path) -> Result<Option<Self>, TrustError> {
        let folder = state_dir.join(FOLDER);
        let Some((own, tls)) = Own::open(&folder)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            grants: Grants::new(&folder)?,
            by: By::Own(Box::new(own)),
            tls,
            folder,
        }))
    }

    /// Takes the certificates of a site. An own authority in this state directory is not used.
    pub fn of_site(state_dir: &Path, files: SiteFiles) -> Result<Self, TrustError> {
        let folder = state_dir.join(FOLDER);
        let (site, tls) = Site::open(files)?;
        Ok(Self {
            grants: Grants::new(&folder)?,
            by: By::Site(Box::new(site)),
            tls,
            folder,
        })
    }

    /// Issues certificates of this life to hosts and users.
    #[must_use]
    pub fn with_life(mut self, life: Duration) -> Self {
        if let By::Own(own) = &mut self.by {
            own.life = life;
        }
        self
    }

    pub fn tls(&self) -> &ServerTls {
        &self.tls
    }

    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// All authorities that may vouch for this coordinator, PEM. Empty: a site keeps them to itself.
    pub(crate) fn bundle(&self) -> String {
        match &self.by {
            By::Own(own) => own.authorities().bundle(),
            By::Site(site) => site.authorities(),
        }
    }

    /// How often the own authorities have changed, counted from 1. `None`: the site renews
    /// certificates, so agents need not be told.
    pub(crate) fn changes(&self) -> Option<u64> {
        match &self.by {
            By::Own(own) => Some(own.changes()),
            By::Site(_) => None,
        }
    }

    /// The pins of the own authorities.
    pub(crate) fn pins(&self) -> BTreeSet<Pin> {
        match &self.by {
            By::Own(own) => own.authorities().pins(),
            By::Site(_) => BTreeSet::new(),
        }
    }

    /// Takes what has changed. The disk may be slow, so this is not for the thread that answers
    /// calls.
    pub fn look(&self) {
        self.grants.look();
        match &self.by {
            By::Own(own) => own.look(&self.tls),
            By::Site(site) => site.look(&self.tls),
        }
    }

    /// Gives the server another certificate if two thirds of its certificate's life are over.
    pub fn renew_server(&self) -> Result<(), TrustError> {
        match &self.by {
            By::Own(own) => own.renew_server(&self.tls),
            By::Site(_) => Ok(()),
        }
    }

    /// Refuses a certificate whose authority was replaced since its connection began. Nobody can begin
    /// another one with it.
    pub(crate) fn refuse_replaced(&self, shown: Option<&Shown>) -> Result<(), Status> {
        let By::Own(own) = &self.by else {
            return Ok(());
        };
        let pins = own.authorities().pins();
        match shown.is_some_and(|shown| pins.contains(&shown.authority)) {
            true => Ok(()),
            false => Err(Status::unauthenticated(
                "the authority of this certificate was replaced, so it proves nothing any more; get a new one with a token (muster login; \
                 a node: muster-agent join)",
            )),
        }
    }

    /// A call came over a connection that began with this certificate.
    pub(crate) fn hear(&self, principal: &Principal, shown: &Shown) {
        if let By::Own(own) = &self.by {
            own.hear(principal, shown);
        }
    }

    /// Exchanges a token for a certificate. The token is used up before anything else is done.
    pub(crate) fn join(
        &self,
        token: &str,
        name: &str,
        public_key: &[u8],
    ) -> Result<Joined, JoinError> {
        match &self.by {
            By::Own(own) => own.join(&self.grants, (token, name), public_key),
            By::Site(_) => Err(JoinError::Site),
        }
    }

    /// Undoes a join whose certificate is not given to anybody.
    pub(crate) fn take_back(&self, joined: &Joined) -> Result<(), TrustError> {
        match &self.by {
            By::Own(own) => own.take_back(joined),
            By::Site(_) => Ok(()),
        }
    }

    /// A new certificate for somebody who has one, in place of the one that was shown.
    pub(crate) fn renew(
        &self,
        principal: &Principal,
        public_key: &[u8],
        instead: Option<Pin>,
    ) -> Result<Certified, JoinError> {
        match &self.by {
            By::Own(own) => own.renew(principal, public_key, instead),
            By::Site(_) => Err(JoinError::Site),
        }
    }

    /// Notes where the coordinator serves, for the commands that print it.
    pub fn note_endpoint(&self, port: u16) -> Result<String, TrustError> {
        let endpoint = match &self.by {
            By::Own(own) => own.authorities().endpoint(port),
            By::Site(site) => {
                let name = site.name().unwrap_or_else(|| "localhost".into());
                format!("https://{name}:{port}")
            }
        };
        write(&self.folder.join(ENDPOINT), &format!("{endpoint}\n"))?;
        Ok(endpoint)
    }
}
