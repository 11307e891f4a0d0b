//! What the status of a `MusterJob` object says about its job, as values. The shell gives the
//! conditions their times and writes it. Nothing is decided here, and nothing is read back: the
//! store has the truth.

use muster_core::{
    fleet::{
        job::{Phase, Reason},
        receipt::Incident,
        view::JobView,
    },
    id::Generation,
    time::Timestamp,
};

use crate::rules::{
    job_object::Objection,
    queue::{Admission, Said},
};

/// How many incidents a status has, newest last. `muster explain` has all.
pub const INCIDENTS_SHOWN: usize = 5;

/// The reason of a job that waits in a queue.
pub const QUEUED: &str = "QueuedInKueue";

/// The phase of an object that was not accepted. All other phases are those of the job.
pub const REJECTED: &str = "Rejected";

/// What a status says of the queue of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InQueue<'a> {
    pub name: &'a str,
    pub admission: &'a Admission,
    /// How many nodes the object asks for, if it can be read.
    pub wanted: Option<i64>,
}

/// The status of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct JobStatus {
    pub phase: String,
    pub reason: String,
    pub message: String,
    pub conditions: Vec<Condition>,
    /// `None`: the fleet has no job of this object.
    pub facts: Option<Facts>,
}

/// One condition, as Kubernetes' API conventions have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: &'static str,
    pub holds: bool,
    pub reason: String,
    pub message: String,
}

/// The numbers of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    pub nodes_running: u32,
    /// Nodes of the current generation.
    pub nodes: u32,
    pub nodes_wanted: u32,
    pub min: u32,
    pub max: u32,
    pub world_size: u32,
    pub generation: Generation,
    pub restarts: u32,
    pub created: Timestamp,
    pub finished: Option<Timestamp>,
    pub steps: Option<Steps>,
    /// The newest incidents, at most [`INCIDENTS_SHOWN`], newest last.
    pub incidents: Vec<Incident>,
}

/// How far training is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    pub last: u64,
    pub total: Option<u64>,
    /// About how long the rest takes, in seconds.
    pub seconds_left: Option<u64>,
    pub loss: Option<String>,
}

/// The status of an object. `job` must be the object's own. `queue`: its queue, unless its own `suspend`
/// holds it back. `None`: there is nothing to say.
pub fn status(
    job: Option<&JobView>,
    objection: Option<&Objection>,
    queue: Option<&InQueue<'_>>,
) -> Option<JobStatus> {
    let accepted = |message: &str| match objection {
        Some(objection) => condition("Accepted", false, objection.reason(), objection.to_string()),
        None => condition("Accepted", true, "Accepted", message.to_owned()),
    };
    let Some(view) = job else {
        let objection = objection?;
        return Some(JobStatus {
            phase: match objection.passes() {
                true => format!("{:?}", Phase::Pending),
                false => REJECTED.to_owned(),
            },
            reason: objection.reason().to_owned(),
            message: objection.to_string(),
            conditions: vec![accepted("")],
            facts: None,
        });
    };
    let record = &view.record;
    let queue = queue.filter(|_| !record.phase.is_over());
    let waits = queue.and_then(|queue| waits(view, queue));
    let mut conditions = vec![accepted("the fleet has the job as the spec says")];
    conditions.extend(conditions_of(view, waits.is_some()));
    conditions.extend(queue.map(queued));
    // A job that waits in a queue is suspended to the fleet, and says more to people.
    let message = waits.filter(|_| record.reason == Reason::Suspended);
    Some(JobStatus {
        phase: format!("{:?}", record.phase),
        reason: match message {
            Some(_) => QUEUED.to_owned(),
            None => reason(view),
        },
        message: message.unwrap_or_else(|| record.message.clone()),
        conditions,
        facts: Some(facts(view)),
    })
}

/// Why the job waits in its queue, as a sentence. `None`: it does not.
fn waits(view: &JobView, queue: &InQueue<'_>) -> Option<String> {
    let Admission::Waits(said) = queue.admission else {
        return None;
    };
    let may_live = view.record.unproven_generations().next().is_some();
    let stops = if may_live {
        "; its workers are being stopped"
    } else {
        ""
    };
    Some(format!("{}{stops}", sentence(queue.name, said)))
}

