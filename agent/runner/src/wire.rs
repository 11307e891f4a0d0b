//! The messages between the agent and a runner on `control.sock`, and the files that the two share.
//!
//! One JSON object per line, version 1. Both sides ignore unknown fields. A runner answers an
//! unknown command with an error and keeps the connection, so a newer agent can drive an older
//! runner. All times named `_us` are microseconds of `CLOCK_BOOTTIME`, which goes on while the
//! machine sleeps and never jumps.
//!
//! Nothing here acts. Each [`Status`] is the whole truth, never a difference.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

mod end;
mod inspect;
mod member;
mod mpi;
mod order;
mod phases;
mod rank;
mod reply;
mod store;

pub use end::{DeathProof, ProofKind, StopStatus};
pub use inspect::{Frame, Position, ProcessLook, RankStacks, Thread, stacks_file, worker_server};
pub use member::MemberSpec;
pub use mpi::{HostSpec, LauncherSpec, LenderSpec, MpiSpec};
pub use order::{
    AdoptSpec, Lane, Order, ParkSpec, StandbyMode, StandbyShown, StandbySpec, StandbysShown,
};
pub use phases::{ImportStatus, ImportsStatus, NcclStatus, PhasesStatus};
pub use rank::{ArrivalsStatus, ExitRecord, Leftover, RankException, RankStatus, StillStatus};
pub use reply::{Refusal, RefusalKind, Refused, Reply};
pub use store::{PortRange, StoreSpec, StoreStatus};

/// Version of this protocol, in every message and file.
pub const VERSION: u32 = 1;

/// The longest request line. A [`StartSpec`] carries a whole environment for each member on the node:
/// at most 32 KiB of the job's own variables, and twice 30 KiB of addresses of 1,024 members. 64 members
/// of one node take 6 MiB.
pub const MAX_REQUEST: usize = 8 << 20;

/// The most ranks of one worker group. The largest nodes have 16 accelerators; CPU jobs may use a
/// rank per core.
pub const MAX_RANKS: u32 = 256;

/// The most processes that are named of those that ranks have left behind. All of them are ended.
pub const MAX_LEFTOVERS: usize = 16;

/// The beginning of the reason of a rank that the kernel has killed at a memory limit.
pub const OUT_OF_MEMORY: &str = "out of memory: ";

/// The beginning of the reason of an `mpirun` that has ended before any rank began.
pub const NO_RANK_BEGAN: &str = "no rank began: ";

/// The smallest [`Hold::log_bytes`]. One write to a log is at most 64 KiB and must fit between two
/// rotations.
pub const MIN_LOG_BYTES: u64 = 128 << 10;

/// The content of `hold.json`, which says what a runner holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub v: u32,
    /// Unique id of the job.
    pub job: String,
    pub name: String,
    pub namespace: String,
    pub generation: u64,
    pub node: String,
    pub node_rank: u32,
    pub nnodes: u32,
    pub world_size: u32,
    /// Set on the one member that serves the TCPStore of this generation.
    #[serde(default)]
    pub store: Option<StoreSpec>,
    /// Cap of each log file in bytes. The last full file is kept beside the one that is being
    /// written.
    #[serde(default = "default_log_bytes")]
    pub log_bytes: u64,
    /// Regular expression that finds the step. Without it, the runner goes by the table of formats.
    #[serde(default)]
    pub step_pattern: Option<String>,
    /// The operator's own formats, which come before the runner's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_formats: Option<String>,
    /// A runner that was not started, and that no client is connected to, ends after this long.
    #[serde(default = "default_idle_timeout_ms")]
    pub idle_timeout_ms: u64,
    /// Grace of a stop that no agent asked for: by SIGTERM, where the runner is PID 1 of a pod, and
    /// by the fence.
    #[serde(default = "default_term_grace_ms")]
    pub term_grace_ms: u64,
    /// When the last [`Command::Renew`] is older than this, the runner stops the workers, with
    /// `term_grace_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence_after_ms: Option<u64>,
    /// Set: this is never a worker group, but the launcher of `job` on this node. The runners of
    /// the job's generations are forked from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub launcher: bool,
    /// A file to which the ranks' output goes as well as into their logs: the standard output of
    /// the container that they are in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub echo: Option<PathBuf>,
}

fn default_log_bytes() -> u64 {
    64 << 20
}

fn default_idle_timeout_ms() -> u64 {
    300_000
}

/// The default of a job's `stopGracePeriod`.
fn default_term_grace_ms() -> u64 {
    30_000
}

