//! An identity on disk: certificate, private key, and the authorities that vouch for a coordinator.
//!
//! They are one file, so that a reader never sees half of a renewal. It is read at every dial, so a
//! renewal needs no restart.

use std::{
    collections::BTreeSet,
    fs, io,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::tls::{ClientTls, Pair, Pin, TlsError, Trust};

/// What [`enroll`](crate::enroll) got for a token.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// The coordinator that issued them, as `https://HOST:PORT`.
    pub server: String,
    /// `host/NAME` or `user/NAME`.
    pub principal: String,
    /// PEM, with the key below.
    pub certificate: String,
    pub key: String,
    /// PEM, all that may vouch for the coordinator.
    pub authorities: String,
    /// Microseconds since the Unix epoch.
    pub not_before_us: u64,
    pub not_after_us: u64,
}

/// Never shows the key.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("principal", &self.principal)
            .field("not_after_us", &self.not_after_us)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("read {}: {why}", path.display())]
    Read { path: PathBuf, why: io::Error },
    #[error("write {}: {why}", path.display())]
    Write { path: PathBuf, why: io::Error },
    #[error("{} holds no credentials: {why}", path.display())]
    Malformed { path: PathBuf, why: String },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Credentials {
    pub fn read(path: &Path) -> Result<Self, CredentialsError> {
        serde_json::from_str(&text(path)?).map_err(|e| CredentialsError::Malformed {
            path: path.to_owned(),
            why: e.to_string(),
        })
    }

    /// Replaces the file at once, readable by its owner only. The folder is made if it is not there.
    pub fn write(&self, path: &Path) -> Result<(), CredentialsError> {
        let text = serde_json::to_string_pretty(self).expect("text and numbers have a JSON form");
        write_secret(path, &text).map_err(|why| CredentialsError::Write {
            path: path.to_owned(),
            why,
        })
    }

    /// Whether two thirds of its life are over, so that it should be renewed.
    pub fn is_due(&self, now_us: u64) -> bool {
        let life = self.not_after_us.saturating_sub(self.not_before_us);
        now_us >= self.not_before_us + life / 3 * 2
    }

    pub fn is_expired(&self, now_us: u64) -> bool {
        now_us >= self.not_after_us
    }

    /// The authorities that may vouch for the coordinator.
    pub fn pins(&self) -> BTreeSet<Pin> {
        Pin::all_of_pem(&self.authorities)
    }

    pub fn tls(&self) -> Result<ClientTls, TlsError> {
        let own = Pair {
            chain: self.certificate.clone(),
            key: self.key.clone(),
        };
        ClientTls::new(&Trust::Authorities(self.authorities.clone()), Some(&own))
    }
}

fn text(path: &Path) -> Result<String, CredentialsError> {
    fs::read_to_string(path).map_err(|why| CredentialsError::Read {
        path: path.to_owned(),
        why,
    })
}

/// Microseconds since the Unix epoch, by the wall clock that certificates go by.
pub fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}

/// Replaces a file whose content is a secret, whole or not at all.
pub fn write_secret(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    // Two writers must not write into one new file.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let new = folder.join(format!(".new-{}-{number}", std::process::id()));
    // What an earlier process of this number left may have other rights.
    match fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn credentials_are_for_their_owner_only_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identity/credentials.json");
        let given = Credentials {
            server: "https://a:1".into(),
            principal: "host/n7".into(),
            certificate: String::new(),
            key: "very secret".into(),
            authorities: String::new(),
            not_before_us: 0,
            not_after_us: 30,
        };
        given.write(&path).unwrap();
        given.write(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = Credentials::read(&path).unwrap();
        assert_eq!((read.key.as_str(), read.not_after_us), ("very secret", 30));
        assert!(!format!("{read:?}").contains("secret"));
        assert!(!read.is_due(19) && read.is_due(20) && !read.is_expired(29));
        assert!(read.is_expired(30));
    }

    #[test]
    fn what_is_no_credentials_is_said_to_be_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials.json");
        let missing = Credentials::read(&path).unwrap_err().to_string();
        assert!(missing.starts_with("read ") && missing.ends_with("(os error 2)"));
        fs::write(&path, "{}").unwrap();
        let error = Credentials::read(&path).unwrap_err().to_string();
        assert!(
            error.contains("holds no credentials: missing field"),
            "{error}"
        );
    }
}
