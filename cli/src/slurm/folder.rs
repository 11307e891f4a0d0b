//! The directory of a daemon on its own node: state, sockets and logs of ranks. It is local, because a shared
//! file system keeps neither sockets nor locks well, and it is gone with the step.

use std::{
    env, fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use crate::fail::Failure;

/// Makes it. It must be new, so that nobody else who can write there has prepared it.
pub(super) fn make(id: &str, what: &str) -> Result<PathBuf, Failure> {
    let bases = ["SLURM_TMPDIR", "TMPDIR"].map(|name| env::var_os(name).map(PathBuf::from));
    let base = bases.into_iter().flatten().find(|base| base.is_dir());
    let base = base.unwrap_or_else(|| PathBuf::from("/tmp"));
    let dir = base.join(format!("muster-{id}-{what}"));
    let made = fs::DirBuilder::new().mode(0o700).create(&dir);
    made.map_err(|e| Failure::request(format!("{}: {e}", dir.display())))?;
    Ok(dir)
}

pub(super) fn remove(dir: &Path) -> io::Result<()> {
    fs::remove_dir_all(dir)
}
