//! Reading and writing the trust folder. Every file is replaced whole, and only the coordinator's
//! user can read it.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

pub use muster_rpc::credentials::now_us;
use muster_rpc::{credentials::write_secret, identity::BadIdentity, tls::TlsError};

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("{}: {why}", path.display())]
    File { path: PathBuf, why: io::Error },
    #[error("{}: {why}", path.display())]
    Malformed { path: PathBuf, why: String },
    #[error(transparent)]
    Domain(BadIdentity),
    #[error("issue a certificate: {0}")]
    Issue(#[from] rcgen::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("there is no certificate authority in {}; make one with `muster-coordinator init`", .0.display())]
    NotThere(PathBuf),
    #[error("there is a certificate authority for the trust domain {0} already")]
    OtherDomain(String),
}

pub(super) fn read(path: &Path) -> Result<Option<String>, TrustError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(why) => Err(TrustError::File {
            path: path.to_owned(),
            why,
        }),
    }
}

pub(super) fn read_json<T: serde::de::DeserializeOwned>(
    path: &Path,
) -> Result<Option<T>, TrustError> {
    let malformed = |why: serde_json::Error| TrustError::Malformed {
        path: path.to_owned(),
        why: why.to_string(),
    };
    read(path)?
        .map(|text| serde_json::from_str(&text).map_err(malformed))
        .transpose()
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), TrustError> {
    write_secret(path, text).map_err(|why| TrustError::File {
        path: path.to_owned(),
        why,
    })
}

pub(super) fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), TrustError> {
    let text = serde_json::to_string_pretty(value).expect("plain values have a JSON form");
    write(path, &format!("{text}\n"))
}

/// Waits until nobody else holds this lock file. The lock ends with the file that is returned.
pub(super) fn lock(path: &Path) -> Result<fs::File, TrustError> {
    let taken = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .and_then(|file| file.lock().map(|()| file));
    taken.map_err(|why| TrustError::File {
        path: path.to_owned(),
        why,
    })
}
