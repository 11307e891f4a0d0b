//! Machines that stand still as a whole, like a suspended virtual machine: agent, runners and
//! workers alike, while the clock of their boot goes on. Events for them wait. Then they go on in
//! any order: workers at once, and their runners and the agent a little later.

use std::time::Duration;

use muster_core::{run::RunId, time::Timestamp};

use crate::{event::Event, fault::Fault, invariants, trace::note, troubles::Kind, world::World};

/// A runner gets a processor at most this long after its workers.
const RUNNER_WAKES_MS: u64 = 20;
/// The time from the first worker that goes on to the death of the last one that must not. The
/// runner wakes (20 ms), finds its group (10 ms) and kills it (60 ms). Nothing can prevent what a
/// worker does meanwhile.
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

    /// Until when the target of this event stands still.
    pub(crate) fn stands_still(&self, event: &Event) -> Timestamp {
        match event {
            Event::Launched { machine, .. }
            | Event::RankEnds { machine, .. }
            | Event::StandEnds { machine, .. } => self.machines[*machine].stands_until,
            // A program takes longer to start than a running one takes to go on.
            Event::AgentStarts { machine } | Event::StartsAgain { machine, .. } => {
                self.machines[*machine].runners_wake + Duration::from_millis(1)
            }
            Event::RunnerUp { machine, .. }
            | Event::Order { machine, .. }
            | Event::GroupMoves { machine, .. }
            | Event::LookMovement { machine, .. }
            | Event::FenceLooks { machine, .. } => self.machines[*machine].runners_wake,
            _ => Timestamp(0),
        }
    }

    /// From now on everything that stood still must be as it should be.
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

    /// Whether processes on this machine may be ahead of their runner, or cannot do anything at
    /// all.
    pub(crate) fn wakes(&self, machine: usize) -> bool {
        let until = self.machines[machine].stands_until;
        until.0 > 0 && self.now < until + WAKING
    }
}
