//! Faults strike: which fault, at which machine, and for how long. At the end everything heals, or
//! is declared gone.

use std::time::Duration;

use muster_core::{exit::Exit, node::GroupPhase, run::RunId, time::Timestamp};

use crate::{
    event::Event, fault::Fault, machine::Runner, plan::Size, runner::SIGKILL, trace::note,
    troubles::Kind, truth::RolledBack, world::World,
};

const SIGSEGV: i32 = 11;

impl World {
    pub(crate) fn fault_strikes(&mut self) {
        if self.healed.is_some() {
            return;
        }
        // Faults come one by one, and now and then in a burst.
        let gap = self.plan.fault_gap.as_millis() as u64;
        let next = if self.rng.percent(20) {
            self.rng.ms(0, 200)
        } else {
            self.rng.ms(0, 2 * gap)
        };
        self.after(next, Event::FaultStrikes);
        if self.now < self.lull {
            return;
        }
        let Some(fault) = self.rng.pick(&self.plan.faults).copied() else {
            return;
        };
        let machine = self.drawn_machine();
        let (fault, machine) = self
            .silence_instead()
            .or_else(|| self.failure_instead())
            .unwrap_or((fault, machine));
        self.strikes += 1;
        if self.backup.is_none() && self.plan.has(Fault::StoreRestored) {
            self.store_restored();
        }
        // A strike that is left out has drawn the same numbers as if it had happened, as far as
        // possible.
        if self.plan.skipped.contains(&self.strikes) {
            return;
        }
        if self.strike(fault, machine) {
            note!(self, "FAULT {fault} at n{machine}");
        }
    }

