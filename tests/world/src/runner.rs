//! A runner and its group, from the hold to the proof of death: what orders do, how processes end,
//! and when none is left.

use std::time::Duration;

use muster_core::{
    exit::Exit,
    node::{GroupPhase, Input},
    run::{Endpoint, RankReport, RunId},
    time::Timestamp,
};

use crate::{
    event::{Event, Order},
    fault::Fault,
    invariants,
    machine::{Group, Rank, Runner},
    planted::{Planted, on},
    trace::note,
    training::address,
    troubles::Kind,
    words,
    world::World,
};

pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGTERM: i32 = 15;
/// How long a launcher lets the other ranks of its node go on after one has failed.
const OWN_END: Duration = Duration::from_secs(15);
/// What gloo prints in a rank whose peer went away.
pub(crate) const PEER_LOST: &str =
    "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.9]:35093";

impl World {
    pub(crate) fn group(&mut self, machine: usize, run: &RunId, life: u64) -> Option<&mut Group> {
        self.machines[machine]
            .runs
            .get_mut(run)
            .filter(|group| group.life == life)
    }

    pub(crate) fn runner_up(&mut self, machine: usize, run: RunId, life: u64) {
        self.machines[machine].ports += u16::from(!on(Planted::PortReused));
        let port = 20_000 + self.machines[machine].ports % 40_000;
        let Some(group) = self
            .group(machine, &run, life)
            .filter(|group| group.runner == Runner::Starting)
        else {
            return;
        };
        group.runner = Runner::Up;
        group.store = group.assignment.hosts_store.then(|| Endpoint {
            host: address(machine),
            port,
        });
        self.speak_soon(machine, run);
    }

    pub(crate) fn speak_soon(&mut self, machine: usize, run: RunId) {
        let delay = self.rng.ms(0, 20);
        self.queue
            .push(self.now + delay, Event::Speak { machine, run });
    }

    pub(crate) fn speak(&mut self, machine: usize, run: RunId) {
        let place = &self.machines[machine];
        let Some(group) = place
            .runs
            .get(&run)
            .filter(|group| place.powered && group.runner == Runner::Up)
        else {
            return;
        };
        let mut status = group.status(group.joined_at.is_some());
        if on(Planted::StopIsDeath) && status.phase == GroupPhase::Stopping {
            status.phase = GroupPhase::Dead;
        }
        if on(Planted::ErrorLinesLost) {
            status
                .ranks
                .iter_mut()
                .for_each(|rank| rank.first_error = None);
        }
        if place.agent.is_some() {
            self.was_told(machine, &run, status.clone());
            self.agent_turn(machine, Input::Runner { run, status });
        }
    }

