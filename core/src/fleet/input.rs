//! The input of a turn: what the coordinator learnt or was asked.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    fleet::{
        actor::Actor,
        history::HistoryRecord,
        job::JobRecord,
        node_record::NodeRecord,
        notify::{Outbox, Sent},
        tombstone::Tombstone,
        worker_pod::WorkerPod,
    },
    hello::Hello,
    id::{Generation, JobName, JobUid, NodeName, SessionId},
    node_object::NodeObject,
    node_report::NodeReport,
    run::{LauncherReport, RunReport},
    spec::{JobSpec, Lifetime},
    stacks::RankStack,
};

/// One thing the coordinator learnt or was asked.
#[derive(Clone, Debug)]
pub enum Input {
    /// An agent opened a session. The answer is [`Effect::Welcome`] or [`Effect::Refuse`].
    Connected {
        session: SessionId,
        hello: Hello,
    },
    /// The agent's facts changed.
    Report {
        session: SessionId,
        report: NodeReport,
    },
    /// All runs that the node holds. An agent sends them after every change.
    Runs {
        session: SessionId,
        runs: Vec<RunReport>,
    },
    /// The state of the launchers that the node was asked to have ready. A launcher that is not
    /// named is still being made.
    Launchers {
        session: SessionId,
        launchers: Vec<LauncherReport>,
    },
    Heartbeat {
        session: SessionId,
    },
    /// The session's stream ended, for any reason.
    Disconnected {
        session: SessionId,
    },
    /// News about Kubernetes Node objects, if the coordinator reads them.
    Objects(ObjectNews),
    /// News about worker pods, if the coordinator makes them.
    Pods(PodNews),
    /// A user's request. It is answered exactly once, with [`Effect::Answer`].
    Request {
        id: RequestId,
        actor: Actor,
        request: Request,
    },
    /// The store takes no record of this job as large as it is now. What this turn changes is written in
    /// place of that record.
    RecordTooLarge {
        job: JobUid,
        why: String,
    },
    /// The answer to [`Effect::LookAtRanks`] with this number. Ranks of nodes that did not answer are there, without
    /// stacks.
    ///
    /// [`Effect::LookAtRanks`]: crate::fleet::Effect::LookAtRanks
    Looked {
        job: JobUid,
        number: u64,
        ranks: Vec<RankStack>,
    },
    /// A message to people was delivered.
    Notified(Sent),
    /// Time passed. The shell sends one at least every [`Policy::tick`], and also at the moment
    /// [`TurnOutput::wake_at`] names.
    Tick,
}

/// What the shell read about Node objects, or why it could not read or write them. An object belongs to the node of
/// its name.
#[derive(Clone, Debug)]
pub enum ObjectNews {
    /// All objects that exist.
    Listed(BTreeMap<NodeName, Arc<NodeObject>>),
    /// This object is new, or has changed.
    Applied(NodeName, Arc<NodeObject>),
    Deleted(NodeName),
    /// The objects can be followed again, after they could not be read.
    Followed,
    /// The objects cannot be read, and why.
    Unreadable(String),
    /// No write of an object fails any more, after one did.
    Written,
    /// Objects cannot be written, and why. `known`: people were told why, and only the number of
    /// objects is another.
    Unwritable {
        why: String,
        known: bool,
    },
}

/// What the shell read about worker pods, each under the name of the node that it is.
#[derive(Clone, Debug)]
pub enum PodNews {
    /// All pods that exist.
    Listed(BTreeMap<NodeName, Arc<WorkerPod>>),
    /// The pods that are kept. In these namespaces there may be others: a pod of theirs that is not here
    /// is not gone.
    ListedInPart(BTreeMap<NodeName, Arc<WorkerPod>>, BTreeSet<String>),
    /// From now on nothing is told of new pods in these namespaces.
    Crowded(BTreeSet<String>),
    /// This pod is new, or has changed.
    Applied(NodeName, Arc<WorkerPod>),
    /// This pod is gone; its last state.
    Deleted(NodeName, Arc<WorkerPod>),
    /// These pods of the job, by uid, are about to be deleted, and no others.
    Unneeded(JobUid, BTreeSet<String>),
    /// Why this job cannot have the pods that it lacks. `None`: that is over.
    Refused(JobUid, Option<String>),
}

/// Pairs an answer with the caller that waits for it. The shell gives the numbers out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "requests are few and short-lived"
)]
pub enum Request {
    /// `uid` is a fresh UUID from the shell. It is not used if the job exists already. A
    /// `request_id` names one submission within the job's namespace.
    Submit {
        name: JobName,
        spec: JobSpec,
        uid: JobUid,
        request_id: String,
        validate_only: bool,
    },
    /// Holds a job back, or resumes it.
    Suspend {
        name: JobName,
        suspended: bool,
    },
    Scale {
        name: JobName,
        nodes: u32,
    },
    Cancel {
        name: JobName,
    },
    /// Gives a job other limits of its life.
    Limit {
        name: JobName,
        lifetime: Lifetime,
    },
    Delete {
        name: JobName,
    },
    /// Ranks of a job have been sent a signal. It changes nothing, and becomes an event.
    NoteSignal {
        name: JobName,
        uid: JobUid,
        generation: Generation,
        signal: i32,
        /// Those that got it, in their order.
        ranks: Vec<u32>,
    },
    Cordon {
        node: NodeName,
        reason: String,
    },
    Uncordon {
        node: NodeName,
    },
    /// The operator's word that a node is gone for good.
    DeleteNode {
        node: NodeName,
    },
    /// What the queues have at this moment. It changes nothing.
    Queues,
    /// When the jobs that wait will start. It changes nothing.
    Starts,
    /// In which order the jobs that wait choose nodes. It changes nothing.
    Order,
    /// What everybody has used of late. It changes nothing.
    Shares,
}

/// Everything stored, as read at start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    pub jobs: Vec<JobRecord>,
    pub nodes: Vec<NodeRecord>,
    /// What nodes last said of themselves, as far as it was kept. It describes a node that is not
    /// back yet. Nothing is decided from it.
    pub reports: Vec<(NodeName, NodeReport)>,
    pub tombstones: Vec<Tombstone>,
    /// What is left of jobs that are over, in the order of numbers.
    pub history: Vec<Arc<HistoryRecord>>,
    /// What waits to be sent to people.
    pub outbox: Outbox,
    /// The highest event number given out.
    pub last_event: u64,
}