    /// True if there was something to hit.
    fn strike(&mut self, fault: Fault, machine: usize) -> bool {
        let other = self.drawn_machine();
        let a_while = self.rng.ms(200, 30_000);
        let back_in = self.rng.ms(50, 15_000);
        let a_while = self.as_long_as_fences_last(a_while);
        let works = self.working_group(machine);
        let powered = self.machines[machine].powered;
        if self.machines[machine].pod.is_some() && fault.is_of_machines() {
            return false;
        }
        match fault {
            Fault::CoordinatorCrash => {
                let Some(seat) = self.some_seat() else {
                    return false;
                };
                self.coordinator_dies(seat, Some(back_in));
            }
            // These are counted when they happen.
            Fault::CrashBeforeCommit
            | Fault::CrashAfterCommit
            | Fault::CrashAmidEffects
            | Fault::StoreWriteFails
            | Fault::CommitTorn => {
                let Some(seat) = self.some_seat() else {
                    return false;
                };
                self.seats[seat].armed = Some(fault);
                return true;
            }
            Fault::SecondLeader if powered && self.plan.fences && self.traits.percent(80) => {
                return self.taken_over_while_away();
            }
            Fault::SecondLeader => return self.second_leader() && self.counted(fault),
            Fault::StoreRestored => return self.store_restored() && self.counted(fault),
            Fault::LedgerWriteFails => {
                self.machines[machine].ledger_fails = true;
                return true;
            }
            Fault::HostLies if powered && self.machines[machine].agent.is_some() => {
                self.machines[machine].lies = true;
                self.break_session(machine);
            }
            Fault::SlowDisk if powered => {
                self.machines[machine].disk_slow_until = self.now + a_while * 2
            }
            Fault::LedgerDamaged if powered && self.machines[machine].agent.is_some() => {
                self.machines[machine].ledger_damaged = true;
                self.agent_dies(machine, Some(back_in));
            }
            Fault::SickNode => {
                // The cause that makes one machine sick is often in a second one too.
                let more = if self.rng.percent(40) { other } else { machine };
                for machine in [machine, more] {
                    self.machines[machine].sick_until = self.now + self.rng.ms(20_000, 60_000);
                    self.after(Duration::from_millis(100), Event::SickRank { machine });
                }
            }
            Fault::CoordinatorPause => {
                let Some(seat) = self.some_seat() else {
                    return false;
                };
                self.seats[seat].paused_until = self.now + self.rng.ms(300, 20_000);
            }
            Fault::AgentCrash if self.machines[machine].agent.is_some() => {
                self.agent_dies(machine, Some(back_in))
            }
            Fault::AgentCrashAmidEffects => {
                let after = self.rng.below(4);
                let Some(agent) = &mut self.machines[machine].agent else {
                    return false;
                };
                agent.armed = Some(after);
                return true;
            }
            Fault::AgentPause if powered => {
                self.begins(machine, Kind::AgentStood);
                let place = &mut self.machines[machine];
                place.agent_paused_until = place.agent_paused_until.max(self.now + a_while);
                self.cut_while_paused(machine);
                self.after(
                    a_while,
                    Event::Mends {
                        fault,
                        machine,
                        other,
                    },
                );
            }
            Fault::MachineStands if powered => {
                self.stand_still(machine, a_while);
                let pods = self.pods_on(machine).into_iter();
                pods.for_each(|pod| self.stand_still(pod, a_while));
            }
            Fault::Blackout => self.blackout(machine, a_while),
            Fault::StateDirSwapped => return self.swap_state_dir(machine) && self.counted(fault),
            Fault::NodeReplaced if powered => self.replace(machine),
            // This is counted when the second machine says hello.
            Fault::NameTaken => return self.name_is_taken(machine, back_in),
            Fault::PowerCut if powered => self.power_cut(machine),
            Fault::RackLoss => {
                let size = self.machines.len();
                // A rack of a large hall has 16 or 32 machines. A power feed carries ten racks.
                let most = if self.plan.size == Size::Large {
                    300
                } else {
                    (size as u64).div_ceil(2)
                };
                let lost = self.rng.range(1, most) as usize;
                (machine..machine + lost).for_each(|machine| self.power_cut(machine % size));
            }
            Fault::RunnerKilled => {
                let Some((run, _, _)) = self.held_group(machine) else {
                    return false;
                };
                self.runner_killed(machine, &run);
            }
            Fault::ProcessLeft => {
                let Some((run, _, _)) = self.held_group(machine) else {
                    return false;
                };
                return self.process_left(machine, &run) && self.counted(fault);
            }
            Fault::RunnerConnection => {
                let Some((run, _, _)) = self.held_group(machine) else {
                    return false;
                };
                self.runner_connection_breaks(machine, &run);
            }
            Fault::RankError | Fault::RankSegfault | Fault::RankKilled => {
                let Some((run, life, ranks)) = works else {
                    return false;
                };
                let local = self.rng.below(ranks);
                let (exit, error) = match fault {
                    Fault::RankError => (Exit::Code(1), Some("ValueError: loss is nan")),
                    Fault::RankSegfault => (Exit::Signal(SIGSEGV), None),
                    _ => (Exit::Signal(SIGKILL), None),
                };
                self.rank_fails(machine, run, life, local, exit, error);
            }
            Fault::RankLeaves => {
                let Some((run, life, ranks)) = works else {
                    return false;
                };
                let local = self.rng.below(ranks);
                return self.rank_leaves(machine, run, life, local) && self.counted(fault);
            }
            Fault::SessionBreak => self.break_session(machine),
            Fault::CutBoth | Fault::CutUp | Fault::CutDown => {
                self.cut(machine, fault != Fault::CutDown, fault != Fault::CutUp);
                self.after(
                    a_while,
                    Event::Mends {
                        fault,
                        machine,
                        other,
                    },
                );
            }
            Fault::SlowNetwork => {
                self.begins(machine, Kind::Slow);
                self.machines[machine].slow_ms = self.rng.range(200, 2_000);
                self.after(
                    a_while,
                    Event::Mends {
                        fault,
                        machine,
                        other,
                    },
                );
            }
            Fault::FabricCut if machine != other => {
                self.cut_fabric(machine, other);
                self.after(
                    a_while,
                    Event::Mends {
                        fault,
                        machine,
                        other,
                    },
                );
            }
            Fault::Isolated => {
                self.cut(machine, true, true);
                self.isolate(machine);
                self.after(
                    a_while,
                    Event::Mends {
                        fault,
                        machine,
                        other,
                    },
                );
            }
            Fault::PeerReset if machine != other => {
                self.peers_reset(machine, other);
            }
            Fault::GpusHidden if self.machines[machine].gpus > 0 => {
                self.machines[machine].gpus_hidden = true;
                self.describe_node(machine);
                self.after(
                    a_while,
                    Event::Mends {
                        fault,
                        machine,
                        other,
                    },
                );
            }
            Fault::TerminationNotice | Fault::NicDown if powered => {
                if fault == Fault::TerminationNotice {
                    self.begins(machine, Kind::Leaving);
                }
                let place = &mut self.machines[machine];
                *(if fault == Fault::NicDown {
                    &mut place.nic_down
                } else {
                    &mut place.noticed
                }) = true;
                self.describe_node(machine);
                self.after(
                    a_while,
                    Event::Mends {
                        fault,
                        machine,
                        other,
                    },
                );
            }
            // These are counted when they happen.
            Fault::HoldRefused => self.machines[machine].refuse_hold = true,
            Fault::StartRefused => self.machines[machine].refuse_start = true,
            Fault::Unkillable => self.machines[machine].unkillable = true,
            fault if Fault::OF_STALLS.contains(&fault) => {
                return self.strike_stalls(fault, machine, works);
            }
            fault if fault.is_of_pods() => return self.strike_pods(fault, machine),
            _ => return false,
        }
        if !matches!(
            fault,
            Fault::HoldRefused | Fault::StartRefused | Fault::Unkillable
        ) {
            self.count(fault);
        }
        true
    }

