//! The coordinator's brain. [`Fleet::turn`] is its only door: one input in, changes to commit and
//! effects to execute out.
//!
//! The shell commits [`Turn::changes`] in one transaction first and only then executes
//! [`Turn::effects`] (DESIGN R1). If the commit fails, the process ends and the state in memory
//! with it: nobody has heard of a decision that is not stored.
//!
//! | file | owns |
//! |---|---|
//! | `turn` | the one door: facts in, changes and effects out |
//! | `ingest` | what agents say, and what their silence says |
//! | `settle` | one job's next step: resize, open, start, close |
//! | `judge` | is a generation done, or broken, and who pays |
//! | `requests` | what users ask for |
//! | `registry` | who is alive: sessions, silence, Suspect, Lost |
//! | `job` | a job's durable record and its phases |
//! | `forget` | nodes that are gone for good, and how many may be known |
//! | `crash_loop` | a job that looks as if it could not start at all |
//! | `members` | a sealed membership |
//! | `capacity` | what nodes have left |
//! | `placement` | which nodes, in which rank order, or why none |
//! | `rendezvous` | one generation: ready, inert, broken, done |
//! | `blame` | who broke a generation, and who pays |
//! | `fault_ledger` | the ledger of failures by job and node: which of the two is at fault |
//! | `ends` | how members ended, kept after their nodes have forgotten |
//! | `fence` | when workers that stop by themselves have stopped |
//! | `budget` | restarts a job may have; cordons the fleet may have |
//! | `brake` | many nodes silent at once: no cordons, nothing wholly silent is replaced |
//! | `rollback` | a node that knows more than the store |
//! | `namesake` | a second machine that claims a node's name |
//! | `account` | what incidents have cost, by cause |
//! | `receipt` | what an incident cost, phase by phase |
//! | `desired` | each node's whole desired state |
//! | `unhealthy` | what a node's verdict on its hardware means for jobs |
//! | `software_mismatch` | members whose interpreters do not go together |
//! | `objects` | what Kubernetes Node objects say of the nodes |
//! | `describe` | a job's phase, reason and sentence |
//! | `view` | what users see |
//! | `prewarm` | who is to join gets a launcher ready before anybody is stopped |

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    id::{Generation, JobName, JobUid, NodeEpoch, NodeName, SessionId, Term},
    node_report::NodeReport,
    protocol::Speaks,
    run::{Desired, Obeyed, RunReport, SpareReport},
    spec::JobSpec,
    time::Timestamp,
};

pub mod account;
mod agreement;
mod blame;
mod brake;
mod budget;
mod capacity;
pub mod crash_loop;
mod describe;
mod desired;
pub mod ends;
mod fault_ledger;
mod fence;
mod forget;
mod generation;
mod ingest;
pub mod job;
mod judge;
pub mod members;
mod namesake;
mod objects;
mod placement;
mod prewarm;
pub mod receipt;
mod registry;
mod requests;
mod rollback;
mod settle;
pub mod software_mismatch;
#[cfg(test)]
mod tests;
mod turn;
mod unhealthy;
pub mod view;

pub use budget::MUSTER;
pub use fault_ledger::{Mark, Standing};
pub use objects::ObjectNews;
pub use rollback::Halt;

use job::JobRecord;
use view::{JobView, NodeView};

/// One thing the coordinator learnt or was asked.
#[derive(Clone, Debug)]
pub enum Input {
    /// An agent opened a session. Answered with [`Effect::Welcome`] or [`Effect::Refuse`].
    Connected {
        session: SessionId,
        hello: Hello,
    },
    /// The agent's facts changed.
    Report {
        session: SessionId,
        report: NodeReport,
    },
    /// All runs the node holds, after any change of them.
    Runs {
        session: SessionId,
        runs: Vec<RunReport>,
    },
    /// What became of the launchers the node was to have ready; those not named are still being
    /// made.
    Spares {
        session: SessionId,
        spares: Vec<SpareReport>,
    },
    Heartbeat {
        session: SessionId,
    },
    /// The session's stream ended, for whatever reason.
    Disconnected {
        session: SessionId,
    },
    /// News of Kubernetes Node objects, where the coordinator reads them.
    Objects(ObjectNews),
    /// A user's request; answered exactly once with [`Effect::Answer`].
    Request {
        id: RequestId,
        request: Request,
    },
    /// Time passed. The shell sends one at least every [`Policy::tick`], and at the moment
    /// [`Turn::wake_at`] asks for.
    Tick,
}

#[derive(Clone, Debug)]
pub struct Hello {
    pub node: NodeName,
    pub boot_id: String,
    /// For how long this boot has been up; `None`: the agent cannot tell.
    pub uptime: Option<Duration>,
    pub incarnation: u64,
    pub speaks: Speaks,
    pub term_seen: Term,
    pub epoch_seen: NodeEpoch,
    /// What this node has obeyed of each job, whether or not it still holds anything of it.
    pub jobs_seen: BTreeMap<JobUid, Obeyed>,
    pub report: NodeReport,
    pub runs: Vec<RunReport>,
}

