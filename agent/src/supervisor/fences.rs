//! The supervisor's part in `fenceAfter`: it tells the runners of such jobs when the coordinator
//! was heard. The runners do the rest.

use muster_core::{run::RunId, time::Timestamp};

use super::Supervisor;

impl Supervisor {
    /// Tells all runs with a fence that the coordinator was heard.
    pub(super) fn renew(&mut self, at: Timestamp) {
        self.heard = self.heard.max(Some(at));
        for held in self.held.values().filter(|held| held.is_fenced()) {
            held.order(|orders| orders.heard = self.heard);
        }
    }

    /// When the coordinator was heard, for the runner of a run with a fence. If it was never heard,
    /// the runner is told nothing and stops its workers, which is the safe side.
    pub(super) fn lease_of(&self, run: &RunId) -> Option<Timestamp> {
        let held = self.held.get(run)?;
        self.heard.filter(|_| held.is_fenced())
    }
}
