//! The identity of a runner: (boot id, pid, start time). A pid alone may be reused.

use std::io;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::folder::Folder;
use crate::procfs::{self, Stat};
use crate::wire;

/// The lock file that a runner holds as long as it lives.
pub const LOCK: &str = "lock";

/// The content of `runner.json`, written when the runner is ready to be talked to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerIdentity {
    pub v: u32,
    pub pid: i32,
    /// Clock ticks since boot.
    pub start_time: u64,
    pub boot_id: String,
    /// Version and commit of the binary.
    pub version: String,
    /// Version of the control protocol.
    pub control_version: u32,
    /// Port of the served TCPStore.
    #[serde(default)]
    pub store_port: Option<u16>,
    /// Directory of the worker group's cgroup, where one could be made.
    #[serde(default)]
    pub cgroup: Option<std::path::PathBuf>,
    /// The runner's parent, which kills what a killed runner leaves. A runner in the foreground has
    /// none.
    #[serde(default)]
    pub keeper: Option<Keeper>,
    /// The runner keeps a list of its descendants. Older runners do not.
    #[serde(default)]
    pub lists_descendants: bool,
    /// When PID 1 of the runner's PID namespace started, in clock ticks since boot. It tells a
    /// container from the one that was there before.
    #[serde(default)]
    pub init_start: Option<u64>,
}

/// The process that keeps a runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeper {
    pub pid: i32,
    /// Clock ticks since boot.
    pub start_time: u64,
}

impl RunnerIdentity {
    /// The identity of the calling process.
    pub fn own(version: String) -> io::Result<Self> {
        let stat = Stat::of(std::process::id() as i32)?;
        Ok(Self {
            v: wire::VERSION,
            pid: stat.pid,
            start_time: stat.start_time,
            boot_id: procfs::boot_id()?,
            version,
            control_version: wire::VERSION,
            store_port: None,
            cgroup: None,
            keeper: None,
            lists_descendants: true,
            init_start: Stat::of(1).ok().map(|init| init.start_time),
        })
    }
}

/// Whether this very runner lives: same boot, same pid, same start time, and not a zombie.
pub fn alive(identity: &RunnerIdentity) -> bool {
    lives(&identity.boot_id, identity.pid, identity.start_time)
}

/// Whether the keeper of this runner lives.
pub fn kept(identity: &RunnerIdentity) -> bool {
    identity
        .keeper
        .as_ref()
        .is_some_and(|keeper| lives(&identity.boot_id, keeper.pid, keeper.start_time))
}

fn lives(boot_id: &str, pid: i32, start_time: u64) -> bool {
    procfs::boot_id().is_ok_and(|boot| boot == boot_id)
        && Stat::of(pid).is_ok_and(|s| s.start_time == start_time && !s.is_dead())
}

/// Whether any runner lives in `dir`, according to its lock. It is for a directory whose records
/// cannot be read.
pub fn held(dir: &Path) -> bool {
    let Ok(lock) = Folder::of_run(dir).and_then(|folder| folder.open(LOCK)) else {
        return false;
    };
    // The lock is taken and given back at once. It could only disturb a runner that is just
    // starting and has written nothing yet.
    matches!(
        flock(&lock, FlockOperation::NonBlockingLockShared),
        Err(Errno::WOULDBLOCK)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_pid_of_another_time_or_boot_is_another() {
        let me = RunnerIdentity::own("test".into()).unwrap();
        assert!(alive(&me));
        assert!(!alive(&RunnerIdentity {
            start_time: me.start_time + 1,
            ..me.clone()
        }));
        assert!(!alive(&RunnerIdentity {
            boot_id: "another".into(),
            ..me.clone()
        }));
    }

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let stat = Stat::of(child.id() as i32).unwrap();
        let me = RunnerIdentity::own("test".into()).unwrap();
        let child_identity = RunnerIdentity {
            pid: stat.pid,
            start_time: stat.start_time,
            ..me
        };
        while !Stat::of(stat.pid).unwrap().is_dead() {
            std::thread::yield_now();
        }
        assert!(!alive(&child_identity));
        child.wait().unwrap();
    }
}
