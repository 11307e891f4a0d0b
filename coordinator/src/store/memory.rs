//! A store that loses everything when it is dropped, for tests and simulations.

use std::{collections::BTreeMap, sync::Arc};

use muster_core::{
    fleet::{Change, Event, NodeRecord, Stored, job::JobRecord},
    id::{JobUid, NodeName, Term},
    node_report::NodeReport,
};

use super::{Leadership, Loaded, Store, StoreError, deleted};
use crate::kept::Kept;

#[derive(Debug, Default)]
pub struct MemoryStore {
    term: Term,
    jobs: BTreeMap<JobUid, JobRecord>,
    nodes: BTreeMap<NodeName, NodeRecord>,
    reports: BTreeMap<NodeName, Arc<NodeReport>>,
    events: BTreeMap<u64, Event>,
    kept: Kept,
}

impl Leadership for MemoryStore {
    fn still_holds(&self) -> bool {
        true
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
            last_event: self
                .events
                .last_key_value()
                .map_or(0, |(sequence, _)| *sequence),
        };
        Ok(Loaded {
            fleet,
            events: self.events.values().cloned().collect(),
        })
    }

    fn next_term(&mut self, at_least: Term) -> Result<Term, StoreError> {
        self.term = self.term.next().max(at_least);
        Ok(self.term)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        for change in changes {
            match change {
                Change::PutJob(job) => drop(self.jobs.insert(job.uid.clone(), (**job).clone())),
                Change::DeleteJob(uid) => drop(self.jobs.remove(uid)),
                Change::PutNode(node) => {
                    drop(self.nodes.insert(node.name.clone(), (**node).clone()))
                }
                Change::DeleteNode(name) => {
                    self.nodes.remove(name);
                    self.reports.remove(name);
                }
                Change::Event(event) => {
                    self.kept.add(event);
                    self.events.insert(event.sequence, (**event).clone());
                }
            }
        }
        // The event that tells of a deletion is committed together with it.
        deleted(changes).for_each(|uid| self.kept.release(uid));
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
