//! What happened to a job, from what its coordinator knows: the present state, the receipts, the
//! events and the ranks.
//!
//! Times are those of receipts and events. What they do not have is told without a time.

use std::borrow::Cow;

use muster_core::{
    fleet::{job::Phase, receipt::Cause},
    spec::Origin,
    time::Timestamp,
};

use super::{End, Happened, Life, Member, MemberState, What};

/// What a coordinator knows of a job.
#[derive(Clone, Debug)]
pub struct Known<'a> {
    pub origin: &'a Origin,
    pub namespace: &'a str,
    pub name: &'a str,
    pub created: Timestamp,
    /// The job may train with fewer or with more nodes.
    pub elastic: bool,
    pub phase: Phase,
    /// Why it is in this phase, as `BelowMinimum`.
    pub reason: Cow<'a, str>,
    pub message: &'a str,
    /// It is held back, and not over.
    pub suspended: bool,
    /// It has had a generation.
    pub started: bool,
    /// It has a generation now.
    pub alive: bool,
    /// How often its workers were started again.
    pub restarts: u32,
    pub finished: Option<Timestamp>,
    /// Oldest first.
    pub receipts: Vec<Receipt<'a>>,
    /// Oldest first.
    pub events: Vec<Noted<'a>>,
    /// The members of the latest generation.
    pub places: Vec<Place<'a>>,
    pub ranks: Vec<Rank<'a>>,
}

/// What is needed of one incident.
#[derive(Clone, Debug)]
pub struct Receipt<'a> {
    pub at: Option<Timestamp>,
    /// As `WorkerFailed`.
    pub cause: Cow<'a, str>,
    /// The job pays for it.
    pub charged_to_job: bool,
    /// As `rank 1 on node-2`.
    pub culprit: &'a str,
    pub from_nodes: usize,
    /// The job goes on: in another generation, or in the same one if a member started again alone. If not,
    /// this may be the end of the job.
    pub goes_on: bool,
    /// When all members of the generation in which it goes on had started. `None`: there is none, they have
    /// not, or nobody saw it.
    pub launched: Option<Timestamp>,
}

/// An event: its reason and its time.
#[derive(Clone, Copy, Debug)]
pub struct Noted<'a> {
    pub reason: &'a str,
    pub at: Option<Timestamp>,
}

/// A member of the generation.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// As `worker-1`. Empty: it has no name.
    pub member: &'a str,
    pub node: &'a str,
}

/// A rank of the generation.
#[derive(Clone, Copy, Debug)]
pub struct Rank<'a> {
    pub rank: u32,
    pub node: &'a str,
    /// Whether it has succeeded. `None`: it has not ended.
    pub ended: Option<bool>,
}

/// Whether the state alone leaves open what its system would say, so that receipts and events are
/// needed.
pub fn needs_story(phase: Phase, started: bool) -> bool {
    use Phase::{Forming, Pending, Recovering, Stopping};
    started && matches!(phase, Pending | Forming | Recovering | Stopping)
}

/// The life of the job.
pub fn life<'a>(known: &Known<'a>) -> Life<'a> {
    let mut happened = past(known);
    // The sort is stable: what has the same time stays in its order.
    happened.sort_by_key(|happened| happened.at);
    happened.extend(now(&happened, known));
    Life {
        origin: known.origin,
        namespace: known.namespace,
        name: known.name,
        created: known.created,
        elastic: known.elastic,
        happened,
        members: members(known),
        stops: false,
        restarts: known.restarts,
        message: known.message,
        finished: known.finished,
    }
}

fn past(known: &Known<'_>) -> Vec<Happened> {
    let mut happened = Vec::new();
    let failed = known.phase == Phase::Failed;
    let is = |receipt: &Receipt<'_>, cause: Cause| receipt.cause == format!("{cause:?}");
    for receipt in &known.receipts {
        // Events say when a person suspended and resumed it.
        let told_elsewhere = [Cause::FirstStart, Cause::Suspended, Cause::Resumed];
        let what = match told_elsewhere.into_iter().any(|cause| is(receipt, cause)) {
            true => None,
            // The failure that ended the job restarted nothing.
            false if failed && !receipt.goes_on => None,
            false if receipt.charged_to_job => Some(What::Failed {
                group: culprit(receipt, known),
            }),
            false if is(receipt, Cause::Scaled) || is(receipt, Cause::NodeJoined) => {
                Some(What::Scaled)
            }
            false => Some(What::Moved),
        };
        let at = receipt.at;
        happened.extend(what.map(|what| Happened { at, what }));
        happened.extend(receipt.launched.map(|at| Happened {
            at: Some(at),
            what: What::Runs,
        }));
    }
    for event in &known.events {
        let what = match event.reason {
            "Suspended" => What::Suspended,
            "Resumed" => What::Resumed,
            _ => continue,
        };
        happened.push(Happened { at: event.at, what });
    }
    happened
}