/// Pairs an answer with the caller that waits for it; given out by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "requests are few and short-lived"
)]
pub enum Request {
    /// `uid` is a fresh UUID from the shell; not used if the job exists already.
    Submit {
        name: JobName,
        spec: JobSpec,
        uid: JobUid,
        request_id: String,
        validate_only: bool,
    },
    Scale {
        name: JobName,
        nodes: u32,
    },
    Cancel {
        name: JobName,
    },
    Delete {
        name: JobName,
    },
    Cordon {
        node: NodeName,
        by: String,
        reason: String,
    },
    Uncordon {
        node: NodeName,
    },
    /// The operator's word that a node is dead for good.
    DeleteNode {
        node: NodeName,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Job { job: Box<JobView>, existed: bool },
    Node(Box<NodeView>),
    Done,
    Refused(Refusal),
}

/// Why a request was refused. Each maps to one gRPC code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("job {0} not found")]
    NoSuchJob(JobName),
    #[error("node {0} not found")]
    NoSuchNode(NodeName),
    /// Same name or request id, other content; the fields that differ.
    #[error(
        "job {name} exists already with other content: {fields} differ; delete it first or use another name"
    )]
    JobExists { name: JobName, fields: String },
    #[error("{field}: {message}")]
    Invalid { field: String, message: String },
    /// The object's state does not allow it; the message says what to do.
    #[error("{0}")]
    Precondition(String),
    #[error("{what}: at most {limit} are allowed; delete jobs that are over")]
    TooMany { what: &'static str, limit: usize },
}

/// What one turn decided.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    /// To be committed in one transaction before any effect is executed.
    pub changes: Vec<Change>,
    pub effects: Vec<Effect>,
    /// When the next [`Input::Tick`] is due at the latest.
    pub wake_at: Option<Timestamp>,
}

/// One change of the stored state.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    PutJob(Box<JobRecord>),
    DeleteJob(JobUid),
    PutNode(Box<NodeRecord>),
    DeleteNode(NodeName),
    Event(Box<Event>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The session is accepted; `Publish` follows.
    Welcome {
        session: SessionId,
        term: Term,
        epoch: NodeEpoch,
        heartbeat: Duration,
        /// The version of the session's protocol both use.
        protocol: u32,
    },
    /// End this session; the text is for the agent's log.
    Refuse {
        session: SessionId,
        why: String,
    },
    /// The node's whole desired state has changed.
    Publish {
        session: SessionId,
        desired: Desired,
    },
    Answer {
        id: RequestId,
        answer: Answer,
    },
    /// What users see of this job may have changed ([`Fleet::job_view`]; none: it is gone).
    JobChanged(JobUid),
    /// The same of a node ([`Fleet::node_view`]).
    NodeChanged(NodeName),
}

/// A node as stored: what must survive a restart of the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    pub name: NodeName,
    pub epoch: NodeEpoch,
    pub boot_id: String,
    pub first_seen: Timestamp,
    /// It was Lost when last judged: a coordinator that starts does not wait for it.
    pub gone: bool,
    /// Since when it is gone, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_since: Option<Timestamp>,
    pub cordon: Option<Cordon>,
    /// It knows more than the store.
    #[serde(default)]
    pub halt: Option<Halt>,
    /// Failures that began on this node, newest last, bounded, each with what it says about the
    /// node.
    pub marks: Vec<Mark>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cordon {
    pub by: String,
    pub reason: String,
    pub at: Timestamp,
}

/// Something that happened, for people. Numbered by the fleet, in the order of decisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    pub sequence: u64,
    pub at: Timestamp,
    pub warning: bool,
    /// CamelCase, as `WorldFormed`.
    pub reason: String,
    pub message: String,
    pub job: Option<(JobUid, JobName)>,
    pub node: Option<NodeName>,
    pub generation: Option<Generation>,
}

/// Everything stored, as read at start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    pub jobs: Vec<JobRecord>,
    pub nodes: Vec<NodeRecord>,
    /// What nodes last said of themselves, as far as it was kept: a node not yet back is described
    /// by it, nothing is decided from it.
    pub reports: Vec<(NodeName, NodeReport)>,
    /// Highest event number given out.
    pub last_event: u64,
}