    fn counted(&mut self, fault: Fault) -> bool {
        self.count(fault);
        true
    }

    /// Workers on this machine reach no other machine. In a large world they reach none of their
    /// training.
    fn isolate(&mut self, machine: usize) {
        let peers: Vec<usize> = match self.plan.size {
            Size::Large => {
                let worlds: Vec<u64> = self.machines[machine]
                    .runs
                    .values()
                    .filter_map(|group| group.world)
                    .collect();
                worlds
                    .into_iter()
                    .flat_map(|world| self.members(world))
                    .map(|(peer, _)| peer)
                    .collect()
            }
            _ => (0..self.machines.len()).collect(),
        };
        peers
            .into_iter()
            .for_each(|peer| self.cut_fabric(machine, peer));
    }

    /// The store is copied, or the copy replaces the store. True if it replaced the store.
    fn store_restored(&mut self) -> bool {
        match self.backup.take() {
            None => {
                note!(self, "the coordinator's store is copied");
                self.backup = Some(Box::new(self.store.clone()));
                false
            }
            Some(older) => {
                (0..2).for_each(|seat| self.coordinator_dies(seat, None));
                note!(self, "an older copy of the coordinator's store is put back");
                self.truth.rolled_back = Some(RolledBack {
                    at: self.now,
                    numbers: self.fresh(),
                });
                self.truth.highest_term = older.term;
                self.store = *older;
                let back_in = self.rng.ms(50, 5_000);
                self.after(back_in, Event::CoordinatorStarts { seat: 0 });
                true
            }
        }
    }

    /// A rank on a sick machine fails, and this repeats until the machine is healthy again.
    pub(crate) fn sick_rank(&mut self, machine: usize) {
        if self.now > self.machines[machine].sick_until || self.healed.is_some() {
            return;
        }
        let next = self.rng.ms(200, 3_000);
        self.after(next, Event::SickRank { machine });
        if let Some((run, life, ranks)) = self.working_group(machine) {
            let local = self.rng.below(ranks);
            self.rank_fails(machine, run, life, local, Exit::Signal(SIGSEGV), None);
        }
    }

    /// A rank ends by itself.
    fn rank_fails(
        &mut self,
        machine: usize,
        run: RunId,
        life: u64,
        local: usize,
        exit: Exit,
        error: Option<&'static str>,
    ) {
        let alive = |world: &Self| {
            world.machines[machine]
                .runs
                .get(&run)
                .and_then(|group| Some(group.ranks.get(local)?.alive))
        };
        let rank = self.machines[machine]
            .runs
            .get(&run)
            .and_then(|group| group.ranks.get(local))
            .map(|rank| (rank.report.rank, rank.report.attempt));
        let before = alive(self);
        self.rank_ends(machine, run.clone(), life, local, exit, error);
        // A rank that cannot be killed now goes on.
        if before == Some(true) && alive(self) == Some(false) {
            self.did(machine, &run, Kind::RankFailed, rank);
        }
    }

    /// A group that trains on this machine, with its number of ranks.
    fn working_group(&mut self, machine: usize) -> Option<(RunId, u64, usize)> {
        let found: Vec<_> = self.machines[machine]
            .working()
            .filter(|(_, group)| {
                group.phase == GroupPhase::Running
                    && self.now >= self.machines[machine].stands_until
            })
            .map(|(run, group)| (run.clone(), group.life, group.ranks.len()))
            .collect();
        self.rng.pick(&found).cloned()
    }

    fn held_group(&mut self, machine: usize) -> Option<(RunId, u64, usize)> {
        let found: Vec<_> = self.machines[machine]
            .runs
            .iter()
            .filter(|(_, group)| group.runner == Runner::Up && group.phase != GroupPhase::Dead)
            .filter(|_| self.now >= self.machines[machine].stands_until)
            .map(|(run, group)| (run.clone(), group.life, group.ranks.len()))
            .collect();
        self.rng.pick(&found).cloned()
    }

