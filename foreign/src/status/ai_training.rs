//! The status of an AITrainingJob as Baidu's operator writes it: a phase, and a history of conditions in
//! which each change of the phase adds one and makes the one before it false.
//!
//! Source: elasticdeeplearning/trainingjob-operator (`pkg/controller/status.go`), the open ancestor, and
//! the types of CCE's own operator in PaddlePaddle/PaddleFlow (`pkg/apis/aitj-operator/v1`). A phase for
//! which it has no word, such as suspension, is `Pending` with a sentence of Muster's.

use std::collections::BTreeMap;

use muster_core::time::Timestamp;
use serde::Serialize;

use super::{End, Happened, Life, MemberState, What, is_zero};

const PENDING: &str = "Pending";
const CREATING: &str = "Creating";
const RUNNING: &str = "Running";
const RESTARTING: &str = "Restarting";
const SCALING: &str = "Scaling";
const SUCCEEDED: &str = "Succeed";
const FAILED: &str = "Failed";
const TIMEOUT: &str = "Timeout";

/// The phases in which a job is over (`isJobCompleted`). Muster does not write `Preempted`.
pub(super) const ENDS: [&str; 4] = [SUCCEEDED, FAILED, TIMEOUT, "Preempted"];

/// The status.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub phase: &'static str,
    /// The newest last. It alone is true.
    pub conditions: Vec<Condition>,
    /// By role, as `trainer`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub replica_statuses: BTreeMap<String, Replicas>,
    /// By role. The name is spelt so.
    #[serde(rename = "RestartCount", skip_serializing_if = "BTreeMap::is_empty")]
    pub restart_count: BTreeMap<String, u32>,
    pub start_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_running_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<String>,
}

/// One phase that the job is in or was in.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `True` or `False`.
    pub status: &'static str,
    pub reason: String,
    pub message: String,
    /// `None`: nobody has kept the time.
    pub last_probe_time: Option<String>,
    pub last_transition_time: Option<String>,
}

/// How many replicas of one role are how far. Upstream, too, leaves zeros out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replicas {
    #[serde(skip_serializing_if = "is_zero")]
    pub scheduled: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub active: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub succeeded: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub restarting: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u32,
}

#[derive(Default)]
struct History(Vec<Condition>);

impl History {
    /// If the phase and the reason are the same, only the message is new.
    fn add(&mut self, kind: &'static str, reason: &str, at: Option<Timestamp>, message: String) {
        let reason = format!("TrainingJob{reason}");
        if let Some(last) = self.0.last_mut() {
            if last.kind == kind && last.reason == reason {
                last.message = message;
                return;
            }
            last.status = "False";
        }
        let at = at.map(Timestamp::rfc3339_seconds);
        self.0.push(Condition {
            kind,
            status: "True",
            reason,
            message,
            last_probe_time: at.clone(),
            last_transition_time: at,
        });
    }

    fn is_over(&self) -> bool {
        self.0.last().is_some_and(|last| ENDS.contains(&last.kind))
    }
}

pub(super) fn status(life: &Life<'_>) -> Status {
    let waiting = || "all pods are waiting for scheduling".to_owned();
    let mut history = History::default();
    history.add(PENDING, PENDING, Some(life.created), waiting());
    let mut first_run = None;
    for Happened { at, what } in &life.happened {
        if history.is_over() {
            break;
        }
        let at = *at;
        let (kind, message) = match what {
            What::Starts { pods } => {
                let message = format!("pods [{}] creating containers", pods.join(" "));
                (CREATING, message)
            }
            What::Runs => {
                first_run = first_run.or(at);
                (RUNNING, "all pods are running".to_owned())
            }
            What::Failed { .. } | What::Moved => {
                (RESTARTING, "All pods are restarting now".to_owned())
            }
            What::Scaled => (SCALING, format!("job {} is scaling", life.name)),
            What::Waits { message } => (PENDING, message.clone()),
            What::Suspended => (PENDING, format!("job {} is suspended", life.name)),
            What::Resumed => (PENDING, waiting()),
            What::Succeeded => (SUCCEEDED, format!("job {} completed", life.name)),
            What::Ended(end) => {
                let (kind, reason, message) = ended(end, life);
                history.add(kind, reason, at, message);
                continue;
            }
        };
        history.add(kind, kind, at, message);
    }
    let mut replica_statuses: BTreeMap<String, Replicas> = BTreeMap::new();
    for member in &life.members {
        let replicas = replica_statuses.entry(member.group.clone()).or_default();
        match member.state {
            MemberState::Waiting if life.restarts > 0 => replicas.restarting += 1,
            MemberState::Waiting => replicas.scheduled += 1,
            MemberState::Active => replicas.active += 1,
            MemberState::Succeeded => replicas.succeeded += 1,
            MemberState::Failed => replicas.failed += 1,
            // Its pod is deleted.
            MemberState::Stopped => {}
        }
    }
    let restarts = replica_statuses.keys();
    let restarts = restarts.map(|role| (role.clone(), life.restarts));
    Status {
        phase: history.0.last().map_or(PENDING, |last| last.kind),
        conditions: history.0,
        restart_count: restarts.collect(),
        replica_statuses,
        start_time: life.created.rfc3339_seconds(),
        start_running_time: first_run.map(Timestamp::rfc3339_seconds),
        end_time: life.finished.map(Timestamp::rfc3339_seconds),
    }
}

/// The phase of an end, its reason without the first word, and its message.
fn ended(end: &End, life: &Life<'_>) -> (&'static str, &'static str, String) {
    let said = match life.message {
        "" => format!("job {} failed", life.name),
        message => message.to_owned(),
    };
    match end {
        End::Deadline => (TIMEOUT, TIMEOUT, said),
        End::Restarts | End::Failure { .. } => (FAILED, FAILED, said),
        End::Cancelled => (FAILED, FAILED, format!("job {} was cancelled", life.name)),
        End::Refused { message } => (FAILED, "FailedValidation", message.clone()),
        End::Other { message } => (FAILED, FAILED, message.clone()),
    }
}