impl Hold {
    /// Says what is wrong with the content, by field.
    pub fn check(&self) -> Result<(), String> {
        if self.v != VERSION {
            return Err(format!(
                "v: {} is not a version this runner knows ({VERSION})",
                self.v
            ));
        }
        if self.job.is_empty() {
            return Err("job: is empty".into());
        }
        if self.nnodes == 0 || self.node_rank >= self.nnodes {
            return Err(format!(
                "node_rank: {} is not below nnodes {}",
                self.node_rank, self.nnodes
            ));
        }
        if self.world_size < self.nnodes {
            return Err(format!(
                "world_size: {} is below nnodes {}",
                self.world_size, self.nnodes
            ));
        }
        if self.log_bytes < MIN_LOG_BYTES {
            return Err(format!(
                "log_bytes: {} is below {MIN_LOG_BYTES}",
                self.log_bytes
            ));
        }
        if let Some(store) = &self.store
            && let Err(e) = store.bind.parse::<std::net::SocketAddr>()
        {
            return Err(format!("store.bind: {:?}: {e}", store.bind));
        }
        Ok(())
    }
}

/// One line from the agent. The answer carries the same `id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub v: u32,
    #[serde(default)]
    pub id: u64,
    #[serde(flatten)]
    pub command: Command,
}

