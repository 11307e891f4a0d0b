//! Facts about a node that would break a launch on it, found before anything is started. NCCL
//! reacts to most of them with a hang, or with an error that names something else. This module
//! judges the node's own report. The agent itself checks whether interpreter and script exist.

use std::fmt;

use crate::{
    nccl::profile::Transport,
    node_report::{Gpu, NodeReport},
    run::{Assignment, DueTo},
};

/// Two ranks on a node talk through shared memory. NCCL takes some 10 MiB for each pair of ranks
/// and channel, and a DataLoader takes as much as a few batches. Containers get 64 MiB by default,
/// which ends in a "bus error" in the middle of training. An operator who has set the size on
/// purpose gives at least this much.
pub const SHM_MIN: u64 = 1 << 30;
/// RDMA locks the memory that it sends from. The usual default is 64 KiB or 8 MiB, which ends in
/// "Cannot allocate memory" in `ibv_reg_mr`. Below this limit not even NCCL's own buffers of one
/// node fit (4 MiB for each channel and peer).
pub const MEMLOCK_MIN: u64 = 1 << 30;

/// Why this node must not start the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    Shm { bytes: u64, ranks: u32 },
    Memlock { bytes: u64, transport: Transport },
    DeviceFile { name: String },
    GpuGone { uuid: String },
    Occupied { gpu: String, pid: u32, name: String },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        match self {
            Unfit::Shm { bytes, ranks } => write!(
                f,
                "/dev/shm is {} MiB, and {ranks} ranks of one node need {} MiB (mount it larger: --shm-size, or a memory volume at /dev/shm)",
                bytes / MIB,
                SHM_MIN / MIB
            ),
            Unfit::Memlock { bytes, transport } => write!(
                f,
                "workers may lock {} KiB of memory, and {transport} registers {} MiB or more (LimitMEMLOCK=infinity, or the capability IPC_LOCK)",
                bytes / 1024,
                MEMLOCK_MIN / MIB
            ),
            Unfit::DeviceFile { name } => write!(
                f,
                "/dev/{name} is missing, without which CUDA cannot use a GPU"
            ),
            Unfit::GpuGone { uuid } => write!(f, "{uuid} is not among this node's GPUs any more"),
            Unfit::Occupied { gpu, pid, name } => {
                write!(
                    f,
                    "{gpu} is used by process {pid} ({name}), which no job of Muster started"
                )
            }
        }
    }
}

/// Whose doing it is that the node is not fit. `None`: it is fit.
pub fn due_to(unfit: &[Unfit]) -> Option<DueTo> {
    let is_strangers = |unfit: &Unfit| matches!(unfit, Unfit::Occupied { .. });
    match unfit {
        [] => None,
        all if all.iter().all(is_strangers) => Some(DueTo::Stranger),
        _ => Some(DueTo::Node),
    }
}

