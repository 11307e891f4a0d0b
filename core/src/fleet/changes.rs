//! Which records one turn may have changed, and how they were before. [`super::finish`] compares
//! them: what differs is stored, and those concerned are told. A rule that changes a record touches
//! it here first.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    fleet::{
        history::HistoryRecord, job::JobRecord, node_record::NodeRecord, notify::Notice,
        registry::Registry, tombstone::Tombstone,
    },
    id::{JobUid, NodeName},
};

#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Jobs whose view may have changed, with their record before the turn. `None`: the job is new.
    pub jobs: BTreeMap<JobUid, Option<JobRecord>>,
    /// Jobs whose only news is a step count.
    pub steps_only: BTreeSet<JobUid>,
    /// Deleted jobs.
    pub deleted: Vec<Tombstone>,
    /// Tombstones that have made room for newer ones.
    pub forgotten: Vec<JobUid>,
    /// What is left of jobs that are over.
    pub history: Vec<Arc<HistoryRecord>>,
    /// Ends of jobs that may not have been told.
    pub untold: Vec<Notice>,
    /// Nodes whose view may have changed, with their record before the turn. `None`: the node is new.
    pub nodes: BTreeMap<NodeName, Option<NodeRecord>>,
    /// Nodes whose desired state may have changed.
    pub publish: BTreeSet<NodeName>,
    /// Capacity changed, so every job that waits for room must be settled.
    pub capacity: bool,
    /// A node has just become Lost.
    pub lost: bool,
}

impl Changes {
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
    /// must be looked at again. The job that is being settled is taken out of `jobs` meanwhile
    /// ([`super::settle`]), and needs no mark here.
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
