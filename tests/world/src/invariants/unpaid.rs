//! I21: no job restarts without a budget that ends somewhere. Breaks that begin with the end of a rank, and
//! for which nobody pays, are counted here anew, whatever the coordinator calls them and whatever progress
//! lies between. What a node did or suffered is not counted: nodes have a ledger and a cordon.

use super::*;

/// The bound of the coordinator (`DOUBTFUL_IN_WINDOW_MAX`).
const UNPAID_MAX: usize = 10;

pub(super) fn ends_somewhere(world: &mut World, job: &JobRecord) -> Broken {
    let before = world.store.jobs.get(&job.uid)?;
    let new = (blames::count(job).saturating_sub(blames::count(before))) as usize;
    let of_ranks = |incident: &&Incident| {
        let by_a_rank = matches!(
            incident.cause,
            Cause::PeersLost
                | Cause::EndedEarly
                | Cause::CollectiveTimeout
                | Cause::WorkerFailed
                | Cause::WorkerKilled
        );
        by_a_rank && incident.charged != Charged::Job && incident.from.is_some()
    };
    // A job that succeeds by its own rule pays for nothing any more.
    let told = job.incidents.iter().rev().take(new).filter(of_ranks);
    let told: Vec<Timestamp> = told.map(|incident| incident.detected_at).collect();
    let unpaid = world.truth.unpaid.entry(job.uid.clone()).or_default();
    unpaid.extend(told);
    let window = job.spec.restart_policy.window;
    let newest = unpaid.iter().max().copied()?;
    unpaid.retain(|at| newest.since(*at) < window);
    // The record counts by the time of the decision and this by that of the detection, so that one more
    // may fall into the window.
    (unpaid.len() > UNPAID_MAX + 1).then(|| {
        let what = format!(
            "{} broke {} times by ranks that ended, and nobody paid",
            job.name.name,
            unpaid.len()
        );
        ("I21", what)
    })
}
