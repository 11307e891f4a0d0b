//! Turns the coordinator's answer about a job into the values from which other systems' words are made.

use muster_core::{fleet::job::Phase, spec::Origin, time::Timestamp};
use muster_foreign::status::{
    Life,
    life::{self, Known, Noted, Place, Rank, Receipt},
};
use muster_proto::{
    convert::jobs,
    v1::{self, JobPhase},
};

use crate::output::words;

/// The receipts and events of one job, oldest first.
#[derive(Debug, Default)]
pub(super) struct Story {
    pub(super) incidents: Vec<v1::Incident>,
    pub(super) events: Vec<v1::Event>,
}

fn phase(status: Option<&v1::JobStatus>) -> Phase {
    match status.map_or(JobPhase::Unspecified, v1::JobStatus::phase) {
        JobPhase::Unspecified | JobPhase::Pending => Phase::Pending,
        JobPhase::Forming => Phase::Forming,
        JobPhase::Running => Phase::Running,
        JobPhase::Recovering => Phase::Recovering,
        JobPhase::Stopping => Phase::Stopping,
        JobPhase::Succeeded => Phase::Succeeded,
        JobPhase::Failed => Phase::Failed,
        JobPhase::Cancelled => Phase::Cancelled,
    }
}

/// Whether the job's own state leaves open what its system would say.
pub(super) fn needs_story(job: &v1::Job) -> bool {
    let status = job.status.as_ref();
    let started = status.is_some_and(|status| status.generation > 0);
    life::needs_story(phase(status), started)
}

pub(super) fn of<'a>(
    job: &'a v1::Job,
    origin: &'a Origin,
    named: &'a v1::JobRef,
    story: &'a Story,
) -> Life<'a> {
    let spec = jobs::spec_document(job.spec.clone().unwrap_or_default());
    let (min, max) = words::bounds(&spec);
    let status = job.status.as_ref();
    let members = status.into_iter().flat_map(|status| &status.members);
    let ranks = status.into_iter().flat_map(|status| &status.ranks);
    life::life(&Known {
        origin,
        namespace: &named.namespace,
        name: &named.name,
        created: Timestamp(job.created_unix_us),
        elastic: min != max,
        phase: phase(status),
        reason: status.map_or("", |status| &status.reason).into(),
        message: status.map_or("", |status| &status.message),
        restarts: status.map_or(0, |status| status.restarts),
        suspended: status.is_some_and(|status| status.suspended),
        started: status.is_some_and(|status| status.generation > 0),
        alive: status.is_some_and(|status| status.world_size > 0),
        finished: time(status.map_or(0, |status| status.finished_unix_us)),
        receipts: story.incidents.iter().map(receipt).collect(),
        events: story.events.iter().map(noted).collect(),
        places: members
            .map(|member| Place {
                member: &member.role,
                node: &member.node,
            })
            .collect(),
        ranks: ranks.map(rank).collect(),
    })
}

fn time(unix_us: u64) -> Option<Timestamp> {
    (unix_us != 0).then_some(Timestamp(unix_us))
}

fn noted(event: &v1::Event) -> Noted<'_> {
    Noted {
        reason: &event.reason,
        at: time(event.at_unix_us),
    }
}

fn rank(rank: &v1::RankStatus) -> Rank<'_> {
    let ended = rank.state.starts_with("exit code") || rank.state.starts_with("signal");
    Rank {
        rank: rank.rank,
        node: &rank.node,
        ended: ended.then_some(rank.state == "exit code 0"),
    }
}

fn receipt(incident: &v1::Incident) -> Receipt<'_> {
    Receipt {
        at: time(incident.at_unix_us),
        cause: (&incident.cause).into(),
        charged_to_job: incident.charged == "job",
        culprit: &incident.culprit,
        from_nodes: incident.from_nodes as usize,
        goes_on: incident.to_generation != 0,
        launched: launched(incident).filter(|_| incident.to_generation != 0),
    }
}

/// When all members of the next generation had started, by the phases of the receipt.
fn launched(incident: &v1::Incident) -> Option<Timestamp> {
    let before = [incident.detect_us, incident.decide_us, incident.stop_us];
    let before: u64 = before.into_iter().flatten().sum();
    Some(Timestamp(
        incident.at_unix_us + before + incident.launch_us?,
    ))
}

#[cfg(test)]
mod tests {
    use muster_foreign::status::{MemberState, Status, status};

    use super::*;

    const BEGAN: u64 = 1_795_557_600_000_000;

    fn after(seconds: u64) -> u64 {
        BEGAN + seconds * 1_000_000
    }

    fn incident(cause: &str, at: u64, charged: &str, launch_us: Option<u64>) -> v1::Incident {
        v1::Incident {
            cause: cause.into(),
            at_unix_us: after(at),
            charged: charged.into(),
            culprit: "rank 1 on node-2".into(),
            from_nodes: 2,
            to_generation: 2,
            detect_us: Some(1_000_000),
            decide_us: Some(1_000_000),
            launch_us,
            ..v1::Incident::default()
        }
    }

    fn job(phase: JobPhase, reason: &str, states: [&str; 2]) -> v1::Job {
        let member = |(i, role): (usize, &str)| v1::MemberStatus {
            node: format!("node-{}", i + 1),
            node_rank: i as u32,
            role: role.into(),
            ..v1::MemberStatus::default()
        };
        let rank = |(i, state): (usize, &str)| v1::RankStatus {
            rank: i as u32,
            node: format!("node-{}", i + 1),
            state: state.into(),
            ..v1::RankStatus::default()
        };
        v1::Job {
            created_unix_us: BEGAN,
            status: Some(v1::JobStatus {
                phase: phase.into(),
                reason: reason.into(),
                generation: 2,
                world_size: 2,
                members: ["chief-0", "worker-0"]
                    .into_iter()
                    .enumerate()
                    .map(member)
                    .collect(),
                ranks: states.into_iter().enumerate().map(rank).collect(),
                ..v1::JobStatus::default()
            }),
            ..v1::Job::default()
        }
    }

