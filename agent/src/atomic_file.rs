//! The agent's own files: each exists as a whole or not at all.

use std::{io, path::Path};

use muster_runner::Folder;

/// The most that is read of a file of the agent's own. A ledger has some hundred bytes for each run.
const FILE_MAX: u64 = 16 << 20;

/// Writes a file that only this user can read. A reader, or an agent after a crash, finds the old
/// text or the new one. The file is on disk when this returns.
pub(crate) fn write_atomic(path: &Path, text: impl AsRef<[u8]>) -> io::Result<()> {
    let (folder, name) = place(path)?;
    folder.replace(name, text.as_ref())
}

/// What is in such a file. On a machine workers have the agent's user, so they can put anything there.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let (folder, name) = place(path)?;
    folder.read(name, FILE_MAX)
}

fn place(path: &Path) -> io::Result<(Folder, &std::ffi::OsStr)> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "names no file"))?;
    let dir = path.parent().unwrap_or(Path::new("."));
    Ok((Folder::trusted(dir)?, name))
}
