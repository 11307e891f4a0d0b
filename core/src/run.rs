//! What crosses the session between coordinator and agent about worker groups: desired state down,
//! reports up.
//!
//! A *run* is one worker group of one generation of one job on one node. The coordinator sends each
//! node its whole [`Desired`] state (level, not edge), stamped with term and node epoch; the agent
//! answers with a [`RunReport`] for every run it knows, alive or not. Nobody says "do X now"; both
//! say "this is so".

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    exit::Exit,
    id::{Generation, JobName, JobUid, NodeEpoch, NodeName, Term},
    nccl::{profile::Profile, stack::Stack},
    node_report::labels::Labels,
    period::{optional_period, serde_period},
    spec::Launch,
    time::Timestamp,
};

/// Everything one node shall run, at one moment, by one coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desired {
    pub term: Term,
    pub epoch: NodeEpoch,
    pub runs: Vec<DesiredRun>,
    /// What the node's Kubernetes object says and its workers are told
    /// ([`environment::told`](crate::nccl::environment::told)).
    #[serde(default)]
    pub labels: Labels,
    /// Jobs that are about to come here: of each a launcher is to be ready, and nothing is started.
    /// The generation is the one they would be next, not sealed yet.
    #[serde(default)]
    pub warm: Vec<Assignment>,
}

/// What became of the launcher a node was to have ready ([`Desired::warm`]). While it is made,
/// nothing is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpareReport {
    pub job: JobUid,
    pub state: SpareState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpareState {
    /// It has imported what it can.
    Ready,
    /// There is none, and there will be none; the job starts here all the same. Why.
    Without(String),
    /// The job cannot be started here. Why, for the user.
    Refused(String),
}

/// A run's name on its node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunId {
    pub job: JobUid,
    pub generation: Generation,
}

/// `UID-gN`: the name of the run's directory and of its generation's rendezvous. A uid is random
/// and never used again, so neither is this.
impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-g{}", self.job, self.generation)
    }
}

impl RunId {
    /// Whether a sentence names this run, and not one whose name only begins or ends alike: `a-g1`
    /// is no part of `a-g12`.
    pub fn is_named_in(&self, sentence: &str) -> bool {
        let name = self.to_string();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        sentence.match_indices(&name).any(|(at, _)| {
            !sentence[..at].ends_with(is_part) && !sentence[at + name.len()..].starts_with(is_part)
        })
    }
}

/// What a node has obeyed of a job: its newest generation, which it never goes behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Obeyed {
    pub generation: Generation,
    /// It has ended there, or never began, and is not started there any more.
    pub over: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredRun {
    pub run: RunId,
    pub target: Target,
}

/// What a run shall be. A run the node holds and the coordinator does not mention is left alone:
/// silence never kills.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// Have the runner up (serving the store, if this node hosts it), every older generation of the
    /// job dead; then wait.
    Ready(Box<Assignment>),
    /// Train. Reached only over `Ready`, once the store answers at this address and the older
    /// generation is inert.
    Running(Box<Assignment>, Endpoint),
    /// Be dead and prove it.
    Stopped { grace: Duration, reason: String },
    /// The coordinator has recorded this run's end. The runner may go; logs stay unless `purge`.
    Gone { purge: bool },
}

/// Where a TCP service listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
}

/// One node's share of one sealed generation: all that is needed to start its workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assignment {
    pub run: RunId,
    pub name: JobName,
    /// Rendezvous id, new for every generation, so that members of two generations can never meet.
    pub rendezvous: String,
    pub node_rank: u32,
    pub node_count: u32,
    pub proc_per_node: u32,
    /// Global rank of this node's local rank 0.
    pub first_rank: u32,
    pub world_size: u32,
    /// The member whose runner serves the TCPStore.
    pub store_host: NodeName,
    /// This node is `store_host`.
    pub hosts_store: bool,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub working_dir: Option<String>,
    pub gpus: Vec<String>,
    pub launch: Launch,
    #[serde(with = "serde_period")]
    pub stop_grace: Duration,
    pub step_pattern: Option<String>,
    /// How often workers of this job were started before this generation: its ranks'
    /// `TORCHELASTIC_RESTART_COUNT`.
    pub restart_count: u32,
    /// What all ranks of the generation agree on.
    pub profile: Profile,
    /// The coordinator's hash of it. An agent that computes another understands the profile
    /// otherwise and refuses the run.
    pub profile_hash: String,
    /// The workers stop by themselves when nothing has been heard of the coordinator for so long.
    #[serde(
        default,
        with = "optional_period",
        skip_serializing_if = "Option::is_none"
    )]
    pub fence_after: Option<Duration>,
}

