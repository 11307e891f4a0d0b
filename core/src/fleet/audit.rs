//! Once a minute, what is reserved is compared with what all records say, and with a capacity that is counted anew. A difference
//! is told. What is reserved comes from indexes that turns keep; the records are read whole here. A difference is a fault of
//! Muster's own, and could give a GPU away twice.
//!
//! Nothing is stopped for it. If an index lacks a job, it gets it, so that nothing more is given away, and the new count takes the
//! place of the one that was kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    fleet::{
        capacity::{Capacity, Holding},
        job::JobRecord,
        policy::Policy,
        registry::Registry,
        scratch::Scratch,
        worker_pods::WorkerPods,
    },
    id::{JobUid, NodeName},
    run::{RunId, RunReport},
    time::Timestamp,
};

/// The audit of one coordinator.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// When to look again.
    due: Timestamp,
    /// What was told and still holds.
    told: BTreeSet<Mismatch>,
}

/// What is reserved, and is not what the record of a job says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mismatch {
    node: NodeName,
    /// `None`: all that is free there.
    job: Option<JobUid>,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// It may have live processes there, and has nothing reserved.
    NothingReserved,
    /// It has something reserved, and neither its record nor the node knows why.
    Leftover,
    /// It has other GPUs reserved than its record says, or fewer slots.
    Other,
    /// What has changed on the node was not taken in.
    NotFollowed,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            What::NothingReserved => {
                "it may have live processes there, and nothing is reserved for it"
            }
            What::Leftover => "something is reserved for it, and it has nothing there",
            What::Other => "other GPUs or fewer slots are reserved for it than it may use",
            What::NotFollowed => "a new count finds something else there",
        })
    }
}

/// What one job may use of one node, by its record alone.
#[derive(Debug, Default)]
struct Uses<'a> {
    gpus: BTreeSet<&'a str>,
    slots: u32,
}

/// Reads all records, and no index.
fn uses<'a>(
    jobs: impl Iterator<Item = &'a JobRecord>,
) -> BTreeMap<(&'a NodeName, &'a JobUid), Uses<'a>> {
    let mut all: BTreeMap<(&NodeName, &JobUid), Uses<'_>> = BTreeMap::new();
    for job in jobs {
        let without_slots = job.spec.roles.is_empty() && job.spec.gpus_per_node > 0;
        for generation in job.unproven_generations() {
            for (rank, share) in (0..).zip(&generation.members) {
                if generation.dead.contains(&share.node) {
                    continue;
                }
                let uses = all.entry((&share.node, &job.uid)).or_default();
                uses.gpus.extend(share.gpus.iter().map(String::as_str));
                let seats = generation.members.seats(rank);
                let slots = seats.iter().filter(|seat| seat.gpus.is_empty()).count() as u32;
                if !without_slots {
                    uses.slots = uses.slots.max(slots);
                }
            }
        }
    }
    all
}

/// Where what is reserved is not what the records say.
pub(crate) fn compare<'a>(
    capacity: &Capacity,
    nodes: &Registry,
    jobs: impl Iterator<Item = &'a JobRecord>,
) -> BTreeSet<Mismatch> {
    let mut uses = uses(jobs);
    let mut found = BTreeSet::new();
    let mut differs = |node: &NodeName, job: &JobUid, what| {
        found.insert(Mismatch {
            node: node.clone(),
            job: Some(job.clone()),
            what,
        });
    };
    for node in nodes.iter() {
        let name = &node.record.name;
        let Some(left) = capacity.node(name) else {
            continue;
        };
        for (uid, holding) in left.holdings() {
            let own_run = |(id, run): (&RunId, &RunReport)| id.job == *uid && !run.phase.is_over();
            match uses.remove(&(name, uid)) {
                Some(uses) if !is_enough(holding, &uses) => differs(name, uid, What::Other),
                Some(_) => {}
                None if node.runs.iter().any(own_run) => {}
                None => differs(name, uid, What::Leftover),
            }
        }
    }
    for (node, job) in uses.into_keys() {
        if nodes.contains(node) {
            differs(node, job, What::NothingReserved);
        }
    }
    found
}

impl Mismatch {
    fn not_followed(node: NodeName) -> Self {
        Self {
            node,
            job: None,
            what: What::NotFollowed,
        }
    }
}

fn is_enough(holding: &Holding, uses: &Uses<'_>) -> bool {
    let reserved: BTreeSet<&str> = holding.gpus().collect();
    reserved == uses.gpus && holding.slots >= uses.slots
}

impl Audit {
    /// Compares, if a minute has passed since the last time, and tells what is new.
    pub(crate) fn look(
        &mut self,
        capacity: &mut Capacity,
        nodes: &mut Registry,
        jobs: &BTreeMap<JobUid, JobRecord>,
        pods: &WorkerPods,
        policy: &Policy,
        scratch: &mut Scratch,
    ) {
        if scratch.now < self.due {
            return;
        }
        self.due = scratch.now + policy.audit_every;
        let counted = Capacity::of(nodes, |uid| jobs.get(uid), pods);
        let mut found = compare(capacity, nodes, jobs.values());
        if *capacity != counted {
            found.extend(compare(&counted, nodes, jobs.values()));
            let differ = capacity.differences(&counted).cloned();
            found.extend(differ.map(Mismatch::not_followed));
            *capacity = counted;
        }
        for mismatch in found.difference(&self.told) {
            let Mismatch { node, job, what } = mismatch;
            let Some(job) = job else {
                let message = format!(
                    "what is free on {node} is not what was kept of it: {what}; report this as a fault of Muster"
                );
                let events = &mut scratch.events;
                events.warn("CapacityMismatch", message).on_node(node);
                continue;
            };
            let Some(record) = jobs.get(job) else {
                continue;
            };
            let message = format!(
                "what is reserved on {node} for job {} is not what its record says: {what}; report this as a fault of Muster",
                record.name
            );
            scratch
                .events
                .warn("CapacityMismatch", message)
                .of_job(job, &record.name)
                .on_node(node);
            if *what == What::NothingReserved
                && let Some(node) = nodes.get_mut(node)
            {
                node.jobs.insert(job.clone());
                capacity.follow(nodes, record);
            }
        }
        self.told = found;
    }
}
