//! What a turn decides: changes to store, effects to execute, answers to users.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    fleet::{
        actor::Actor,
        event::Event,
        fair_share::Share,
        history::HistoryRecord,
        input::RequestId,
        job::JobRecord,
        node_record::NodeRecord,
        notify::Outbox,
        plan::Plan,
        start_estimate::Start,
        tombstone::Tombstone,
        view::{JobView, NodeView, QueueView},
    },
    id::{Generation, JobName, JobUid, NodeEpoch, NodeName, SessionId, Term},
    period,
    run::Desired,
    time::Timestamp,
};

/// What one turn decided.
#[derive(Clone, Debug, Default)]
pub struct TurnOutput {
    /// The shell commits these before it executes any effect. Their order is the order in which
    /// they must become durable (`write_order`). A record may be there twice.
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
    PutTombstone(Box<Tombstone>),
    DeleteTombstone(JobUid),
    /// What is left of a job that is over. Its number is higher than those before it.
    PutHistory(Arc<HistoryRecord>),
    /// The records up to this number are dropped.
    DropHistory(u64),
    /// What waits to be sent to people, whole.
    PutOutbox(Arc<Outbox>),
    Event(Box<Event>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The session is accepted. `SendDesired` follows.
    Welcome {
        session: SessionId,
        term: Term,
        epoch: NodeEpoch,
        heartbeat: Duration,
        /// The version of the session's protocol that both sides use.
        protocol: u32,
    },
    /// Ends this session. The text is for the agent's log.
    Refuse {
        session: SessionId,
        why: String,
    },
    /// The node's whole desired state has changed.
    SendDesired {
        session: SessionId,
        desired: Desired,
    },
    Answer {
        id: RequestId,
        answer: Answer,
    },
    /// The agents of these nodes are asked where the ranks are. The answers come together, as [`Input::Looked`] with this
    /// number.
    ///
    /// [`Input::Looked`]: crate::fleet::Input::Looked
    LookAtRanks {
        job: JobUid,
        generation: Generation,
        number: u64,
        ranks: Vec<(NodeName, Vec<u32>)>,
    },
    /// What users see of this job may have changed. If [`Fleet::job_view`] answers none, the job is
    /// gone.
    JobChanged(JobUid),
    /// What users see of this node may have changed ([`Fleet::node_view`]).
    NodeChanged(NodeName),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Job {
        job: Box<JobView>,
        existed: bool,
    },
    /// Of a submission that was only checked.
    Planned {
        job: Box<JobView>,
        plan: Box<Plan>,
    },
    Node(Box<NodeView>),
    /// All queues, each behind its parent.
    Queues(Vec<QueueView>),
    /// When the jobs that wait will start, by name.
    Starts(BTreeMap<JobName, Start>),
    /// The jobs that wait for nodes, the first to choose in front.
    Order(Vec<JobName>),
    /// What was used. `None`: jobs of equal priority go by age.
    Shares(Option<Vec<Share>>),
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
    /// Another job with the same name or request id has other content. `fields` names the
    /// differences.
    #[error(
        "job {name} exists already with other content: {fields} differ; delete it first or use another name"
    )]
    JobExists { name: JobName, fields: String },
    #[error("{field}: {message}")]
    Invalid { field: String, message: String },
    /// The object's state does not allow it. The message says what to do.
    #[error("{0}")]
    Precondition(String),
    #[error("{what}: at most {limit} are allowed; delete jobs that are over")]
    TooMany { what: &'static str, limit: usize },
    /// Other namespaces still have room.
    #[error(
        "namespace {namespace} has {have} jobs, and one namespace may have {limit} (--namespace-jobs-max of the coordinator); {over} of them are \
         over: delete those (muster delete job NAME), and give jobs ttlSecondsAfterFinished"
    )]
    NamespaceFull {
        namespace: String,
        have: usize,
        /// How many of them are over.
        over: usize,
        limit: usize,
    },
    #[error(
        "namespace {namespace} has submitted {burst} jobs at once, and may submit {per_second} in a second (--submits-per-second and \
         --submits-burst of the coordinator); try again in {}", period::format(*again)
    )]
    TooOften {
        namespace: String,
        per_second: u32,
        burst: u32,
        /// After so long there is room for one.
        again: Duration,
    },
    #[error(
        "{caller} has asked {burst} times at once what would become of a job, and may ask {per_second} times in a second; try again in {}",
        period::format(*again)
    )]
    PlansTooOften {
        caller: Actor,
        per_second: u32,
        burst: u32,
        again: Duration,
    },
}
