//! What the looking threads say to the one that judges (`senses`), and what a look contains.

use std::collections::BTreeMap;

use muster_core::{
    health::{Reading, Source, Xid, kernel_log::Line},
    node_report::{
        devices::Given,
        gpu::{Driver, Gpu},
        network::Network,
    },
};

use super::{host::Machine, pci};

/// A message of another thread.
pub(super) enum Sense {
    Gpus(Box<GpuLook>),
    Machine(Box<MachineLook>),
    Xid(Xid),
    KernelLine(Line),
    /// Something happened that only a look at the GPUs can show.
    LookAgain,
    /// The peers that the node still waits for.
    Peers(Vec<Reading>),
    /// The state of the clock.
    Skew(Reading),
    /// How the disk of the state directory handles the agent's writes.
    StateDisk(Vec<Reading>),
    /// How much of the machine is in use.
    Usage(Vec<Reading>),
    /// The devices that the kubelet has given to pods, or why it does not say.
    Kubelet(Result<Vec<Given>, String>),
}

/// One look at the GPUs.
#[derive(Clone, Debug, Default)]
pub(super) struct GpuLook {
    /// This node has no driver, so there is nothing to watch.
    pub(super) absent: bool,
    /// Why the list may be incomplete.
    pub(super) error: Option<String>,
    /// NVML cannot be opened, because the kernel module and the library differ in version.
    pub(super) mismatch: bool,
    pub(super) unavailable: bool,
    /// The driver went away and came back.
    pub(super) reloaded: bool,
    pub(super) driver: Option<Driver>,
    /// Every GPU that this process has ever seen, as last read, including lost ones.
    pub(super) gpus: Vec<Gpu>,
    /// How many handles could be obtained.
    pub(super) present: u32,
    pub(super) readings: Vec<(Source, Vec<Reading>)>,
}

/// One look at the machine.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineLook {
    pub(super) machine: Machine,
    pub(super) network: Network,
    /// Addresses of the GPUs that the driver holds.
    pub(super) gpus: Vec<String>,
    /// Every device of the report that has a place in the PCI tree, by address.
    pub(super) devices: BTreeMap<String, pci::Device>,
    pub(super) readings: Vec<(Source, Vec<Reading>)>,
}
