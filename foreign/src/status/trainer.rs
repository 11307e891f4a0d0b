//! The status of a TrainJob as Kubeflow Trainer writes it: conditions that say whether it is held back or
//! over, and how its only Job is. It has no word for a job that runs or starts again.
//!
//! Source: kubeflow/trainer 2.3, `pkg/controller/trainjob_controller.go`; the end of a job is passed on
//! from its JobSet (`pkg/constants/constants.go` in kubernetes-sigs/jobset).

use muster_core::time::Timestamp;
use serde::Serialize;

use super::{End, Happened, Life, MemberState, What};

const SUSPENDED: &str = "Suspended";
const COMPLETE: &str = "Complete";
const FAILED: &str = "Failed";

/// The conditions with which a job is over.
pub(super) const ENDS: [&str; 2] = [COMPLETE, FAILED];

/// The status.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// One of each type at most, in the order in which they came.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jobs_status: Vec<Job>,
}

/// A condition as Kubernetes has them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `True` or `False`.
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
    /// `None`: nobody has kept the time.
    pub last_transition_time: Option<String>,
}

/// The Job of one step, which has all its pods. Each number is 0 or 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Job {
    pub name: String,
    /// All its pods run.
    pub ready: u32,
    pub succeeded: u32,
    pub failed: u32,
    /// One of its pods runs, waits to run, or still stops.
    pub active: u32,
    pub suspended: u32,
}

impl Status {
    /// The column STATE: the type of the last condition, whether it holds or not.
    pub(super) fn state(&self) -> &'static str {
        self.conditions.last().map_or("", |last| last.kind)
    }

    fn holds(&self, kind: &str) -> bool {
        let mut all = self.conditions.iter();
        all.any(|one| one.kind == kind && one.status == "True")
    }

    fn set(
        &mut self,
        kind: &'static str,
        status: &'static str,
        reason: &'static str,
        at: Option<Timestamp>,
        message: String,
    ) {
        let condition = Condition {
            kind,
            status,
            reason,
            message,
            last_transition_time: at.map(Timestamp::rfc3339_seconds),
        };
        match self.conditions.iter_mut().find(|one| one.kind == kind) {
            Some(known) if known.status == status => {
                (known.reason, known.message) = (reason, condition.message);
            }
            Some(known) => *known = condition,
            None => self.conditions.push(condition),
        }
    }
}

pub(super) fn status(life: &Life<'_>) -> Status {
    let mut status = Status::default();
    for Happened { at, what } in &life.happened {
        if ENDS.iter().any(|end| status.holds(end)) {
            break;
        }
        let at = *at;
        match what {
            What::Suspended => {
                let message = "TrainJob is suspended".to_owned();
                status.set(SUSPENDED, "True", "Suspended", at, message);
            }
            What::Resumed => {
                let message = "TrainJob is resumed".to_owned();
                status.set(SUSPENDED, "False", "Resumed", at, message);
            }
            What::Succeeded => {
                let message = "jobset completed successfully".to_owned();
                status.set(COMPLETE, "True", "AllJobsCompleted", at, message);
            }
            What::Ended(end) => {
                let (reason, message) = ended(end, life);
                status.set(FAILED, "True", reason, at, message);
            }
            What::Starts { .. }
            | What::Runs
            | What::Failed { .. }
            | What::Moved
            | What::Scaled
            | What::Waits { .. } => {}
        }
    }
    status.jobs_status = job(&status, life).into_iter().collect();
    status
}

/// `None`: it has no pods yet, so that nothing is known of it.
fn job(status: &Status, life: &Life<'_>) -> Option<Job> {
    let count = u32::from;
    let name = life.members.first()?.group.clone();
    let suspended = status.holds(SUSPENDED);
    // Kueue gives its quota to others as soon as nothing of a job is active.
    let active = life.finished.is_none() && (!suspended || life.stops);
    let runs = |state: MemberState| matches!(state, MemberState::Active | MemberState::Succeeded);
    let ready = active && !suspended && life.members.iter().all(|member| runs(member.state));
    Some(Job {
        name,
        ready: count(ready),
        succeeded: count(status.holds(COMPLETE)),
        failed: count(status.holds(FAILED)),
        active: count(active),
        suspended: count(suspended),
    })
}

fn ended(end: &End, life: &Life<'_>) -> (&'static str, String) {
    let first = |what: &str| {
        let step = life.members.first().map_or("node", |member| &member.group);
        format!("{what} (first failed job: {}-{step}-0)", life.name)
    };
    match end {
        End::Restarts | End::Failure { .. } => (
            "FailedJobs",
            first("jobset failed due to one or more job failures"),
        ),
        End::Deadline => (
            "DeadlineExceeded",
            "TrainJob exceeded its active deadline".to_owned(),
        ),
        End::Cancelled => ("Cancelled", format!("TrainJob {} was cancelled", life.name)),
        End::Refused { message } => ("TrainJobFailedValidation", message.clone()),
        End::Other { message } => ("FailedJobs", message.clone()),
    }
}
