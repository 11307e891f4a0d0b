//! Processes that are started again while the others of their group go on. What orders that, and
//! what their runner makes of it. Whether the orders are right is judged in `invariants`.

use std::time::Duration;

use muster_core::{
    exit::Exit,
    node::{Found, FoundState, GroupPhase, GroupStatus},
    run::{RankReport, RunId},
};

use crate::{
    event::{Event, Order},
    fault::Fault,
    invariants,
    machine::{Group, Rank, Runner},
    runner::rank_report,
    trace::note,
    words,
    world::World,
};

impl Rank {
    pub(crate) fn has_failed(&self) -> bool {
        !self.alive && self.report.exit.is_some_and(|exit| !exit.is_success())
    }
}

impl Group {
    /// Whether a process of this rank is started again alone if it fails.
    pub(crate) fn restarts_alone(&self, rank: u32) -> bool {
        let number = self.assignment.layout.node_rank_of(rank);
        number.is_some_and(|number| self.assignment.restarts_alone(number))
    }

    /// Whether this rank has failed and can be started again alone. Its group goes on meanwhile.
    pub(crate) fn waits(&self, rank: &Rank) -> bool {
        let goes_on =
            self.phase == GroupPhase::Running && self.runner == Runner::Up && !self.stop_asked;
        goes_on && rank.has_failed() && self.restarts_alone(rank.report.rank)
    }

    /// Whether a rank waits for its next attempt.
    pub(crate) fn is_awaited(&self) -> bool {
        self.ranks.iter().any(|rank| self.waits(rank))
    }

    /// Whether it takes part in steps: nothing has told it to stop, and every rank lives, or will
    /// again. The others go on without that one.
    pub(crate) fn goes_on(&self) -> bool {
        let goes_on = |rank: &Rank| rank.alive || self.waits(rank);
        !self.ranks.is_empty() && !self.stop_asked && self.ranks.iter().all(goes_on)
    }
}

/// Ways in which a rank fails, and what else may break while it waits.
const FAILURES: [Fault; 5] = [
    Fault::RankError,
    Fault::RankSegfault,
    Fault::RankKilled,
    Fault::SickNode,
    Fault::RunnerKilled,
];

impl World {
    /// Where processes are started again alone they fail more often than elsewhere.
    pub(crate) fn failure_instead(&mut self) -> Option<(Fault, usize)> {
        if !self.plan.restarts || !self.traits.percent(60) {
            return None;
        }
        let known: Vec<Fault> = FAILURES
            .into_iter()
            .filter(|fault| self.plan.has(*fault))
            .collect();
        let alone = |group: &Group| {
            let mut ranks = group.ranks.iter();
            ranks.any(|rank| group.restarts_alone(rank.report.rank))
        };
        let has_some = |machine: &usize| {
            self.machines[*machine]
                .runs
                .values()
                .any(|group| group.is_held() && alone(group))
        };
        let machines: Vec<usize> = (0..self.machines.len()).filter(has_some).collect();
        Some((*self.traits.pick(&known)?, *self.traits.pick(&machines)?))
    }

    /// The agent has just told the brain this of its runner.
    pub(crate) fn was_told(&mut self, machine: usize, run: &RunId, status: GroupStatus) {
        let place = &mut self.machines[machine];
        let Some(agent) = place.agent.as_ref().map(|agent| agent.id) else {
            return;
        };
        if let Some(group) = place.runs.get_mut(run) {
            group.told = Some((agent, status));
        }
    }

    /// The agent has lost a runner, so its brain knows the group as dead.
    pub(crate) fn was_told_of_its_end(&mut self, machine: usize, run: &RunId) {
        let status = GroupStatus {
            phase: GroupPhase::Dead,
            ..GroupStatus::holding()
        };
        self.was_told(machine, run, status);
    }

    /// What a starting agent has found, and tells its brain.
    pub(crate) fn was_found(&mut self, machine: usize, found: &[Found]) {
        for found in found {
            match &found.state {
                FoundState::Known(status) => self.was_told(machine, &found.run, status.clone()),
                FoundState::Lost { .. } => self.was_told_of_its_end(machine, &found.run),
                FoundState::Silent => {}
            }
        }
    }

