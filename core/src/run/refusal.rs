//! Why a node cannot start a run, and whose doing that is.

use serde::{Deserialize, Serialize};

/// A refusal to start a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub due_to: DueTo,
    /// For the user.
    pub reason: String,
}

/// Whose doing a refusal is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DueTo {
    /// The agent does not know, or is older than the question.
    #[default]
    Unknown,
    /// What the job names is not there: its script, interpreter or directory, or torch.
    Job,
    /// The node lacks something, or its agent cannot do its part.
    Node,
    /// A process that no job started holds a GPU of the run.
    Stranger,
    /// The job's owner has no account on the node, on which jobs run as their owners.
    Account,
}

impl DueTo {
    pub fn is_unknown(&self) -> bool {
        *self == DueTo::Unknown
    }

    /// A refusal for this reason.
    pub fn because(self, reason: impl Into<String>) -> Refusal {
        Refusal {
            due_to: self,
            reason: reason.into(),
        }
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        DueTo::Unknown.because(reason)
    }
}

impl From<&str> for Refusal {
    fn from(reason: &str) -> Self {
        DueTo::Unknown.because(reason)
    }
}
