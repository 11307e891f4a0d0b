//! What coordinator and agent tell each other about worker groups: desired state down, reports up.
//!
//! A *run* is one worker group of one generation of one job on one node. The coordinator sends each
//! node its whole [`Desired`] state, stamped with term and node epoch. The agent answers with a
//! [`RunReport`] for every run that it knows, alive or not. Both describe states ("this is so"),
//! never commands ("do X now"), so a repeated or lost message does no harm.

mod beside;
mod owner;
mod phases;
mod rank;
mod refusal;
mod shown;

use std::{collections::BTreeMap, fmt, net::IpAddr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    exit::Exit,
    id::{Generation, JobName, JobUid, NodeEpoch, NodeName, Term},
    layout::Layout,
    nccl::{profile::Profile, stack::Stack},
    node_report::labels::Labels,
    period::{optional_period, serde_period},
    slow::Arrivals,
    spec::{Framework, Inspect, Launch, Standbys},
    stall::Still,
    time::Timestamp,
};

pub use crate::exit::LAST_OUTPUT;
pub use crate::id::RunId;
pub use beside::{Disobedience, Leftover, NestedWorld, StepPatternFault, WorldReport};
pub use owner::Owner;
pub use phases::{Import, Imports, NcclPart, NcclTimes, PhasesReport};
pub use rank::{RankException, StepsShown};
pub use refusal::{DueTo, Refusal};
pub use shown::LaneReport;

/// Bytes of the last words of a worker pod. Kubernetes keeps so many of a container's termination message.
pub const LAST_WORDS_MAX: usize = 4_096;

/// Everything that one node must hold at one moment, as one coordinator decided it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desired {
    pub term: Term,
    pub epoch: NodeEpoch,
    pub runs: Vec<DesiredRun>,
    /// Those labels of the node's Kubernetes Node object that its workers get to see
    /// ([`environment::told`](crate::nccl::environment::told)).
    #[serde(default)]
    pub labels: Labels,
    /// Jobs that are about to come to this node. The node must have a launcher ready for each, and
    /// start nothing. The generation is the one that would be next; it is not sealed yet.
    #[serde(default, rename = "warm")]
    pub prewarm: Vec<Assignment>,
    /// The node is a worker pod whose job is over. Its container of workers may end, with these last
    /// words.
    #[serde(default)]
    pub retire: Option<String>,
}

/// The state of a launcher that a node was asked to have ready ([`Desired::prewarm`]). While the
/// launcher is being made, there is no report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LauncherReport {
    pub job: JobUid,
    pub state: LauncherState,
}

/// What became of a launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LauncherState {
    /// The launcher has imported what it can.
    Ready,
    /// There will be no launcher, and the job can start here all the same. The text says why.
    Without(String),
    /// The job cannot start here. The text says why, for the user.
    Refused(String),
}

/// What a node has obeyed of a job: its newest generation. The node never goes back behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Obeyed {
    pub generation: Generation,
    /// The job has ended on this node, or never began, and is not started there any more.
    pub over: bool,
}

/// A run and the state that it must reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredRun {
    pub run: RunId,
    pub target: Target,
}

/// What a run must be. If the node holds a run that the coordinator does not mention, the run is
/// left alone: silence never kills.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// The runner is up (and serves the TCPStore, if this node hosts it), and every older
    /// generation of the job is dead. Then the run waits.
    Ready(Box<Assignment>),
    /// The ranks train. It follows only after `Ready`, once the TCPStore answers and the older
    /// generation is inert.
    Running(Box<Assignment>, Start),
    /// The run is dead, and the node has proven it.
    Stopped { grace: Duration, reason: String },
    /// The coordinator has recorded this run's end. The runner may go. The logs stay unless
    /// `purge`.
    Gone { purge: bool },
}

/// What a member is told when it starts, and nobody knew before all members were ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Where the generation's TCPStore answers.
    pub store: Endpoint,
    /// Where the members' processes will listen for each other, by node rank. Empty for torch, whose
    /// processes meet at the TCPStore.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Endpoint>,
    /// The keys by which the members know MPI's launcher, by node rank. Empty for all members but the
    /// launcher.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Key>,
    /// The attempt that each restarted rank of this node must have reached. Ranks in their first
    /// attempt are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attempts: BTreeMap<u32, u32>,
}

