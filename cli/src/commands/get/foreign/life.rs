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
