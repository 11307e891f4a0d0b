//! What happened to a job, from what the coordinator tells of it.
//!
//! Times are those of receipts and events. What they do not have is told without a time.

use muster_core::{spec::Origin, time::Timestamp};
use muster_foreign::status::{End, Happened, Life, Member, MemberState, What};
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

fn phase(job: &v1::Job) -> JobPhase {
    let status = job.status.as_ref();
    status.map_or(JobPhase::Unspecified, |status| status.phase())
}

/// Whether the job's own state leaves open what its system would say.
pub(super) fn needs_story(job: &v1::Job) -> bool {
    use JobPhase::{Forming, Pending, Recovering, Stopping};
    let started = job
        .status
        .as_ref()
        .is_some_and(|status| status.generation > 0);
    started && matches!(phase(job), Pending | Forming | Recovering | Stopping)
}

pub(super) fn of<'a>(
    job: &v1::Job,
    origin: &'a Origin,
    named: &'a v1::JobRef,
    story: &Story,
) -> Life<'a> {
    let spec = jobs::spec_document(job.spec.clone().unwrap_or_default());
    let (min, max) = words::bounds(&spec);
    let status = job.status.clone().unwrap_or_default();
    let mut happened = past(story, &status);
    // The sort is stable: what has the same time stays in its order.
    happened.sort_by_key(|happened| happened.at);
    happened.extend(now(&happened, &status, story));
    Life {
        origin,
        namespace: &named.namespace,
        name: &named.name,
        created: Timestamp(job.created_unix_us),
        elastic: min != max,
        happened,
        members: members(&status),
        finished: time(status.finished_unix_us),
    }
}

fn time(unix_us: u64) -> Option<Timestamp> {
    (unix_us != 0).then_some(Timestamp(unix_us))
}

fn past(story: &Story, status: &v1::JobStatus) -> Vec<Happened> {
    let mut happened = Vec::new();
    for incident in &story.incidents {
        let what = match (incident.cause.as_str(), incident.charged.as_str()) {
            // Events say when a person suspended and resumed it.
            ("FirstStart" | "Suspended" | "Resumed", _) => None,
            (_, "job") => Some(What::Failed {
                group: culprit(incident, status),
            }),
            _ => Some(What::Moved),
        };
        let at = time(incident.at_unix_us);
        happened.extend(what.map(|what| Happened { at, what }));
        let runs = launched(incident).filter(|_| incident.to_generation != 0);
        happened.extend(runs.map(|at| Happened {
            at: Some(at),
            what: What::Runs,
        }));
    }
    for event in &story.events {
        let what = match event.reason.as_str() {
            "Suspended" => What::Suspended,
            "Resumed" => What::Resumed,
            _ => continue,
        };
        let at = time(event.at_unix_us);
        happened.push(Happened { at, what });
    }
    happened
}

/// When all members of the next generation had started, by the phases of the receipt. `None`: they
/// have not, or nobody saw it.
fn launched(incident: &v1::Incident) -> Option<Timestamp> {
    let before = [incident.detect_us, incident.decide_us, incident.stop_us];
    let before: u64 = before.into_iter().flatten().sum();
    Some(Timestamp(
        incident.at_unix_us + before + incident.launch_us?,
    ))
}

/// The group of the rank that failed first. It is known while the job has as many members as then.
fn culprit(incident: &v1::Incident, status: &v1::JobStatus) -> Option<String> {
    let rank = incident.culprit.strip_prefix("rank ")?;
    let rank: u32 = rank.split(' ').next()?.parse().ok()?;
    if status.members.len() != incident.from_nodes as usize {
        return None;
    }
    let node = &status.ranks.iter().find(|other| other.rank == rank)?.node;
    let member = status.members.iter().find(|member| member.node == *node)?;
    group(member)
}

/// The group in a name such as `worker-1`.
fn group(member: &v1::MemberStatus) -> Option<String> {
    let (group, _) = member.role.rsplit_once('-')?;
    Some(group.to_owned())
}