impl From<Endpoint> for Start {
    /// A start that tells only of the TCPStore.
    fn from(store: Endpoint) -> Self {
        Self {
            store,
            peers: Vec::new(),
            keys: Vec::new(),
            attempts: BTreeMap::new(),
        }
    }
}

/// A secret of one run, by which its process knows the one that may start programs there: 32
/// hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(pub String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Where a TCP service listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
}

/// `HOST:PORT`, as every client takes it: an IPv6 address has brackets.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// How many addresses a TCPStore may be told that its clients have: 16 of each of 1,024 nodes. As text they take
/// three quarters of a megabyte at most, of the four that a message may have.
pub const STORE_CLIENTS_MAX: usize = 16_384;

/// One node's share of one sealed generation: everything that the node needs to start its workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assignment {
    pub run: RunId,
    pub name: JobName,
    /// Rendezvous id. It is new for every generation, so members of two generations can never meet.
    pub rendezvous: String,
    /// The number of this node's member, or of the first of several.
    pub node_rank: u32,
    /// How many members the generation has.
    pub node_count: u32,
    /// Processes of all members on this node.
    pub proc_per_node: u32,
    /// Global rank of the first process.
    pub first_rank: u32,
    pub world_size: u32,
    /// The member whose runner serves the TCPStore.
    pub store_host: NodeName,
    /// This node is `store_host`.
    pub hosts_store: bool,
    /// The addresses of all members, for the node that hosts the TCPStore; at most
    /// [`STORE_CLIENTS_MAX`]. Empty: they are not all known, and anyone may connect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub store_clients: Vec<IpAddr>,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Variables whose values are the contents of these files of the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_files: BTreeMap<String, String>,
    pub working_dir: Option<String>,
    /// The container image in which all of it runs. `None`: it runs on the host itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub gpus: Vec<String>,
    /// Members without GPUs see none of the node's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hides_gpus: bool,
    pub launch: Launch,
    #[serde(default, skip_serializing_if = "Standbys::is_auto")]
    pub standbys: Standbys,
    #[serde(default, skip_serializing_if = "Inspect::is_default")]
    pub inspect: Inspect,
    #[serde(with = "serde_period")]
    pub stop_grace: Duration,
    pub step_pattern: Option<String>,
    /// The files whose changes the agent reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_pattern: Option<String>,
    /// How often workers of this job were started before this generation. Its ranks get it as
    /// `TORCHELASTIC_RESTART_COUNT`.
    pub restart_count: u32,
    /// What all ranks of the generation must agree on.
    pub profile: Profile,
    /// The coordinator's hash of `profile`. An agent that computes another hash understands the
    /// profile in another way, and refuses the run.
    pub profile_hash: String,
    /// The workers stop by themselves after they have heard nothing of the coordinator for this
    /// period. `None`: never.
    #[serde(
        default,
        with = "optional_period",
        skip_serializing_if = "Option::is_none"
    )]
    pub fence_after: Option<Duration>,
    #[serde(default, skip_serializing_if = "Framework::is_torch")]
    pub framework: Framework,
    /// The roles of all members. Empty: they are all alike.
    #[serde(default, skip_serializing_if = "Layout::is_empty")]
    pub layout: Layout,
    /// The members on this node, by number, if there are several. The fields above then describe the
    /// first of them, and the GPUs and processes of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Seated>,
    /// The programs of those members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<Program>,
    /// Whose job it is. `None`: nobody whose name is proven, or the coordinator is older than the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// One of several members on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seated {
    pub number: u32,
    /// The place of what it runs in [`Assignment::programs`].
    pub program: usize,
    pub procs: u32,
    pub first_rank: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
}

/// The program of the members of one role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Program {
    pub command: Vec<String>,
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_files: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
}

impl Assignment {
    /// Whether this node holds several members of the generation.
    pub fn is_shared(&self) -> bool {
        !self.members.is_empty()
    }

    /// Each member on this node, as if it had the node alone.
    pub fn each(&self) -> Vec<Assignment> {
        if !self.is_shared() {
            return vec![self.clone()];
        }
        let alone = |member: &Seated| {
            let program = self.programs.get(member.program)?.clone();
            Some(Assignment {
                node_rank: member.number,
                proc_per_node: member.procs,
                first_rank: member.first_rank,
                command: program.command,
                args: program.args,
                env: program.env,
                env_files: program.env_files,
                working_dir: program.working_dir,
                gpus: member.gpus.clone(),
                members: Vec::new(),
                programs: Vec::new(),
                ..self.clone()
            })
        };
        self.members.iter().filter_map(alone).collect()
    }

