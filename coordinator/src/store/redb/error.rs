//! What can be wrong with a state directory and the file in it, and what a person can do.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use crate::store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("state directory {path} cannot be used")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("state directory {path} is in use by another coordinator{}; two must never share one", pid.as_ref().map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    InUse { path: PathBuf, pid: Option<String> },
    #[error(
        "store file {path} is damaged: {what}. Nothing was changed. Put back a copy of the file; or move it away and start with no \
         jobs, which leaves running workers alone but forgets them"
    )]
    Damaged { path: PathBuf, what: String },
    #[error(
        "store file {path} ends with commit {found}, but commit {known} was acknowledged: it is damaged, or an old copy was put back. \
         Nothing was changed. Put back the newest copy; or, to go on without what is lost, remove {}", witness.display()
    )]
    Behind {
        path: PathBuf,
        found: u64,
        known: u64,
        witness: PathBuf,
    },
    #[error(
        "store file {path} has format {found}, this build reads format {known}: use the build that wrote it"
    )]
    Format {
        path: PathBuf,
        found: u64,
        known: u64,
    },
}

impl From<FileError> for StoreError {
    fn from(error: FileError) -> Self {
        StoreError::Unusable(Box::new(error))
    }
}

/// Runs a read of the file. redb returns errors for damage that it looks for, and panics on some
/// other damage.
pub(super) fn reading<T>(
    path: &Path,
    read: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(damaged(path, "its contents contradict each other")))
}

pub(super) fn damaged(path: &Path, what: impl ToString) -> StoreError {
    FileError::Damaged {
        path: path.to_owned(),
        what: what.to_string(),
    }
    .into()
}

pub(super) fn unwritten(path: &Path, source: ::redb::Error) -> StoreError {
    StoreError::Write {
        store: format!("store file {}", path.display()),
        source: Box::new(source),
    }
}
