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

impl World {
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
        self.tell_runner(machine, run, Order::Restart { rank, attempt });
    }

    /// The order reaches the runner, which obeys it only if it is the next one of a rank that waits.
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
        let of_rank = |known: &&Rank| known.report.rank == rank;
        let next = group.ranks.iter().find(of_rank).is_some_and(|known| {
            group.waits(known) && !known.ordered && known.report.attempt + 1 == attempt
        });
        if !next {
            return self.speak_soon(machine, run);
        }
        let local = group.ranks.iter().position(|known| known.report.rank == rank);
        let local = local.expect("found above");
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
