//! One agent per state directory: an exclusive lock on `DIR/lock`, held until the process ends in
//! any way.

use std::{
    fs::{DirBuilder, File},
    io::{self, Read, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use muster_runner::Folder;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    #[error("state directory {}: {holder} holds it; stop that agent or give this one a --state-dir of its own", dir.display())]
    Taken { dir: PathBuf, holder: String },
    #[error("state directory {}", dir.display())]
    Io {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The held lock. Dropping it lets the next agent in.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Makes the directory, which only this user can read, and locks it.
pub(crate) fn take(dir: &Path, node: &str) -> Result<Lock, LockError> {
    let io = |source: io::Error| LockError::Io {
        dir: dir.to_owned(),
        source,
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(io)?;
    // A link would let its target be emptied.
    let file = { Folder::trusted(dir) }
        .and_then(|folder| folder.lock("lock"))
        .map_err(io)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            // The holder's text about itself is only for the message.
            let _ = (&file).take(200).read_to_string(&mut holder);
            let holder = if holder.trim().is_empty() {
                "another agent".to_owned()
            } else {
                holder.trim().to_owned()
            };
            return Err(LockError::Taken {
                dir: dir.to_owned(),
                holder,
            });
        }
        Err(e) => return Err(io(e.into())),
    }
    file.set_len(0).map_err(io)?;
    writeln!(
        &file,
        "the agent of node {node}, process {}",
        std::process::id()
    )
    .map_err(io)?;
    Ok(Lock { _file: file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_agent_is_told_who_is_first() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/b");
        let first = take(&state, "n1").unwrap();
        let error = take(&state, "n2").unwrap_err().to_string();
        let me = std::process::id();
        let text = format!(
            "state directory {}: the agent of node n1, process {me} holds it; stop that agent or give this one a --state-dir of its own",
            state.display()
        );
        assert_eq!(error, text);
        drop(first);
        take(&state, "n1").unwrap();
    }
}
