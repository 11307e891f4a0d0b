//! The coordinator's store, as the weakest one that is allowed: it has no transactions. It makes the
//! writes of a commit one by one, each only if the record has the version that the coordinator
//! knows. What was written survives every crash.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_core::{
    fleet::{
        Change, NodeRecord, Stored, Tombstone,
        commit::{RecordKey, Version, Versions, Write},
        history::HistoryRecord,
        job::JobRecord,
        notify::{Kind, Outbox},
    },
    id::{JobUid, NodeName, Term},
    time::Timestamp,
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) jobs: BTreeMap<JobUid, JobRecord>,
    pub(crate) nodes: BTreeMap<NodeName, NodeRecord>,
    pub(crate) tombstones: BTreeMap<JobUid, Tombstone>,
    pub(crate) history: BTreeMap<u64, Arc<HistoryRecord>>,
    pub(crate) outbox: Arc<Outbox>,
    /// Jobs of whose end the outbox has ever told.
    pub(crate) told: BTreeSet<JobUid>,
    pub(crate) versions: BTreeMap<RecordKey, Version>,
    pub(crate) last_event: u64,
    /// The latest time that was written. No coordinator's clock starts before it.
    pub(crate) latest: Timestamp,
    pub(crate) term: Term,
    /// What the operator has put on the command line since an old copy was put back.
    pub(crate) min_term: Term,
    pub(crate) accept: bool,
}

impl Store {
    /// Whether the record still is as the writer knows it.
    pub(crate) fn takes(&self, write: &Write) -> bool {
        if let Change::PutHistory(record) = &write.change {
            return !self.history.contains_key(&record.number);
        }
        self.versions.get(&write.key()) == write.expects.as_ref()
    }

    /// What a coordinator that starts now writes on.
    pub(crate) fn versions(&self, term: Term) -> Versions {
        let known = self.versions.iter();
        Versions::loaded(term, known.map(|(key, version)| (key.clone(), *version)))
    }

    pub(crate) fn apply(&mut self, write: Write) {
        match &write.change {
            change if !change.has_version() => {}
            change if change.deletes() => drop(self.versions.remove(&write.key())),
            _ => drop(self.versions.insert(write.key(), write.becomes)),
        }
        match write.change {
            Change::PutJob(job) => drop(self.jobs.insert(job.uid.clone(), *job)),
            Change::DeleteJob(uid) => drop(self.jobs.remove(&uid)),
            Change::PutNode(node) => drop(self.nodes.insert(node.name.clone(), *node)),
            Change::DeleteNode(name) => drop(self.nodes.remove(&name)),
            Change::PutTombstone(tombstone) => {
                let job = tombstone.run.job.clone();
                self.tombstones.insert(job, *tombstone);
            }
            Change::DeleteTombstone(job) => drop(self.tombstones.remove(&job)),
            Change::PutHistory(record) => drop(self.history.insert(record.number, record)),
            Change::DropHistory(number) => self.history.retain(|known, _| *known > number),
            Change::PutOutbox(outbox) => {
                let notices = outbox.messages.iter().flat_map(|message| &message.notices);
                let ends = notices
                    .filter(|notice| matches!(notice.kind, Kind::JobFailed | Kind::JobSucceeded));
                self.told
                    .extend(ends.filter_map(|notice| notice.uid.clone()));
                self.outbox = outbox;
            }
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
            tombstones: self.tombstones.values().cloned().collect(),
            history: self.history.values().cloned().collect(),
            outbox: (*self.outbox).clone(),
            last_event: self.last_event,
        }
    }
}