/// What the job's present state says beyond its past.
fn now(past: &[Happened], status: &v1::JobStatus, story: &Story) -> Option<Happened> {
    let last = past.last().map(|happened| &happened.what);
    let finished = time(status.finished_unix_us);
    match status.phase() {
        JobPhase::Succeeded => Some(Happened {
            at: finished,
            what: What::Succeeded,
        }),
        JobPhase::Failed => Some(Happened {
            at: finished,
            what: What::Ended(end(status, story)),
        }),
        JobPhase::Cancelled => Some(Happened {
            at: finished,
            what: What::Ended(End::Cancelled),
        }),
        _ if status.suspended => (last != Some(&What::Suspended)).then_some(Happened {
            at: None,
            what: What::Suspended,
        }),
        JobPhase::Running => (last != Some(&What::Runs)).then_some(Happened {
            at: None,
            what: What::Runs,
        }),
        _ if status.generation > 0 && status.reason == "BelowMinimum" => {
            let events = story.events.iter().rev();
            let mut said = events.filter(|event| event.reason == status.reason);
            Some(Happened {
                at: said.next().and_then(|event| time(event.at_unix_us)),
                what: What::Waits {
                    message: status.message.clone(),
                },
            })
        }
        _ => None,
    }
}

fn end(status: &v1::JobStatus, story: &Story) -> End {
    match status.reason.as_str() {
        "RestartBudgetSpent" => End::Restarts,
        "DeadlineExceeded" => End::Deadline,
        "FailedByRule" => End::Failure {
            group: story
                .incidents
                .last()
                .and_then(|last| culprit(last, status)),
        },
        _ => End::Other {
            message: status.message.clone(),
        },
    }
}

fn members(status: &v1::JobStatus) -> Vec<Member> {
    let over = status.finished_unix_us != 0;
    let alive = status.world_size > 0;
    let member = |member: &v1::MemberStatus| {
        let ranks = status.ranks.iter().filter(|rank| rank.node == member.node);
        let states: Vec<&str> = ranks.map(|rank| &*rank.state).collect();
        let ended = |state: &&str| state.starts_with("exit code") || state.starts_with("signal");
        let state = match (alive || over, &states[..]) {
            // The workers of a generation that is gone are no replicas of now.
            (false, _) | (_, []) => MemberState::Waiting,
            (_, all) if all.iter().all(|state| *state == "exit code 0") => MemberState::Succeeded,
            (_, all) if !all.iter().any(ended) => MemberState::Active,
            // Whoever was stopped after the end of the job has not failed.
            _ if status.phase() == JobPhase::Succeeded => MemberState::Waiting,
            _ => MemberState::Failed,
        };
        let group = group(member)?;
        Some(Member { group, state })
    };
    status.members.iter().filter_map(member).collect()
}

#[cfg(test)]
mod tests {
    use muster_foreign::status::status;

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

    /// The conditions of a TFJob in short: type, status, seconds to the transition.
    fn conditions(job: &v1::Job, story: &Story) -> Vec<String> {
        let origin = Origin {
            api_version: "kubeflow.org/v1".into(),
            kind: "TFJob".into(),
            groups: Vec::new(),
        };
        let named = v1::JobRef::default();
        let status = status(&of(job, &origin, &named, story)).expect("is a kind with words");
        let seconds =
            |at: &String| Timestamp::from_rfc3339(at).map(|at| (at.0 - BEGAN) / 1_000_000);
        let line = |condition: &muster_foreign::status::Condition| {
            let at = condition.last_transition_time.as_ref().and_then(seconds);
            let at = at.map_or("?".to_owned(), |at| at.to_string());
            format!("{} {} {at}", condition.kind.name(), condition.status)
        };
        status.conditions.iter().map(line).collect()
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
        let job = job(
            JobPhase::Failed,
            "FailedByRule",
            ["exit code 0", "exit code 3"],
        );
        let status = job.status.unwrap_or_default();
        let failed = incident("WorkerFailed", 60, "job", None);
        assert_eq!(culprit(&failed, &status).as_deref(), Some("worker"));
        let larger = v1::Incident {
            from_nodes: 3,
            ..failed
        };
        assert_eq!(culprit(&larger, &status), None, "ranks were others then");
        let states: Vec<MemberState> = members(&status).iter().map(|member| member.state).collect();
        assert_eq!(states, [MemberState::Succeeded, MemberState::Failed]);
    }
}