    pub(crate) fn order_arrives(
        &mut self,
        machine: usize,
        agent: u64,
        run: RunId,
        life: u64,
        line: u64,
        order: Order,
    ) {
        // An order of an agent that has died since may have left it in time, or not.
        let orphaned = self.machines[machine]
            .agent
            .as_ref()
            .is_none_or(|living| living.id != agent);
        let lost = orphaned && self.rng.percent(50);
        let again = self.rng.ms(100, 400);
        let clock = self.machines[machine].clock(self.now);
        let Some(group) = self.group(machine, &run, life).filter(|_| !lost) else {
            return;
        };
        if group.line != line {
            // The order went into a connection that broke. The agent repeats it over the next one.
            let line = group.line;
            return self.after(
                again,
                Event::Order {
                    machine,
                    agent,
                    run,
                    life,
                    line,
                    order,
                },
            );
        }
        match (order, group.runner, group.phase) {
            (Order::Renew { heard }, Runner::Up, _) => group.heard = group.heard.max(Some(heard)),
            (Order::Renew { .. }, Runner::Gone, _) => {}
            (Order::Start { store, heard }, Runner::Up, GroupPhase::Holding) => {
                group.heard = group.heard.max(heard);
                if on(Planted::StartIsAWord) {
                    group.heard = Some(clock);
                }
                if !self.may_begin(machine, &run, life) {
                    return;
                }
                let group = self.group(machine, &run, life).expect("found above");
                if group.fence().is_some() {
                    self.after(
                        Duration::ZERO,
                        Event::FenceLooks {
                            machine,
                            run: run.clone(),
                            life,
                        },
                    );
                }
                let group = self.group(machine, &run, life).expect("found above");
                (group.phase, group.launcher) = (GroupPhase::Running, true);
                self.changed.push(machine);
                let world = self.world_at(&run, &store);
                let now = self.now;
                let clock = self.machines[machine].clock(now);
                let group = self.group(machine, &run, life).expect("found above");
                (group.world, group.launched_at) = (Some(world), Some(clock));
                self.trainings
                    .get_mut(&world)
                    .expect("worlds stay")
                    .comers
                    .insert((machine, run.clone()));
                let most = self.plan.launch_ms;
                let delay = self.rng.ms(10, most);
                self.queue.push(
                    now + delay,
                    Event::Launched {
                        machine,
                        run: run.clone(),
                        life,
                    },
                );
                self.speak_soon(machine, run);
            }
            // A runner that is still starting reads its orders when it is ready.
            (order, Runner::Starting, _) => {
                let again = Event::Order {
                    machine,
                    agent,
                    run,
                    life,
                    line,
                    order,
                };
                self.queue.push(self.now + Duration::from_millis(20), again);
            }
            (Order::Restart { rank, attempt }, Runner::Up, _) => {
                self.restart_ordered(machine, run, life, rank, attempt)
            }
            (Order::Stop { grace }, Runner::Up, phase) if phase != GroupPhase::Dead => {
                invariants::silence_never_kills(self, machine, &run);
                self.stop_group(machine, run, life, grace);
            }
            (Order::Release, runner, GroupPhase::Dead) => {
                group.released = true;
                if runner == Runner::Up {
                    group.runner = Runner::Gone;
                    self.store_is_gone(machine, &run);
                }
            }
            // One agent released it, and the next found its end in no record.
            (Order::Release, Runner::Gone, _) => group.released = true,
            _ => self.speak_soon(machine, run),
        }
    }

    pub(crate) fn stop_group(&mut self, machine: usize, run: RunId, life: u64, grace: Duration) {
        let now = self.now;
        let obeys = self.rng.percent(70);
        let exit_in = self.rng.ms(1, 500);
        let stuck = self.rng.ms(10_000, 70_000);
        let unkillable = std::mem::take(&mut self.machines[machine].unkillable);
        let group = self
            .group(machine, &run, life)
            .expect("the caller found it");
        let kill_at = group
            .kill_at
            .map_or(now + grace, |before| before.min(now + grace));
        let first = !std::mem::replace(&mut group.stop_asked, true);
        (group.phase, group.kill_at) = (GroupPhase::Stopping, Some(kill_at));
        if unkillable && group.has_process() {
            group.unkillable_until = now + stuck;
            self.count(Fault::Unkillable);
            self.lasts(machine, Kind::Unkillable, now + stuck);
        }
        let group = self
            .group(machine, &run, life)
            .expect("the caller found it");
        if first && obeys && now >= group.unkillable_until {
            let ends: Vec<(usize, Duration)> = group
                .ranks
                .iter()
                .enumerate()
                .filter(|(_, rank)| rank.alive && !rank.is_stopped())
                .map(|(local, _)| (local, exit_in.min(grace)))
                .collect();
            for (local, after) in ends {
                let exit = Exit::Signal(SIGTERM);
                self.queue.push(
                    now + after,
                    Event::RankEnds {
                        machine,
                        run: run.clone(),
                        life,
                        local,
                        exit,
                        error: None,
                    },
                );
            }
        }
        let quick = self.rng.ms(0, 10);
        self.queue.push(
            now + quick,
            Event::GroupMoves {
                machine,
                run: run.clone(),
                life,
            },
        );
        self.queue.push(
            kill_at + Duration::from_millis(1),
            Event::GroupMoves {
                machine,
                run: run.clone(),
                life,
            },
        );
        self.speak_soon(machine, run);
    }

