//! Looks for the rank that others missed, where all of them say only that they lost a rank or waited for
//! one: a rank that had ended well, one that their errors name, or one that alone still runs. It never
//! explains anything while a node is silent, since that may be the cause.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    exit::{Exit, awaited_ranks},
    fleet::{
        blame::Evidence,
        generation,
        job::GenerationRecord,
        registry::{Liveness, Registry},
    },
    id::{JobUid, NodeName},
    run::{RankReport, RunReport},
};

/// How long a process may live after its connections to the others have closed: its interpreter frees
/// its modules in some order, and a large one takes a second on a busy machine.
const FINALIZES: Duration = Duration::from_secs(2);

/// What explains this evidence, if all of it is ranks that speak of others.
pub(super) fn explanation(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    found: &[Evidence],
) -> Option<Evidence> {
    if !found.iter().all(Evidence::is_victims_end) {
        return None;
    }
    let first = found.iter().min_by_key(|e| e.at())?;
    ended_early(nodes, job, generation, first).or_else(|| awaited(nodes, job, generation, found))
}

/// The first rank that has ended well although its generation is not over. Of a job with roles, it must
/// be of the victim's role: those of another may have less to do. It must have ended before the victim,
/// or only as much later as [`FINALIZES`]. A rank that ends well long after has given up in good order.
fn ended_early(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    victim: &Evidence,
) -> Option<Evidence> {
    let role = match victim {
        Evidence::RankExit { rank, .. } => generation.role_of(*rank),
        _ => None,
    };
    let ended = |(node, _, rank): &(&NodeName, &RunReport, &RankReport)| {
        let well = rank.exit.is_some_and(Exit::is_success);
        let alike = generation.role_of(rank.rank) == role;
        let early = rank
            .exited_at
            .is_none_or(|at| at <= victim.at() + FINALIZES);
        (well && early && alike).then(|| (rank.exited_at, rank.rank, (*node).clone()))
    };
    let all = ranks(nodes, job, generation);
    let (at, rank, node) = all.iter().filter_map(ended).min()?;
    Some(Evidence::EndedEarly {
        node,
        rank,
        member: None,
        at: at.unwrap_or_else(|| victim.at()),
        victim: Box::new(victim.clone()),
    })
}

/// The ranks for which others gave up waiting. If no error names them, they are those that still run, if
/// these are fewer than the others, or a single one.
fn awaited(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    found: &[Evidence],
) -> Option<Evidence> {
    let mut waited = found.iter().filter(|e| e.gave_up_waiting());
    let victim = waited.clone().min_by_key(|e| e.at())?;
    let failed: BTreeSet<u32> = found.iter().filter_map(rank_of).collect();
    let named: BTreeSet<u32> = waited
        .by_ref()
        .filter_map(error_of)
        .flat_map(awaited_ranks)
        .filter(|rank| !failed.contains(rank))
        .collect();
    let ranks: Vec<(u32, NodeName)> = match named.is_empty() {
        false => named
            .into_iter()
            .filter_map(|rank| Some((rank, generation.node_of(rank)?.clone())))
            .collect(),
        true => Some(running(nodes, job, generation))
            .filter(|running| running.len() < failed.len().max(2))
            .unwrap_or_default(),
    };
    (!ranks.is_empty()).then(|| Evidence::Awaited {
        ranks,
        at: victim.at(),
        victim: Box::new(victim.clone()),
    })
}

/// The ranks that still run, on nodes that are heard.
pub(super) fn running(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
) -> Vec<(u32, NodeName)> {
    let heard = |node: &NodeName| {
        let node = nodes.get(node);
        node.is_some_and(|node| node.session.is_some() && node.liveness == Liveness::Ready)
    };
    let all = ranks(nodes, job, generation).into_iter();
    let runs = |run: &RunReport, rank: &RankReport| {
        !run.phase.is_over() && rank.started_at.is_some() && rank.exit.is_none()
    };
    all.filter(|(node, run, rank)| runs(run, rank) && heard(node))
        .map(|(node, _, rank)| (rank.rank, node.clone()))
        .collect()
}

/// All ranks of this generation whose node has reported them and can still do so.
fn ranks<'a>(
    nodes: &'a Registry,
    job: &JobUid,
    generation: &'a GenerationRecord,
) -> Vec<(&'a NodeName, &'a RunReport, &'a RankReport)> {
    let reports = generation::reports(nodes, job, generation);
    let known = reports.filter_map(|(node, run)| Some((node, run?)));
    known
        .flat_map(|(node, run)| run.ranks.iter().map(move |rank| (node, run, rank)))
        .collect()
}

fn rank_of(evidence: &Evidence) -> Option<u32> {
    match evidence {
        Evidence::RankExit { rank, .. } => Some(*rank),
        _ => None,
    }
}

fn error_of(evidence: &Evidence) -> Option<&str> {
    match evidence {
        Evidence::RankExit { error, .. } | Evidence::TorchrunFailed { error, .. } => {
            error.as_deref()
        }
        _ => None,
    }
}
