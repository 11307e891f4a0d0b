//! How much of a node is in use at one moment, and by which ranks.
//!
//! It changes with every look, so it is not part of the [node report](crate::node_report), which is
//! compared and stored. The coordinator keeps the last usage of each node in memory and decides
//! nothing by it. If something is wrong with a usage, the report has a finding
//! ([`crate::health::usage`]). A value that could not be read is `None`, never 0.

use crate::id::RunId;

/// One look at a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory: Option<Space>,
    /// `available` is the swap space that nothing uses.
    pub swap: Option<Space>,
    /// How many tasks run or wait, in thousandths: means of the last 1, 5 and 15 minutes
    /// (`/proc/loadavg`).
    pub load_milli: Option<[u32; 3]>,
    pub cpu: Option<CpuUsage>,
    /// Processes that the agent can see.
    pub processes: Option<u32>,
    /// The disk of the agent's state directory first, then the disks of the working directories of
    /// the runs that the node holds.
    pub disks: Vec<Disk>,
    pub network: Option<Traffic>,
    /// Each GPU of which anything could be read. One that is cut into MIG instances says neither.
    pub gpus: Vec<GpuUsage>,
    /// Every living rank of every run that the node holds.
    pub ranks: Vec<RankUsage>,
}

/// In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that may still be used without harm. For memory this includes caches that the kernel
    /// gives back (`MemAvailable`). For a disk it excludes what is reserved for root (`f_bavail`).
    pub available: u64,
    pub total: u64,
}

impl Space {
    pub fn used(self) -> u64 {
        self.total.saturating_sub(self.available)
    }
}

/// Means since the agent's previous look, in thousandths of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// CPUs of the machine, whether or not the agent may use them all.
    pub cpus: u32,
    /// The work of all processes of the machine.
    pub all_milli: u32,
    /// The part of `all_milli` by processes that belong to no Muster agent on this machine. `None`
    /// while the node holds no run, because nobody measures it then.
    pub others_milli: Option<u32>,
}

/// How much of one disk is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    pub role: DiskRole,
    /// A directory on the disk.
    pub path: String,
    /// `None`: the disk does not answer, or the directory does not exist.
    pub space: Option<Space>,
}

/// Why a disk is in the usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskRole {
    /// Holds the agent's state and the logs of ranks.
    State,
    /// Holds the working directory of a run.
    Work,
}

/// Bytes since boot over all interfaces but the loopback. A bridge and the interfaces behind it
/// both count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub received: u64,
    pub sent: u64,
}

/// How much of a GPU is in use, by whomever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuUsage {
    pub uuid: String,
    pub memory: Option<Space>,
    /// The part of the last sample period, at most a second, in which a kernel ran.
    pub busy_percent: Option<u32>,
}

/// A rank's process and all its descendants, such as its data loaders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankUsage {
    pub run: RunId,
    pub rank: u32,
    /// Resident memory. Pages that several of the processes share count once for each of them.
    pub memory_bytes: u64,
    /// The mean since the agent's previous look, in thousandths of one CPU. `None` in the first
    /// look at the rank.
    pub cpu_milli: Option<u32>,
}