    pub(crate) fn launched(&mut self, machine: usize, run: RunId, life: u64) {
        let clock = self.machines[machine].clock(self.now);
        let pid = self.fresh() as u32;
        let Some(group) = self.group(machine, &run, life) else {
            return;
        };
        if group.phase != GroupPhase::Running || !group.launcher {
            return;
        }
        let ranks = group.assignment.ranks();
        group.ranks = (pid..)
            .zip(ranks)
            .map(|(pid, (rank, local))| Rank::new(rank_report(rank, local, pid, clock)))
            .collect();
        self.changed.push(machine);
        note!(
            self,
            "n{machine}: the workers of {} are up",
            words::run(&run)
        );
        invariants::started_once(self, machine, &run);
        invariants::one_generation_lives(self, &run);
        self.speak_soon(machine, run.clone());
        if self.plan.stalls {
            self.group_moved(machine, &run);
            let looks = Event::LookMovement {
                machine,
                run: run.clone(),
                life,
            };
            self.after(Duration::from_secs(2), looks);
        }
        self.joins(machine, &run);
    }

    /// One rank ends. Ranks that depended on it learn it from their kernel.
    pub(crate) fn rank_ends(
        &mut self,
        machine: usize,
        run: RunId,
        life: u64,
        local: usize,
        exit: Exit,
        error: Option<&'static str>,
    ) {
        let now = self.now;
        let clock = self.machines[machine].clock(now);
        let Some(group) = self.group(machine, &run, life) else {
            return;
        };
        let unkillable = now < group.unkillable_until;
        let Some(rank) = group
            .ranks
            .get_mut(local)
            .filter(|rank| rank.alive && !unkillable)
        else {
            return;
        };
        rank.alive = false;
        (rank.report.exit, rank.report.exited_at) = (Some(exit), Some(clock));
        rank.report.first_error = error.map(str::to_owned);
        let waits = group.waits(&group.ranks[local]);
        if !exit.is_success() && group.phase == GroupPhase::Running && !waits {
            group.phase = GroupPhase::Stopping;
        }
        let (world, rank) = (group.world, group.ranks[local].report.rank);
        if !exit.is_success() {
            *self.truth.failures.entry((run.clone(), rank)).or_insert(0) += 1;
        }
        note!(
            self,
            "n{machine}: rank {local} of {} ends: {exit} {}",
            words::run(&run),
            error.unwrap_or_default()
        );
        let torchrun_sees = self.rng.ms(5, 110);
        self.queue.push(
            now + torchrun_sees,
            Event::GroupMoves {
                machine,
                run: run.clone(),
                life,
            },
        );
        self.speak_soon(machine, run);
        if let Some(world) = world.filter(|_| !exit.is_success() && !waits) {
            self.peers_will_notice(world, machine, 1, 300);
        }
    }

