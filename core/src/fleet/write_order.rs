//! In which order the records of one commit become durable.
//!
//! A store may write them one by one and die between two writes. Nobody has heard of the decision
//! then: effects follow the last write. So the records that did become durable must make sense
//! without the others. [`Step`] is the order:
//!
//! 1. A node that the store does not know yet, before a generation may name it. Only a known node
//!    can be deleted, and a member on an unknown one would hold its job up for ever.
//! 2. A node that is halted now, before what is decided about other nodes and jobs. If a job took
//!    the number that only this node has seen, nothing would show any more that the store is old.
//! 3. A job that opens no generation. It may give up nodes (its workers there are proven dead), and
//!    another job may take them in the same turn. Two jobs must never hold one GPU.
//! 4. A job that opens a generation. If it also gives up nodes that another one takes now, it is
//!    written twice: with the deaths alone in step 3, and whole in this step. Two jobs can change
//!    places in one turn, so no order of whole records would do.
//! 5. A node's other news: its session, its marks. A mark follows the job that tells the same
//!    failure. Without the mark a node is blamed too little; with the mark alone, twice.
//! 6. A node that is deleted. The jobs must know before that its workers count as dead: nobody can
//!    say so again of a node that the store does not know.
//! 7. A node that gets no work from now on. The cap counts those that have been freed or deleted in
//!    the same turn no more.
//! 8. A job that is deleted. Its name is free, and its workers are proven dead, before.
//! 9. Events, in the order of their numbers. They tell what stands in the records.
//!
//! Within a step the order means nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    fleet::{event::Event, job::JobRecord, node_record::NodeRecord, output::Change},
    id::{Generation, JobUid, NodeName},
    planted::{self, Mistake},
};

/// A record as it was before a turn and as it is after it.
#[derive(Debug)]
pub(crate) enum Altered {
    Job {
        before: Option<JobRecord>,
        after: Box<JobRecord>,
    },
    JobDeleted(JobUid),
    Node {
        before: Option<NodeRecord>,
        after: Box<NodeRecord>,
    },
    NodeDeleted(NodeName),
    Event(Event),
}

/// When a record is written. The order of the variants is the order of the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    NodeBegins,
    NodeHalts,
    JobGivesUp,
    JobOpens,
    NodeChanges,
    NodeDeleted,
    NodeCordoned,
    JobDeleted,
    Event,
}

/// All writes of a turn, the one that must be durable first at the front.
pub(crate) fn in_order(altered: Vec<Altered>) -> Vec<Change> {
    if planted::on(Mistake::WritesOutOfOrder) {
        return altered.into_iter().map(change).collect();
    }
    let taken = taken(&altered);
    let mut writes: Vec<(Step, Change)> = Vec::with_capacity(altered.len());
    for altered in altered {
        if let Some(deaths) = deaths_apart(&altered, &taken) {
            writes.push((Step::JobGivesUp, Change::PutJob(Box::new(deaths))));
        }
        writes.push((step(&altered), change(altered)));
    }
    // The sort is stable: events keep the order of their numbers.
    writes.sort_by_key(|(step, _)| *step);
    writes.into_iter().map(|(_, change)| change).collect()
}

fn step(altered: &Altered) -> Step {
    match altered {
        Altered::Node { before: None, .. } => Step::NodeBegins,
        Altered::Node {
            before: Some(before),
            after,
        } => {
            if before.halt.is_none() && after.halt.is_some() {
                Step::NodeHalts
            } else if before.cordon.is_none() && after.cordon.is_some() {
                Step::NodeCordoned
            } else {
                Step::NodeChanges
            }
        }
        Altered::NodeDeleted(_) => Step::NodeDeleted,
        Altered::Job { before, after } if opens(before.as_ref(), after) => Step::JobOpens,
        Altered::Job { .. } => Step::JobGivesUp,
        Altered::JobDeleted(_) => Step::JobDeleted,
        Altered::Event(_) => Step::Event,
    }
}

fn change(altered: Altered) -> Change {
    match altered {
        Altered::Job { after, .. } => Change::PutJob(after),
        Altered::JobDeleted(uid) => Change::DeleteJob(uid),
        Altered::Node { after, .. } => Change::PutNode(after),
        Altered::NodeDeleted(name) => Change::DeleteNode(name),
        Altered::Event(event) => Change::Event(Box::new(event)),
    }
}

fn opens(before: Option<&JobRecord>, after: &JobRecord) -> bool {
    let number = |job: &JobRecord| job.current.as_ref().map(|current| current.number);
    number(after).is_some() && before.and_then(number) != number(after)
}

/// The nodes of all generations that are opened now, with the jobs that open them.
fn taken(altered: &[Altered]) -> BTreeMap<NodeName, Vec<JobUid>> {
    let mut taken: BTreeMap<NodeName, Vec<JobUid>> = BTreeMap::new();
    for altered in altered {
        let Altered::Job { before, after } = altered else {
            continue;
        };
        let current = after.current.iter();
        let opened = current.filter(|_| opens(before.as_ref(), after));
        for member in opened.flat_map(|current| current.members.iter()) {
            let jobs = taken.entry(member.node.clone()).or_default();
            jobs.push(after.uid.clone());
        }
    }
    taken
}

/// The job as it was, with the deaths that are new, if it must be written once with these alone: it
/// opens a generation itself, and another job takes a node that it gives up.
fn deaths_apart(
    altered: &Altered,
    taken: &BTreeMap<NodeName, Vec<JobUid>>,
) -> Option<JobRecord> {
    let Altered::Job {
        before: Some(before),
        after,
    } = altered
    else {
        return None;
    };
    if !opens(Some(before), after) {
        return None;
    }
    let still_held: BTreeSet<(Generation, NodeName)> = held(after).collect();
    let given_up: BTreeSet<(Generation, NodeName)> = held(before)
        .filter(|held| !still_held.contains(held))
        .collect();
    let another_takes = |node: &NodeName| {
        let mut jobs = taken.get(node).into_iter().flatten();
        jobs.any(|job| *job != after.uid)
    };
    if !given_up.iter().any(|(_, node)| another_takes(node)) {
        return None;
    }
    let mut deaths = before.clone();
    for generation in deaths.unproven_generations_mut() {
        let number = generation.number;
        let dead = given_up.iter().filter(|(of, _)| *of == number);
        generation.dead.extend(dead.map(|(_, node)| node.clone()));
    }
    Some(deaths)
}

/// Where this job may have a live process, for each generation.
fn held(job: &JobRecord) -> impl Iterator<Item = (Generation, NodeName)> {
    job.unproven_generations().flat_map(|generation| {
        let members = generation.members.iter().map(|member| &member.node);
        members
            .filter(|node| !generation.dead.contains(*node))
            .map(|node| (generation.number, node.clone()))
    })
}

#[cfg(test)]
mod tests;