/// All timings and bounds of the fleet, in one place (DESIGN 6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub heartbeat: Duration,
    /// Missed heartbeats until Suspect, and until Lost.
    pub suspect_missed: u32,
    pub lost_missed: u32,
    /// How long failures are gathered before they are judged together: failures arrive in bursts.
    /// Not with one that is conclusive.
    pub coalesce: Duration,
    /// How long a started coordinator listens before silence means anything (R8), beside
    /// [`Policy::listen_for`]'s time for each node.
    pub listen: Duration,
    /// A member that is not ready for its generation within this is left out.
    pub prepare_timeout: Duration,
    pub backoff_first: Duration,
    pub backoff_max: Duration,
    /// Where no step is seen: a generation that ran this long has trained, and the back-off starts
    /// afresh.
    pub backoff_reset: Duration,
    /// Failures that began on one node within `storm_window`, from at least two jobs, that make it
    /// a storm.
    pub storm_failures: usize,
    pub storm_window: Duration,
    /// Cordons by Muster per `cordon_window`: at most this share of the fleet in percent, and at
    /// least one.
    pub cordon_percent: u32,
    pub cordon_window: Duration,
    /// Cordons by Muster outstanding, in percent of the fleet (at least one), beyond which it stops
    /// and asks a person.
    pub cordon_breaker_percent: u32,
    /// Share of the nodes in percent, and how many at least, that fall silent within
    /// `mass_loss_window` to put the brake on. Three at least: a cluster of three or four may lose
    /// a node, and of two lost at once each may well be dead.
    pub mass_loss_percent: u32,
    pub mass_loss_min: u32,
    pub mass_loss_window: Duration,
    /// The brake goes off when nobody new was lost for so long: a network that is down that long is
    /// no flap.
    pub mass_loss_hold: Duration,
    pub jobs_max: usize,
    /// Nodes known, those that are gone included.
    pub nodes_max: usize,
    /// A node that has been gone for so long is forgotten, if nothing of any job may still run
    /// there.
    pub forget_after: Duration,
    /// The versions of the session's protocol this coordinator serves.
    pub speaks: Speaks,
    /// An operator's word that this store is the truth, although nodes know more: what it does not
    /// know is stopped.
    pub accept_store: bool,
    /// Kubernetes Node objects are read. Else what is stored of them is of another time, and
    /// forgotten.
    pub reads_objects: bool,
    pub tick: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            suspect_missed: 3,
            lost_missed: 5,
            coalesce: Duration::from_millis(50),
            listen: Duration::from_secs(10),
            // An agent waits a minute for torch to be imported, and then starts without its
            // launcher: that must not be too late.
            prepare_timeout: Duration::from_secs(90),
            backoff_first: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
            backoff_reset: Duration::from_secs(60),
            storm_failures: 3,
            storm_window: Duration::from_secs(1800),
            cordon_percent: 2,
            cordon_window: Duration::from_secs(600),
            cordon_breaker_percent: 10,
            mass_loss_percent: 20,
            mass_loss_min: 3,
            mass_loss_window: Duration::from_secs(60),
            mass_loss_hold: Duration::from_secs(600),
            jobs_max: 10_000,
            // Twice the largest fleet this is measured with.
            nodes_max: 20_000,
            // Whoever looks on the next day still finds it.
            forget_after: Duration::from_secs(48 * 3600),
            speaks: Speaks::OURS,
            accept_store: false,
            reads_objects: false,
            tick: Duration::from_millis(250),
        }
    }
}

impl Policy {
    /// How long a coordinator that starts with so many nodes listens. They dial all at once, and
    /// 10,000 were seen to keep two busy processors for 11 to 14 s; it never listens longer than
    /// until the last of them is back.
    pub(crate) fn listen_for(&self, nodes: usize) -> Duration {
        const PER_NODE: Duration = Duration::from_millis(2);
        self.listen + PER_NODE * u32::try_from(nodes).unwrap_or(u32::MAX)
    }
}

/// The whole fleet as one coordinator knows it.
#[derive(Debug)]
pub struct Fleet {
    pub(crate) policy: Policy,
    pub(crate) term: Term,
    pub(crate) jobs: BTreeMap<JobUid, JobRecord>,
    pub(crate) names: BTreeMap<JobName, JobUid>,
    /// Jobs that are not over, or of which something may still run.
    pub(crate) active: BTreeSet<JobUid>,
    /// What is known of a job and need not survive a restart.
    pub(crate) live: BTreeMap<JobUid, settle::Live>,
    /// The earliest moment at which a job is to be looked at without any news.
    pub(crate) jobs_wake: Option<Timestamp>,
    pub(crate) nodes: registry::Registry,
    /// Nodes whose record says so.
    pub(crate) halted: BTreeSet<NodeName>,
    /// When to look again for nodes to forget.
    pub(crate) forget_at: Timestamp,
    /// Many nodes fell silent at once.
    pub(crate) brake: Option<brake::Brake>,
    pub(crate) objects: objects::Objects,
    pub(crate) tombstones: Vec<desired::Tombstone>,
    pub(crate) listen_until: Timestamp,
    pub(crate) last_event: u64,
    pub(crate) last_turn: Timestamp,
    /// Since when this coordinator has been there without a break: what did not happen before may
    /// be its own fault.
    pub(crate) present_since: Timestamp,
    /// When it went on after it had stood still, if ever.
    pub(crate) woke_at: Option<Timestamp>,
    /// Nodes that came back without anything having happened to them, since they were told of last.
    pub(crate) returned: u32,
    pub(crate) told_return: bool,
    /// It has not turned yet.
    pub(crate) fresh: bool,
}