/// What an agent says about one run. Times are on the sender's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    pub run: RunId,
    /// The term under which the agent accepted the run.
    pub term: Term,
    pub phase: RunPhase,
    /// Where this node's runner serves the generation's store, if it does.
    pub store: Option<Endpoint>,
    /// Global ranks that entered the process group, ascending, as the store saw it; only from the
    /// node that serves it.
    pub joined_ranks: Vec<u32>,
    pub all_joined_at: Option<Timestamp>,
    pub launched_at: Option<Timestamp>,
    /// How torchrun itself ended. Its code is 1 for every failure: the ranks have the truth.
    pub launcher_exit: Option<Exit>,
    /// torchrun's own last words, if it failed before any rank did.
    pub launcher_error: Option<String>,
    pub dead_at: Option<Timestamp>,
    /// The workers were stopped by their runner, since nothing had been heard of the coordinator
    /// for the job's `fenceAfter`.
    #[serde(default)]
    pub fenced: bool,
    pub ranks: Vec<RankReport>,
    #[serde(default)]
    pub lane: LaneReport,
    /// What the interpreter has that starts the ranks; not known before the run is ready.
    #[serde(default)]
    pub stack: Stack,
}

/// How a node starts a run's workers, why so, and what it keeps ready for the job's next
/// generation. For users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaneReport {
    /// Empty until it is decided.
    pub name: String,
    pub reason: String,
    /// Memory of the launcher that waits; 0 while there is none, or its size is not known yet.
    pub spare_bytes: u64,
}

/// The life of a run on its node: `Preparing -> Ready -> Running -> Stopping -> Dead`; every state
/// may go to `Dead`, and `Preparing` may end in `Refused`, when the node cannot start it and says
/// why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RunPhase {
    Preparing,
    Ready,
    Running,
    Stopping,
    /// Proven: no process of the run is left on the node.
    Dead,
    /// Never started; the reason is for the user.
    Refused(String),
}

impl RunPhase {
    /// No process of this run lives, and none will.
    pub fn is_over(&self) -> bool {
        matches!(self, RunPhase::Dead | RunPhase::Refused(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankReport {
    pub rank: u32,
    pub local_rank: u32,
    pub pid: u32,
    pub started_at: Option<Timestamp>,
    pub exit: Option<Exit>,
    pub exited_at: Option<Timestamp>,
    /// The line that says what went wrong, as far as one can be told from the rest.
    pub first_error: Option<String>,
    /// Last lines of stderr of a rank that failed.
    pub tail: Vec<String>,
    pub first_step: Option<u64>,
    pub first_step_at: Option<Timestamp>,
    pub last_step: Option<u64>,
    pub last_step_at: Option<Timestamp>,
}

impl RankReport {
    /// A rank of which nothing has been seen yet.
    pub fn bare(rank: u32, local_rank: u32) -> Self {
        Self {
            rank,
            local_rank,
            pid: 0,
            started_at: None,
            exit: None,
            exited_at: None,
            first_error: None,
            tail: Vec::new(),
            first_step: None,
            first_step_at: None,
            last_step: None,
            last_step_at: None,
        }
    }
}

impl RunReport {
    /// A run just accepted, of which nothing has been seen yet.
    pub fn preparing(run: RunId, term: Term) -> Self {
        Self {
            run,
            term,
            phase: RunPhase::Preparing,
            store: None,
            joined_ranks: Vec::new(),
            all_joined_at: None,
            launched_at: None,
            launcher_exit: None,
            launcher_error: None,
            dead_at: None,
            fenced: false,
            ranks: Vec::new(),
            lane: LaneReport::default(),
            stack: Stack::default(),
        }
    }

    /// The same without how many steps were made after the first, and when things happened: of two
    /// reports that are the same then, the later one says nothing that anybody must act on.
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
        for rank in &mut run.ranks {
            (rank.last_step, rank.last_step_at) = (None, None);
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

    /// The run ended by itself and well: torchrun says 0 and no rank says otherwise.
    pub fn succeeded(&self) -> bool {
        self.launcher_exit.is_some_and(Exit::is_success)
            && self
                .ranks
                .iter()
                .all(|rank| rank.exit.is_none_or(Exit::is_success))
    }

    /// Each of its ranks has been started. A run is `Running` seconds before that: torchrun has its
    /// imports to make.
    pub fn ranks_started(&self, expected: u32) -> bool {
        self.ranks
            .iter()
            .filter(|rank| rank.started_at.is_some())
            .count()
            >= expected as usize
    }

    /// All ranks have ended well, torchrun may still wait for others at its exit barrier.
    pub fn ranks_finished(&self, expected: u32) -> bool {
        self.ranks.len() == expected as usize
            && self
                .ranks
                .iter()
                .all(|rank| rank.exit.is_some_and(Exit::is_success))
    }
}
