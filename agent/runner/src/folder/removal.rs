//! Removes a folder with all that a job has put below it: links to elsewhere, folders that nobody may
//! enter, and folders in folders, as deep as the disk takes them.
//!
//! A folder that is found in a folder is moved up to the top, and its turn comes later. So neither the
//! stack nor the number of open files nor the memory grows with what is there, and an interrupted removal
//! leaves everything below the top.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::chance::chance;

/// How many files and folders one call removes, so that a process which makes new ones all the time does
/// not hold it for ever. Ten million take some minutes.
const REMOVED_MAX: u64 = 10_000_000;

/// Removes `name` in `parent`. It goes on after what cannot be removed, and returns the first error.
pub(super) fn remove(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    if unlink(parent, name)? {
        return Ok(());
    }
    let emptied = clear(parent, name, &[]);
    match (rmdir(parent, name), emptied) {
        (Ok(()), _) => Ok(()),
        (Err(_), Err(trouble)) => Err(trouble),
        (Err(e), Ok(())) => Err(e),
    }
}

/// Removes all that is in the folder `name` in `parent`, except what has one of these names.
pub(super) fn clear(parent: &OwnedFd, name: &OsStr, kept: &[&str]) -> io::Result<()> {
    let mut removal = Removal {
        top: enter(parent, name)?,
        kept,
        removed: 0,
        trouble: None,
    };
    // A pass may or may not see what is moved to the top while it goes on.
    loop {
        let before = removal.removed;
        removal.pass()?;
        if removal.removed == before || removal.removed >= REMOVED_MAX {
            break;
        }
        removal.trouble = None;
    }
    removal.trouble.map_or(Ok(()), Err)
}

struct Removal<'a> {
    top: OwnedFd,
    kept: &'a [&'a str],
    removed: u64,
    /// The first of the last pass.
    trouble: Option<io::Error>,
}

impl Removal<'_> {
    fn pass(&mut self) -> io::Result<()> {
        for entry in Dir::read_from(&self.top)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." || self.kept.iter().any(|kept| name == *kept) {
                continue;
            }
            let gone = match unlink(&self.top, name) {
                Ok(false) => self.flatten(name).and_then(|()| rmdir(&self.top, name)),
                other => other.map(drop),
            };
            self.count(gone);
            if self.removed >= REMOVED_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Removes the files of a folder at the top, and moves its folders beside it.
    fn flatten(&mut self, name: &OsStr) -> io::Result<()> {
        let folder = enter(&self.top, name)?;
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let gone = match unlink(&folder, name) {
                Ok(false) => self.raise(&folder, name),
                other => other.map(drop),
            };
            self.count(gone);
        }
        Ok(())
    }

    fn raise(&self, folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
        // The kernel writes into a folder that gets another parent.
        permit(folder, name)?;
        let aside = OsString::from(format!(".gone.{:016x}", chance()));
        Ok(rustix::fs::renameat(folder, name, &self.top, &aside)?)
    }

    fn count(&mut self, gone: io::Result<()>) {
        match gone {
            Ok(()) => self.removed += 1,
            Err(e) => drop(self.trouble.get_or_insert(e)),
        }
    }
}

/// Removes a name that is no folder's. False: it is one.
fn unlink(folder: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn rmdir(folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Opens a folder whatever its mode is.
fn enter(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    permit(parent, name)?;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Lets this user do everything with a folder.
fn permit(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    // The mode of a descriptor without rights can be changed through its path only.
    let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
    let mode = fs::metadata(&path)?.permissions().mode();
    match mode & 0o700 == 0o700 {
        true => Ok(()),
        false => fs::set_permissions(&path, Permissions::from_mode(0o700)),
    }
}
