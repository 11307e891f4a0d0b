//! The supervisor's part in `fenceAfter`: it tells the runners of such jobs when the coordinator
//! was heard. The runners do the rest.

use muster_core::{run::RunId, time::Timestamp};

use super::Supervisor;

impl Supervisor {
    /// Tells all runs with a fence that the coordinator was heard.
    pub(super) fn renew(&mut self, at: Timestamp) {
        self.heard = self.heard.max(Some(at));
        for run in &self.fenced {
            self.order(run, |orders| orders.heard = self.heard);
        }
    }

    /// When the coordinator was heard, for the runner of a run with a fence. If it was never heard,
    /// the runner is told nothing and stops its workers, which is the safe side.
    pub(super) fn lease_of(&mut self, run: &RunId) -> Option<Timestamp> {
        if !self.accepted(run).is_some_and(|accepted| accepted.fenced) {
            return None;
        }
        self.fenced.insert(run.clone());
        self.heard
    }
}
