//! A commit: the store makes the writes of one decision, in order, or only the first of them.

use std::collections::BTreeMap;

use muster_core::{
    fleet::{Change, NodeRecord, commit::groups},
    id::NodeName,
};

use crate::{
    invariants,
    planted::{Planted, on},
    rng::Rng,
    trace::note,
    world::World,
};

impl World {
    /// Makes the writes of these changes, or only the first of them if the commit is torn. False if
    /// the store refuses, because another coordinator has a newer term.
    pub(crate) fn commit(
        &mut self,
        seat: usize,
        changes: Vec<Change>,
        torn: Option<usize>,
        speakers: Vec<NodeName>,
    ) -> bool {
        if changes.is_empty() {
            return true;
        }
        let process = self.seats[seat]
            .process
            .as_ref()
            .expect("it has just decided");
        let (term, now, clock) = (process.term, process.clock.at(self.now), process.id);
        if process.deposed.is_some() && !on(Planted::StoreUnfenced) {
            note!(
                self,
                "the store refuses coordinator {clock}: its term {term} is over"
            );
            return false;
        }
        if on(Planted::CommitNotDurable) && self.rng.percent(10) {
            self.undurable = Some(Box::new(self.store.clone()));
        }
        let mut opened = Vec::new();
        let judge = invariants::Judge {
            now,
            term,
            speakers,
        };
        invariants::decision_is_lawful(self, &judge, &changes);
        let mut changes = changes;
        if let Some(torn) = torn {
            note!(
                self,
                "the commit is torn: {torn} of {} writes are made",
                changes.len()
            );
            changes = self.torn(seat, changes, torn);
        }
        self.operator_reads(&changes);
        let cordons = changes
            .iter()
            .any(|change| invariants::leaves_a_cordon(self, change))
            .then(|| invariants::cordons(self));
        let deletes = self.undurable.is_some()
            || changes
                .iter()
                .any(|change| matches!(change, Change::DeleteJob(_)));
        let process = self.seats[seat]
            .process
            .as_mut()
            .expect("it has just decided");
        let deposed = process.deposed.is_some();
        for write in process.versions.writes(changes) {
            let change = &write.change;
            if let Change::Event(event) = change {
                note!(self, "   event {}: {}", event.reason, event.message);
            }
            invariants::change_is_lawful(self, &judge, change);
            if !self.store.takes(&write) {
                note!(self, "conflict: another has written {}", write.key());
                if !deposed {
                    let what = format!("{} was written by nobody else", write.key());
                    self.fail("I6", what);
                }
                return false;
            }
            self.changed_by(change);
            if let Change::PutJob(job) = change
                && self
                    .store
                    .jobs
                    .get(&job.uid)
                    .is_none_or(|before| before.last_generation < job.last_generation)
            {
                opened.push(job.uid.clone());
            }
            self.store.apply(write);
        }
        if let Some(before) = cordons {
            invariants::cordons_are_capped(self, before);
        }
        invariants::only_what_is_free(self, &opened);
        if torn.is_none() {
            invariants::all_have_left_one(self);
            invariants::all_ends_are_told(self);
        }
        if deletes {
            invariants::accepted_jobs_exist(self);
        }
        true
    }

    /// What is durable of a commit that was torn after so many writes. A store may make the writes of one
    /// group in any order, and one that keeps the nodes' epochs apart from their records writes these
    /// first.
    fn torn(&mut self, seat: usize, mut changes: Vec<Change>, torn: usize) -> Vec<Change> {
        let process = self.seats[seat]
            .process
            .as_ref()
            .expect("it has just decided");
        let writes = process.versions.clone().writes(changes.clone());
        // Not the world's own: histories in which nothing is torn stay as they are.
        let mut rng = Rng::new(self.now.0 ^ torn as u64);
        let mut from = 0;
        for group in groups(&writes) {
            rng.shuffle(&mut changes[from..from + group.len()]);
            from += group.len();
        }
        let mut epochs = Vec::new();
        if rng.percent(50) {
            let numbered: BTreeMap<_, _> = changes
                .iter()
                .filter_map(|change| match change {
                    Change::PutNode(node) => Some((node.name.clone(), node.epoch)),
                    _ => None,
                })
                .collect();
            for (name, epoch) in numbered {
                if let Some(before) = self.store.nodes.get(&name) {
                    let node = NodeRecord {
                        epoch,
                        ..before.clone()
                    };
                    epochs.push(Change::PutNode(Box::new(node)));
                }
            }
        }
        changes.truncate(torn);
        epochs.extend(changes);
        epochs
    }
}
