//! Decides whether the next generation's ranks wait beside those that train, with their GPUs open.
//!
//! A standby takes GPU memory while it waits, unless it is *parked*: the driver keeps what it had in
//! the machine's memory. Training comes first, so there is none where it could lack memory by that,
//! and none before the generation has trained for a while. Whether one may be made is asked again as
//! long as the generation trains. A standby that may not be there any more is ended.
//!
//! Without a GPU there is nothing to open. A rank that is forked then starts as quickly.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::{
    node::lane::Lane,
    node_report::{
        Gpu,
        gpu::{ComputeMode, Driver},
    },
    run::{Assignment, RunPhase, RunReport},
    spec::Standbys,
    time::Timestamp,
    usage::Space,
};

/// What a standby has of its GPU's memory, in bytes: 370 MiB were measured on an H200 after steps in
/// three types and one communicator, and kernels of other GPUs differ by some 100 MiB.
pub const NEED: u64 = 512 << 20;
/// A GPU must have this many times as much free.
pub const FREE_MIN: u64 = 2 * NEED;
/// `auto` parks a standby only where so much of its GPU is free: until it is parked it holds memory
/// there for some seconds, and a job that has asked for nothing must not run out because of that.
pub const ROOMY: u64 = 8 * NEED;
/// What a parked standby takes of the machine's memory: 1.6 GiB were seen on an H200 (torch 2.11).
pub const HOST_NEED: u64 = 2 << 30;
/// `auto` keeps a standby open only where so much is free while the job trains, and at least a
/// quarter of the GPU's memory. torch's allocator takes more with each larger batch, and what it has
/// taken it keeps, so this is seen after a while.
pub const AMPLE: u64 = 8 << 30;
/// The smallest MIG instance with standbys. A context takes as much there as on a whole GPU.
pub const MIG_MIN: u64 = 10 << 30;
/// The first driver with the checkpoint calls.
pub const PARKS: u32 = 570;
/// How long ranks train before their standbys are made. The launcher imports for the next generation
/// in the first of these seconds.
pub const TRAINED: Duration = Duration::from_secs(15);
/// Variables that are read when a GPU is opened or when the first communicator is made. The launcher
/// has the same list (`READ_AT_OPENING`).
pub const READ_AT_OPENING: [&str; 12] = [
    "CUDA_",
    "NCCL_",
    "NVIDIA_",
    "CUBLAS_",
    "CUBLASLT_",
    "CUDNN_",
    "PYTORCH_",
    "TORCH_",
    "HIP_",
    "HSA_",
    "ROCR_",
    "GPU_DEVICE_ORDINAL",
];

/// How standbys wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    Parked,
    Open,
}

impl Mode {
    /// The word for people.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Parked => "parked",
            Mode::Open => "open",
        }
    }
}

/// The most that an operator allows on a node. Parked standbys take less than open ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Most {
    Off,
    Parked,
    #[default]
    Open,
}

impl Most {
    pub const ALL: [(&str, Most); 3] = [
        ("off", Most::Off),
        ("parked", Most::Parked),
        ("open", Most::Open),
    ];
}

/// The facts about one run, and about this node.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub assignment: &'a Assignment,
    pub lane: Lane,
    pub most: Most,
    pub driver: Option<&'a Driver>,
    /// The GPUs that can be given to jobs.
    pub gpus: &'a [Gpu],
    /// The memory of each GPU, by UUID. A GPU that is missing here is not known to have any.
    pub memory: &'a BTreeMap<String, Space>,
    /// Bytes of the machine's memory that are available. None: not known.
    pub available: Option<u64>,
    /// Variables that a run of this job has changed before an import.
    pub set_by_script: &'a [String],
    /// Why standbys of this job failed here before. Parked ones are not tried again.
    pub failed: Option<&'a str>,
    /// The standbys that wait now. What they hold is not free.
    pub has: Option<Mode>,
}