    /// The global rank of each process on this node, with its local rank.
    pub fn ranks(&self) -> Vec<(u32, u32)> {
        let of = |first: u32, procs: u32| (0..procs).map(move |local| (first + local, local));
        match self.is_shared() {
            false => of(self.first_rank, self.proc_per_node).collect(),
            true => {
                let each = self.members.iter();
                each.flat_map(|member| of(member.first_rank, member.procs))
                    .collect()
            }
        }
    }

    /// Whether a failed process of the member with this number is started again alone.
    pub fn restarts_alone(&self, number: u32) -> bool {
        let place = self.layout.place(number);
        place.is_some_and(|place| place.share.restarts_alone)
    }

    /// Whether this member runs nothing of its own, and lends its node to a launcher.
    pub fn lends(&self) -> bool {
        let place = self.layout.place(self.node_rank);
        place.is_some_and(|place| self.framework.lends(&place.share.name))
    }
}

/// A report of an agent about one run. Times are on the clock of the process that holds the report,
/// because the wire carries ages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    pub run: RunId,
    /// The term under which the agent accepted the run.
    pub term: Term,
    pub phase: RunPhase,
    /// Of a refused run: whose doing that is.
    #[serde(default, skip_serializing_if = "DueTo::is_unknown")]
    pub refused_due_to: DueTo,
    /// Where this node's runner serves the generation's TCPStore. `None`: another node does, or it
    /// is not up yet.
    pub store: Option<Endpoint>,
    /// The port that this node has chosen for its process to listen on, if the job's framework tells
    /// the members of each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The ports of all members on this node, by number, if it holds several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// The key that this node has chosen for its process, if MPI's launcher may start programs there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// Global ranks that have entered the process group, ascending, as the TCPStore saw it. Only
    /// the node that serves it knows them.
    pub joined_ranks: Vec<u32>,
    pub all_joined_at: Option<Timestamp>,
    pub launched_at: Option<Timestamp>,
    /// How torchrun itself ended. Its code is 1 for every failure; the ranks' own exits tell more.
    #[serde(rename = "launcherExit")]
    pub torchrun_exit: Option<Exit>,
    /// The last lines of torchrun, if it failed before any rank did.
    #[serde(rename = "launcherError")]
    pub torchrun_error: Option<String>,
    pub dead_at: Option<Timestamp>,
    /// The runner stopped the workers, because it had heard nothing of the coordinator for the
    /// job's `fenceAfter`.
    #[serde(default)]
    pub fenced: bool,
    /// What became of the files of the job's `checkpointPattern`. `None`: they are not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointReport>,
    pub ranks: Vec<RankReport>,
    /// What the node has seen of the world that the ranks form.
    #[serde(default, skip_serializing_if = "WorldReport::is_empty")]
    pub world: WorldReport,
    /// Processes that ranks have left behind, and that were told to end, or were killed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<Leftover>,
    /// The job's `stepPattern` is not searched for here, for this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_pattern_fault: Option<StepPatternFault>,
    /// Its runner did not obey, so the node kills it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disobedience: Option<Disobedience>,
    /// What the start of the ranks was spent on.
    #[serde(default, skip_serializing_if = "PhasesReport::is_empty")]
    pub phases: PhasesReport,
    #[serde(default)]
    pub lane: LaneReport,
    /// Versions in the interpreter that starts the ranks. They are not known before the run is
    /// ready.
    #[serde(default)]
    pub stack: Stack,
}

/// What a node has seen of a run's checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointReport {
    /// When a file was last seen to have changed since the run was ready.
    pub saved_at: Option<Timestamp>,
}

/// The life of a run on its node: `Preparing -> Ready -> Running -> Stopping -> Dead`. Every state
/// may go to `Dead`. `Preparing` may end in `Refused`, if the node cannot start the run; the reason
/// says why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RunPhase {
    Preparing,
    Ready,
    Running,
    Stopping,
    /// Proven: no process of the run is left on the node.
    Dead,
    /// The run was never started. The reason is for the user.
    Refused(String),
}

/// Reasons of a refusal that say that the workers' container is being ended, or is gone. The node's notice
/// that its pod is deleted may come later.
pub const CONTAINER_GOES: [&str; 2] = [
    "the workers' container was told to end",
    "the workers' container does not answer",
];

