//! Processes that get away when their runner is killed: one that has left its group and cleared its
//! environment, for example. It keeps the GPUs it was given. The agent looks for such processes
//! before it says that a run is dead, and what it cannot tell is not dead.

use std::time::Duration;

use muster_core::{run::RunId, time::Timestamp};

use crate::{
    event::Event,
    fault::Fault,
    planted::{Planted, on},
    trace::note,
    words,
    world::World,
};

/// A process that outlives its runner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    /// From then on the agent can tell that it belongs to the run. Before that, the agent knows
    /// only that it does not know.
    told_from: Timestamp,
    /// It was told to end, and is gone by then.
    gone_at: Option<Timestamp>,
}

impl World {
    /// The runner is killed, and a process of its group gets away. True if there was any.
    pub(crate) fn process_left(&mut self, machine: usize, run: &RunId) -> bool {
        // Another agent's runs this one does not look after.
        let place = &self.machines[machine];
        let works = place
            .runs
            .get(run)
            .is_some_and(|group| group.works() && group.state_dir == place.state_dir);
        // Found at the first look, or late; or not before a person has rebooted the machine.
        let told = match self.rng.below(100) {
            0..50 => Some(Duration::ZERO),
            50..80 => Some(self.rng.ms(500, 20_000)),
            _ => None,
        };
        let helped = self.rng.ms(5_000, 30_000);
        if !works {
            return false;
        }
        let told_from = told.map_or(Timestamp(u64::MAX), |after| self.now + after);
        if let Some(group) = self.machines[machine].runs.get_mut(run) {
            group.left = Some(Left {
                told_from,
                gone_at: None,
            });
        }
        note!(
            self,
            "n{machine}: a process of {} gets away",
            words::run(run)
        );
        self.runner_killed(machine, run);
        if told.is_none() {
            self.after(
                helped,
                Event::Mends {
                    fault: Fault::ProcessLeft,
                    machine,
                    other: machine,
                },
            );
        }
        true
    }

    /// What is left is ended with its machine.
    pub(crate) fn reboot_where_left(&mut self, machine: usize) {
        if self.machines[machine]
            .runs
            .values()
            .any(|group| group.left.is_some())
        {
            note!(
                self,
                "the operator reboots n{machine}, of whose processes its agent cannot tell"
            );
            self.power_cut(machine);
            self.after(Duration::from_secs(1), Event::PowerOn { machine });
        }
    }

    /// A started agent has yet to prove of some runs that nothing of them lives.
    pub(crate) fn looks_for_what_is_left(&mut self, machine: usize, agent: u64) {
        let place = &self.machines[machine];
        let left = place
            .runs
            .iter()
            .filter(|(_, group)| group.left.is_some() && group.state_dir == place.state_dir);
        let left: Vec<RunId> = left.map(|(run, _)| run.clone()).collect();
        for run in left {
            let looks = self.rng.ms(1, 200);
            self.after(
                looks,
                Event::RunnerLost {
                    machine,
                    agent,
                    run,
                },
            );
        }
    }

    /// An agent looks whether anything of a run lives whose runner is gone, and ends it. True once
    /// nothing does; else it looks again.
    pub(crate) fn nothing_is_left(&mut self, machine: usize, agent: u64, run: &RunId) -> bool {
        let now = self.now;
        let (kill, again) = (self.rng.ms(1, 60), self.rng.ms(20, 1_000));
        let Some(left) = self.machines[machine]
            .runs
            .get(run)
            .and_then(|group| group.left)
        else {
            return true;
        };
        let left = match left.gone_at {
            Some(at) if now >= at => None,
            None if now >= left.told_from => Some(Left {
                gone_at: Some(now + kill),
                ..left
            }),
            _ => Some(left),
        };
        if let Some(group) = self.machines[machine].runs.get_mut(run) {
            group.left = left;
        }
        let proven = match left {
            None => true,
            Some(Left { gone_at: None, .. }) => on(Planted::LeftUntoldIsDead),
            Some(_) => on(Planted::LeftKilledIsDead),
        };
        if !proven {
            self.after(
                again,
                Event::RunnerLost {
                    machine,
                    agent,
                    run: run.clone(),
                },
            );
        }
        proven
    }
}
