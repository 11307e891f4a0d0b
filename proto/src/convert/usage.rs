//! How much of a node is in use.

use muster_core::{
    id::{Generation, JobUid},
    run::RunId,
    usage::{CpuUsage, Disk, DiskRole, GpuUsage, RankUsage, Space, Traffic, Usage},
};

use super::session::bounds::{NAME_MAX, SENTENCE_MAX, count, malformed, numbered, required_text};
use crate::{convert::Malformed, v1};

/// The disk of the state directory, and one for each of the 64 runs that a message carries.
const DISKS_MAX: usize = 65;
/// As many as a report may have.
const GPUS_MAX: usize = 256;
/// As many as the run reports in one message.
const RUNS_MAX: usize = super::session::RUNS_MAX;
/// Ranks of one run. torchrun starts one for each GPU, or one for each CPU of a large machine
/// without GPUs.
const RANKS_MAX: usize = 1_024;

pub fn usage_to_wire(usage: &Usage) -> v1::Usage {
    let mut runs: Vec<v1::RunUsage> = Vec::new();
    for rank in &usage.ranks {
        let (job_uid, generation) = (rank.run.job.to_string(), rank.run.generation.0);
        let known = runs
            .iter()
            .position(|run| run.generation == generation && run.job_uid == job_uid);
        let at = known.unwrap_or_else(|| {
            runs.push(v1::RunUsage {
                job_uid,
                generation,
                ranks: Vec::new(),
            });
            runs.len() - 1
        });
        runs[at].ranks.push(v1::RankUsage {
            rank: rank.rank,
            memory_bytes: rank.memory_bytes,
            cpu_milli: rank.cpu_milli,
        });
    }
    v1::Usage {
        memory: usage.memory.map(space_to_wire),
        swap: usage.swap.map(space_to_wire),
        load: usage
            .load_milli
            .map(|[one_milli, five_milli, fifteen_milli]| v1::Load {
                one_milli,
                five_milli,
                fifteen_milli,
            }),
        cpu: usage.cpu.map(|cpu| v1::CpuUsage {
            cpus: cpu.cpus,
            all_milli: cpu.all_milli,
            others_milli: cpu.others_milli,
        }),
        processes: usage.processes,
        disks: usage.disks.iter().map(disk_to_wire).collect(),
        network: usage.network.map(|traffic| v1::Traffic {
            received_bytes: traffic.received,
            sent_bytes: traffic.sent,
        }),
        runs,
        gpus: usage.gpus.iter().map(gpu_to_wire).collect(),
    }
}

/// Reads a usage. The error names the first field that is not well-formed.
pub fn usage_from_wire(wire: v1::Usage) -> Result<Usage, Malformed> {
    count("usage.disks", wire.disks.len(), DISKS_MAX)?;
    count("usage.runs", wire.runs.len(), RUNS_MAX)?;
    count("usage.gpus", wire.gpus.len(), GPUS_MAX)?;
    let mut ranks = Vec::new();
    for (i, run) in wire.runs.into_iter().enumerate() {
        let field = |part: &str| format!("usage.runs[{i}].{part}");
        count(&field("ranks"), run.ranks.len(), RANKS_MAX)?;
        let id = RunId {
            job: JobUid::from(required_text(&field("job_uid"), run.job_uid, NAME_MAX)?),
            generation: Generation(numbered(&field("generation"), run.generation)?),
        };
        let rank = |rank: v1::RankUsage| RankUsage {
            run: id.clone(),
            rank: rank.rank,
            memory_bytes: rank.memory_bytes,
            cpu_milli: rank.cpu_milli,
        };
        ranks.extend(run.ranks.into_iter().map(rank));
    }
    Ok(Usage {
        memory: wire.memory.map(space_from_wire),
        swap: wire.swap.map(space_from_wire),
        load_milli: wire
            .load
            .map(|load| [load.one_milli, load.five_milli, load.fifteen_milli]),
        cpu: wire.cpu.map(|cpu| CpuUsage {
            cpus: cpu.cpus,
            all_milli: cpu.all_milli,
            others_milli: cpu.others_milli,
        }),
        processes: wire.processes,
        disks: wire
            .disks
            .into_iter()
            .enumerate()
            .map(|(i, disk)| disk_from_wire(i, disk))
            .collect::<Result<_, _>>()?,
        network: wire.network.map(|traffic| Traffic {
            received: traffic.received_bytes,
            sent: traffic.sent_bytes,
        }),
        gpus: wire
            .gpus
            .into_iter()
            .enumerate()
            .map(|(i, gpu)| gpu_from_wire(i, gpu))
            .collect::<Result<_, _>>()?,
        ranks,
    })
}

fn gpu_to_wire(gpu: &GpuUsage) -> v1::GpuUsage {
    v1::GpuUsage {
        uuid: gpu.uuid.clone(),
        memory: gpu.memory.map(space_to_wire),
        busy_percent: gpu.busy_percent,
    }
}

fn gpu_from_wire(i: usize, wire: v1::GpuUsage) -> Result<GpuUsage, Malformed> {
    Ok(GpuUsage {
        uuid: required_text(&format!("usage.gpus[{i}].uuid"), wire.uuid, NAME_MAX)?,
        memory: wire.memory.map(space_from_wire),
        busy_percent: wire.busy_percent,
    })
}

fn space_to_wire(space: Space) -> v1::Space {
    v1::Space {
        available: space.available,
        total: space.total,
    }
}