    /// The brain has a group stopped.
    pub(crate) fn stops(&mut self, machine: usize, run: &RunId, grace: Duration) {
        let place = &mut self.machines[machine];
        let agent = place.agent.as_ref().map(|agent| agent.id);
        if let Some(group) = place.runs.get_mut(run) {
            group.stopped_by = agent;
        }
        self.tell_runner(machine, run, Order::Stop { grace });
    }

    /// The brain has a rank started again.
    pub(crate) fn restarts(&mut self, machine: usize, run: &RunId, rank: u32, attempt: u32) {
        note!(
            self,
            "n{machine} starts rank {rank} of {} again: attempt {attempt}",
            words::run(run)
        );
        invariants::restart_is_asked_rightly(self, machine, run, rank, attempt);
        let place = &mut self.machines[machine];
        let agent = place.agent.as_ref().map_or(0, |agent| agent.id);
        // The agent's shell sends each order once over each connection.
        let new = place.runs.get_mut(run).is_some_and(|group| {
            let order = (agent, group.line, rank, attempt);
            group.asked.insert(order)
        });
        if !new {
            return;
        }
        self.tell_runner(machine, run, Order::Restart { rank, attempt });
    }

    /// The order reaches the runner. It obeys the next order of a rank that waits, and knows one that
    /// was given before. After any other the agent ends the group.
    pub(crate) fn restart_ordered(
        &mut self,
        machine: usize,
        run: RunId,
        life: u64,
        rank: u32,
        attempt: u32,
    ) {
        let Some(group) = self.group(machine, &run, life) else {
            return;
        };
        let mut ranks = group.ranks.iter();
        let local = ranks.position(|known| known.report.rank == rank);
        let known = local.map(|local| &group.ranks[local]);
        let newest = known.map_or(0, |known| known.report.attempt + u32::from(known.ordered));
        let ends = group.phase != GroupPhase::Running || group.stop_asked;
        if ends || attempt <= newest {
            return self.speak_soon(machine, run);
        }
        let next = known.is_some_and(|known| group.waits(known) && attempt == newest + 1);
        let Some(local) = local.filter(|_| next) else {
            invariants::silence_never_kills(self, machine, &run);
            return self.stop_group(machine, run, life, Duration::ZERO);
        };
        group.ranks[local].ordered = true;
        let delay = self.rng.ms(5, self.plan.launch_ms);
        self.after(
            delay,
            Event::StartsAgain {
                machine,
                run,
                life,
                local,
            },
        );
    }

    /// The next attempt of a rank begins.
    pub(crate) fn starts_again(&mut self, machine: usize, run: RunId, life: u64, local: usize) {
        let clock = self.machines[machine].clock(self.now);
        let pid = self.fresh() as u32;
        let Some(group) = self.group(machine, &run, life) else {
            return;
        };
        let Some(before) = group
            .ranks
            .get(local)
            .filter(|rank| rank.ordered && group.waits(rank))
        else {
            return;
        };
        let (rank, attempt) = (before.report.rank, before.report.attempt + 1);
        let report = RankReport {
            attempt,
            ..rank_report(rank, before.report.local_rank, pid, clock)
        };
        group.ranks[local] = Rank::new(report);
        let world = group.world;
        self.changed.push(machine);
        note!(
            self,
            "n{machine}: attempt {attempt} of rank {rank} of {} is up",
            words::run(&run)
        );
        invariants::started_again_once(self, machine, &run, rank, attempt);
        invariants::one_generation_lives(self, &run);
        self.speak_soon(machine, run.clone());
        self.joins(machine, &run);
        let nothing_is_left_to_do = world.is_some_and(|world| self.trainings[&world].finished);
        if nothing_is_left_to_do {
            let after = self.rng.ms(10, 500);
            self.after(
                after.max(Duration::from_millis(1)),
                Event::RankEnds {
                    machine,
                    run,
                    life,
                    local,
                    exit: Exit::Code(0),
                    error: None,
                },
            );
        }
    }
}
