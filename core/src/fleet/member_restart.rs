//! Starts failed processes again in a generation that goes on: same node, same address, same ranks.
//! It never decides who pays for a failure (`broken`), and never lets a process of a broken generation
//! start.
//!
//! Only roles whose framework takes a process back have this
//! ([`RestartScope`](crate::spec::RestartScope)). The record of the generation says which attempt of a
//! rank was ordered. It is committed before the node hears of it, so a coordinator that was started
//! anew charges no failure twice.

use std::time::Duration;

use crate::{
    fleet::{
        blame::Evidence,
        generation,
        job::{GenerationRecord, JobRecord, MemberRestart},
        policy::Policy,
        registry::Registry,
    },
    id::JobUid,
    period,
    run::RunPhase,
    time::Timestamp,
};

/// The failed ranks, if starting them again answers all of this evidence. `None`: something else is
/// wrong, too.
pub(crate) fn ranks_alone(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    evidence: &[Evidence],
) -> Option<Vec<u32>> {
    let alone = |found: &Evidence| {
        let Evidence::RankExit { node, rank, .. } = found else {
            return None;
        };
        let of_role = generation.restarts_alone(generation.number_of(*rank)?);
        let run = generation::report(nodes, job, generation, node)?;
        // An agent or a runner of an earlier version ends the group at the first failure.
        let goes_on = run.phase == RunPhase::Running;
        (of_role && goes_on).then_some(*rank)
    };
    // A member that is only suspected may come back.
    let breaks = evidence.iter().filter(|found| found.breaks());
    breaks.map(alone).collect()
}

/// What follows a failure in the words of its event: `; rank 1 alone is started again in 2s`.
pub(crate) fn sentence(ranks: &[u32], at: Timestamp, now: Timestamp) -> String {
    let named = match ranks {
        [rank] => format!("rank {rank} alone is"),
        _ => {
            let all: Vec<String> = ranks.iter().map(u32::to_string).collect();
            format!("ranks {} alone are", all.join(", "))
        }
    };
    let pause = match at.since(now) {
        Duration::ZERO => String::new(),
        pause => format!(" in {}", period::format(pause)),
    };
    format!("; {named} started again{pause}")
}

impl GenerationRecord {
    /// Since when this rank, or the whole generation, has run.
    pub(crate) fn began(&self, rank: Option<u32>) -> Option<Timestamp> {
        let restarts = rank.and_then(|rank| self.member_restarts.get(&rank));
        restarts.map_or(self.started_at, |restarts| Some(restarts.at))
    }
}

/// Ends the row of failures if the rank that failed had run for a while.
pub(crate) fn note_lasted(
    job: &mut JobRecord,
    policy: &Policy,
    began: Option<Timestamp>,
    failed: Timestamp,
) {
    let lasted = began.map_or(Duration::ZERO, |began| failed.since(began));
    if lasted >= policy.backoff_reset {
        job.failures_in_row = 0;
    }
}

/// Notes that these ranks have failed and are to be started again at `at`. The newest incident is
/// theirs; `message` says what follows, too.
pub(crate) fn restart_members(
    nodes: &Registry,
    job: &mut JobRecord,
    now: Timestamp,
    (ranks, at): (Vec<u32>, Timestamp),
    message: &str,
) {
    let seen: Vec<u32> = ranks
        .iter()
        .map(|rank| attempt_seen(nodes, job, *rank))
        .collect();
    let Some(generation) = &mut job.current else {
        return;
    };
    job.restart_count += 1;
    for (rank, seen) in ranks.iter().zip(seen) {
        let first = MemberRestart {
            attempt: 1,
            at: generation.started_at.unwrap_or(now),
            due: None,
        };
        let restarts = generation.member_restarts.entry(*rank).or_insert(first);
        // An older copy of the store knows fewer attempts than the node.
        restarts.attempt = restarts.attempt.max(seen);
        restarts.due = Some(at);
    }
    if let Some(incident) = job.incidents.last_mut() {
        incident.message = message.to_owned();
        incident.to = Some(generation.number);
        incident.to_nodes = generation.size();
        incident.decided_at = Some(now);
        incident.restarted_ranks = ranks;
    }
}

/// Orders the restarts that are due, and returns when the next is. Nothing is started any more in a job that ends or has won.
pub(crate) fn order_restarts(job: &mut JobRecord, now: Timestamp) -> Option<Timestamp> {
    let generation = job.current.as_mut().filter(|g| g.won.is_none())?;
    let mut next = None;
    for restarts in generation.member_restarts.values_mut() {
        match restarts.due {
            Some(due) if due <= now => {
                (restarts.attempt, restarts.at, restarts.due) = (restarts.attempt + 1, now, None);
            }
            Some(due) => next = Some(next.map_or(due, |next: Timestamp| next.min(due))),
            None => {}
        }
    }
    next
}

/// The attempt of this rank that its node has reported.
fn attempt_seen(nodes: &Registry, job: &JobRecord, rank: u32) -> u32 {
    let report = || {
        let generation = job.current.as_ref()?;
        let node = generation.node_of(rank)?;
        let run = generation::report(nodes, &job.uid, generation, node)?;
        run.ranks.iter().find(|report| report.rank == rank)
    };
    report().map_or(1, |report| report.attempt)
}