fn space_from_wire(wire: v1::Space) -> Space {
    Space {
        available: wire.available,
        total: wire.total,
    }
}

fn disk_to_wire(disk: &Disk) -> v1::DiskUsage {
    let role = match disk.role {
        DiskRole::State => v1::DiskRole::State,
        DiskRole::Work => v1::DiskRole::Work,
    };
    // A path has at most 4,096 bytes (PATH_MAX), and so may a sentence.
    v1::DiskUsage {
        role: role.into(),
        path: disk.path.clone(),
        space: disk.space.map(space_to_wire),
    }
}

fn disk_from_wire(i: usize, wire: v1::DiskUsage) -> Result<Disk, Malformed> {
    let field = |part: &str| format!("usage.disks[{i}].{part}");
    let role = match wire.role() {
        v1::DiskRole::State => DiskRole::State,
        v1::DiskRole::Work => DiskRole::Work,
        v1::DiskRole::Unspecified => {
            return Err(malformed(
                field("role"),
                format!("is {}, which is none", wire.role),
            ));
        }
    };
    let path = required_text(&field("path"), wire.path, SENTENCE_MAX)?;
    Ok(Disk {
        role,
        path,
        space: wire.space.map(space_from_wire),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage() -> Usage {
        let run = |job: &str, generation| RunId {
            job: JobUid::from(job),
            generation: Generation(generation),
        };
        let rank = |run: &RunId, rank| RankUsage {
            run: run.clone(),
            rank,
            memory_bytes: 7 << 30,
            cpu_milli: Some(990),
        };
        let (a, b) = (run("a", 3), run("b", 1));
        let disk = |role, path: &str, space| Disk {
            role,
            path: path.into(),
            space,
        };
        Usage {
            memory: Some(Space {
                available: 5,
                total: 9,
            }),
            swap: Some(Space {
                available: 0,
                total: 0,
            }),
            load_milli: Some([1, 2, 3]),
            cpu: Some(CpuUsage {
                cpus: 8,
                all_milli: 7_000,
                others_milli: Some(10),
            }),
            processes: Some(412),
            disks: vec![
                disk(
                    DiskRole::State,
                    "/var",
                    Some(Space {
                        available: 1,
                        total: 2,
                    }),
                ),
                disk(DiskRole::Work, "/nfs", None),
            ],
            network: Some(Traffic {
                received: 1,
                sent: 2,
            }),
            gpus: vec![
                GpuUsage {
                    uuid: "GPU-1".into(),
                    memory: Some(Space {
                        available: 1 << 30,
                        total: 80 << 30,
                    }),
                    busy_percent: Some(97),
                },
                GpuUsage {
                    uuid: "GPU-2".into(),
                    memory: None,
                    busy_percent: None,
                },
            ],
            ranks: vec![
                rank(&a, 0),
                rank(&a, 1),
                RankUsage {
                    cpu_milli: None,
                    ..rank(&b, 0)
                },
            ],
        }
    }

    #[test]
    fn comes_back_as_it_went() {
        let wire = usage_to_wire(&usage());
        assert_eq!(
            wire.runs
                .iter()
                .map(|run| run.ranks.len())
                .collect::<Vec<_>>(),
            [2, 1]
        );
        assert_eq!(usage_from_wire(wire).unwrap(), usage());
        let nothing = Usage::default();
        assert_eq!(
            usage_from_wire(usage_to_wire(&nothing)).unwrap(),
            nothing,
            "what is not known is not 0"
        );
    }

    /// It must stay small because ten thousand nodes send it every ten seconds.
    #[test]
    fn a_node_of_eight_ranks_needs_half_a_kilobyte() {
        use prost::Message;
        let run = RunId {
            job: JobUid::from("0190f0a0-0000-7000-8000-000000000001"),
            generation: Generation(12),
        };
        let rank = |rank| RankUsage {
            run: run.clone(),
            rank,
            memory_bytes: 70 << 30,
            cpu_milli: Some(7_990),
        };
        let usage = Usage {
            ranks: (0..8).map(rank).collect(),
            ..usage()
        };
        let bytes = usage_to_wire(&usage).encoded_len();
        assert!(bytes < 512, "{bytes}");
    }

    #[test]
    fn each_wrong_field_is_named() {
        let refused = |change: fn(&mut v1::Usage)| {
            let mut wire = usage_to_wire(&usage());
            change(&mut wire);
            usage_from_wire(wire).unwrap_err().to_string()
        };
        assert_eq!(
            refused(|usage| usage.disks[1].role = 9),
            "usage.disks[1].role: is 9, which is none"
        );
        assert_eq!(
            refused(|usage| usage.disks[0].path.clear()),
            "usage.disks[0].path: is empty"
        );
        assert_eq!(
            refused(|usage| usage.gpus[1].uuid.clear()),
            "usage.gpus[1].uuid: is empty"
        );
        assert_eq!(
            refused(|usage| usage.runs[0].job_uid.clear()),
            "usage.runs[0].job_uid: is empty"
        );
        assert_eq!(
            refused(|usage| usage.runs[1].ranks = vec![v1::RankUsage::default(); 1_025]),
            "usage.runs[1].ranks: has 1025 items, at most 1024 are allowed"
        );
        assert_eq!(
            refused(|usage| usage.disks = vec![usage.disks[0].clone(); 66]),
            "usage.disks: has 66 items, at most 65 are allowed"
        );
    }
}
