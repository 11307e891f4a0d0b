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
    exit::ExitClass,
    fleet::{
        blame::Evidence,
        generation,
        job::{GenerationRecord, MemberRestart},
        job_turn::JobTurn,
        registry::Registry,
    },
    id::JobUid,
    period,
    run::RunPhase,
    time::Timestamp,
};

/// The ranks that can be started again alone, if that answers all of this evidence. `None`: something
/// else is wrong, and the generation is broken.
pub(crate) fn ranks_alone(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    evidence: &[Evidence],
) -> Option<Vec<u32>> {
    let alone = |found: &Evidence| {
        let Evidence::RankExit {
            node, rank, class, ..
        } = found
        else {
            return None;
        };
        let of_role = generation.restarts_alone(generation.number_of(*rank)?);
        let run = generation::report(nodes, job, generation, node)?;
        // An agent or a runner of an earlier version ends the group at the first failure.
        let goes_on = run.phase == RunPhase::Running;
        // What lost a peer is started again with the whole world, unless the peer is started again.
        let own = *class != ExitClass::PeerLost;
        (of_role && goes_on).then_some((*rank, own))
    };
    // A member that is only suspected may come back.
    let breaks = evidence.iter().filter(|found| found.breaks());
    let ranks: Vec<(u32, bool)> = breaks.map(alone).collect::<Option<_>>()?;
    let some_own = ranks.iter().any(|(_, own)| *own);
    some_own.then(|| ranks.into_iter().map(|(rank, _)| rank).collect())
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

impl JobTurn<'_> {
    /// Notes that these ranks have failed and are to be started again at `at`. The newest incident is
    /// theirs.
    pub(crate) fn restart_members(&mut self, ranks: Vec<u32>, at: Timestamp) {
        let job = &mut *self.job;
        let Some(generation) = &mut job.current else {
            return;
        };
        job.restart_count += 1;
        for rank in &ranks {
            let first = MemberRestart {
                attempt: 1,
                at: generation.started_at.unwrap_or(self.now),
                due: None,
            };
            let restarts = generation.member_restarts.entry(*rank).or_insert(first);
            restarts.due = Some(at);
        }
        if let Some(incident) = job.incidents.last_mut() {
            incident.to = Some(generation.number);
            incident.to_nodes = generation.size();
            incident.decided_at = Some(self.now);
            incident.restarted_ranks = ranks;
        }
    }

    /// Orders the restarts that are due.
    pub(crate) fn order_restarts(&mut self) {
        let now = self.now;
        let ending = self.job.ending.is_some();
        let Some(generation) = self.job.current.as_mut().filter(|_| !ending) else {
            return;
        };
        let mut next = None;
        for restarts in generation.member_restarts.values_mut() {
            match restarts.due {
                Some(due) if due <= now => {
                    (restarts.attempt, restarts.at, restarts.due) =
                        (restarts.attempt + 1, now, None);
                }
                Some(due) => next = Some(next.map_or(due, |next: Timestamp| next.min(due))),
                None => {}
            }
        }
        if let Some(at) = next {
            self.wake(at);
        }
    }
}
