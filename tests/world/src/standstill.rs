//! Machines that stand still as a whole, as in a suspended virtual machine: agent, runners and
//! workers alike, while their boot's clock goes on. What happens to them meanwhile waits. Then they
//! go on in any order: workers at once, their runners and the agent a little later.

use std::time::Duration;

use muster_core::{run::RunId, time::Timestamp};

use crate::{event::Event, fault::Fault, invariants, trace::note, troubles::Kind, world::World};

/// A runner is on a processor at most so long after its workers are.
const RUNNER_WAKES_MS: u64 = 20;
/// From the first worker's going on to the death of the last one that must not: the runner wakes
/// (20 ms), finds its group (10 ms) and kills it (60 ms). What a worker does meanwhile nobody can
/// prevent.
pub(crate) const WAKING: Duration = Duration::from_millis(100);

impl World {
    pub(crate) fn stand_still(&mut self, machine: usize, a_while: Duration) {
        let (runners, agent) = (self.rng.ms(0, RUNNER_WAKES_MS), self.rng.ms(0, 500));
        let until = self.now + a_while;
        let place = &mut self.machines[machine];
        if self.now < place.runners_wake {
            return;
        }
        (place.stands_until, place.runners_wake) = (until, until + runners);
        place.agent_paused_until = place.agent_paused_until.max(until + agent);
        place.slept += a_while;
        self.begins(machine, Kind::MachineStood);
        self.after(
            a_while + agent,
            Event::Mends {
                fault: Fault::MachineStands,
                machine,
                other: machine,
            },
        );
        self.after(a_while + WAKING, Event::AllAwake { machine });
    }

    /// Until when what this event is for stands still.
    pub(crate) fn stands_still(&self, event: &Event) -> Timestamp {
        match event {
            Event::Launched { machine, .. } | Event::RankEnds { machine, .. } => {
                self.machines[*machine].stands_until
            }
            // A program takes longer to start than one that is there to go on.
            Event::AgentStarts { machine } => {
                self.machines[*machine].runners_wake + Duration::from_millis(1)
            }
            Event::RunnerUp { machine, .. }
            | Event::Order { machine, .. }
            | Event::GroupMoves { machine, .. }
            | Event::FenceLooks { machine, .. } => self.machines[*machine].runners_wake,
            _ => Timestamp(0),
        }
    }

    /// What stood still is as it should be from now on.
    pub(crate) fn all_awake(&mut self, machine: usize) {
        if self.now < self.machines[machine].stands_until + WAKING {
            return;
        }
        note!(self, "n{machine} goes on");
        let working: Vec<RunId> = self.machines[machine]
            .working()
            .map(|(run, _)| run.clone())
            .collect();
        working
            .iter()
            .for_each(|run| invariants::one_generation_lives(self, run));
    }

    /// Whether what runs on this machine may be ahead of its runner, or can do nothing at all.
    pub(crate) fn wakes(&self, machine: usize) -> bool {
        let until = self.machines[machine].stands_until;
        until.0 > 0 && self.now < until + WAKING
    }
}