    fn kubeflows(life: &Life<'_>) -> Vec<muster_foreign::status::Condition> {
        match status(life).expect("is a kind with words") {
            Status::Kubeflow(status) => status.conditions,
            other => panic!("{other:?}"),
        }
    }

    /// The conditions of a TFJob in short: type, status, seconds to the transition.
    fn conditions(job: &v1::Job, story: &Story) -> Vec<String> {
        let origin = Origin {
            api_version: "kubeflow.org/v1".into(),
            kind: "TFJob".into(),
            groups: Vec::new(),
        };
        let named = v1::JobRef::default();
        let conditions = kubeflows(&of(job, &origin, &named, story));
        let seconds =
            |at: &String| Timestamp::from_rfc3339(at).map(|at| (at.0 - BEGAN) / 1_000_000);
        let line = |condition: &muster_foreign::status::Condition| {
            let at = condition.last_transition_time.as_ref().and_then(seconds);
            let at = at.map_or("?".to_owned(), |at| at.to_string());
            format!("{} {} {at}", condition.kind.name(), condition.status)
        };
        conditions.iter().map(line).collect()
    }

    #[test]
    fn times_are_those_of_the_receipts() {
        let first = incident("FirstStart", 0, "nobody", Some(3_000_000));
        let broke = incident("WorkerFailed", 60, "job", Some(2_000_000));
        let story = |last: v1::Incident| Story {
            incidents: vec![first.clone(), last],
            events: Vec::new(),
        };
        let running = job(JobPhase::Running, "Running", ["running"; 2]);
        assert_eq!(
            conditions(&running, &story(broke.clone())),
            ["Created True 0", "Running True 64"]
        );
        let launching = v1::Incident {
            launch_us: None,
            ..broke
        };
        let recovering = job(JobPhase::Recovering, "Launching", ["running"; 2]);
        assert!(needs_story(&recovering) && !needs_story(&running));
        assert_eq!(
            conditions(&recovering, &story(launching)),
            ["Created True 0", "Restarting True 60"]
        );
    }

    #[test]
    fn another_size_is_no_restart_of_an_ai_training_job() {
        let origin = Origin {
            api_version: "kongming.cce.baiudbce.com/v1".into(),
            kind: "AITrainingJob".into(),
            groups: Vec::new(),
        };
        let named = v1::JobRef::default();
        let recovering = job(JobPhase::Recovering, "Launching", ["running"; 2]);
        let newest = |cause: &str| {
            let story = Story {
                incidents: vec![incident(cause, 60, "nobody", None)],
                events: Vec::new(),
            };
            let life = of(&recovering, &origin, &named, &story);
            status(&life).expect("is a kind with words").state()
        };
        assert_eq!(
            ["Scaled", "NodeJoined", "NodeLost"].map(newest),
            ["Scaling", "Scaling", "Restarting"]
        );
    }

    #[test]
    fn a_time_that_nobody_kept_is_not_made_up() {
        let running = job(JobPhase::Running, "Running", ["running"; 2]);
        assert_eq!(
            conditions(&running, &Story::default()),
            ["Created True 0", "Running True ?"]
        );
    }

    #[test]
    fn suspensions_are_events() {
        let event = |reason: &str, at: u64| v1::Event {
            reason: reason.into(),
            at_unix_us: after(at),
            ..v1::Event::default()
        };
        let mut suspended = job(JobPhase::Pending, "Suspended", ["exit code 143"; 2]);
        if let Some(status) = &mut suspended.status {
            (status.suspended, status.world_size) = (true, 0);
        }
        let story = Story {
            incidents: vec![
                incident("FirstStart", 0, "nobody", Some(3_000_000)),
                incident("Suspended", 60, "nobody", None),
            ],
            events: vec![event("Suspended", 60)],
        };
        assert_eq!(
            conditions(&suspended, &story),
            ["Created True 0", "Running False 60", "Suspended True 60"]
        );
    }

    #[test]
    fn the_group_of_the_culprit_is_that_of_its_rank() {
        let mut job = job(
            JobPhase::Failed,
            "FailedByRule",
            ["exit code 0", "exit code 3"],
        );
        if let Some(status) = &mut job.status {
            status.finished_unix_us = after(70);
        }
        let failed = incident("WorkerFailed", 60, "job", None);
        let (last, active) = last_message(&job, &failed);
        assert!(
            last.ends_with("because 1 Worker replica(s) failed."),
            "{last}"
        );
        assert_eq!(active, [MemberState::Succeeded, MemberState::Failed]);
        let larger = v1::Incident {
            from_nodes: 3,
            ..failed
        };
        let (last, _) = last_message(&job, &larger);
        assert!(
            last.ends_with("because 1 replica(s) failed."),
            "ranks were others then: {last}"
        );
    }

    fn last_message(job: &v1::Job, incident: &v1::Incident) -> (String, Vec<MemberState>) {
        let origin = Origin {
            api_version: "kubeflow.org/v1".into(),
            kind: "TFJob".into(),
            groups: Vec::new(),
        };
        let named = v1::JobRef::default();
        let story = Story {
            incidents: vec![incident.clone()],
            events: Vec::new(),
        };
        let life = of(job, &origin, &named, &story);
        let states = life.members.iter().map(|member| member.state).collect();
        let conditions = kubeflows(&life);
        (conditions.last().unwrap().message.clone(), states)
    }
}
