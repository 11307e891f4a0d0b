//! The machine around the GPUs, looked at on a thread of its own: a counter of a sick NIC may be slow to read, and must not hold up NVML's look.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
    thread,
    time::Instant,
};

use muster_core::{
    health::{Reading, Source, Subject, Value},
    node_report::network::Network,
};
use tracing::warn;

use super::{
    Pace,
    host::{self, Machine},
    network, pci,
    ports::{self, Used},
    roots::Roots,
    senses::Sense,
};

/// One look at the machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    pub(super) machine: Machine,
    pub(super) network: Network,
    /// Addresses of the GPUs that the driver holds.
    pub(super) gpus: Vec<String>,
    /// Every device with a place in the PCI tree that the report speaks of, by address.
    pub(super) devices: BTreeMap<String, pci::Device>,
    pub(super) readings: Vec<(Source, Vec<Reading>)>,
}

pub(super) fn start(roots: Roots, state_dir: PathBuf, pace: Pace, out: SyncSender<Sense>, over: Arc<AtomicBool>) {
    let look = move || look_for_ever(&roots, &state_dir, pace, &out, &over);
    if let Err(e) = thread::Builder::new().name("machine".into()).spawn(look) {
        warn!("the machine is not watched: no thread: {e}");
    }
}

fn look_for_ever(roots: &Roots, state_dir: &Path, pace: Pace, out: &SyncSender<Sense>, over: &AtomicBool) {
    let (mut look, mut used, mut listed): (Look, Used, Option<Instant>) = Default::default();
    while !over.load(Ordering::Relaxed) {
        look.readings.clear();
        look.network = network::read(roots);
        if listed.is_none_or(|at| at.elapsed() >= pace.slow) {
            listed = Some(Instant::now());
            look.machine = host::read(roots);
            look.gpus = pci::gpus(roots);
            look.readings.push((Source::Node, node(roots, state_dir, &look)));
        }
        let nics = look.network.rdma.iter().map(|device| &device.pci).chain(look.network.interfaces.iter().map(|i| &i.pci));
        let addresses: Vec<String> = nics.chain(&look.gpus).filter(|address| !address.is_empty()).cloned().collect();
        look.devices.retain(|address, _| addresses.contains(address));
        for address in addresses {
            if !look.devices.contains_key(&address)
                && let Some(device) = pci::device(roots, &address)
            {
                look.devices.insert(address, device);
            }
        }
        look.readings.push((Source::Network, ports::readings(roots, &look.network, &mut used)));
        if out.send(Sense::Machine(Box::new(look.clone()))).is_err() {
            return;
        }
        thread::sleep(pace.fast);
    }
}

fn node(roots: &Roots, state_dir: &Path, look: &Look) -> Vec<Reading> {
    let reading = |check, value, words: &str| Reading { check, subject: Subject::Node, value, words: words.to_owned() };
    let host = &look.machine.host;
    let mut all = Vec::new();
    if let Some(bytes) = host.shm_bytes {
        all.push(reading("shm-small", Value::Level(bytes), "size of /dev/shm in bytes"));
    }
    if let Some(gone) = host::fabric_manager_gone(roots) {
        all.push(reading("fabric-manager", Value::Flag(gone), "the fabric manager of this NVSwitch machine is not running"));
    }
    let gpu_direct = look.gpus.is_empty() || look.network.rdma.is_empty() || host.peermem;
    all.push(reading("rdma-no-peermem", Value::Flag(!gpu_direct), "RDMA devices and GPUs, but no nvidia-peermem module"));
    if roots.is_real()
        && let Ok(disk) = rustix::fs::statvfs(state_dir)
    {
        let percent = disk.f_bavail * 100 / disk.f_blocks.max(1);
        all.push(reading("disk-full", Value::Level(percent), "percent free where the agent keeps its state"));
    }
    all
}
