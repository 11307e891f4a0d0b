//! Faults strike: which, whom, and when it is over. At the end everything heals, or is declared gone.

use std::time::Duration;

use muster_core::{exit::Exit, node::GroupPhase, run::RunId};

use crate::{event::Event, fault::Fault, machine::Runner, runner::SIGKILL, trace::note, world::World};

const SIGSEGV: i32 = 11;

impl World {
    pub(crate) fn fault_strikes(&mut self) {
        if self.healed.is_some() {
            return;
        }
        // Faults come one by one, and now and then in a burst.
        let gap = self.plan.fault_gap.as_millis() as u64;
        let next = if self.rng.percent(20) { self.rng.ms(0, 200) } else { self.rng.ms(0, 2 * gap) };
        self.after(next, Event::FaultStrikes);
        let Some(fault) = self.rng.pick(&self.plan.faults).copied() else { return };
        let machine = self.rng.below(self.machines.len());
        if self.strike(fault, machine) {
            note!(self, "FAULT {fault} at n{machine}");
        }
    }

    /// True if there was something to hit.
    fn strike(&mut self, fault: Fault, machine: usize) -> bool {
        let other = self.rng.below(self.machines.len());
        let a_while = self.rng.ms(200, 30_000);
        let back_in = self.rng.ms(50, 15_000);
        let works = self.working_group(machine);
        let powered = self.machines[machine].powered;
        match fault {
            Fault::CoordinatorCrash => self.coordinator_dies(back_in),
            // Counted when they happen.
            Fault::CrashBeforeCommit | Fault::CrashAfterCommit | Fault::CrashAmidEffects => {
                self.coordinator.armed = Some(fault);
                return true;
            }
            Fault::CoordinatorPause => self.coordinator.paused_until = self.now + self.rng.ms(300, 20_000),
            Fault::AgentCrash if self.machines[machine].agent.is_some() => self.agent_dies(machine, Some(back_in)),
            Fault::AgentCrashAmidEffects => {
                let after = self.rng.below(4);
                let Some(agent) = &mut self.machines[machine].agent else { return false };
                agent.armed = Some(after);
                return true;
            }
            Fault::AgentPause if powered => {
                self.in_trouble(machine);
                self.machines[machine].agent_paused_until = self.now + a_while;
                self.after(a_while, Event::Mends { fault, machine, other });
            }
            Fault::PowerCut if powered => self.power_cut(machine),
            Fault::RackLoss => {
                let size = self.machines.len();
                let lost = self.rng.range(1, (size as u64).div_ceil(2)) as usize;
                (machine..machine + lost).for_each(|machine| self.power_cut(machine % size));
            }
            Fault::RunnerKilled => {
                let Some((run, _, _)) = self.held_group(machine) else { return false };
                self.runner_killed(machine, &run);
            }
            Fault::RunnerConnection => {
                let Some((run, _, _)) = self.held_group(machine) else { return false };
                self.runner_connection_breaks(machine, &run);
            }
            Fault::RankError | Fault::RankSegfault | Fault::RankKilled => {
                let Some((run, life, ranks)) = works else { return false };
                let local = self.rng.below(ranks);
                let (exit, error) = match fault {
                    Fault::RankError => (Exit::Code(1), Some("ValueError: loss is nan")),
                    Fault::RankSegfault => (Exit::Signal(SIGSEGV), None),
                    _ => (Exit::Signal(SIGKILL), None),
                };
                self.truth.job_faults.insert((run.clone(), machine));
                self.rank_ends(machine, run, life, local, exit, error);
            }
            Fault::SessionBreak => self.break_session(machine),
            Fault::CutBoth | Fault::CutUp | Fault::CutDown => {
                self.cut(machine, fault != Fault::CutDown, fault != Fault::CutUp);
                self.after(a_while, Event::Mends { fault, machine, other });
            }
            Fault::SlowNetwork => {
                self.in_trouble(machine);
                self.machines[machine].slow_ms = self.rng.range(200, 2_000);
                self.after(a_while, Event::Mends { fault, machine, other });
            }
            Fault::FabricCut if machine != other => {
                self.cut_fabric(machine, other);
                self.after(a_while, Event::Mends { fault, machine, other });
            }
            Fault::Isolated => {
                self.cut(machine, true, true);
                (0..self.machines.len()).for_each(|peer| self.cut_fabric(machine, peer));
                self.after(a_while, Event::Mends { fault, machine, other });
            }
            Fault::PeerReset if machine != other => {
                self.truth.resets += 1;
                self.peers_reset(machine, other);
            }
            Fault::GpusHidden if self.machines[machine].gpus > 0 => {
                self.machines[machine].gpus_hidden = true;
                self.describe_node(machine);
                self.after(a_while, Event::Mends { fault, machine, other });
            }
            // Counted when they happen.
            Fault::HoldRefused => self.machines[machine].refuse_hold = true,
            Fault::StartRefused => self.machines[machine].refuse_start = true,
            Fault::Unkillable => self.machines[machine].unkillable = true,
            _ => return false,
        }
        if !matches!(fault, Fault::HoldRefused | Fault::StartRefused | Fault::Unkillable) {
            self.count(fault);
        }
        true
    }