/// Why there are no standbys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum No {
    /// The job has no GPU. A standby would be worth nothing.
    NoGpu,
    NotWanted,
    Operator(Most),
    Lane(Lane),
    /// The ranks do not have one GPU each.
    Shared {
        ranks: u32,
        gpus: usize,
    },
    Exclusive {
        gpu: String,
    },
    SmallInstance {
        gpu: String,
        bytes: u64,
    },
    MemoryUnknown {
        gpu: String,
    },
    Memory {
        gpu: String,
        free: u64,
    },
    /// The job has not asked for standbys, and training may soon want what is free.
    NotRoomy {
        gpu: String,
        free: u64,
    },
    /// They would be parked in the machine's memory.
    Host {
        available: u64,
        least: u64,
    },
    NotAmple {
        gpu: String,
        free: u64,
        driver: String,
    },
    CannotPark {
        driver: String,
    },
    ScriptSets(String),
    Failed(String),
}

impl fmt::Display for No {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        match self {
            No::NoGpu => f.write_str("the job has no GPU"),
            No::NotWanted => f.write_str("the job says standbys: off"),
            No::Operator(Most::Parked) => {
                f.write_str("the operator allows parked ones only (muster-agent --standbys)")
            }
            No::Operator(_) => f.write_str("the operator allows none (muster-agent --standbys)"),
            No::Lane(lane) => write!(
                f,
                "only ranks of lane fork have them, not of {}",
                lane.name()
            ),
            No::Shared { ranks, gpus } => {
                write!(
                    f,
                    "{ranks} ranks and {gpus} GPUs: each rank needs one of its own"
                )
            }
            No::Exclusive { gpu } => write!(f, "{gpu} may be used by one process only"),
            No::SmallInstance { gpu, bytes } => write!(
                f,
                "{gpu} is a MIG instance of {} MiB, and {} MiB are the least",
                bytes / MIB,
                MIG_MIN / MIB
            ),
            No::MemoryUnknown { gpu } => {
                write!(f, "how much memory of {gpu} is free is not known")
            }
            No::Memory { gpu, free } => write!(
                f,
                "{gpu} has {} MiB free, and {} MiB are the least",
                free / MIB,
                FREE_MIN / MIB
            ),
            No::NotRoomy { gpu, free } => write!(
                f,
                "{gpu} has {} MiB free, and {} MiB are the least for a job that does not ask for them (standbys: parked)",
                free / MIB,
                ROOMY / MIB
            ),
            No::Host { available, least } => write!(
                f,
                "{} MiB of the machine's memory are available, and {} MiB are the least to park them there",
                available / MIB,
                least / MIB
            ),
            No::NotAmple { gpu, free, driver } => write!(
                f,
                "driver {driver} cannot park them ({PARKS} is the first that can), and {gpu} has only {} MiB free to keep them open (standbys: open asks for it)",
                free / MIB
            ),
            No::CannotPark { driver } => write!(
                f,
                "driver {driver} cannot park them: {PARKS} is the first that can"
            ),
            No::ScriptSets(name) => {
                write!(
                    f,
                    "the script sets {name}, which is read when a GPU is opened"
                )
            }
            No::Failed(why) => write!(f, "an earlier one failed: {why}"),
        }
    }
}

