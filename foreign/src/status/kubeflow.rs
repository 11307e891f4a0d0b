//! The status as Kubeflow's operators write it, and that of TorchElastic: conditions, and how many
//! replicas of each group are active, succeeded and failed.

use std::collections::BTreeMap;

use muster_core::time::Timestamp;
use serde::Serialize;

use super::{
    Happened, Life, MemberState, What,
    conditions::{Condition, ConditionType, Conditions},
    is_zero,
    kinds::{self, Operator, Shown},
};

/// The status.
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

impl Status {
    /// The column STATE: the type of the last condition.
    pub fn state(&self) -> &'static str {
        self.conditions
            .last()
            .map_or("", |condition| condition.kind.name())
    }
}

pub(super) fn status(kind: Shown, life: &Life<'_>) -> Status {
    let words = kind.words(life);
    let says_restarting = kind.operator == Operator::Training;
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
            What::Moved | What::Scaled if says_restarting && !life.elastic => {
                conditions.set(
                    ConditionType::Restarting,
                    at,
                    &words,
                    words.restarting(None),
                );
            }
            What::Failed { .. } | What::Moved | What::Scaled | What::Starts { .. } => {}
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
        kind.operator == Operator::Training && conditions.holds(ConditionType::Succeeded);
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
    Status {
        conditions: conditions.0,
        start_time: started.map(Timestamp::rfc3339_seconds),
        completion_time: life.finished.map(Timestamp::rfc3339_seconds),
        replica_statuses,
    }
}
