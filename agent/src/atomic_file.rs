//! Writes files atomically: a file exists as a whole or not at all.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Writes a file that only this user can read. A reader, or an agent after a crash, finds the old
/// text or the new one. The file is on disk when this returns.
pub(crate) fn write_atomic(path: &Path, text: impl AsRef<[u8]>) -> io::Result<()> {
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "names no file"))?;
    let temporary = dir.join(format!(".{}.tmp", name.to_string_lossy()));
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(text.as_ref())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(dir)?.sync_all()
}
