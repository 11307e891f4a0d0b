//! How much of a node is in use. `null` means not known.

use muster_proto::v1;
use serde::Serialize;

use super::time;
use crate::output::usage::holds;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Usage {
    /// When the coordinator received it.
    at: Option<String>,
    memory: Option<Space>,
    swap: Option<Space>,
    load: Option<Load>,
    cpu: Option<Cpu>,
    processes: Option<u32>,
    disks: Vec<Disk>,
    network: Option<Network>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpus: Vec<Gpu>,
}

/// `null` means not known.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Gpu {
    uuid: String,
    memory: Option<Space>,
    busy_percent: Option<u32>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Space {
    available_bytes: u64,
    total_bytes: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Load {
    one_minute: f64,
    five_minutes: f64,
    fifteen_minutes: f64,
}

/// In thousandths of one CPU.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cpu {
    cpus: u32,
    used_milli: u32,
    used_by_others_milli: Option<u32>,
}

/// Without `space` the disk did not answer, or the directory does not exist.
#[derive(Debug, Serialize)]
struct Disk {
    path: String,
    holds: &'static str,
    space: Option<Space>,
}

/// Bytes since boot.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    received_bytes: u64,
    sent_bytes: u64,
}

impl Usage {
    pub(super) fn of(usage: v1::Usage, at_unix_us: u64) -> Self {
        let space = |space: v1::Space| Space {
            available_bytes: space.available,
            total_bytes: space.total,
        };
        let mean = |milli: u32| f64::from(milli) / 1_000.0;
        let load = |load: v1::Load| Load {
            one_minute: mean(load.one_milli),
            five_minutes: mean(load.five_milli),
            fifteen_minutes: mean(load.fifteen_milli),
        };
        let cpu = |cpu: v1::CpuUsage| Cpu {
            cpus: cpu.cpus,
            used_milli: cpu.all_milli,
            used_by_others_milli: cpu.others_milli,
        };
        let disk = |disk: v1::DiskUsage| Disk {
            holds: holds(disk.role()),
            path: disk.path,
            space: disk.space.map(space),
        };
        let network = |all: v1::Traffic| Network {
            received_bytes: all.received_bytes,
            sent_bytes: all.sent_bytes,
        };
        let gpu = |gpu: v1::GpuUsage| Gpu {
            uuid: gpu.uuid,
            memory: gpu.memory.map(space),
            busy_percent: gpu.busy_percent,
        };
        Self {
            at: time(at_unix_us),
            memory: usage.memory.map(space),
            swap: usage.swap.map(space),
            load: usage.load.map(load),
            cpu: usage.cpu.map(cpu),
            processes: usage.processes,
            disks: usage.disks.into_iter().map(disk).collect(),
            network: usage.network.map(network),
            gpus: usage.gpus.into_iter().map(gpu).collect(),
        }
    }
}
