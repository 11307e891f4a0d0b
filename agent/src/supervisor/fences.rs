//! The supervisor's part in `fenceAfter`: runners of such jobs hear from it when the coordinator
//! was heard. What follows is theirs.

use muster_core::{run::RunId, time::Timestamp};

use super::Supervisor;

impl Supervisor {
    /// The coordinator was heard: all runs that live by it are told.
    pub(super) fn renew(&mut self, at: Timestamp) {
        self.heard = self.heard.max(Some(at));
        for run in &self.fenced {
            self.order(run, |orders| orders.heard = self.heard);
        }
    }

    /// What a run's runner is to be told at first, if it lives by word of the coordinator. One of
    /// which nobody can say is not told, and stops: that is the safe side.
    pub(super) fn lease_of(&mut self, run: &RunId) -> Option<Timestamp> {
        if !self.accepted(run).is_some_and(|accepted| accepted.fenced) {
            return None;
        }
        self.fenced.insert(run.clone());
        self.heard
    }
}