    /// A group on this machine that trains, with its number of ranks.
    fn working_group(&mut self, machine: usize) -> Option<(RunId, u64, usize)> {
        let found: Vec<_> = self.machines[machine]
            .working()
            .filter(|(_, group)| group.phase == GroupPhase::Running)
            .map(|(run, group)| (run.clone(), group.life, group.ranks.len()))
            .collect();
        self.rng.pick(&found).cloned()
    }

    fn held_group(&mut self, machine: usize) -> Option<(RunId, u64, usize)> {
        let found: Vec<_> = self.machines[machine]
            .runs
            .iter()
            .filter(|(_, group)| group.runner == Runner::Up && group.phase != GroupPhase::Dead)
            .map(|(run, group)| (run.clone(), group.life, group.ranks.len()))
            .collect();
        self.rng.pick(&found).cloned()
    }

    fn power_cut(&mut self, machine: usize) {
        if !self.machines[machine].powered {
            return;
        }
        self.in_trouble(machine);
        note!(self, "n{machine} loses power");
        self.machines[machine].powered = false;
        self.agent_dies(machine, None);
        let place = &mut self.machines[machine];
        (place.refuse_hold, place.refuse_start, place.unkillable) = (false, false, false);
        place.agent_paused_until = self.now;
        let mut worlds = Vec::new();
        for group in place.runs.values_mut() {
            if group.has_process() {
                worlds.extend(group.world);
            }
            group.runner = Runner::Gone;
            group.launcher = false;
            group.ranks.iter_mut().for_each(|rank| rank.alive = false);
        }
        // Nobody closes the sockets. Peers see it at once where the switch tells them, or late, or when it is back.
        let told = self.rng.percent(30);
        for world in worlds {
            if told {
                self.peers_will_notice(world, machine, 100, 4_000);
            } else {
                self.unheard_by_all(world, machine);
            }
        }
        // Some stay away until somebody comes.
        if self.rng.percent(75) {
            let back = if self.rng.percent(30) { self.rng.ms(300, 3_000) } else { self.rng.ms(3_000, 60_000) };
            self.after(back, Event::PowerOn { machine });
        }
    }

    pub(crate) fn power_on(&mut self, machine: usize) {
        if self.machines[machine].powered {
            return;
        }
        self.in_trouble(machine);
        let now = self.now;
        let place = &mut self.machines[machine];
        (place.powered, place.booted) = (true, now);
        place.boot += 1;
        note!(self, "n{machine} boots");
        for peer in 0..self.machines.len() {
            if self.linked(machine, peer) {
                self.late_news(machine, peer);
            }
        }
        let delay = self.rng.ms(50, 3_000);
        self.after(delay, Event::AgentStarts { machine });
    }

    pub(crate) fn mends(&mut self, fault: Fault, machine: usize, other: usize) {
        match fault {
            Fault::CutBoth | Fault::CutUp | Fault::CutDown => self.heal_cut(machine),
            Fault::SlowNetwork => self.machines[machine].slow_ms = 0,
            Fault::FabricCut => self.heal_fabric(machine, other),
            Fault::GpusHidden => {
                self.machines[machine].gpus_hidden = false;
                self.describe_node(machine);
            }
            Fault::Isolated => {
                self.heal_cut(machine);
                (0..self.machines.len()).for_each(|peer| self.heal_fabric(machine, peer));
            }
            _ => {}
        }
        self.in_trouble(machine);
    }

    pub(crate) fn everything_heals(&mut self) {
        note!(self, "faults are over, everything heals");
        self.healed = Some(self.now);
        // Who stands still goes on when its time has come: what waits for it waits until then.
        self.coordinator.armed = None;
        for machine in 0..self.machines.len() {
            self.heal_cut(machine);
            let place = &mut self.machines[machine];
            place.slow_ms = 0;
            (place.refuse_hold, place.refuse_start, place.unkillable) = (false, false, false);
            if let Some(agent) = &mut place.agent {
                agent.armed = None;
            }
            (0..self.machines.len()).for_each(|peer| self.heal_fabric(machine, peer));
            if std::mem::take(&mut self.machines[machine].gpus_hidden) {
                self.describe_node(machine);
            }
            if !self.machines[machine].powered {
                if self.rng.percent(30) {
                    self.declare_gone(machine);
                } else {
                    let delay = self.rng.ms(10, 5_000);
                    self.after(delay, Event::PowerOn { machine });
                }
            }
        }
        self.after(Duration::from_secs(1), Event::LookAtJobs);
    }
}
