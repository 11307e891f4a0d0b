//! A store that loses everything when it is dropped, for tests and simulations.

use std::{collections::BTreeMap, sync::Arc};

use muster_core::{
    fleet::{
        Change, Event, NodeRecord, Stored, Tombstone,
        commit::{RecordKey, Version, Write},
        history::HistoryRecord,
        job::JobRecord,
        notify::Outbox,
    },
    id::{JobUid, NodeName, Term},
    node_report::NodeReport,
};
use muster_handle::kept::Kept;

use super::{Lead, Leadership, Loaded, Store, StoreError, compare, deleted};

#[derive(Debug, Default)]
pub struct MemoryStore {
    term: Term,
    jobs: BTreeMap<JobUid, JobRecord>,
    nodes: BTreeMap<NodeName, NodeRecord>,
    reports: BTreeMap<NodeName, Arc<NodeReport>>,
    tombstones: BTreeMap<JobUid, Tombstone>,
    history: BTreeMap<u64, Arc<HistoryRecord>>,
    outbox: Arc<Outbox>,
    events: BTreeMap<u64, Event>,
    versions: BTreeMap<RecordKey, Version>,
    kept: Kept,
}

impl Leadership for MemoryStore {
    fn lead(&self) -> Lead {
        Lead::for_life()
    }
}

impl Store for MemoryStore {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        let fleet = Stored {
            jobs: self.jobs.values().cloned().collect(),
            nodes: self.nodes.values().cloned().collect(),
            reports: self
                .reports
                .iter()
                .map(|(name, report)| (name.clone(), (**report).clone()))
                .collect(),
            tombstones: self.tombstones.values().cloned().collect(),
            history: self.history.values().cloned().collect(),
            outbox: (*self.outbox).clone(),
            last_event: self
                .events
                .last_key_value()
                .map_or(0, |(sequence, _)| *sequence),
        };
        Ok(Loaded {
            fleet,
            events: self.events.values().cloned().collect(),
            versions: self.versions.clone().into_iter().collect(),
        })
    }

    fn next_term(&mut self, at_least: Term) -> Result<Term, StoreError> {
        self.term = self.term.next().max(at_least);
        Ok(self.term)
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        for write in writes {
            let key = write.key();
            let found = match &write.change {
                Change::Event(event) => self
                    .events
                    .contains_key(&event.sequence)
                    .then(Version::default),
                Change::PutHistory(record) => self
                    .history
                    .contains_key(&record.number)
                    .then(Version::default),
                _ => self.versions.get(&key).copied(),
            };
            compare(write, found)?;
            match &write.change {
                change if !change.has_version() => {}
                change if change.deletes() => drop(self.versions.remove(&key)),
                _ => drop(self.versions.insert(key, write.becomes)),
            }
            match &write.change {
                Change::PutJob(job) => drop(self.jobs.insert(job.uid.clone(), (**job).clone())),
                Change::DeleteJob(uid) => drop(self.jobs.remove(uid)),
                Change::PutNode(node) => {
                    drop(self.nodes.insert(node.name.clone(), (**node).clone()))
                }
                Change::DeleteNode(name) => {
                    self.nodes.remove(name);
                    self.reports.remove(name);
                }
                Change::PutTombstone(tombstone) => {
                    let job = tombstone.run.job.clone();
                    self.tombstones.insert(job, (**tombstone).clone());
                }
                Change::DeleteTombstone(uid) => drop(self.tombstones.remove(uid)),
                Change::PutHistory(record) => {
                    drop(self.history.insert(record.number, record.clone()))
                }
                Change::DropHistory(number) => self.history.retain(|known, _| known > number),
                Change::PutOutbox(outbox) => self.outbox = outbox.clone(),
                Change::Event(event) => {
                    self.kept.add(event);
                    self.events.insert(event.sequence, (**event).clone());
                }
            }
        }
        // The event that tells of a deletion is committed together with it.
        deleted(writes).for_each(|uid| self.kept.release(uid));
        for number in self.kept.take_dropped() {
            self.events.remove(&number);
        }
        Ok(())
    }

    fn keep_reports(&mut self, reports: &[(NodeName, Arc<NodeReport>)]) -> Result<(), StoreError> {
        self.reports.extend(reports.iter().cloned());
        Ok(())
    }
}
