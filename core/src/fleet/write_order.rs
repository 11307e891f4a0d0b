//! The order in which the records of one commit become durable.
//!
//! A store may write them one by one and die between two writes. Nobody has heard of the decision
//! then: effects follow the last write. So the records that did become durable must make sense
//! without the others. [`Step`] is the order, with the reason for each step.
//!
//! A record with news for two steps may have to be written twice. The first write has the record of
//! before the turn and only the news of that step: the deaths of a job that also opens a generation,
//! the boot of a node that also gets a mark. Two jobs can change places in one turn, so no order of
//! whole records would do.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    fleet::{
        event::Event, history::HistoryRecord, job::JobRecord, node_record::NodeRecord,
        notify::Outbox, output::Change, tombstone::Tombstone,
    },
    id::{Generation, JobUid, NodeName},
};

/// A record before and after a turn.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "they live until the end of their turn"
)]
pub(crate) enum Altered {
    Job {
        before: Option<JobRecord>,
        after: Box<JobRecord>,
    },
    JobDeleted(JobUid),
    Tombstone(Tombstone),
    Forgotten(JobUid),
    Node {
        before: Option<NodeRecord>,
        after: Box<NodeRecord>,
    },
    NodeDeleted(NodeName),
    /// A job is over, and this is left of it.
    History(Arc<HistoryRecord>),
    HistoryDropped(u64),
    Outbox(Arc<Outbox>),
    Event(Event),
}

/// When a record is written. The order of the variants is the order of the writes. Within a step it
/// means nothing, except for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// A node that is new to the store, has rebooted, or is halted by this turn.
    ///
    /// It comes before any generation that names it. Only a known node can be deleted, and a member
    /// on an unknown one would hold its job up for ever. If the stored boot were an older one, the
    /// member would seem to have rebooted. A halt comes before decisions about other records: if a
    /// job took the number that only this node has seen, nothing would show any more that the store
    /// is old.
    NodeItself,
    /// A job that opens no generation, also a new one.
    ///
    /// It may give up nodes, because its workers there are proven dead, and another job may take them
    /// in the same turn. Two jobs must never hold one GPU.
    JobOpensNothing,
    /// A job that opens a generation.
    JobOpens,
    /// A node's other news: its session, its marks.
    ///
    /// A mark follows the job that tells the same failure. Without the mark a node is blamed too
    /// little; with the mark alone, twice.
    NodeChanges,
    /// The jobs must know before that its workers count as dead: nobody can say so again of a node
    /// that the store does not know.
    NodeDeleted,
    /// It comes last among the news of nodes: those that were freed or deleted in the same turn no
    /// longer count against the cap on cordons.
    NodeCordoned,
    /// What people will be told.
    ///
    /// It follows what it tells of: nobody hears of what the store does not know. It comes before what is left of a
    /// job: the end of a job that has left no record is told when a coordinator starts.
    Outbox,
    /// What is left of a job that is over.
    ///
    /// It follows the job's own record: one whose end is not stored may end in another way. It comes before the
    /// job is deleted: a job that is over and has no record gets one when a coordinator starts.
    History,
    /// The tombstone of a job that is deleted, whose workers are proven dead. Without it, workers on
    /// a node that was deleted earlier would look like those of a job that the store has never known.
    TombstonePut,
    /// The job that is deleted, and an old tombstone or history record that was dropped for a newer one.
    JobDeleted,
    /// Events tell what stands in the records. They keep the order of their numbers.
    Event,
}

/// All writes of a turn, the one that must be durable first at the front.
pub(crate) fn in_order(altered: Vec<Altered>) -> Vec<Change> {
    let taken = taken(&altered);
    let mut writes: Vec<(Step, Change)> = Vec::with_capacity(altered.len());
    for altered in altered {
        if let Some(deaths) = deaths_apart(&altered, &taken) {
            writes.push((Step::JobOpensNothing, Change::PutJob(Box::new(deaths))));
        }
        if let Some(itself) = itself_apart(&altered) {
            writes.push((Step::NodeItself, Change::PutNode(Box::new(itself))));
        }
        writes.push((step(&altered), change(altered)));
    }
    // The sort is stable: events keep the order of their numbers.
    writes.sort_by_key(|(step, _)| *step);
    writes.into_iter().map(|(_, change)| change).collect()
}

