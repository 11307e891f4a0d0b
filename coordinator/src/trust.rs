//! Whom the coordinator believes: the cluster's own certificate authority or the site's, and who has
//! which role. It is in `trust/` of the state directory, readable by the coordinator's user only.
//!
//! | file | owns |
//! |---|---|
//! | `authority` | one authority: its key, and the certificates that it issues |
//! | `authorities` | those that are trusted, their change, the server's certificate |
//! | `issued` | who was given which certificate, and who still needs the old authority |
//! | `live` | the open folder of a coordinator that serves |
//! | `own` | the own authorities while it serves |
//! | `site` | a site's certificates, in place of them |
//! | `tokens` | join tokens, each for so many uses and so long |
//! | `grants` | which user has which role; who is denied |
//! | `rights` | what an identity may do |
//! | `files` | reading and writing the folder |
//! | `folder` | the whole folder, to be kept elsewhere |
//!
//! What is on disk there, all of it written whole or not at all:
//!
//! | path | holds |
//! |---|---|
//! | `settings.json` | trust domain, names of the server, which authorities there are |
//! | `authority.key`, `authority.pem` | its key and certificate, PEM; `authority-N` for the Nth authority |
//! | `server.json` | the server's certificate and key |
//! | `tokens/ID.json` | a join token's hash and what it is for |
//! | `tokens.lock`, `access.lock`, `settings.lock` | held by whoever changes a token, or that file |
//! | `issued/` | the names that were given out, and the certificates of each |
//! | `access.json` | users' roles and denied names; may be edited by hand |
//! | `shared` | the hash of what is in the Secret too, if the folder is kept there |
//! | `endpoint` | the URL at which the coordinator served last |
//!
//! Commands on the coordinator's machine write there while the coordinator runs, so everything is
//! read when it is needed.

mod authorities;
mod authority;
mod files;
mod folder;
mod grants;
mod issued;
mod live;
mod own;
mod rights;
mod site;
mod tokens;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use muster_rpc::identity::{BadIdentity, Principal};

use files::lock;
use issued::{Change, Issued};

pub use authorities::Authorities;
pub use authority::{Authority, LEAF_LIFE};
pub use files::{TrustError, now_us};
pub use folder::{Contents, Waiting, contents, note_shared, replace, until_shared};
pub use grants::{Grant, Grants, Role};
pub use live::Trust;
pub(crate) use own::{Certified, Joined};
pub(crate) use rights::{Asking, Host, Rights, Scope, refuse_denied};
pub use site::SiteFiles;
pub use tokens::{Listed, Token, TokenError};

/// The trust folder's name in the state directory.
const FOLDER: &str = "trust";
/// The file there that says where the coordinator served last.
const ENDPOINT: &str = "endpoint";

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
    #[error(
        "the certificates of this coordinator are those of its site (--tls-cert-file), so it gives none; get one from whoever runs the site's authority"
    )]
    Site,
    #[error("the public key is not a P-256 key as SubjectPublicKeyInfo")]
    Key,
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// Makes the authority, or gives an existing one more names. Says whether it is new.
pub fn init(
    state_dir: &Path,
    domain: Option<&str>,
    names: &[String],
) -> Result<(Authorities, bool), TrustError> {
    Authorities::init(&folder(state_dir), domain, names, now_us())
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

/// Whether a coordinator has served with this state directory over TLS, so that it has roles and
/// denials.
pub fn has_grants(state_dir: &Path) -> Result<(), TrustError> {
    let folder = folder(state_dir);
    let is_there = |name: &str| folder.join(name).exists();
    match is_there(authorities::SETTINGS) || is_there(ENDPOINT) {
        true => Ok(()),
        false => Err(TrustError::NoGrants(state_dir.to_owned())),
    }
}

/// The authorities of this state directory, for commands beside the coordinator.
pub fn authorities(state_dir: &Path) -> Result<Authorities, TrustError> {
    Authorities::open(&folder(state_dir))?.ok_or_else(|| TrustError::NotThere(state_dir.to_owned()))
}

/// Begins a change of the authority.
pub fn rotate(state_dir: &Path) -> Result<Authorities, TrustError> {
    Authorities::rotate(&folder(state_dir), now_us())
}

/// The principals that may only have a certificate of the old authority, and until when it is valid, in
/// microseconds since the Unix epoch. Names that are denied do not count. Empty if there is no change.
pub fn needs_old(state_dir: &Path) -> Result<BTreeMap<Principal, u64>, TrustError> {
    let authorities = authorities(state_dir)?;
    who_needs_old(&folder(state_dir), &authorities, now_us())
}

/// Ends the change of the authority. `forced`: although somebody needs the old one. Returns also who
/// does.
pub fn finish(
    state_dir: &Path,
    forced: bool,
) -> Result<(Authorities, BTreeMap<Principal, u64>), TrustError> {
    let folder = folder(state_dir);
    let mut left = BTreeMap::new();
    let done = Authorities::finish(&folder, |authorities| {
        left = who_needs_old(&folder, authorities, now_us())?;
        match left.is_empty() || forced {
            true => Ok(()),
            false => Err(TrustError::OldNeeded(left.clone())),
        }
    })?;
    Ok((done, left))
}

fn who_needs_old(
    folder: &Path,
    authorities: &Authorities,
    now_us: u64,
) -> Result<BTreeMap<Principal, u64>, TrustError> {
    let Some(next) = authorities.next() else {
        return Ok(BTreeMap::new());
    };
    let unrecorded_until_us = match authorities.is_first() {
        true => next.made_us() + LEAF_LIFE.as_micros() as u64,
        false => 0,
    };
    let change = Change {
        next: next.pin(),
        unrecorded_until_us,
    };
    let grants = Grants::new(folder)?;
    let all = Issued::new(folder).all()?.into_iter();
    Ok(all
        .filter_map(|(principal, record)| Some((record.needs_old(change, now_us)?, principal)))
        .filter(|(_, principal)| !grants.is_denied(principal))
        .map(|(until_us, principal)| (principal, until_us))
        .collect())
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
    let text = fs::read_to_string(folder(state_dir).join(ENDPOINT)).ok()?;
    Some(text.trim().to_owned())
}

fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join(FOLDER)
}
