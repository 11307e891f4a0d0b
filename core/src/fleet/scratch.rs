//! What one turn gathers on its way to its answer: which jobs to look at, how records were before,
//! and what to tell people. It decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    fleet::{
        actor::Actor,
        event::Event,
        input::RequestId,
        job::JobRecord,
        node_record::NodeRecord,
        output::{Answer, Effect},
        registry::Registry,
        tombstone::Tombstone,
    },
    id::{JobUid, NodeName},
    time::Timestamp,
};

#[derive(Debug)]
pub(crate) struct Scratch {
    /// The moment of this turn.
    pub now: Timestamp,
    pub effects: Vec<Effect>,
    /// Events without their numbers. [`Scratch::numbered_events`] adds those.
    events: Vec<Event>,
    /// Jobs whose view may have changed, with their record before the turn. `None`: the job is new.
    pub jobs: BTreeMap<JobUid, Option<JobRecord>>,
    /// Jobs whose only news is a step count.
    pub shown: BTreeSet<JobUid>,
    /// Deleted jobs.
    pub deleted: Vec<Tombstone>,
    /// Tombstones that have made room for newer ones.
    pub forgotten: Vec<JobUid>,
    pub nodes: BTreeMap<NodeName, Option<NodeRecord>>,
    /// Nodes whose desired state may have changed.
    pub publish: BTreeSet<NodeName>,
    /// Capacity changed, so every job that waits for room must be settled.
    pub capacity: bool,
    pub wake_at: Option<Timestamp>,
    /// A node has just become Lost.
    pub lost: bool,
    pub answer: Option<(RequestId, Reply)>,
    /// The caller whose request is being applied. It causes the events of this turn.
    pub actor: Option<Actor>,
}

/// The answer to a request. It is completed when the turn is settled.
#[derive(Debug)]
pub(crate) enum Reply {
    Job { uid: JobUid, existed: bool },
    Node(NodeName),
    Ready(Answer),
}

impl Scratch {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            now,
            effects: Vec::new(),
            events: Vec::new(),
            jobs: BTreeMap::new(),
            shown: BTreeSet::new(),
            deleted: Vec::new(),
            forgotten: Vec::new(),
            nodes: BTreeMap::new(),
            publish: BTreeSet::new(),
            capacity: false,
            wake_at: None,
            lost: false,
            answer: None,
            actor: None,
        }
    }

    pub(crate) fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }

    /// Writes an event for which people need to do nothing.
    pub(crate) fn note(&mut self, reason: &str, message: String) -> &mut Event {
        self.tell(false, reason, message)
    }

    pub(crate) fn warn(&mut self, reason: &str, message: String) -> &mut Event {
        self.tell(true, reason, message)
    }

    pub(crate) fn tell(&mut self, warning: bool, reason: &str, message: String) -> &mut Event {
        self.events.push(Event {
            sequence: 0,
            at: self.now,
            warning,
            reason: reason.to_owned(),
            message,
            job: None,
            node: None,
            generation: None,
            actor: self.actor.clone(),
        });
        self.events.last_mut().expect("just pushed")
    }

    /// All events of this turn, in order, numbered after `last`, the last number given out.
    pub(crate) fn numbered_events(&mut self, last: &mut u64) -> Vec<Event> {
        let mut events = std::mem::take(&mut self.events);
        for event in &mut events {
            *last += 1;
            event.sequence = *last;
        }
        events
    }

    /// Remembers a job's record as it was before this turn, and that the job must be settled.
    pub(crate) fn touch_job(&mut self, job: &JobRecord) {
        if !self.jobs.contains_key(&job.uid) {
            self.jobs.insert(job.uid.clone(), Some(job.clone()));
        }
    }

    /// Remembers a node's record as it was before this turn.
    pub(crate) fn touch_node(&mut self, nodes: &Registry, name: &NodeName) {
        if let Some(node) = nodes.get(name)
            && !self.nodes.contains_key(name)
        {
            self.nodes.insert(name.clone(), Some(node.record.clone()));
        }
    }

    /// A node's liveness, cordon, facts or load changed. Its jobs, and jobs that wait for nodes,
    /// must be looked at again. A job that is being settled is looked at anyway, and may be missing
    /// in `jobs`.
    pub(crate) fn node_changed(
        &mut self,
        nodes: &Registry,
        jobs: &BTreeMap<JobUid, JobRecord>,
        name: &NodeName,
    ) {
        self.touch_node(nodes, name);
        self.capacity = true;
        let concerned = nodes.get(name).into_iter().flat_map(|node| &node.jobs);
        for job in concerned.filter_map(|uid| jobs.get(uid)) {
            self.touch_job(job);
        }
    }
}
