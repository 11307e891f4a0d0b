//! What the coordinator learns and is asked: the input of a turn.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fleet::{job::JobRecord, node_record::NodeRecord},
    id::{JobName, JobUid, NodeEpoch, NodeName, SessionId, Term},
    node_report::{NodeReport, labels::Labels},
    protocol::Speaks,
    run::{Obeyed, RunReport, SpareReport},
    spec::JobSpec,
};

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

/// What the shell has read, or could not. An object is its node's by its name.
#[derive(Clone, Debug)]
pub enum ObjectNews {
    /// All there are.
    Listed(BTreeMap<NodeName, Labels>),
    /// This one is new, or has changed.
    Applied(NodeName, Labels),
    Deleted(NodeName),
    /// They are followed again, after they could not be read.
    Followed,
    /// They cannot be read, and why.
    Unreadable(String),
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
