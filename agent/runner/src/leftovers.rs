//! What a killed runner may leave behind: its worker group's cgroup, perhaps with processes in it.
//!
//! The death signal and the lifeline end workers with their runner. A shim that was stopped at that
//! moment could not act. The cgroup still holds such processes, so an agent empties it before it
//! says that nothing lives.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::folder::read_named;
use crate::identity::{RunnerIdentity, alive};

/// The kernel writes two lines into this file.
const EVENTS_MAX: u64 = 4_096;

/// What became of the cgroup of a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// The runner lives, so the group is its business. Nothing was done.
    Held,
    /// The runner had no cgroup of its own, so this proves nothing.
    Unknown,
    /// All processes in it were killed. Ask again until it is empty.
    Killed,
    /// No process is in it, and the directory is removed.
    Empty,
}

/// Kills what is left in the cgroup of a runner that is gone. Call it until it returns
/// [`Leftovers::Empty`].
pub fn clear(identity: &RunnerIdentity) -> io::Result<Leftovers> {
    if alive(identity) {
        return Ok(Leftovers::Held);
    }
    let Some(path) = &identity.cgroup else {
        return Ok(Leftovers::Unknown);
    };
    // The cgroup was of another boot, so no process is left in it.
    if crate::procfs::boot_id()? != identity.boot_id {
        return Ok(Leftovers::Empty);
    }
    match populated(path) {
        Ok(false) => match fs::remove_dir(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(Leftovers::Empty),
        },
        Ok(true) => kill(path).map(|()| Leftovers::Killed),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Leftovers::Empty),
        Err(e) => Err(e),
    }
}

/// Kills all processes in this cgroup and below it.
///
/// # Errors
/// `NotFound`: the kernel is older than 5.14 and has no such file.
pub fn kill(cgroup: &Path) -> io::Result<()> {
    // A file that is created here is refused for another reason. The path is a runner's word, in whose
    // place a job may name a FIFO.
    let mut file = File::options()
        .write(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32)
        .open(cgroup.join("cgroup.kill"))?;
    file.write_all(b"1")
}

/// Whether any process lives in this cgroup or below it.
pub fn populated(cgroup: &Path) -> io::Result<bool> {
    let events = read_named(&cgroup.join("cgroup.events"), EVENTS_MAX)?;
    Ok(!events.split(|b| *b == b'\n').any(|l| l == b"populated 0"))
}
