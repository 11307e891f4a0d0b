//! A node as stored: what must survive a restart of the coordinator.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    fleet::receipt::Cause,
    id::{JobName, JobUid, NodeEpoch, NodeName},
    period,
    time::Timestamp,
};

/// A node as stored: what must survive a restart of the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    pub name: NodeName,
    pub epoch: NodeEpoch,
    pub boot_id: String,
    pub first_seen: Timestamp,
    /// The node was Lost when last judged. A coordinator that starts does not wait for it.
    pub gone: bool,
    /// When the node became gone, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_since: Option<Timestamp>,
    pub cordon: Option<Cordon>,
    /// It is a worker pod of this job, and of no use to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_of: Option<JobUid>,
    /// Muster itself does not cordon the node for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_off: Option<HoldOff>,
    /// When the newest cordon that is over was set. A newer one on the Node object is one that this
    /// store has lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// The time of a cordon that somebody else has ended on the Node object. It is kept while the
    /// cordon's annotations are there. If the node is unschedulable since then, that is another
    /// cordon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overruled: Option<Timestamp>,
    /// What people were told last of others who keep work away by the Node object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_excluded: Option<String>,
    /// The node knows more than the store.
    #[serde(default)]
    pub halt: Option<Halt>,
    /// Failures that began on this node, newest last, bounded. Each says what it means for the
    /// node.
    pub marks: Vec<Mark>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cordon {
    pub by: CordonedBy,
    pub reason: String,
    pub at: Timestamp,
    /// The jobs whose failures count against the node, for people. Empty: a person cordoned it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobName>,
}

/// Who cordoned a node. It is stored and sent as a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum CordonedBy {
    /// Muster itself. Only such cordons are counted against the fleet's limits.
    Muster,
    /// Anybody else. Muster never removes such a cordon by itself.
    Other(String),
}

impl CordonedBy {
    const MUSTER: &str = "muster";
}

impl From<String> for CordonedBy {
    fn from(name: String) -> Self {
        match name.as_str() {
            Self::MUSTER => Self::Muster,
            _ => Self::Other(name),
        }
    }
}

impl From<&str> for CordonedBy {
    fn from(name: &str) -> Self {
        Self::from(name.to_owned())
    }
}

impl From<CordonedBy> for String {
    fn from(by: CordonedBy) -> Self {
        by.to_string()
    }
}

impl fmt::Display for CordonedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Muster => Self::MUSTER,
            Self::Other(name) => name,
        })
    }
}

impl NodeRecord {
    /// When the newest cordon of this node was set that the books know.
    pub(crate) fn last_cordon(&self) -> Option<Timestamp> {
        let present = self.cordon.as_ref().map(|cordon| cordon.at);
        present.max(self.ended)
    }
}

/// A person has uncordoned the node in Kubernetes, and is right for so long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldOff {
    pub until: Timestamp,
    /// When the person was seen to have done so.
    pub since: Timestamp,
}

/// Why nothing is decided about a node and its jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halt {
    pub at: Timestamp,
    pub why: String,
}

/// One failure that began on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    pub at: Timestamp,
    pub job: JobUid,
    /// The job's name, for people: the job may be deleted before the mark is.
    pub name: JobName,
    pub cause: Cause,
    /// How long its generation had trained.
    #[serde(with = "period::serde_period")]
    pub lasted: Duration,
    pub standing: Standing,
}

/// What a mark says about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Standing {
    /// No job can cause this: the node fell silent, rebooted, or did not get ready.
    Node,
    /// It is not known yet.
    Open,
    /// The job lasted longer without the node.
    Accused,
    /// The job has failed on other nodes too.
    Acquitted,
}

impl Standing {
    /// The sentence that people read.
    pub fn sentence(self) -> &'static str {
        match self {
            Standing::Node => "the node's own: counts against it",
            Standing::Open => "open: the job has not run without this node since",
            Standing::Accused => "the job lasted longer without this node: counts against it",
            Standing::Acquitted => "the job failed on other nodes too: does not count",
        }
    }

    pub(crate) fn counts(self) -> bool {
        matches!(self, Standing::Node | Standing::Accused)
    }
}
