//! The coordinator's store. Commits survive every crash, and one transaction is all or nothing.

use std::collections::BTreeMap;

use muster_core::{
    fleet::{Change, NodeRecord, Stored, job::JobRecord},
    id::{JobUid, NodeName, Term},
    time::Timestamp,
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) jobs: BTreeMap<JobUid, JobRecord>,
    pub(crate) nodes: BTreeMap<NodeName, NodeRecord>,
    pub(crate) last_event: u64,
    /// The latest time that was written. No coordinator's clock starts before it.
    pub(crate) latest: Timestamp,
    pub(crate) term: Term,
    /// What the operator has put on the command line since an old copy was put back.
    pub(crate) min_term: Term,
    pub(crate) accept: bool,
}

impl Store {
    pub(crate) fn apply(&mut self, change: Change) {
        match change {
            Change::PutJob(job) => drop(self.jobs.insert(job.uid.clone(), *job)),
            Change::DeleteJob(uid) => drop(self.jobs.remove(&uid)),
            Change::PutNode(node) => drop(self.nodes.insert(node.name.clone(), *node)),
            Change::DeleteNode(name) => drop(self.nodes.remove(&name)),
            Change::Event(event) => {
                (self.last_event, self.latest) = (event.sequence, self.latest.max(event.at))
            }
        }
    }

    pub(crate) fn read(&self) -> Stored {
        Stored {
            jobs: self.jobs.values().cloned().collect(),
            nodes: self.nodes.values().cloned().collect(),
            reports: Vec::new(),
            last_event: self.last_event,
        }
    }
}