impl Request {
    pub fn new(id: u64, command: Command) -> Self {
        Self {
            v: VERSION,
            id,
            command,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case")]
pub enum Command {
    /// Starts the launcher. The answer comes once it has imported torch. It is allowed once, and
    /// only where [`Hold::launcher`] is set.
    Park(ParkSpec),
    /// Gives a launcher that belongs to no job to a job. It is refused if torch has read a variable
    /// whose value differs now.
    Adopt(AdoptSpec),
    /// Forks a runner for the directory `dir`, which holds its `hold.json`, with a copy of the
    /// launcher as its child. The answer comes once that runner can be talked to.
    Fork {
        dir: PathBuf,
    },
    /// Makes a copy of the launcher import what [`crate::record::PRELOAD`] lists, and serve the
    /// forks from then on. The answer comes once it does, or if it cannot.
    Preload,
    /// Makes a standby for each rank of the next generation, or ends those that there are. The answer
    /// comes at once; [`crate::record::STANDBYS`] says what became of them.
    Standbys(StandbySpec),
    /// Starts the worker group. Repeating it with the same content is fine; other content is a
    /// conflict.
    Start(Box<StartSpec>),
    /// Starts the rank of a restartable member again, which has ended with a failure. `attempt` counts
    /// its starts, the first of which is 1. Repeating it is fine.
    Restart {
        rank: u32,
        attempt: u32,
    },
    /// Sends TERM, waits `grace_ms`, and kills everything. It may be repeated with a shorter grace.
    /// If it comes before `Start`, the group never starts.
    Stop {
        grace_ms: u64,
        reason: String,
    },
    /// Sends a signal to the rank's own process, and to none that it has started. It is refused if the
    /// rank does not run.
    Signal {
        rank: u32,
        /// Its number.
        signal: i32,
    },
    /// Asks where these ranks are. The answer comes in a few seconds at most, whatever they do.
    Stacks {
        ranks: Vec<u32>,
    },
    /// Says when the coordinator was heard, for a job with `fence_after_ms`.
    Renew {
        heard_us: u64,
    },
    Status,
    /// Pushes every change from now on as a whole [`Status`]. A slow client gets only the latest.
    Subscribe,
    /// Puts a key into the served TCPStore.
    StoreSet {
        key: String,
        value: String,
    },
    /// Arrives at torchrun's exit barrier on behalf of a lost node.
    CompleteExitBarrier {
        node_rank: u32,
    },
    /// Says that the agent has recorded the outcome, so a dead group's runner may go.
    Release,
}

/// What to run. The environment is complete: the workers get nothing from the runner's own.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartSpec {
    pub program: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Variables whose values are the contents of these files, read at the start. They win over
    /// `env`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_files: BTreeMap<String, String>,
    pub cwd: PathBuf,
    /// How many ranks are expected on this node.
    pub ranks: u32,
    /// Global rank of this node's first rank.
    pub first_rank: u32,
    /// If set, the launcher (parked before, or started now) gets this, and `args` is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Set for a member of an MPI job, which is started in the direct lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mpi: Option<MpiSpec>,
    /// The members on this node, if it holds several. They are started in the direct lane, without a
    /// launcher, and each as it says; `ranks` counts those of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberSpec>,
    /// The rank can be started again by [`Command::Restart`]. Its failure ends nobody else. Only a
    /// member with one rank in the direct lane can have this. Of several members, each says it for
    /// itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restartable: bool,
}

impl StartSpec {
    /// The ranks of each member on this node.
    pub fn members_ranks(&self) -> Vec<std::ops::Range<u32>> {
        let of = |first: u32, ranks: u32| first..first + ranks;
        match self.members.is_empty() {
            true => vec![of(self.first_rank, self.ranks)],
            false => {
                let all = self.members.iter();
                all.map(|member| of(member.first_rank, member.ranks))
                    .collect()
            }
        }
    }

    /// Whether this rank of this node can be started again by itself.
    pub fn may_restart(&self, rank: u32) -> bool {
        let restartable: Vec<bool> = match self.members.is_empty() {
            true => vec![self.restartable],
            false => self.members.iter().map(|m| m.restartable).collect(),
        };
        let mut members = self.members_ranks().into_iter().zip(restartable);
        members.any(|(ranks, restartable)| restartable && ranks.contains(&rank))
    }
}

/// The environment is left out because it holds secrets.
impl std::fmt::Debug for StartSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartSpec")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("cwd", &self.cwd)
            .field("ranks", &self.ranks)
            .field("first_rank", &self.first_rank)
            .field("order", &self.order)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

/// Parses one request line, or says what is wrong with it and whether the connection can go on.
pub fn parse_request(line: &[u8]) -> Result<Request, Refused> {
    let malformed = |text: String| Refused {
        id: None,
        close: true,
        error: Refusal::new(RefusalKind::Malformed, text),
    };
    let value: serde_json::Value =
        serde_json::from_slice(line).map_err(|e| malformed(format!("not a JSON line: {e}")))?;
    let Some(object) = value.as_object() else {
        return Err(malformed("a request is a JSON object".into()));
    };
    let id = object.get("id").and_then(serde_json::Value::as_u64);
    match object.get("v").map(serde_json::Value::as_u64) {
        Some(Some(v)) if v == u64::from(VERSION) => {}
        Some(Some(v)) => {
            let text = format!("v: {v} is not a version this runner speaks ({VERSION})");
            return Err(Refused {
                id,
                close: true,
                error: Refusal::new(RefusalKind::Version, text),
            });
        }
        _ => return Err(malformed("v: the protocol version is missing".into())),
    }
    let Some(command) = object
        .get("cmd")
        .and_then(serde_json::Value::as_str)
        .map(str::to_owned)
    else {
        return Err(malformed("cmd: the command is missing".into()));
    };
    const KNOWN: [&str; 16] = [
        "park",
        "adopt",
        "fork",
        "preload",
        "standbys",
        "start",
        "restart",
        "signal",
        "stacks",
        "stop",
        "renew",
        "status",
        "subscribe",
        "store_set",
        "complete_exit_barrier",
        "release",
    ];
    if !KNOWN.contains(&command.as_str()) {
        let text = format!(
            "cmd: {:?} is not a command of this runner",
            command.chars().take(64).collect::<String>()
        );
        return Err(Refused {
            id,
            close: false,
            error: Refusal::new(RefusalKind::UnknownCommand, text),
        });
    }
    serde_json::from_value(value).map_err(|e| malformed(format!("{command}: {e}")))
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Exit {
    Code { code: i32 },
    Signal { signal: i32, core: bool },
}

impl Exit {
    pub fn success(self) -> bool {
        self == Exit::Code { code: 0 }
    }
}

/// Where a worker group is. It is `Holding` until started, `Running` until a stop is asked for or
/// the first process fails, `Stopping` until nothing lives, then `Dead`, which is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Holding,
    Running,
    Stopping,
    Dead,
}

/// Everything a runner knows, whole in each message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub v: u32,
    pub job: String,
    pub generation: u64,
    pub phase: Phase,
    pub now_us: u64,
    #[serde(default)]
    pub launcher: Option<LauncherStatus>,
    #[serde(default)]
    pub ranks: Vec<RankStatus>,
    /// What ranks have left behind at a good end, and what of it a stop had to kill. At most
    /// [`MAX_LEFTOVERS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<Leftover>,
    #[serde(default)]
    pub store: Option<StoreStatus>,
    #[serde(default)]
    pub stop: Option<StopStatus>,
    #[serde(default)]
    pub dead: Option<DeathProof>,
    /// Processes that still live 60 s after they were killed. As a rule they wait in the kernel.
    #[serde(default)]
    pub stuck: Vec<i32>,
    /// The launcher failed by itself before any rank said hello, and the ranks, or torchrun, were
    /// executed in its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fell_back: bool,
    /// The first world that a rank has started itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nested: Option<NestedWorld>,
    /// The job's own pattern is not searched for, for this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_pattern_fault: Option<StepPatternFault>,
    /// What the start of the ranks was spent on. None: nothing was seen of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<PhasesStatus>,
}

/// Why a job's own pattern is not searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepPatternFault {
    /// It is above the bound. The job was accepted before there was one.
    TooLarge,
    /// It was slow on many lines.
    TooSlow,
    /// A fault that only a newer runner knows.
    #[serde(other)]
    Other,
}

/// Ranks below a rank, which meet somewhere else than at the generation's TCPStore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NestedWorld {
    /// The global rank below which they are.
    pub rank: u32,
    /// One of them.
    pub pid: i32,
    /// The launcher that has started them, as `torchrun`. Empty: none that is known.
    #[serde(default)]
    pub launcher: String,
    pub world_size: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LauncherStatus {
    pub pid: i32,
    /// Clock ticks since boot, from `/proc/PID/stat`. With the pid it identifies one process of
    /// this boot.
    pub start_time: u64,
    pub started_us: u64,
    #[serde(default)]
    pub exit: Option<Exit>,
    #[serde(default)]
    pub exited_us: Option<u64>,
}