/// Whether standbys may wait beside this run, and how.
pub fn decide(facts: &Facts<'_>) -> Result<Mode, No> {
    let assignment = facts.assignment;
    if assignment.gpus.is_empty() {
        return Err(No::NoGpu);
    }
    if assignment.standbys == Standbys::Off {
        return Err(No::NotWanted);
    }
    if facts.most == Most::Off {
        return Err(No::Operator(Most::Off));
    }
    if facts.lane != Lane::Fork {
        return Err(No::Lane(facts.lane));
    }
    if assignment.gpus.len() != assignment.proc_per_node as usize {
        return Err(No::Shared {
            ranks: assignment.proc_per_node,
            gpus: assignment.gpus.len(),
        });
    }
    let sets = |name: &&String| READ_AT_OPENING.iter().any(|start| name.starts_with(start));
    if let Some(name) = facts.set_by_script.iter().find(sets) {
        return Err(No::ScriptSets(name.clone()));
    }
    if let Some(why) = facts.failed {
        return Err(No::Failed(why.to_owned()));
    }
    let mut rooms = Vec::new();
    for uuid in &assignment.gpus {
        rooms.push((uuid, room(facts, uuid)?));
    }
    let driver = facts.driver.map_or("of unknown version", |d| &d.version);
    let parks = facts.driver.is_some_and(|driver| major(driver) >= PARKS);
    let asked = match assignment.standbys {
        Standbys::Open => Mode::Open,
        Standbys::Parked if !parks => {
            return Err(No::CannotPark {
                driver: driver.to_owned(),
            });
        }
        Standbys::Auto if !parks => {
            let ample = |room: &Space| room.available >= AMPLE.max(room.total / 4);
            if let Some((gpu, room)) = rooms.iter().find(|(_, room)| !ample(room)) {
                return Err(No::NotAmple {
                    gpu: (*gpu).clone(),
                    free: room.available,
                    driver: driver.to_owned(),
                });
            }
            Mode::Open
        }
        Standbys::Auto | Standbys::Parked | Standbys::Off => Mode::Parked,
    };
    let mode = match (asked, facts.most) {
        (Mode::Open, Most::Parked) if parks => Mode::Parked,
        (Mode::Open, Most::Parked) => return Err(No::Operator(Most::Parked)),
        (mode, _) => mode,
    };
    if mode == Mode::Parked {
        host_has_room(facts)?;
        let tight = |room: &Space| room.available < ROOMY;
        if assignment.standbys == Standbys::Auto
            && let Some((gpu, room)) = rooms.iter().find(|(_, room)| tight(room))
        {
            return Err(No::NotRoomy {
                gpu: (*gpu).clone(),
                free: room.available,
            });
        }
    }
    Ok(mode)
}

/// Whether the machine has room for what is parked: twice as much as it takes, and four times as much
/// for a job that has not asked. What is parked already is not counted against itself.
fn host_has_room(facts: &Facts<'_>) -> Result<(), No> {
    let auto = facts.assignment.standbys == Standbys::Auto;
    let need = HOST_NEED * facts.assignment.gpus.len() as u64;
    let own = match facts.has {
        Some(Mode::Parked) => need,
        _ => 0,
    };
    let least = need * if auto { 4 } else { 2 };
    let available = facts.available.unwrap_or_default().saturating_add(own);
    if available < least {
        return Err(No::Host { available, least });
    }
    Ok(())
}

/// The memory of a GPU, as it is without its standby, or why it can have none.
fn room(facts: &Facts<'_>, uuid: &str) -> Result<Space, No> {
    let gpu = || uuid.to_owned();
    let whole = facts.gpus.iter().find(|whole| whole.has(uuid));
    let Some(whole) = whole else {
        return Err(No::MemoryUnknown { gpu: gpu() });
    };
    if whole.compute_mode != ComputeMode::Default {
        return Err(No::Exclusive { gpu: gpu() });
    }
    let instances = whole.mig.iter().flat_map(|mig| &mig.instances);
    if let Some(instance) = instances.clone().find(|instance| instance.uuid == uuid)
        && instance.memory_bytes < MIG_MIN
    {
        return Err(No::SmallInstance {
            gpu: gpu(),
            bytes: instance.memory_bytes,
        });
    }
    let Some(space) = facts.memory.get(uuid) else {
        return Err(No::MemoryUnknown { gpu: gpu() });
    };
    let own = match facts.has {
        Some(Mode::Open) => NEED,
        _ => 0,
    };
    let free = space.available.saturating_add(own);
    if free < FREE_MIN {
        return Err(No::Memory { gpu: gpu(), free });
    }
    Ok(Space {
        available: free,
        total: space.total,
    })
}

fn major(driver: &Driver) -> u32 {
    let first = driver.version.split('.').next();
    first
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

/// When a run has trained for long enough. None: it does not train. `now` counts on the clock of the
/// report.
pub fn due(now: Timestamp, run: &RunReport) -> Option<Timestamp> {
    let alive = run.phase == RunPhase::Running && !run.ranks.is_empty();
    if !alive || run.ranks.iter().any(|rank| rank.exit.is_some()) {
        return None;
    }
    let started = run.ranks.iter().map(|rank| rank.started_at);
    let started = started.collect::<Option<Vec<_>>>()?.into_iter().max()?;
    let stepped = run.ranks.iter().filter_map(|rank| rank.first_step_at).min();
    // The clock of a report may be another one in tests and after a sleep: it is never later than now.
    let from = stepped.unwrap_or(started).min(now);
    Some(from + TRAINED)
}

#[cfg(test)]
mod tests;