impl RunPhase {
    /// Whether no process of this run lives, and none will.
    pub fn is_over(&self) -> bool {
        matches!(self, RunPhase::Dead | RunPhase::Refused(_))
    }
}

/// What an agent reports about one rank. Times are on the sender's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankReport {
    pub rank: u32,
    pub local_rank: u32,
    /// Counts the starts of the rank in this run, from 1. All that follows is of the newest one.
    #[serde(default = "first_attempt", skip_serializing_if = "is_first_attempt")]
    pub attempt: u32,
    pub pid: u32,
    pub started_at: Option<Timestamp>,
    pub exit: Option<Exit>,
    pub exited_at: Option<Timestamp>,
    /// The rank was killed, because it had not ended so long after SIGTERM.
    #[serde(
        default,
        with = "optional_period",
        skip_serializing_if = "Option::is_none"
    )]
    pub killed_after: Option<Duration>,
    /// Why it failed, in one line. Text that begins with [`LAST_OUTPUT`] proves nothing.
    pub first_error: Option<String>,
    /// The Python exception that this line is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exception: Option<RankException>,
    /// The last lines of stderr of a rank that failed.
    pub tail: Vec<String>,
    pub first_step: Option<u64>,
    pub first_step_at: Option<Timestamp>,
    pub last_step: Option<u64>,
    pub last_step_at: Option<Timestamp>,
    #[serde(default)]
    pub steps: StepsShown,
    /// It does not move. `None`: it does, it has ended, or its node cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub still: Option<Still>,
    /// When it comes to the collectives of its groups. `None`: nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<Box<Arrivals>>,
}

fn first_attempt() -> u32 {
    1
}

fn is_first_attempt(attempt: &u32) -> bool {
    *attempt == first_attempt()
}

impl RunReport {
    /// A run that was just accepted and has shown nothing yet.
    pub fn preparing(run: RunId, term: Term) -> Self {
        Self {
            run,
            term,
            phase: RunPhase::Preparing,
            refused_due_to: DueTo::Unknown,
            store: None,
            port: None,
            ports: Vec::new(),
            key: None,
            joined_ranks: Vec::new(),
            all_joined_at: None,
            launched_at: None,
            torchrun_exit: None,
            torchrun_error: None,
            dead_at: None,
            fenced: false,
            checkpoint: None,
            ranks: Vec::new(),
            world: WorldReport::default(),
            leftovers: Vec::new(),
            step_pattern_fault: None,
            disobedience: None,
            phases: PhasesReport::default(),
            lane: LaneReport::default(),
            stack: Stack::default(),
        }
    }

    /// The same report without times and without steps after the first. If two reports are the same
    /// after this, the later one has no news that anybody must act on.
    pub fn without_progress(&self) -> Self {
        let happened = |at: Option<Timestamp>| at.map(|_| Timestamp::default());
        let mut run = self.clone();
        for at in [
            &mut run.all_joined_at,
            &mut run.launched_at,
            &mut run.dead_at,
        ] {
            *at = happened(*at);
        }
        run.checkpoint = None;
        // The rule that reads it looks again by itself.
        run.world.announced = None;
        run.phases = run.phases.seen();
        for rank in &mut run.ranks {
            (rank.last_step, rank.last_step_at) = (None, None);
            rank.steps = StepsShown::default();
            rank.still = None;
            rank.arrivals = None;
            for at in [
                &mut rank.started_at,
                &mut rank.exited_at,
                &mut rank.first_step_at,
            ] {
                *at = happened(*at);
            }
        }
        run
    }

    /// Whether the run ended by itself and successfully: torchrun's code is 0, and no rank's exit
    /// differs.
    pub fn succeeded(&self) -> bool {
        self.torchrun_exit.is_some_and(Exit::is_success)
            && self
                .ranks
                .iter()
                .all(|rank| rank.exit.is_none_or(Exit::is_success))
    }

    /// Whether each of its ranks has been started. A run is `Running` seconds before that, while
    /// torchrun does its imports.
    pub fn ranks_started(&self, expected: u32) -> bool {
        self.ranks
            .iter()
            .filter(|rank| rank.started_at.is_some())
            .count()
            >= expected as usize
    }

    /// Whether all ranks have ended successfully. torchrun may still wait for others at its exit
    /// barrier.
    pub fn ranks_finished(&self, expected: u32) -> bool {
        self.ranks.len() == expected as usize
            && self
                .ranks
                .iter()
                .all(|rank| rank.exit.is_some_and(Exit::is_success))
    }
}
