//! The end of a job, good or bad. Whatever still runs is stopped; `settle` closes the job when
//! nothing runs any more.

use std::time::Duration;

use crate::fleet::{
    generation,
    job::{Ending, JobRecord, Phase, Stopping, Won},
    registry::Registry,
};

/// The ranks that have decided the job, for people.
pub(crate) fn winner(job: &JobRecord, won: &Won) -> String {
    let generation = job.current.as_ref();
    let name = won
        .number
        .zip(generation)
        .and_then(|(number, generation)| job.spec.member(&generation.layout, number));
    match name {
        Some(name) => format!("all ranks of {name} on {}", won.node),
        None => format!("all ranks on {}", won.node),
    }
}

pub(crate) fn rule_name(job: &JobRecord, index: usize) -> String {
    let rule = job.spec.rules.get(index);
    rule.map_or_else(String::new, |rule| rule.named(index))
}

/// Brings a job to its end. Whatever still runs is stopped.
pub(crate) fn end(nodes: &Registry, job: &mut JobRecord, ending: Ending) {
    let grace = match ending.phase {
        // What is left of a success are torchruns in their exit barrier, which a runner ends soon
        // after the last rank, services, and what ranks have left behind.
        Phase::Cancelled | Phase::Succeeded => job.spec.stop_grace_period,
        _ => Duration::ZERO,
    };
    end_with(nodes, job, ending, grace);
}

fn end_with(nodes: &Registry, job: &mut JobRecord, ending: Ending, grace: Duration) {
    let reason = ending.message.clone();
    if let Some(generation) = &job.current {
        let steps = generation::steps(nodes, &job.uid, generation);
        job.last_step = steps.last.or(job.last_step);
    }
    job.end(ending, Stopping { reason, grace });
}

/// Ends a job without any failure. Workers that still run may have something to save.
pub(crate) fn end_in_order(nodes: &Registry, job: &mut JobRecord, ending: Ending) {
    let grace = job.spec.stop_grace_period;
    end_with(nodes, job, ending, grace);
}