    /// Decides what the runner and its torchrun do next, for a group in which something ended or
    /// that is to end.
    pub(crate) fn group_moves(&mut self, machine: usize, run: RunId, life: u64) {
        let now = self.now;
        let world = self
            .group(machine, &run, life)
            .and_then(|group| group.world);
        let barrier = world.is_none_or(|world| self.everybody_finished(world));
        let Some(group) = self.group(machine, &run, life) else {
            return;
        };
        if group.phase == GroupPhase::Dead || group.runner != Runner::Up {
            return;
        }
        let kill = group.stop_asked && group.kill_at.is_some_and(|at| now >= at);
        if now < group.unkillable_until && group.has_process() && (kill || group.failed()) {
            let at = group.unkillable_until + Duration::from_millis(1);
            group.reaping = false;
            return self
                .queue
                .push(at, Event::GroupMoves { machine, run, life });
        }
        if group.works() {
            if !kill && group.failed() {
                let term_at = *group.term_at.get_or_insert(now + OWN_END);
                if now < term_at {
                    self.queue
                        .push(term_at, Event::GroupMoves { machine, run, life });
                    return;
                }
            }
            if (kill || group.failed()) && !group.reaping {
                group.reaping = true;
                let signal = if kill { SIGKILL } else { SIGTERM };
                let alive: Vec<usize> = group
                    .ranks
                    .iter()
                    .enumerate()
                    .filter(|(_, rank)| rank.alive)
                    .map(|(local, _)| local)
                    .collect();
                for local in alive {
                    let after = self.rng.ms(1, 60);
                    let exit = Exit::Signal(signal);
                    self.queue.push(
                        now + after,
                        Event::RankEnds {
                            machine,
                            run: run.clone(),
                            life,
                            local,
                            exit,
                            error: None,
                        },
                    );
                }
                // A process that ignores SIGTERM is killed a little later.
                if let Some(group) = self.group(machine, &run, life).filter(|_| !kill) {
                    group.reaping = false;
                    self.queue.push(
                        now + Duration::from_millis(200),
                        Event::GroupMoves { machine, run, life },
                    );
                }
            }
            return;
        }
        if group.launcher && group.ranks.is_empty() && !group.stop_asked || group.is_awaited() {
            return;
        }
        if group.finished() && !group.stop_asked && !barrier {
            return;
        }
        let exit = match () {
            () if !group.launcher => None,
            () if group.finished() && !group.failed() && (barrier || !group.stop_asked) => {
                Some(Exit::Code(0))
            }
            () if group.failed() => Some(Exit::Code(1)),
            () => Some(Exit::Signal(SIGTERM)),
        };
        self.ended(machine, &run, exit);
        if let Some(world) = world {
            self.peers_will_notice(world, machine, 1, 300);
        }
        self.speak_soon(machine, run);
    }

    fn ended(&mut self, machine: usize, run: &RunId, torchrun_exit: Option<Exit>) {
        let clock = self.machines[machine].clock(self.now);
        let Some(group) = self.machines[machine].runs.get_mut(run) else {
            return;
        };
        group.launcher = false;
        group.torchrun_exit = torchrun_exit;
        (group.phase, group.dead_at) = (GroupPhase::Dead, Some(clock));
        note!(self, "n{machine}: {} is dead", words::run(run));
    }

    /// The runner is killed, and the kernel ends its group. The agent finds out, and so do the
    /// peers.
    pub(crate) fn runner_killed(&mut self, machine: usize, run: &RunId) {
        self.did(machine, run, Kind::RunnerKilled, None);
        let Some(group) = self.machines[machine].runs.get_mut(run) else {
            return;
        };
        note!(
            self,
            "n{machine}: the runner of {} is killed",
            words::run(run)
        );
        group.runner = Runner::Gone;
        group.launcher = false;
        group.ranks.iter_mut().for_each(|rank| rank.alive = false);
        let world = group.world;
        let seen_in = self.rng.ms(1, 200);
        if let Some(agent) = &self.machines[machine].agent {
            let lost = Event::RunnerLost {
                machine,
                agent: agent.id,
                run: run.clone(),
            };
            self.queue.push(self.now + seen_in, lost);
        }
        if let Some(world) = world {
            self.peers_will_notice(world, machine, 1, 300);
        }
        self.store_is_gone(machine, run);
    }

    pub(crate) fn runner_lost(&mut self, machine: usize, agent: u64, run: RunId) {
        let asks = self.machines[machine]
            .agent
            .as_ref()
            .is_some_and(|living| living.id == agent);
        if !asks || !self.nothing_is_left(machine, agent, &run) {
            return;
        }
        let Some(group) = self.machines[machine].runs.get(&run) else {
            return;
        };
        let exits = group.journal();
        let at = self.machines[machine].clock(self.now);
        self.was_told_of_its_end(machine, &run);
        self.tell_agent(machine, agent, Input::RunnerLost { run, exits, at });
    }

    pub(crate) fn runner_connection_breaks(&mut self, machine: usize, run: &RunId) {
        let Some(group) = self.machines[machine].runs.get_mut(run) else {
            return;
        };
        group.line += 1;
        self.speak_soon(machine, run.clone());
    }
}

pub(crate) fn rank_report(rank: u32, local_rank: u32, pid: u32, now: Timestamp) -> RankReport {
    RankReport {
        pid,
        started_at: Some(now),
        ..RankReport::bare(rank, local_rank)
    }
}