/// The group of the rank that failed first. It is known while the job has as many members as then.
fn culprit(receipt: &Receipt<'_>, known: &Known<'_>) -> Option<String> {
    let rank = receipt.culprit.strip_prefix("rank ")?;
    let rank: u32 = rank.split(' ').next()?.parse().ok()?;
    if known.places.len() != receipt.from_nodes {
        return None;
    }
    let node = known.ranks.iter().find(|other| other.rank == rank)?.node;
    let place = known.places.iter().find(|place| place.node == node)?;
    group(place)
}

/// The group in a name such as `worker-1`.
fn group(place: &Place<'_>) -> Option<String> {
    let (group, _) = place.member.rsplit_once('-')?;
    Some(group.to_owned())
}

/// What the job's present state says beyond its past.
fn now(past: &[Happened], known: &Known<'_>) -> Option<Happened> {
    let last = past.last().map(|happened| &happened.what);
    let at = known.finished;
    match known.phase {
        Phase::Succeeded => Some(Happened {
            at,
            what: What::Succeeded,
        }),
        Phase::Failed => Some(Happened {
            at,
            what: What::Ended(end(known)),
        }),
        Phase::Cancelled => Some(Happened {
            at,
            what: What::Ended(End::Cancelled),
        }),
        _ if known.suspended => (last != Some(&What::Suspended)).then_some(Happened {
            at: None,
            what: What::Suspended,
        }),
        Phase::Running => (last != Some(&What::Runs)).then_some(Happened {
            at: None,
            what: What::Runs,
        }),
        // Until it runs again, it restarts.
        Phase::Forming
            if !matches!(last, Some(What::Failed { .. } | What::Moved | What::Scaled)) =>
        {
            Some(Happened {
                at: None,
                what: What::Starts { pods: pods(known) },
            })
        }
        _ if known.started && known.reason == "BelowMinimum" => {
            let events = known.events.iter().rev();
            let mut said = events.filter(|event| event.reason == known.reason);
            Some(Happened {
                at: said.next().and_then(|event| event.at),
                what: What::Waits {
                    message: known.message.to_owned(),
                },
            })
        }
        _ => None,
    }
}

/// The names of the members' pods. A node that is a pod is called POD.NAMESPACE.pod.
fn pods(known: &Known<'_>) -> Vec<String> {
    let nodes = known.places.iter().map(|place| place.node);
    let name = |node: &str| node.split('.').next().unwrap_or(node).to_owned();
    nodes.map(name).collect()
}

fn end(known: &Known<'_>) -> End {
    match &*known.reason {
        "RestartBudgetSpent" => End::Restarts,
        "DeadlineExceeded" => End::Deadline,
        "FailedByRule" => End::Failure {
            group: known.receipts.last().and_then(|last| culprit(last, known)),
        },
        _ => End::Other {
            message: known.message.to_owned(),
        },
    }
}

fn members(known: &Known<'_>) -> Vec<Member> {
    let over = known.finished.is_some();
    let member = |place: &Place<'_>| {
        let ranks = known.ranks.iter().filter(|rank| rank.node == place.node);
        let ends: Vec<Option<bool>> = ranks.map(|rank| rank.ended).collect();
        let state = match (known.alive || over, &ends[..]) {
            // The workers of a generation that is gone are no replicas of now.
            (false, _) | (_, []) => MemberState::Waiting,
            (_, all) if all.iter().all(|end| *end == Some(true)) => MemberState::Succeeded,
            (_, all) if all.iter().all(Option::is_none) => match over {
                true => MemberState::Stopped,
                false => MemberState::Active,
            },
            // A member that was stopped after the end of the job has not failed.
            _ if known.phase == Phase::Succeeded => MemberState::Stopped,
            _ => MemberState::Failed,
        };
        let group = group(place)?;
        Some(Member { group, state })
    };
    known.places.iter().filter_map(member).collect()
}
