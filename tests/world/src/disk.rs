//! The disk below an agent's ledger. It is fast as a rule, slow for a while, or accepts nothing.
//! Meanwhile the agent goes on with everything that does not depend on the write.

use std::time::Duration;

use muster_core::node::{Input, Ledger};

use crate::{
    event::Event,
    fault::Fault,
    invariants,
    planted::{Planted, on},
    trace::note,
    troubles::Kind,
    world::World,
};

/// The time between attempts to write the ledger, as in the agent.
const RETRY: Duration = Duration::from_secs(1);

/// A ledger on its way to the disk.
#[derive(Debug)]
pub(crate) struct Write {
    ledger: Ledger,
    /// The previous attempt failed.
    again: bool,
}

impl World {
    /// Begins to write a ledger. True if it is on disk at once.
    pub(crate) fn save_ledger(&mut self, machine: usize, agent: u64, ledger: Ledger) -> bool {
        let reaches = self.rng.percent(50);
        let place = &mut self.machines[machine];
        let (fails, slow) = (
            std::mem::take(&mut place.ledger_fails),
            self.now < place.disk_slow_until,
        );
        if !fails && !slow {
            self.put_ledger(machine, ledger);
            return true;
        }
        if fails {
            note!(self, "n{machine} cannot write its ledger");
            self.count(Fault::LedgerWriteFails);
            if reaches {
                self.put_ledger(machine, ledger.clone());
            }
            if on(Planted::LedgerErrorIgnored) {
                return true;
            }
        }
        let takes = if fails {
            RETRY
        } else {
            self.rng.ms(200, 15_000)
        };
        self.lasts(machine, Kind::SlowDisk, self.now + takes);
        if let Some(agent) = &mut self.machines[machine].agent {
            agent.writes = Some(Write {
                ledger,
                again: fails,
            });
        }
        self.after(takes, Event::LedgerWritten { machine, agent });
        false
    }

    /// A slow write has ended, or a failed one is tried again.
    pub(crate) fn ledger_written(&mut self, machine: usize, agent: u64) {
        let process = self.machines[machine]
            .agent
            .as_mut()
            .filter(|process| process.id == agent);
        let Some(Write { ledger, again }) = process.and_then(|process| process.writes.take())
        else {
            return;
        };
        if again {
            if !self.save_ledger(machine, agent, ledger) {
                return;
            }
        } else {
            self.put_ledger(machine, ledger);
        }
        self.agent_turn(machine, Input::Saved);
    }

    /// The agent died while it wrote. The ledger may or may not have reached the disk.
    pub(crate) fn write_is_cut_off(&mut self, machine: usize, write: Option<Write>) {
        if let Some(Write { ledger, .. }) = write
            && self.rng.percent(50)
        {
            self.put_ledger(machine, ledger);
        }
    }

    fn put_ledger(&mut self, machine: usize, ledger: Ledger) {
        let place = &mut self.machines[machine];
        place.ledger_before = Some(std::mem::replace(&mut place.ledger, ledger));
        invariants::ledger_goes_up(self, machine);
    }
}
