//! Fills in a receipt as things happen: when the previous generation had stopped, and when the new
//! ranks were started, found each other and made a step.

use std::time::Duration;

use crate::{
    fleet::{gather, generation, job::JobRecord, receipt::Incident, registry::Registry},
    run::{PhasesReport, RunReport},
    time::Timestamp,
};

/// How long after the first step nodes may still say what their start was spent on. Their words come with
/// the next report, and a node that prints no steps watches its ranks for longer.
const SAID_LATE: Duration = Duration::from_secs(2);

/// Fills in what has happened since the last turn in the receipt of the current generation.
pub(crate) fn fill_receipt(nodes: &Registry, job: &mut JobRecord, now: Timestamp) {
    let Some(generation) = job.current.as_ref() else {
        return;
    };
    let number = generation.number;
    let Some(incident) = job.receipt_of(number) else {
        return;
    };
    let mut filled = incident.clone();
    if !job.retiring.is_empty() && !job.retiring.iter().any(|g| generation::awaited(nodes, g)) {
        filled.stopped_at.get_or_insert(now);
    }
    // If a culprit is known, other ranks may still fall because of it, after the judgement and
    // before they are stopped.
    if let Some(from) = incident
        .from
        .filter(|_| incident.culprit.is_some() && incident.launched_at.is_none())
        && let Some(fell) = job
            .retiring
            .iter()
            .find(|generation| generation.number == from)
    {
        filled.add_collateral(gather::ranks_that_lost_peers(nodes, &job.uid, fell));
    }
    if generation.started {
        if filled.launched_at.is_none() {
            let started =
                |run: &RunReport| run.ranks.iter().filter_map(|rank| rank.started_at).min();
            let launched: Option<Vec<Timestamp>> = generation::reports(nodes, &job.uid, generation)
                .map(|(_, run)| run.and_then(started))
                .collect();
            filled.launched_at = launched.and_then(|all| all.into_iter().max());
        }
        let joined = generation::report(nodes, &job.uid, generation, &generation.store_host)
            .and_then(|run| run.all_joined_at);
        filled.joined_at = filled.joined_at.or(joined);
        if filled.first_step_at.is_none()
            && let Some((at, step)) = generation::steps(nodes, &job.uid, generation).first
        {
            (filled.first_step_at, filled.first_step_after) = (Some(at), Some(step));
        }
        let over = filled.first_step_at.map(|at| at + SAID_LATE);
        if over.is_none_or(|over| now <= over) {
            let reports = generation::reports(nodes, &job.uid, generation);
            let runs: Option<Vec<&RunReport>> = reports.map(|(_, run)| run).collect();
            if let Some(runs) = runs {
                filled.seen = PhasesReport::of_all(runs.iter().map(|run| &run.phases)).brief();
            }
        }
    }
    if filled != *incident {
        let own = |one: &&mut Incident| one.to == Some(number) && one.restarted_ranks.is_empty();
        if let Some(receipt) = job.incidents.iter_mut().rev().find(own) {
            *receipt = filled;
        }
    }
    fill_restarts(nodes, job);
}

/// Notes when the last of the restarted ranks had started, for each restart of this generation.
fn fill_restarts(nodes: &Registry, job: &mut JobRecord) {
    let Some(generation) = &job.current else {
        return;
    };
    let started = |rank: &u32| {
        let node = generation.node_of(*rank)?;
        let run = generation::report(nodes, &job.uid, generation, node)?;
        let restarts = generation.member_restarts.get(rank)?;
        let report = run.ranks.iter().find(|report| report.rank == *rank)?;
        let newest = report.attempt >= restarts.attempt && restarts.due.is_none();
        report.started_at.filter(|_| newest)
    };
    let open = |(_, one): &(usize, &Incident)| {
        let of_ranks = !one.restarted_ranks.is_empty() && one.launched_at.is_none();
        of_ranks && one.to == Some(generation.number)
    };
    let launched = |(at, one): (usize, &Incident)| {
        let all: Option<Vec<Timestamp>> = one.restarted_ranks.iter().map(started).collect();
        Some((at, all?.into_iter().max()?))
    };
    let all = job.incidents.iter().enumerate();
    let found: Vec<(usize, Timestamp)> = all.filter(open).filter_map(launched).collect();
    for (at, launched) in found {
        job.incidents[at].launched_at = Some(launched);
    }
}
