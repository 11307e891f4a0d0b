//! The cluster's own certificate authority and what it keeps: in `trust/` of the state directory,
//! readable by the coordinator's user only.
//!
//! | file | owns |
//! |---|---|
//! | `authority` | the authority's key, the server's certificate, issuing others |
//! | `tokens` | join tokens, each for so many uses and so long |
//! | `grants` | which user has which role; who is denied |
//! | `rights` | what an identity may do |
//! | `files` | reading and writing the folder |
//!
//! What is on disk there, all of it written whole or not at all:
//!
//! | path | holds |
//! |---|---|
//! | `settings.json` | trust domain, names of the server, when the authority was made |
//! | `authority.key`, `authority.pem` | its key and certificate, PEM |
//! | `server.json` | the server's certificate and key |
//! | `tokens/ID.json` | a join token's hash and what it is for |
//! | `tokens.lock`, `access.lock` | held by whoever changes a token, or `access.json` |
//! | `issued/` | the names that were given out |
//! | `access.json` | users' roles and denied names; may be edited by hand |
//! | `endpoint` | the URL at which the coordinator served last |
//!
//! Commands on the coordinator's machine write there while the coordinator runs, so everything is
//! read when it is needed.

mod authority;
mod files;
mod grants;
mod rights;
mod tokens;

use std::{
    fs,
    path::{Path, PathBuf},
};

use muster_core::id::node_name_error;
use muster_rpc::{
    identity::{BadIdentity, Kind, Principal},
    tls::ServerTls,
};

use files::{lock, write};

pub use authority::{Authority, Issued, LEAF_LIFE};
pub use files::{TrustError, now_us};
pub use grants::{Grant, Grants, Role};
pub(crate) use rights::{Asking, Host, Rights, Scope, refuse_denied};
pub use tokens::{Listed, Token, TokenError};

/// The trust folder's name in the state directory.
const FOLDER: &str = "trust";

/// Why somebody gets no certificate.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Name(#[from] BadIdentity),
    #[error("{0:?} cannot be a node's name: {1}")]
    NodeName(String, String),
    #[error("this token is for any name, so the request must say which")]
    NoName,
    #[error("this token is for {0}, not for {1}")]
    OtherName(String, String),
    #[error(
        "{0} has had a certificate already; to give it another, create a token for that very name: muster-coordinator token create --host {name}",
        name = .0.name()
    )]
    Taken(Principal),
    #[error("the public key is not a P-256 key as SubjectPublicKeyInfo")]
    Key,
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// The open trust folder of a coordinator that serves.
#[derive(Debug)]
pub struct Trust {
    folder: PathBuf,
    authority: Authority,
    tls: ServerTls,
    grants: Grants,
}

impl Trust {
    /// Opens the authority in this state directory. `None`: `init` never ran there.
    pub fn open(state_dir: &Path) -> Result<Option<Self>, TrustError> {
        let folder = folder(state_dir);
        let Some(authority) = Authority::open(&folder)? else {
            return Ok(None);
        };
        let own = authority.server_pair(&folder, now_us())?;
        let tls = ServerTls::new(authority.domain().clone(), &own, authority.certificate())?;
        Ok(Some(Self {
            grants: Grants::new(&folder)?,
            authority,
            tls,
            folder,
        }))
    }

    pub fn tls(&self) -> &ServerTls {
        &self.tls
    }

    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// All authorities that may vouch for this coordinator, PEM.
    pub(crate) fn bundle(&self) -> String {
        self.authority.certificate().to_owned()
    }

    /// Gives the server another certificate if two thirds of its certificate's life are over.
    pub fn renew_server(&self) -> Result<(), TrustError> {
        let own = self.authority.server_pair(&self.folder, now_us())?;
        Ok(self.tls.replace(&own, self.authority.certificate())?)
    }

    /// Exchanges a token for a certificate. The token is used up before anything else is done.
    pub(crate) fn join(
        &self,
        token: &str,
        name: &str,
        public_key: &[u8],
    ) -> Result<Issued, JoinError> {
        // One join at a time, so that a token is never used more often than it may be, and none of a
        // token that is being deleted.
        let _one = lock_tokens(&self.folder)?;
        let key = authority::point(public_key).ok_or(JoinError::Key)?;
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
        let mark = self
            .folder
            .join("issued")
            .join(format!("{principal}").replace('/', "-"));
        if token.name.is_none() && mark.exists() {
            return Err(JoinError::Taken(principal));
        }
        tokens::use_up(&self.folder, &token)?;
        let at = now_us();
        write(&mark, &format!("{at}\n"))?;
        // Whoever made the token may have given a role just before.
        self.grants.look();
        Ok(self.authority.issue(&principal, key, at)?)
    }

    /// A new certificate for somebody who has one.
    pub(crate) fn renew(&self, principal: &Principal, key: &[u8]) -> Result<Issued, JoinError> {
        let key = authority::point(key).ok_or(JoinError::Key)?;
        Ok(self.authority.issue(principal, key, now_us())?)
    }

    /// Notes where the coordinator serves, for the commands that print it.
    pub fn note_endpoint(&self, port: u16) -> Result<String, TrustError> {
        let endpoint = self.authority.endpoint(port);
        write(&self.folder.join("endpoint"), &format!("{endpoint}\n"))?;
        Ok(endpoint)
    }
}

/// Makes the authority, or gives an existing one more names. Says whether it is new.
pub fn init(
    state_dir: &Path,
    domain: Option<&str>,
    names: &[String],
) -> Result<(Authority, bool), TrustError> {
    Authority::init(&folder(state_dir), domain, names, now_us())
}

/// What may stand in a certificate as a server's name.
pub fn is_server_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    name.parse::<std::net::IpAddr>().is_ok()
        || !name.is_empty()
            && name.len() <= 253
            && name.chars().all(plain)
            && !name.starts_with(['-', '.'])
}

/// The authority of this state directory, for commands beside the coordinator.
pub fn authority(state_dir: &Path) -> Result<Authority, TrustError> {
    Authority::open(&folder(state_dir))?.ok_or_else(|| TrustError::NotThere(state_dir.to_owned()))
}

/// Creates a join token and returns its text, which is kept nowhere.
pub fn create_token(state_dir: &Path, token: Token) -> Result<String, TrustError> {
    tokens::create(&folder(state_dir), token)
}

/// The join tokens that are there, the one that expires first at the beginning.
pub fn tokens(state_dir: &Path) -> Result<Vec<Listed>, TrustError> {
    tokens::list(&folder(state_dir))
}

/// Makes the token with this whole id useless.
pub fn delete_token(state_dir: &Path, id: &str) -> Result<(), TrustError> {
    let folder = folder(state_dir);
    let _one = lock_tokens(&folder)?;
    tokens::delete(&folder, id)
}

fn lock_tokens(folder: &Path) -> Result<fs::File, TrustError> {
    lock(&folder.join("tokens.lock"))
}

pub fn grants(state_dir: &Path) -> Result<Grants, TrustError> {
    Grants::new(&folder(state_dir))
}

/// Where the coordinator of this state directory served last.
pub fn endpoint(state_dir: &Path) -> Option<String> {
    let text = fs::read_to_string(folder(state_dir).join("endpoint")).ok()?;
    Some(text.trim().to_owned())
}

fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join(FOLDER)
}
