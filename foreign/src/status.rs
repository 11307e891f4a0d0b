//! The status of a job in the words of the system that its file was written for: conditions, reasons
//! and messages as its operator writes them, and how many replicas of each group are active.
//!
//! What happened to the job is told in its order and goes through the operator's own rules for
//! conditions (`conditions`), so that the result is what users of the operator would see. A time that
//! Muster does not know stays unknown. Sources: training-operator 1.9 (`pkg/util/status.go`,
//! `pkg/controller.v1`) and the controllers of the kinds that are not its own.

use std::collections::BTreeMap;

use muster_core::{spec::Origin, time::Timestamp};
use serde::Serialize;

mod conditions;
mod kinds;
pub mod life;
#[cfg(test)]
mod tests;

use conditions::Conditions;
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
    /// All members had started their processes.
    Runs,
    /// A member failed by its own fault, and all start again. The group of the member, if it is known.
    Failed {
        group: Option<String>,
    },
    /// A node was lost or taken away, or the number of nodes changed.
    Moved,
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
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The newest last, and one of each type at most.
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
    /// By group, as `Worker`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub replica_statuses: BTreeMap<String, Replicas>,
}

/// How many replicas of one group are how far. Upstream, too, leaves zeros out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replicas {
    #[serde(skip_serializing_if = "is_zero")]
    pub active: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub succeeded: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Status {
    /// The column STATE: the type of the last condition.
    pub fn state(&self) -> &'static str {
        self.conditions
            .last()
            .map_or("", |condition| condition.kind.name())
    }
}

/// The status of a job whose kind has one. `None`: Muster does not know the words of that kind.
pub fn status(life: &Life<'_>) -> Option<Status> {
    let kind = shown(&life.origin.kind, &life.origin.api_version)?;
    let words = kind.words(life);
    let says_restarting = kind.operator == kinds::Operator::Training;
    let mut conditions = Conditions::default();
    conditions.set(
        ConditionType::Created,
        Some(life.created),
        &words,
        words.created(),
    );
    let mut started = Some(life.created);
    for Happened { at, what } in &life.happened {
        let at = *at;
        match what {
            What::Runs => conditions.set(ConditionType::Running, at, &words, words.running()),
            What::Failed { group } if says_restarting => {
                let message = words.restarting(group.as_deref());
                conditions.set(ConditionType::Restarting, at, &words, message);
            }
            // An elastic job survives a node, and stays Running.
            What::Moved if says_restarting && !life.elastic => {
                conditions.set(
                    ConditionType::Restarting,
                    at,
                    &words,
                    words.restarting(None),
                );
            }
            What::Failed { .. } | What::Moved => {}
            What::Waits { message } => {
                conditions.set(ConditionType::Restarting, at, &words, message.clone());
            }
            What::Suspended => conditions.suspended(at, &words),
            What::Resumed => {
                conditions.resumed(at, &words);
                started = at;
            }
            What::Succeeded => {
                conditions.set(ConditionType::Succeeded, at, &words, words.succeeded());
            }
            What::Ended(end) => {
                let (reason, message) = (words.why_failed(end), words.failed(end));
                conditions.put(ConditionType::Failed, at, reason, message);
            }
        }
    }
    // The operator counts what is still active at the success of a job.
    let stopped_well =
        kind.operator == kinds::Operator::Training && conditions.holds(ConditionType::Succeeded);
    let mut replica_statuses: BTreeMap<String, Replicas> = BTreeMap::new();
    for member in &life.members {
        let group = kinds::group(&member.group);
        let replicas = replica_statuses.entry(group).or_default();
        match member.state {
            MemberState::Stopped if stopped_well => replicas.succeeded += 1,
            MemberState::Waiting | MemberState::Stopped => {}
            MemberState::Active => replicas.active += 1,
            MemberState::Succeeded => replicas.succeeded += 1,
            MemberState::Failed => replicas.failed += 1,
        }
    }
    Some(Status {
        conditions: conditions.0,
        start_time: started.map(Timestamp::rfc3339_seconds),
        completion_time: life.finished.map(Timestamp::rfc3339_seconds),
        replica_statuses,
    })
}
