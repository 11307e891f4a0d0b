//! What people can be told of.

use serde::{Deserialize, Serialize};

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    JobFailed,
    JobSucceeded,
    /// All its ranks run for the first time.
    JobStarted,
    /// Nothing of its generation moves any more.
    JobStalled,
    /// It has waited for nodes longer than the operator's limit.
    JobWaiting,
    /// Half of the restarts that `restartPolicy` allows are spent.
    RestartBudgetHalfSpent,
    /// A failure was charged to a node.
    NodeFailed,
    NodeCordoned,
    /// Somebody tries out a receiver.
    Test,
    /// A kind that a later version wrote.
    #[serde(other)]
    Unknown,
}

impl Kind {
    /// Those that a rule can name.
    pub const ALL: [Kind; 8] = [
        Kind::JobFailed,
        Kind::JobSucceeded,
        Kind::JobStarted,
        Kind::JobStalled,
        Kind::JobWaiting,
        Kind::RestartBudgetHalfSpent,
        Kind::NodeFailed,
        Kind::NodeCordoned,
    ];

    /// Those that a job can ask for: all that have a job. A failure that was charged to a node has cost a job something.
    pub const OF_JOBS: [Kind; 7] = [
        Kind::JobFailed,
        Kind::JobSucceeded,
        Kind::JobStarted,
        Kind::JobStalled,
        Kind::JobWaiting,
        Kind::RestartBudgetHalfSpent,
        Kind::NodeFailed,
    ];

    /// The word in files and in messages.
    pub fn word(self) -> &'static str {
        match self {
            Kind::JobFailed => "jobFailed",
            Kind::JobSucceeded => "jobSucceeded",
            Kind::JobStarted => "jobStarted",
            Kind::JobStalled => "jobStalled",
            Kind::JobWaiting => "jobWaiting",
            Kind::RestartBudgetHalfSpent => "restartBudgetHalfSpent",
            Kind::NodeFailed => "nodeFailed",
            Kind::NodeCordoned => "nodeCordoned",
            Kind::Test => "test",
            Kind::Unknown => "unknown",
        }
    }

    pub fn read(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// What several of them have in common, after their number.
    pub fn of_several(self) -> &'static str {
        match self {
            Kind::JobFailed => "jobs have failed",
            Kind::JobSucceeded => "jobs have succeeded",
            Kind::JobStarted => "jobs have started",
            Kind::JobStalled => "jobs stand still",
            Kind::JobWaiting => "jobs wait too long",
            Kind::RestartBudgetHalfSpent => "jobs have spent half of their restarts",
            Kind::NodeFailed => "failures were charged to nodes",
            Kind::NodeCordoned => "nodes were cordoned",
            Kind::Test => "tests",
            Kind::Unknown => "notices of a kind that only a later version knows",
        }
    }

    /// Whether it may need a person.
    pub fn is_warning(self) -> bool {
        !matches!(self, Kind::JobSucceeded | Kind::JobStarted | Kind::Test)
    }
}
