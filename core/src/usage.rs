//! How much of a node is in use at one moment, and by whom.
//!
//! It changes with every look, so it is no part of the [node report](crate::node_report), which is
//! compared and stored. The coordinator keeps the last usage of each node in memory and decides
//! nothing by it; what is wrong with it is a finding of the report ([`crate::health::usage`]).
//! Whatever could not be read is `None`, never 0.

use crate::run::RunId;

/// One look at a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory: Option<Space>,
    /// Its `available` is what nobody has swapped anything to.
    pub swap: Option<Space>,
    /// Means of the last 1, 5 and 15 minutes, in thousandths: how many tasks run or wait
    /// (`/proc/loadavg`).
    pub load_milli: Option<[u32; 3]>,
    pub cpu: Option<CpuUsage>,
    /// Processes that the agent can see.
    pub processes: Option<u32>,
    /// The disk of the agent's state directory first, then those of the working directories of the
    /// runs it holds.
    pub disks: Vec<Disk>,
    pub network: Option<Traffic>,
    /// Every living rank of every run that is held.
    pub ranks: Vec<RankUsage>,
}

/// In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that may still be taken without harm. Memory: with caches that the kernel gives back
    /// (`MemAvailable`). A disk: without what is reserved for root (`f_bavail`).
    pub available: u64,
    pub total: u64,
}

impl Space {
    pub fn used(self) -> u64 {
        self.total.saturating_sub(self.available)
    }
}

/// Means since the look before, in thousandths of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// CPUs of the machine, whether or not the agent may use them all.
    pub cpus: u32,
    /// All that work on the machine.
    pub all_milli: u32,
    /// Those of them that are no process of a Muster agent on this machine. `None` while no run is
    /// held: nobody looks then.
    pub others_milli: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    pub role: DiskRole,
    /// A directory on it.
    pub path: String,
    /// `None`: it does not answer, or the directory is not there.
    pub space: Option<Space>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskRole {
    /// The agent's state and the logs of ranks.
    State,
    /// Where a run works.
    Work,
}

/// Bytes since boot over all interfaces but the loopback. A bridge and what is behind it both
/// count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub received: u64,
    pub sent: u64,
}

/// A rank's process and all that descends from it, as its data loaders do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankUsage {
    pub run: RunId,
    pub rank: u32,
    /// Resident memory. Pages that several of the processes share are counted for each.
    pub memory_bytes: u64,
    /// The mean since the look before, in thousandths of one CPU. `None` in the first look.
    pub cpu_milli: Option<u32>,
}