fn sentence(queue: &str, said: &Said) -> String {
    format!(
        "waits in the queue {queue} of Kueue: {}: {}",
        said.reason, said.message
    )
}

/// The condition about the queue. Its message is told also if the job has nodes: it may have fewer than
/// it asks for.
fn queued(queue: &InQueue<'_>) -> Condition {
    match queue.admission {
        Admission::Waits(said) => condition("Queued", true, QUEUED, sentence(queue.name, said)),
        Admission::Admitted(nodes) => {
            let lacks = queue.wanted.filter(|wanted| *wanted > i64::from(*nodes));
            let message = lacks.map(|wanted| {
                format!(
                    "Kueue has admitted {nodes} nodes, and spec.replicas is {wanted}; for more, suspend the job and resume it: it is queued anew then"
                )
            });
            condition(
                "Queued",
                false,
                "AdmittedByKueue",
                message.unwrap_or_default(),
            )
        }
        Admission::Free | Admission::Unknown => {
            let message = "Kueue's Workloads cannot be read; the job goes on as it was".to_owned();
            condition("Queued", false, "QueueUnknown", message)
        }
    }
}

fn condition(kind: &'static str, holds: bool, reason: &str, message: String) -> Condition {
    Condition {
        kind,
        holds,
        reason: reason.to_owned(),
        message,
    }
}

/// Why the job is in its phase. What a job with too few nodes lacks says more than that it has too few.
fn reason(view: &JobView) -> String {
    match view.shortage {
        Some(shortage) => shortage.to_string(),
        None => view.record.reason.to_string(),
    }
}

fn conditions_of(view: &JobView, is_queued: bool) -> Vec<Condition> {
    let record = &view.record;
    let reason = reason(view);
    let all = [
        ("Running", record.phase == Phase::Running),
        ("Degraded", is_degraded(view)),
        (
            "BelowMinimum",
            matches!(record.reason, Reason::BelowMinimum | Reason::Preempted),
        ),
        (
            "Suspended",
            record.suspended && !record.phase.is_over() && !is_queued,
        ),
        ("Complete", record.phase == Phase::Succeeded),
        (
            "Failed",
            matches!(record.phase, Phase::Failed | Phase::Cancelled),
        ),
    ];
    let with_text = |(kind, holds): (&'static str, bool)| {
        // Only what holds is told: the sentence about a job changes often.
        let message = if holds {
            record.message.clone()
        } else {
            String::new()
        };
        condition(kind, holds, &reason, message)
    };
    all.into_iter().map(with_text).collect()
}

/// It trains, but on fewer nodes than wanted, or with members that nobody hears.
fn is_degraded(view: &JobView) -> bool {
    let record = &view.record;
    let nodes = record.current.as_ref().map_or(0, |g| g.size());
    let is_short_of_nodes = matches!(record.reason, Reason::MassLoss | Reason::BelowMinimum);
    record.phase == Phase::Running && (nodes < record.replicas || is_short_of_nodes)
}

fn facts(view: &JobView) -> Facts {
    let record = &view.record;
    let current = record.current.as_ref();
    let incidents = &record.incidents;
    let shown = incidents.len().saturating_sub(INCIDENTS_SHOWN);
    Facts {
        nodes_running: view.nodes_running,
        nodes: current.map_or(0, |generation| generation.size()),
        nodes_wanted: record.replicas,
        min: record.spec.min_replicas,
        max: record.spec.max_replicas,
        world_size: current.map_or(0, |generation| generation.world_size()),
        generation: record.last_generation,
        restarts: record.restart_count,
        created: record.created,
        finished: record.finished,
        steps: steps(view),
        incidents: incidents[shown..].to_vec(),
    }
}

