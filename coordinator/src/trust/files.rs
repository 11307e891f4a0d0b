//! Reading and writing the trust folder. Every file is replaced whole, and only the coordinator's
//! user can read it.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

pub use muster_rpc::credentials::now_us;
use muster_rpc::{
    credentials::write_secret,
    identity::{BadIdentity, Principal},
    tls::TlsError,
};

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
    #[error(
        "no coordinator has roles and denials in {}: make a certificate authority with `muster-coordinator init`, or start one there with \
         --tls-cert-file", .0.display()
    )]
    NoGrants(PathBuf),
    #[error("there is a certificate authority for the trust domain {0} already")]
    OtherDomain(String),
    #[error(
        "a change of the authority is under way already; `muster-coordinator authority status` says who still needs the old one, \
         and `muster-coordinator authority finish` ends the change"
    )]
    Changing,
    #[error(
        "no change of the authority is under way; `muster-coordinator authority rotate` begins one"
    )]
    NotChanging,
    #[error(
        "the change holds on this machine, and is not in the Secret yet, so another coordinator would not know of it when it takes over; make \
         sure that this is the pod of the coordinator that decides, and that it reaches the API server (its log says), and run this again"
    )]
    NotShared,
    /// With the time until which each needs it, in microseconds since the Unix epoch.
    #[error("{} still have only certificates of the old authority", .0.len())]
    OldNeeded(BTreeMap<Principal, u64>),
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
    #[cfg(test)]
    crash::step(path)?;
    write_secret(path, text).map_err(|why| TrustError::File {
        path: path.to_owned(),
        why,
    })
}

pub(super) fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), TrustError> {
    let text = serde_json::to_string_pretty(value).expect("plain values have a JSON form");
    write(path, &format!("{text}\n"))
}

/// Removes a file that nobody reads any more. If it cannot be removed, it stays.
pub(super) fn remove(path: &Path) -> Result<(), TrustError> {
    #[cfg(test)]
    crash::step(path)?;
    let _ = fs::remove_file(path);
    Ok(())
}

/// Differs for each version of a file: every writer of ours replaces it, which makes another inode.
pub(super) type Version = (SystemTime, u64, u64);

/// `None`: the file cannot be looked at.
pub(super) fn version(path: &Path) -> Option<Version> {
    let data = fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.ino(), data.len()))
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

/// Ends what a test does in the middle: every change of a file is one step, and after so many steps
/// the next fails, as if the process had been killed there.
#[cfg(test)]
pub(super) mod crash {
    use std::{cell::Cell, io, path::Path};

    use super::TrustError;

    thread_local! {
        static LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
    }

    /// Does something, of which only so many steps succeed.
    pub(in crate::trust) fn after<T>(steps: u32, what: impl FnOnce() -> T) -> T {
        LEFT.set(steps);
        let done = what();
        LEFT.set(u32::MAX);
        done
    }

    pub(super) fn step(path: &Path) -> Result<(), TrustError> {
        match LEFT.get() {
            0 => Err(TrustError::File {
                path: path.to_owned(),
                why: io::Error::other("the test ends here"),
            }),
            left => {
                LEFT.set(left.saturating_sub(1));
                Ok(())
            }
        }
    }
}
