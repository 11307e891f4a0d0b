//! Processes that escape when their runner is killed, for example because one left its group and
//! cleared its environment. Such a process keeps the GPUs that it was given. The agent looks for
//! such processes before it reports a run dead. As long as it cannot tell, the run is not dead.

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
    /// From then on the agent can tell that the process belongs to the run. Before that, the agent
    /// knows only that it cannot tell.
    told_from: Timestamp,
    /// The process was told to end, and is gone by then.
    gone_at: Option<Timestamp>,
}

impl World {
    /// The runner is killed, and a process of its group escapes. True if there was one.
    pub(crate) fn process_left(&mut self, machine: usize, run: &RunId) -> bool {
        // An agent does not look after another agent's runs.
        let place = &self.machines[machine];
        let works = place
            .runs
            .get(run)
            .is_some_and(|group| group.works() && group.state_dir == place.state_dir);
        // The agent finds the process at its first look, or later, or only after a person has
        // rebooted the machine.
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

    /// A reboot of the machine ends the processes that are left.
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

    /// A started agent must still prove of some runs that none of their processes lives.
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

    /// The agent looks for living processes of a run whose runner is gone, and ends them. True if
    /// there are none. Otherwise it looks again.
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
