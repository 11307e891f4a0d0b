//! The operator: a person who reads what the programs say and does what they ask for, but late, and
//! not always the same.

use std::time::Duration;

use muster_core::{
    fleet::{Change, Request},
    id::Term,
    node::Ledger,
    protocol::Speaks,
};

use crate::{event::Event, trace::note, world::World};

impl World {
    /// The store has fallen behind its nodes. The operator may accept it all the same. Until then
    /// nothing is decided.
    pub(crate) fn operator_reads(&mut self, changes: &[Change]) {
        let behind = |change: &Change| matches!(change, Change::Event(event) if event.reason == "StoreBehind");
        if self.store.accept || !changes.iter().any(behind) || !self.rng.percent(60) {
            return;
        }
        let reads = self.rng.ms(1_000, 12_000);
        self.after(reads, Event::OperatorAcceptsStore { accepts: true });
    }

    pub(crate) fn operator_accepts_store(&mut self, accepts: bool) {
        if std::mem::replace(&mut self.store.accept, accepts) || !accepts {
            return;
        }
        note!(
            self,
            "the operator restarts the coordinator with --accept-store"
        );
        (0..2).for_each(|seat| self.coordinator_dies(seat, None));
        let (back_in, until) = (self.rng.ms(50, 2_000), self.rng.ms(8_000, 30_000));
        self.after(back_in, Event::CoordinatorStarts { seat: 0 });
        self.after(until, Event::OperatorAcceptsStore { accepts: false });
    }

    /// A coordinator has refused this node, which knows of a newer term. The operator does what the
    /// message says.
    pub(crate) fn refused_session(&mut self, machine: usize, why: &str) {
        if why.contains("upgrade") && self.rng.percent(50) {
            note!(self, "the operator upgrades the agent of n{machine}");
            self.machines[machine].speaks = Speaks::OURS;
            let takes = self.rng.ms(1_000, 8_000);
            return self.agent_dies(machine, Some(takes));
        }
        if why.contains("state directory") {
            let reads = self.rng.ms(2_000, 15_000);
            let state_dir = self.machines[machine].state_dir;
            return self.after(reads, Event::OperatorSwapsBack { machine, state_dir });
        }
        if why.contains("--min-term") {
            let at_least = self.machines[machine].ledger.term.next();
            let reads = self.rng.ms(1_000, 8_000);
            self.after(reads, Event::OperatorRaisesTerm { at_least });
        }
    }

    pub(crate) fn operator_raises_term(&mut self, at_least: Term) {
        if self.store.min_term >= at_least || self.store.term >= at_least {
            return;
        }
        note!(
            self,
            "the operator restarts the coordinator with --min-term {at_least}"
        );
        self.store.min_term = at_least;
        (0..2).for_each(|seat| self.coordinator_dies(seat, None));
        let back_in = self.rng.ms(50, 2_000);
        self.after(back_in, Event::CoordinatorStarts { seat: 0 });
    }

    /// The ledger is restored from a copy. Or the machine starts without any state, after the
    /// operator made sure that nothing runs there.
    pub(crate) fn operator_mends(&mut self, machine: usize) {
        let anew = self.rng.percent(50);
        if !self.machines[machine].ledger_damaged {
            return;
        }
        self.machines[machine].ledger_damaged = false;
        let older = self.machines[machine]
            .ledger_before
            .take()
            .filter(|_| !anew);
        if let Some(older) = older {
            note!(self, "the operator puts an older ledger back on n{machine}");
            let place = &mut self.machines[machine];
            (place.ledger, place.ledger_highest) = (older.clone(), older);
            // The agent may have forgotten what it reported and the coordinator did not hear.
            place.said_over.clear();
            return self.after(Duration::from_millis(100), Event::AgentStarts { machine });
        }
        note!(self, "the operator reboots n{machine} without its state");
        self.power_cut(machine);
        let place = &mut self.machines[machine];
        place.ledger = Ledger::new(place.name.clone());
        place.ledger_highest = place.ledger.clone();
        place.said_over.clear();
        place.runs.clear();
        self.after(Duration::from_secs(1), Event::PowerOn { machine });
    }

    /// The operator deletes the node of a machine that has no power.
    pub(crate) fn declare_gone(&mut self, machine: usize) {
        let node = self.machines[machine].name.clone();
        let id = self.asks(Request::DeleteNode { node }, None, 0);
        let delay = self.rng.ms(5_000, 15_000);
        self.after(delay, Event::RequestArrives { id });
    }
}