fn step(altered: &Altered) -> Step {
    match altered {
        Altered::Node { before, after } => {
            let before = before.as_ref();
            if before.is_none_or(|before| before.cordon.is_none()) && after.cordon.is_some() {
                Step::NodeCordoned
            } else if is_itself(before, after) && !is_judged(before, after) {
                Step::NodeItself
            } else {
                Step::NodeChanges
            }
        }
        Altered::NodeDeleted(_) => Step::NodeDeleted,
        Altered::Job { before, after } if opens(before.as_ref(), after) => Step::JobOpens,
        Altered::Job { .. } => Step::JobOpensNothing,
        Altered::Tombstone(_) => Step::TombstonePut,
        Altered::History(_) => Step::History,
        Altered::JobDeleted(_) | Altered::Forgotten(_) | Altered::HistoryDropped(_) => {
            Step::JobDeleted
        }
        Altered::Outbox(_) => Step::Outbox,
        Altered::Event(_) => Step::Event,
    }
}

fn change(altered: Altered) -> Change {
    match altered {
        Altered::Job { after, .. } => Change::PutJob(after),
        Altered::JobDeleted(uid) => Change::DeleteJob(uid),
        Altered::Tombstone(tombstone) => Change::PutTombstone(Box::new(tombstone)),
        Altered::Forgotten(uid) => Change::DeleteTombstone(uid),
        Altered::Node { after, .. } => Change::PutNode(after),
        Altered::NodeDeleted(name) => Change::DeleteNode(name),
        Altered::History(record) => Change::PutHistory(record),
        Altered::HistoryDropped(number) => Change::DropHistory(number),
        Altered::Outbox(outbox) => Change::PutOutbox(outbox),
        Altered::Event(event) => Change::Event(Box::new(event)),
    }
}

fn opens(before: Option<&JobRecord>, after: &JobRecord) -> bool {
    let number = |job: &JobRecord| job.current.as_ref().map(|current| current.number);
    number(after).is_some() && before.and_then(number) != number(after)
}

/// Whether there is news of the node itself, which a job may build on in this turn.
fn is_itself(before: Option<&NodeRecord>, after: &NodeRecord) -> bool {
    before.is_none_or(|before| {
        before.boot_id != after.boot_id || before.halt.is_none() && after.halt.is_some()
    })
}

/// Whether there is news of what jobs have said about the node, or a cordon.
fn is_judged(before: Option<&NodeRecord>, after: &NodeRecord) -> bool {
    match before {
        Some(before) => {
            before.marks != after.marks
                || before.cordon != after.cordon
                || before.hold_off != after.hold_off
                || before.ended != after.ended
                || before.overruled != after.overruled
        }
        None => !after.marks.is_empty() || after.cordon.is_some(),
    }
}

/// The node with the news of itself alone, if it must be written once with it.
fn itself_apart(altered: &Altered) -> Option<NodeRecord> {
    let Altered::Node { before, after } = altered else {
        return None;
    };
    let before = before.as_ref();
    (is_itself(before, after) && is_judged(before, after)).then(|| NodeRecord {
        marks: before.map_or(Vec::new(), |before| before.marks.clone()),
        cordon: before.and_then(|before| before.cordon.clone()),
        hold_off: before.and_then(|before| before.hold_off.clone()),
        ended: before.and_then(|before| before.ended),
        overruled: before.and_then(|before| before.overruled),
        ..(**after).clone()
    })
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

/// The job of before the turn with the new deaths, if the deaths need a write of their own first.
/// They do if the job opens a generation itself and another job takes a node that it gives up.
fn deaths_apart(altered: &Altered, taken: &BTreeMap<NodeName, Vec<JobUid>>) -> Option<JobRecord> {
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