    pub(crate) fn power_cut(&mut self, machine: usize) {
        if !self.machines[machine].powered {
            return;
        }
        self.begins(machine, Kind::NoPower);
        note!(self, "n{machine} loses power");
        self.machines[machine].powered = false;
        self.changed.push(machine);
        self.agent_dies(machine, None);
        if self.machines[machine].pod.is_none() {
            self.unplug(machine);
        }
        let place = &mut self.machines[machine];
        (place.refuse_hold, place.refuse_start, place.unkillable) = (false, false, false);
        (
            place.agent_paused_until,
            place.stands_until,
            place.runners_wake,
        ) = (self.now, self.now, self.now);
        let (mut worlds, mut fell) = (Vec::new(), Vec::new());
        for (run, group) in &mut place.runs {
            if group.has_process() {
                worlds.extend(group.world);
                fell.push(run.clone());
            }
            group.runner = Runner::Gone;
            group.launcher = false;
            group.left = None;
            group.ranks.iter_mut().for_each(|rank| rank.alive = false);
        }
        fell.iter()
            .for_each(|run| self.did(machine, run, Kind::NoPower, None));
        // No process closes the sockets. If the switch tells them, peers see it at once. Otherwise
        // they see it late, or when the machine is back.
        let told = self.rng.percent(30);
        for world in worlds {
            if told {
                self.peers_will_notice(world, machine, 100, 4_000);
            } else {
                self.unheard_by_all(world, machine);
            }
        }
        if self.machines[machine].pod.is_some() {
            // Its kubelet starts it again.
            return;
        }
        self.pods_lose_power(machine);
        // Some machines stay off until a person comes.
        if self.rng.percent(75) {
            let back = if self.rng.percent(30) {
                self.rng.ms(300, 3_000)
            } else {
                self.rng.ms(3_000, 60_000)
            };
            self.after(back, Event::PowerOn { machine });
        }
    }

    pub(crate) fn power_on(&mut self, machine: usize) {
        if self.machines[machine].powered || !self.may_be_powered(machine) {
            return;
        }
        self.is_back(machine);
        self.ends(machine, Kind::NoPower);
        let now = self.now;
        let place = &mut self.machines[machine];
        (place.powered, place.booted, place.slept) = (true, now, Duration::ZERO);
        place.boot += 1;
        note!(self, "n{machine} boots");
        for peer in self.unheard_peers(machine) {
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
            Fault::SlowNetwork => {
                self.machines[machine].slow_ms = 0;
                self.ends(machine, Kind::Slow);
            }
            Fault::ProcessLeft => self.reboot_where_left(machine),
            Fault::GpuSick => self.gpu_is_well(machine, other),
            Fault::AgentPause | Fault::MachineStands => self.agent_goes_on(machine),
            Fault::FabricCut => self.heal_fabric(machine, other),
            Fault::GpusHidden => {
                self.machines[machine].gpus_hidden = false;
                self.describe_node(machine);
            }
            Fault::NicDown => {
                self.machines[machine].nic_down = false;
                self.describe_node(machine);
            }
            Fault::TerminationNotice if self.machines[machine].noticed => {
                self.machines[machine].noticed = false;
                if self.machines[machine].powered && self.rng.percent(70) {
                    self.power_cut(machine);
                } else {
                    self.describe_node(machine);
                }
            }
            Fault::Isolated => {
                self.heal_cut(machine);
                let cuts = self
                    .fabric_cuts
                    .keys()
                    .filter(|(a, b)| *a == machine || *b == machine);
                let cuts: Vec<(usize, usize)> = cuts.copied().collect();
                cuts.into_iter().for_each(|(a, b)| self.heal_fabric(a, b));
            }
            _ => {}
        }
    }

    /// An agent that stood still goes on, unless it was told to stand still for longer.
    fn agent_goes_on(&mut self, machine: usize) {
        if self.now >= self.machines[machine].agent_paused_until {
            self.ends(machine, Kind::AgentStood);
            self.ends(machine, Kind::MachineStood);
        }
    }

    pub(crate) fn everything_heals(&mut self) {
        note!(self, "faults are over, everything heals");
        self.healed = Some(self.now);
        // Processes that stand still go on when their time has come, and events for them wait until
        // then.
        self.seats.iter_mut().for_each(|seat| seat.armed = None);
        for machine in 0..self.machines.len() {
            self.heal_cut(machine);
            let place = &mut self.machines[machine];
            place.slow_ms = 0;
            self.ends(machine, Kind::Slow);
            let place = &mut self.machines[machine];
            (place.refuse_hold, place.refuse_start, place.unkillable) = (false, false, false);
            (place.ledger_fails, place.disk_slow_until) = (false, Timestamp(0));
            if let Some(agent) = &mut place.agent {
                agent.armed = None;
            }
            if self.machines[machine].pod.is_some() {
                continue;
            }
            let place = &mut self.machines[machine];
            let told = [
                &mut place.gpus_hidden,
                &mut place.nic_down,
                &mut place.noticed,
            ]
            .map(std::mem::take);
            if told.contains(&true) {
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
        self.cluster_heals();
        self.pods_heal();
        self.stalls_heal();
        let cuts: Vec<(usize, usize)> = self.fabric_cuts.keys().copied().collect();
        cuts.into_iter().for_each(|(a, b)| self.heal_fabric(a, b));
        self.after(Duration::from_secs(1), Event::LookAtJobs);
    }
}
