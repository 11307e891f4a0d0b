//! How the members of a generation ended, as their nodes last reported it. It is kept with the job.
//!
//! A node forgets a run as soon as its death is noted. Later questions about how a job ended are
//! answered from here.

use crate::{
    fleet::{job::JobRecord, member_end::MemberEnd, registry::Registry},
    id::NodeName,
};

/// The number of ranks kept of one generation, besides those on the node that is to blame. 256
/// ranks of about 120 bytes are 30 KiB of a record.
const RANKS_MAX: usize = 256;

/// Keeps how the members of the last started generation ended, and drops the ends of older
/// generations.
pub(crate) fn keep_ends(nodes: &Registry, job: &mut JobRecord) {
    let Some(last) = job.trained_last() else {
        return;
    };
    let (number, run) = (last.number, last.run(&job.uid));
    let culprit = job
        .incidents
        .iter()
        .rev()
        .find(|incident| incident.from == Some(number))
        .and_then(|i| i.node.as_ref());
    let mut kept: usize = last.ends.values().map(|end| end.ranks.len().max(1)).sum();
    let mut new: Vec<(NodeName, MemberEnd)> = Vec::new();
    for name in last
        .dead
        .iter()
        .filter(|name| !last.ends.contains_key(*name))
    {
        let report = nodes
            .get(name)
            .and_then(|node| node.runs.get(&run))
            .filter(|report| report.phase.is_over());
        let Some(report) = report else { continue };
        let weight = report.ranks.len().max(1);
        if kept + weight <= RANKS_MAX || culprit == Some(name) {
            kept += weight;
            new.push((name.clone(), report.into()));
        }
    }
    for generation in job
        .retiring
        .iter_mut()
        .chain(&mut job.current)
        .chain(&mut job.history)
    {
        if generation.number == number {
            generation.ends.extend(std::mem::take(&mut new));
        } else if generation.number < number {
            generation.ends.clear();
        }
    }
}
