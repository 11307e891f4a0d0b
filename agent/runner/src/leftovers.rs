//! What a runner that was itself killed may leave behind: its worker group's cgroup, perhaps with
//! somebody in it.
//!
//! Workers end with their runner by death signal and lifeline; a shim that was stopped at that
//! moment could not act. The cgroup holds whoever that leaves, so an agent empties it before it
//! says that nothing lives.

use std::fs;
use std::io;
use std::path::Path;

use crate::identity::{RunnerIdentity, alive};

/// What became of the cgroup of a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// The runner lives: the group is its business, nothing was done.
    Held,
    /// It had no cgroup of its own, so this says nothing.
    Unknown,
    /// All in it were told to end; ask again until it is empty.
    Killed,
    /// Nobody is in it; the directory is removed.
    Empty,
}

/// Kills what is left in the cgroup of a runner that is gone. To be called until it says
/// [`Leftovers::Empty`].
pub fn clear(identity: &RunnerIdentity) -> io::Result<Leftovers> {
    if alive(identity) {
        return Ok(Leftovers::Held);
    }
    let Some(path) = &identity.cgroup else {
        return Ok(Leftovers::Unknown);
    };
    // Another boot has other cgroups, and nobody of this one.
    if crate::procfs::boot_id()? != identity.boot_id {
        return Ok(Leftovers::Empty);
    }
    match populated(path) {
        Ok(false) => match fs::remove_dir(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(Leftovers::Empty),
        },
        Ok(true) => fs::write(path.join("cgroup.kill"), "1").map(|()| Leftovers::Killed),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Leftovers::Empty),
        Err(e) => Err(e),
    }
}

/// Whether anybody lives in this cgroup or below it.
pub fn populated(cgroup: &Path) -> io::Result<bool> {
    Ok(!fs::read_to_string(cgroup.join("cgroup.events"))?
        .lines()
        .any(|l| l == "populated 0"))
}
