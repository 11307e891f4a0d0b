//! The status of a job in the words of the system that its file was written for: conditions, reasons
//! and messages as its operator writes them, and how many replicas of each group are active.
//!
//! What happened to the job is told in its order and goes through the operator's own rules for
//! conditions (`conditions`), so that the result is what users of the operator would see. A time that
//! Muster does not know stays unknown. Sources: training-operator 1.9 (`pkg/util/status.go`,
//! `pkg/controller.v1`) and the controllers of the kinds that are not its own.

use muster_core::{spec::Origin, time::Timestamp};
use serde::Serialize;

mod ai_training;
mod conditions;
mod kinds;
mod kubeflow;
pub mod life;
#[cfg(test)]
mod tests;
mod trainer;

pub use conditions::{Condition, ConditionType};
pub use kinds::{Shown, shown, shown_kinds};

/// A job, as it is told to the projection.
#[derive(Clone, Debug)]
pub struct Life<'a> {
    pub origin: &'a Origin,
    pub namespace: &'a str,
    pub name: &'a str,
    pub created: Timestamp,
    /// The job may train with fewer or with more nodes.
    pub elastic: bool,
    /// Oldest first.
    pub happened: Vec<Happened>,
    /// The members of the latest generation that was started.
    pub members: Vec<Member>,
    /// It is held back, and some of its workers have not stopped yet.
    pub stops: bool,
    /// How often its workers were started again.
    pub restarts: u32,
    /// Muster's own sentence about its present state.
    pub message: &'a str,
    /// When it was over.
    pub finished: Option<Timestamp>,
}

/// One thing that happened to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    /// `None`: nobody has kept it.
    pub at: Option<Timestamp>,
    pub what: What,
}

/// What can happen to a job, as far as another system has words for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Its members are there, and start their processes. The names of their pods, or else of their nodes.
    Starts {
        pods: Vec<String>,
    },
    /// All members had started their processes.
    Runs,
    /// A member failed by its own fault. It starts again, alone or with all others. The group of the member,
    /// if it is known.
    Failed {
        group: Option<String>,
    },
    /// A node was lost or taken away.
    Moved,
    /// The number of nodes changed: as asked, or because there is room again.
    Scaled,
    /// It has fewer nodes than it needs, and waits. The sentence has the numbers.
    Waits {
        message: String,
    },
    Suspended,
    Resumed,
    Succeeded,
    Ended(End),
}

/// Why a job has failed for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It has used up its restarts.
    Restarts,
    /// It was active for too long.
    Deadline,
    /// A member's failure was not to be survived. The group of the member, if it is known.
    Failure { group: Option<String> },
    /// A user ended it. Elsewhere such a job is deleted.
    Cancelled,
    /// It would mean something else here, so it was never started. The sentence has the fields.
    Refused { message: String },
    /// Muster's own words, for which there are no others.
    Other { message: String },
}

/// One member of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// As `worker`.
    pub group: String,
    pub state: MemberState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has not started its processes.
    Waiting,
    Active,
    Succeeded,
    Failed,
    /// It was stopped, because the job was over.
    Stopped,
}

/// The status, as `-o yaml` shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Status {
    Kubeflow(kubeflow::Status),
    AiTraining(ai_training::Status),
    Trainer(trainer::Status),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Status {
    /// The column STATE.
    pub fn state(&self) -> &'static str {
        match self {
            Status::Kubeflow(status) => status.state(),
            Status::AiTraining(status) => status.phase,
            Status::Trainer(status) => status.state(),
        }
    }
}

/// The status of a job whose kind has one. `None`: Muster does not know the words of that kind.
pub fn status(life: &Life<'_>) -> Option<Status> {
    let kind = shown(&life.origin.kind, &life.origin.api_version)?;
    Some(match kind.operator {
        kinds::Operator::Training | kinds::Operator::Mpi => {
            Status::Kubeflow(kubeflow::status(kind, life))
        }
        kinds::Operator::AiTraining => Status::AiTraining(ai_training::status(life)),
        kinds::Operator::Trainer => Status::Trainer(trainer::status(life)),
    })
}