/// All reasons against the launch. `is_ours`: whether a process belongs to a run that this agent
/// holds, or has ended since the report was made.
pub fn unfit(
    assignment: &Assignment,
    report: &NodeReport,
    is_ours: impl Fn(u32) -> bool,
) -> Vec<Unfit> {
    let mut found = Vec::new();
    let host = &report.host;
    if assignment.gpus.is_empty() {
        return found;
    }
    if let Some(bytes) = host
        .shm_bytes
        .filter(|bytes| assignment.proc_per_node > 1 && *bytes < SHM_MIN)
    {
        found.push(Unfit::Shm {
            bytes,
            ranks: assignment.proc_per_node,
        });
    }
    let transport = assignment.profile.transport;
    if let Some(bytes) = host.memlock_bytes.filter(|bytes| {
        transport != Transport::Socket && assignment.node_count > 1 && *bytes < MEMLOCK_MIN
    }) {
        found.push(Unfit::Memlock { bytes, transport });
    }
    let mut given: Vec<&Gpu> = Vec::new();
    for uuid in &assignment.gpus {
        match report.gpu_of(uuid) {
            Some(gpu) => given.push(gpu),
            // If NVML does not answer, the last list may be incomplete.
            None if report.gpu_error.is_none() => found.push(Unfit::GpuGone { uuid: uuid.clone() }),
            None => {}
        }
    }
    // An empty list means that it could not be read.
    if !host.gpu_device_files.is_empty() {
        let own = given
            .iter()
            .filter_map(|gpu| Some(format!("nvidia{}", gpu.minor?)));
        let needed = ["nvidiactl".to_owned(), "nvidia-uvm".to_owned()]
            .into_iter()
            .chain(own);
        found.extend(
            needed
                .filter(|name| !host.gpu_device_files.contains(name))
                .map(|name| Unfit::DeviceFile { name }),
        );
    }
    for gpu in given {
        let stray = gpu.processes.iter().filter(|process| !is_ours(process.pid));
        found.extend(stray.map(|process| Unfit::Occupied {
            gpu: gpu.uuid.clone(),
            pid: process.pid,
            name: process.name.clone(),
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        nccl::profile::tests::dgx, node::turn::tests::assignment, node_report::gpu::GpuProcess,
    };

    fn eight() -> Assignment {
        let gpus = (0..8).map(|i| format!("GPU-{i}")).collect();
        let mut run = Assignment {
            gpus,
            proc_per_node: 8,
            ..assignment("a", 1)
        };
        run.profile.transport = Transport::Infiniband;
        run
    }

    fn node() -> NodeReport {
        let mut report = dgx();
        (report.host.shm_bytes, report.host.memlock_bytes) = (Some(64 << 30), Some(u64::MAX));
        for (i, gpu) in report.gpus.iter_mut().enumerate() {
            gpu.minor = Some(i as u32);
            report.host.gpu_device_files.push(format!("nvidia{i}"));
        }
        report
    }

    fn said(report: &NodeReport) -> Vec<String> {
        unfit(&eight(), report, |pid| pid == 7)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_sound_node_is_fit() {
        assert!(said(&node()).is_empty());
        assert!(
            unfit(&assignment("a", 1), &NodeReport::default(), |_| false).is_empty(),
            "nothing is asked of a node without GPUs"
        );
        let unknown = NodeReport {
            gpus: node().gpus,
            ..NodeReport::default()
        };
        assert!(
            said(&unknown).is_empty(),
            "what could not be read is not held against it"
        );
    }

    #[test]
    fn each_reason_has_its_words() {
        let mut report = node();
        report.host.shm_bytes = Some(64 << 20);
        report.host.memlock_bytes = Some(64 << 10);
        report
            .host
            .gpu_device_files
            .retain(|name| name != "nvidia-uvm" && name != "nvidia3");
        report.gpus.remove(5);
        report.gpus[0].processes = vec![
            GpuProcess {
                pid: 7,
                name: "ours".into(),
                memory_bytes: 1 << 30,
            },
            GpuProcess {
                pid: 9,
                name: "python".into(),
                memory_bytes: 1 << 30,
            },
        ];
        assert_eq!(
            said(&report),
            [
                "/dev/shm is 64 MiB, and 8 ranks of one node need 1024 MiB (mount it larger: --shm-size, or a memory volume at /dev/shm)",
                "workers may lock 64 KiB of memory, and infiniband registers 1024 MiB or more (LimitMEMLOCK=infinity, or the capability IPC_LOCK)",
                "GPU-5 is not among this node's GPUs any more",
                "/dev/nvidia-uvm is missing, without which CUDA cannot use a GPU",
                "/dev/nvidia3 is missing, without which CUDA cannot use a GPU",
                "GPU-0 is used by process 9 (python), which no job of Muster started",
            ]
        );
    }

    #[test]
    fn only_processes_in_the_way_are_a_strangers_doing() {
        let occupied = Unfit::Occupied {
            gpu: "GPU-0".into(),
            pid: 9,
            name: "python".into(),
        };
        let gone = Unfit::GpuGone {
            uuid: "GPU-1".into(),
        };
        assert_eq!(due_to(&[]), None);
        let stranger = Some(DueTo::Stranger);
        assert_eq!(due_to(&[occupied.clone(), occupied.clone()]), stranger);
        assert_eq!(due_to(&[occupied, gone]), Some(DueTo::Node));
    }

    #[test]
    fn what_is_not_used_is_not_asked_for() {
        let mut report = node();
        (report.host.shm_bytes, report.host.memlock_bytes) = (Some(1), Some(1));
        let one = Assignment {
            proc_per_node: 1,
            gpus: vec!["GPU-0".into()],
            node_count: 1,
            ..eight()
        };
        assert!(
            unfit(&one, &report, |_| false).is_empty(),
            "one rank on one node needs neither"
        );
    }
}
