//! Workers that live by the coordinator's word. Agents pass on when it was heard, and runners stop
//! workers that it has not reached. Core's own rules apply where core has them: what an answer is
//! worth, and how long a coordinator waits.

use std::time::Duration;

use muster_core::{
    node::GroupPhase,
    run::{Desired, DesiredRun, RunId, Target},
    time::Timestamp,
};

use crate::{
    event::{Event, Order},
    fault::Fault,
    machine::Runner,
    planted::{Planted, on},
    trace::note,
    troubles::Kind,
    words,
    world::World,
};

/// Faults that make a node silent without stopping its workers.
const SILENCES: [Fault; 5] = [
    Fault::CutBoth,
    Fault::CutUp,
    Fault::Isolated,
    Fault::AgentPause,
    Fault::MachineStands,
];

impl World {
    /// In a world with fences nodes are silent more often than elsewhere.
    pub(crate) fn silence_instead(&mut self) -> Option<(Fault, usize)> {
        if !self.plan.fences || !self.traits.percent(50) {
            return None;
        }
        let known: Vec<Fault> = SILENCES
            .into_iter()
            .filter(|fault| self.plan.has(*fault))
            .collect();
        let fenced = |machine: &usize| {
            self.machines[*machine]
                .working()
                .any(|(_, group)| group.fence().is_some())
        };
        let fenced: Vec<usize> = (0..self.machines.len()).filter(fenced).collect();
        Some((*self.traits.pick(&known)?, *self.traits.pick(&fenced)?))
    }

    /// Silences also last longer there, so that both deadlines pass.
    pub(crate) fn as_long_as_fences_last(&mut self, a_while: Duration) -> Duration {
        if self.plan.fences && self.traits.percent(50) {
            a_while + self.traits.ms(5_000, 40_000)
        } else {
            a_while
        }
    }

    /// The agent stands still just after it has asked. When it goes on it finds the answer, and it
    /// may have no way to ask anew.
    pub(crate) fn cut_while_paused(&mut self, machine: usize) {
        if self.plan.fences && self.traits.percent(80) {
            self.ask(machine);
            let (answered, lasts) = (self.traits.ms(1_000, 3_000), self.traits.ms(20_000, 70_000));
            self.after(answered, Event::CutUp { machine });
            self.after(
                lasts,
                Event::Mends {
                    fault: Fault::CutUp,
                    machine,
                    other: machine,
                },
            );
        }
    }

    /// When an agent is told to run a fenced job it may stand still, for so long that others run the
    /// job meanwhile. True if it does: it reads the order later.
    pub(crate) fn stands_still_before(&mut self, machine: usize, desired: &Desired) -> bool {
        let fenced = |wanted: &DesiredRun| matches!(&wanted.target, Target::Running(a, _) if a.fence_after.is_some());
        let stands = self.plan.fences
            && self.healed.is_none()
            && desired.runs.iter().any(fenced)
            && self.traits.percent(5);
        if stands {
            note!(
                self,
                "the agent of n{machine} stands still just when it is told to run"
            );
            let still = self.traits.ms(15_000, 50_000);
            self.machines[machine].agent_paused_until = self.now + still;
            self.begins(machine, Kind::AgentStood);
            self.after(
                still,
                Event::Mends {
                    fault: Fault::AgentPause,
                    machine,
                    other: machine,
                },
            );
            self.cut(machine, true, false);
            self.after(
                still + still,
                Event::Mends {
                    fault: Fault::CutUp,
                    machine,
                    other: machine,
                },
            );
        }
        stands
    }

    /// A question of this machine's agent was answered.
    pub(crate) fn question_answered(&mut self, machine: usize, number: u64) {
        let clock = self.machines[machine].clock(self.now);
        let Some(agent) = &mut self.machines[machine].agent else {
            return;
        };
        let Some(asked) = agent.lease.answered(number) else {
            return;
        };
        let heard = if on(Planted::LeaseFromAnswer) {
            clock
        } else {
            asked
        };
        agent.heard = agent.heard.max(Some(heard));
        let live_by_it = self.machines[machine]
            .runs
            .iter()
            .filter(|(_, group)| group.fence().is_some() && group.is_held());
        let runs: Vec<RunId> = live_by_it.map(|(run, _)| run.clone()).collect();
        runs.iter()
            .for_each(|run| self.tell_runner(machine, run, Order::Renew { heard }));
    }

    /// False if nothing was heard for so long that the workers may not even start. Then the run is
    /// over.
    pub(crate) fn may_begin(&mut self, machine: usize, run: &RunId, life: u64) -> bool {
        if self.fence_left(machine, run) != Some(Duration::ZERO) {
            return true;
        }
        note!(
            self,
            "n{machine}: {} is not begun, nothing was heard for too long",
            words::run(run)
        );
        self.did(machine, run, Kind::Fenced, None);
        if let Some(group) = self.group(machine, run, life) {
            (group.fenced, group.fence_closed) = (true, true);
        }
        self.stop_group(machine, run.clone(), life, Duration::ZERO);
        false
    }

    /// Checks whether a group must stop, and when to look again.
    pub(crate) fn look_at_fence(&mut self, machine: usize, run: RunId, life: u64) {
        let left = self.fence_left(machine, &run);
        let late = self.fence_due(machine, &run).map_or(Duration::ZERO, |due| {
            self.now.since(self.machines[machine].when(due))
        });
        let Some(group) = self.group(machine, &run, life) else {
            return;
        };
        let lives = group.runner == Runner::Up
            && matches!(group.phase, GroupPhase::Running | GroupPhase::Stopping);
        let Some(left) = left.filter(|_| lives && !group.fence_closed) else {
            return;
        };
        if !left.is_zero() {
            return self.after(left, Event::FenceLooks { machine, run, life });
        }
        let (by_itself, grace) = (
            group.phase == GroupPhase::Running,
            group.assignment.stop_grace,
        );
        // This counts from when they should have stopped, not from when the runner noticed.
        let grace = if on(Planted::GraceFromWaking) {
            grace
        } else {
            grace.saturating_sub(late)
        };
        group.fence_closed = true;
        group.fenced |= by_itself;
        note!(
            self,
            "n{machine}: {} stops, nothing was heard for too long",
            words::run(&run)
        );
        self.did(machine, &run, Kind::Fenced, None);
        self.stop_group(machine, run, life, grace);
    }

    /// How long the workers may still go on, on the world's clock. `None` for a job without a
    /// fence.
    fn fence_left(&self, machine: usize, run: &RunId) -> Option<Duration> {
        let place = &self.machines[machine];
        let due = self.fence_due(machine, run)?;
        if place.clock(self.now) >= due {
            Some(Duration::ZERO)
        } else {
            Some(place.when(due).since(self.now))
        }
    }
    /// When they must stop, on the machine's clock.
    fn fence_due(&self, machine: usize, run: &RunId) -> Option<Timestamp> {
        let place = &self.machines[machine];
        let group = place.runs.get(run)?;
        let slept = if on(Planted::FenceSleeps) {
            place.slept
        } else {
            Duration::ZERO
        };
        Some(group.heard.unwrap_or(Timestamp(0)) + group.fence()? + slept)
    }
}