fn steps(view: &JobView) -> Option<Steps> {
    let (last, shown) = (view.last_step?, &view.steps.shown);
    let left = shown.total.map(|total| total.saturating_sub(last));
    let seconds_left = || {
        let micros = view.steps.step_time?.as_micros();
        let micros = micros.checked_mul(u128::from(left?))?;
        u64::try_from(micros / 1_000_000).ok()
    };
    Some(Steps {
        last,
        total: shown.total,
        seconds_left: seconds_left().filter(|_| view.record.phase == Phase::Running),
        loss: shown.loss.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rules::tests;
    use muster_core::{
        fleet::{job::JobRecord, receipt::Cause, shortage::Shortage, view::StepsView},
        run::StepsShown,
    };

    fn view(change: impl FnOnce(&mut JobRecord)) -> JobView {
        let mut record = tests::record();
        change(&mut record);
        JobView {
            record,
            members: Vec::new(),
            ranks: Vec::new(),
            last_step: None,
            steps: StepsView::default(),
            saved_at: None,
            nodes_running: 0,
            shortage: None,
            doubted_since: None,
            pods_unneeded: Default::default(),
            store_address: None,
            store_open: Default::default(),
        }
    }

    fn shows(record: &mut JobRecord, phase: Phase, reason: Reason, message: &str) {
        (record.phase, record.reason, record.message) = (phase, reason, message.into());
    }

    fn holding(status: &JobStatus) -> Vec<&str> {
        let holds = status.conditions.iter().filter(|condition| condition.holds);
        holds.map(|condition| condition.kind).collect()
    }

    fn of_phase(phase: Phase, reason: Reason) -> JobStatus {
        let view = view(|record| shows(record, phase, reason, "a sentence"));
        status(Some(&view), None, None).unwrap()
    }

    #[test]
    fn what_a_job_lacks_is_the_reason_of_its_status_and_of_its_condition() {
        let mut below = view(|record| {
            shows(record, Phase::Pending, Reason::BelowMinimum, "two of three");
        });
        below.shortage = Some(Shortage::TooFewGpus);
        let status = status(Some(&below), None, None).unwrap();
        let condition = status.conditions.iter();
        let condition = condition.filter(|condition| condition.kind == "BelowMinimum");
        let reasons: Vec<&str> = condition.map(|condition| &*condition.reason).collect();
        assert_eq!(
            (&*status.reason, &reasons[..]),
            ("TooFewGpus", &["TooFewGpus"][..])
        );
    }

    #[test]
    fn each_condition_says_one_thing() {
        for (phase, reason, holds) in [
            (Phase::Pending, Reason::Submitted, vec!["Accepted"]),
            (
                Phase::Pending,
                Reason::BelowMinimum,
                vec!["Accepted", "BelowMinimum"],
            ),
            (
                Phase::Running,
                Reason::BelowReplicas,
                vec!["Accepted", "Running", "Degraded"],
            ),
            (
                Phase::Running,
                Reason::BelowMinimum,
                vec!["Accepted", "Running", "Degraded", "BelowMinimum"],
            ),
            (Phase::Recovering, Reason::BackOff, vec!["Accepted"]),
            (
                Phase::Succeeded,
                Reason::Completed,
                vec!["Accepted", "Complete"],
            ),
            (
                Phase::Failed,
                Reason::RestartBudgetSpent,
                vec!["Accepted", "Failed"],
            ),
            (
                Phase::Cancelled,
                Reason::Cancelled,
                vec!["Accepted", "Failed"],
            ),
        ] {
            let status = of_phase(phase, reason);
            assert_eq!(holding(&status), holds, "{phase:?} {reason}");
            assert_eq!(status.reason, reason.to_string());
            let failed = status.conditions.last().unwrap();
            assert_eq!(
                (failed.kind, failed.reason.as_str()),
                ("Failed", status.reason.as_str())
            );
        }
        let full = view(|record| {
            record.replicas = 0;
            shows(record, Phase::Running, Reason::Running, "");
        });
        let status = status(Some(&full), None, None).unwrap();
        assert_eq!(holding(&status), ["Accepted", "Running"], "none is missing");
    }

    #[test]
    fn an_object_that_was_not_accepted_says_why() {
        let wrong = Objection::InvalidSpec("spec.args: names no script".into());
        let rejected = status(None, Some(&wrong), None).unwrap();
        assert_eq!(
            (
                rejected.phase.as_str(),
                rejected.reason.as_str(),
                rejected.message.as_str()
            ),
            ("Rejected", "InvalidSpec", "spec.args: names no script")
        );
        assert_eq!((holding(&rejected).len(), rejected.facts), (0, None));
        let waits = status(None, Some(&Objection::Refused("too many".into())), None);
        assert_eq!(waits.unwrap().phase, "Pending");
        assert_eq!(status(None, None, None), None);

        // A job that runs keeps its phase.
        let running = view(|record| shows(record, Phase::Running, Reason::Running, ""));
        let fixed = Objection::FixedFields(vec!["spec.args"]);
        let edited = status(Some(&running), Some(&fixed), None).unwrap();
        assert_eq!(edited.phase, "Running");
        let accepted = &edited.conditions[0];
        assert_eq!(
            (accepted.kind, accepted.holds, accepted.reason.as_str()),
            ("Accepted", false, "FixedFields")
        );
    }

    #[test]
    fn the_rest_is_guessed_from_the_pace_and_few_incidents_are_shown() {
        let mut view = view(|record| {
            record.phase = Phase::Running;
            for at in 0..9 {
                record.incidents.push(Incident {
                    cause: Cause::WorkerFailed,
                    ..Incident::at(Timestamp(at))
                });
            }
        });
        view.last_step = Some(40);
        view.steps = StepsView {
            shown: StepsShown {
                total: Some(100),
                ..StepsShown::default()
            },
            step_time: Some(Duration::from_millis(500)),
        };
        let facts = status(Some(&view), None, None).unwrap().facts.unwrap();
        let expected = Steps {
            last: 40,
            total: Some(100),
            seconds_left: Some(30),
            loss: None,
        };
        assert_eq!(facts.steps, Some(expected));
        let shown: Vec<u64> = facts.incidents.iter().map(|i| i.event_at.0).collect();
        assert_eq!(shown, [4, 5, 6, 7, 8]);
    }
    #[test]
    fn a_job_that_waits_in_a_queue_says_so_and_is_not_suspended_to_people() {
        let suspended = |message: &str| {
            view(|record| {
                record.suspended = true;
                shows(record, Phase::Pending, Reason::Suspended, message);
            })
        };
        let said = |admission: &Admission, job: &JobView| {
            let queue = InQueue {
                name: "gpus",
                admission,
                wanted: Some(3),
            };
            status(Some(job), None, Some(&queue)).unwrap()
        };
        let waits = Admission::Waits(Said::new("WaitingForQuota", "8 GPUs are missing"));
        let told = said(&waits, &suspended("suspended"));
        assert_eq!(holding(&told), ["Accepted", "Queued"]);
        let message = "waits in the queue gpus of Kueue: WaitingForQuota: 8 GPUs are missing";
        assert_eq!(
            (told.reason.as_str(), told.message.as_str()),
            (QUEUED, message)
        );
        // Evicted, and its workers have not stopped yet.
        let mut stops = suspended("its workers are being stopped");
        stops.record.retiring = vec![tests::generation(1)];
        let told = said(&waits, &stops);
        assert_eq!(
            told.message,
            format!("{message}; its workers are being stopped")
        );
        let runs = view(|record| shows(record, Phase::Running, Reason::Running, "trains"));
        let told = said(&Admission::Admitted(2), &runs);
        let queued = told.conditions.last().unwrap();
        assert_eq!((told.message.as_str(), queued.holds), ("trains", false));
        assert!(
            queued.message.contains("2 nodes, and spec.replicas is 3"),
            "{queued:?}"
        );
        let full = said(&Admission::Admitted(3), &runs);
        assert_eq!(full.conditions.last().unwrap().message, "");
        let unknown = said(&Admission::Unknown, &runs);
        assert_eq!(unknown.conditions.last().unwrap().reason, "QueueUnknown");
    }
}
