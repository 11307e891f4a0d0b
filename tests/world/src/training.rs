//! Trainings: the ranks that met at one TCPStore and train together, one step at a time, as in a
//! synchronous job. A step needs every rank of every member alive, and a way between all of them. A
//! rank that ends takes its peers along, if they can hear of it. Only ranks that are started again
//! alone are not waited for, and take nobody along.

use std::{collections::BTreeSet, time::Duration};

use muster_core::{
    exit::Exit,
    run::{Endpoint, RunId},
};

use crate::{
    event::Event, invariants, machine::Runner, runner::PEER_LOST, trace::note, troubles::Kind,
    words, world::World,
};

/// All groups that meet at one TCPStore under one rendezvous id, whatever they are.
#[derive(Debug)]
pub(crate) struct Training {
    pub(crate) store: Endpoint,
    /// The run of the first group that came.
    pub(crate) run: RunId,
    /// Machines whose workers have arrived.
    pub(crate) arrived: BTreeSet<usize>,
    pub(crate) formed: bool,
    /// Its last step is done. Whoever comes back finds nothing left to do.
    pub(crate) finished: bool,
    /// Groups that were ever sent here.
    pub(crate) comers: BTreeSet<(usize, RunId)>,
    /// Pairs of members: one ended, and the other has not heard of it because there was no way.
    unheard: BTreeSet<(usize, usize)>,
}

impl World {
    /// The training that meets at this TCPStore under this run's rendezvous id.
    pub(crate) fn world_at(&mut self, run: &RunId, store: &Endpoint) -> u64 {
        if let Some(id) = self.stores.get(store) {
            return *id;
        }
        let id = self.fresh();
        let training = Training {
            store: store.clone(),
            run: run.clone(),
            arrived: BTreeSet::new(),
            formed: false,
            finished: false,
            comers: BTreeSet::new(),
            unheard: BTreeSet::new(),
        };
        self.trainings.insert(id, training);
        self.stores.insert(store.clone(), id);
        id
    }

    fn world_of(&self, machine: usize, run: &RunId) -> Option<u64> {
        self.machines[machine].runs.get(run)?.world
    }

    /// Groups in a training, by machine, whatever run they claim to be.
    pub(crate) fn members(&self, world: u64) -> Vec<(usize, RunId)> {
        let there = |(machine, run): &&(usize, RunId)| {
            self.machines[*machine]
                .runs
                .get(run)
                .is_some_and(|g| g.world == Some(world))
        };
        self.trainings[&world]
            .comers
            .iter()
            .filter(there)
            .cloned()
            .collect()
    }

    /// A group's workers have come up and look for the others.
    pub(crate) fn joins(&mut self, machine: usize, run: &RunId) {
        let Some(world) = self.world_of(machine, run) else {
            return;
        };
        let store = self.trainings[&world].store.clone();
        let holder = self.store_holder(&store).filter(|holder| {
            let place = &self.machines[*holder];
            place.powered
                && place
                    .runs
                    .values()
                    .any(|group| group.runner == Runner::Up && group.store.as_ref() == Some(&store))
        });
        match holder {
            Some(holder) if self.linked(machine, holder) => {}
            // There is no way to the TCPStore, so they wait.
            Some(_) => return,
            None if self.store_refuses(&store) => return self.lose_peers(machine, run, 10, 400),
            None => return,
        }
        let training = self.trainings.get_mut(&world).expect("worlds stay");
        training.arrived.insert(machine);
        let training = &self.trainings[&world];
        let members = self.members(world);
        // A machine that had arrived may have lost its group with its disk.
        let arrived = |(machine, _): &(usize, RunId)| training.arrived.contains(machine);
        if training.formed || !self.is_complete(&members) || !members.iter().all(arrived) {
            return;
        }
        let trains = members
            .iter()
            .all(|(machine, run)| self.machines[*machine].runs[run].trains());
        if !trains {
            return;
        }
        invariants::members_are_the_decided(self, world);
        self.trainings.get_mut(&world).expect("worlds stay").formed = true;
        let now = self.now;
        for (machine, run) in self.members(world) {
            let clock = self.machines[machine].clock(now);
            self.machines[machine]
                .runs
                .get_mut(&run)
                .expect("a member")
                .joined_at = Some(clock);
            self.speak_soon(machine, run);
        }
        note!(self, "the world of {} is formed", words::run(run));
        let first = self.rng.ms(1, 100) + Duration::from_millis(self.plan.step_ms);
        self.queue.push(now + first, Event::Step { world });
    }

    /// Whether these machines hold all members of their generation.
    fn is_complete(&self, groups: &[(usize, RunId)]) -> bool {
        let assignments = groups
            .iter()
            .map(|(machine, run)| &self.machines[*machine].runs[run].assignment);
        let wanted = assignments.clone().map(|of| of.node_count).max();
        let here: u32 = assignments.map(|of| of.members.len().max(1) as u32).sum();
        wanted.is_some_and(|wanted| here >= wanted)
    }

    /// The machine that served this TCPStore has power, so a caller is refused instead of kept
    /// waiting.
    fn store_refuses(&self, store: &Endpoint) -> bool {
        let serves = |place: &crate::machine::Machine| {
            place
                .runs
                .values()
                .any(|group| group.store.as_ref() == Some(store))
        };
        self.store_holder(store)
            .is_some_and(|holder| self.machines[holder].powered && serves(&self.machines[holder]))
    }

    /// The machine at whose address this TCPStore is.
    fn store_holder(&self, store: &Endpoint) -> Option<usize> {
        machine_of_address(&store.host)
    }

    /// The TCPStore goes away. Ranks that still look for each other there are told so.
    pub(crate) fn store_is_gone(&mut self, machine: usize, run: &RunId) {
        let Some(store) = self.machines[machine]
            .runs
            .get(run)
            .and_then(|group| group.store.clone())
        else {
            return;
        };
        let Some(world) = self.stores.get(&store).copied() else {
            return;
        };
        if self.trainings[&world].formed {
            return;
        }
        for (peer, run) in self.members(world) {
            if peer != machine && self.linked(peer, machine) {
                self.lose_peers(peer, &run, 10, 400);
            }
        }
    }

    pub(crate) fn step(&mut self, world: u64) {
        let members = self.members(world);
        let alive = |(machine, run): &(usize, RunId)| {
            self.machines[*machine].powered && self.machines[*machine].runs[run].goes_on()
        };
        if members.is_empty() || !members.iter().all(alive) {
            return;
        }
        // While one member stood still another may have gone without a trace.
        if !self.is_complete(&members) {
            return;
        }
        let every = Duration::from_millis(self.plan.step_ms);
        let still = members
            .iter()
            .map(|(machine, _)| self.machines[*machine].stands_until)
            .max();
        if let Some(until) = still.filter(|until| self.now < *until) {
            return self.queue.push(until, Event::Step { world });
        }
        let here: BTreeSet<usize> = members.iter().map(|(machine, _)| *machine).collect();
        if self
            .fabric_cuts
            .keys()
            .any(|(a, b)| here.contains(a) && here.contains(b))
        {
            return self.queue.push(self.now + every, Event::Step { world });
        }
        if self.plan.stalls && self.somebody_stands(&members) {
            return self.queue.push(self.now + every, Event::Step { world });
        }
        let run = self.trainings[&world].run.clone();
        invariants::only_the_newest_trains(self, &run);
        let now = self.now;
        let total = self
            .truth
            .steps_wanted
            .get(&run.job)
            .copied()
            .unwrap_or(u64::MAX);
        let done = self.truth.steps.entry(run.job.clone()).or_insert(0);
        *done += 1;
        let (step, finished) = (*done, *done >= total);
        self.truth.stepped_at.insert(run.job.clone(), now);
        for (machine, run) in &members {
            let clock = self.machines[*machine].clock(now);
            let group = self.machines[*machine].runs.get_mut(run).expect("a member");
            let mut first = false;
            for rank in group.ranks.iter_mut().filter(|rank| rank.alive) {
                first |= rank.report.first_step.is_none();
                rank.report.first_step.get_or_insert(step);
                rank.report.first_step_at.get_or_insert(clock);
                (rank.report.last_step, rank.report.last_step_at) = (Some(step), Some(clock));
            }
            let (life, ranks) = (group.life, group.ranks.len());
            self.group_moved(*machine, run);
            if first || step.is_multiple_of(8) {
                self.speak_soon(*machine, run.clone());
            }
            for local in (0..ranks).filter(|_| finished) {
                let after = self.rng.ms(1, 200);
                let exit = Exit::Code(0);
                self.queue.push(
                    now + after,
                    Event::RankEnds {
                        machine: *machine,
                        run: run.clone(),
                        life,
                        local,
                        exit,
                        error: None,
                    },
                );
            }
        }
        if finished {
            self.trainings
                .get_mut(&world)
                .expect("worlds stay")
                .finished = true;
        } else {
            self.queue.push(now + every, Event::Step { world });
        }
    }

    /// torchrun's exit barrier: the launchers wait for each other.
    pub(crate) fn everybody_finished(&mut self, world: u64) -> bool {
        let members = self.members(world);
        let all = members
            .iter()
            .all(|(machine, run)| self.machines[*machine].runs[run].finished());
        if all {
            for (machine, run) in members {
                let group = &self.machines[machine].runs[&run];
                if group.launcher {
                    let life = group.life;
                    let delay = self.rng.ms(1, 120);
                    self.queue
                        .push(self.now + delay, Event::GroupMoves { machine, run, life });
                }
            }
        }
        all
    }

    /// Processes of this training on this machine ended. The kernel closes their sockets.
    pub(crate) fn peers_will_notice(
        &mut self,
        world: u64,
        machine: usize,
        low_ms: u64,
        high_ms: u64,
    ) {
        let delay = self.rng.ms(low_ms, high_ms);
        self.queue
            .push(self.now + delay, Event::PeersNotice { world, machine });
    }

    pub(crate) fn peers_notice(&mut self, world: u64, machine: usize) {
        for (peer, run) in self.members(world) {
            if peer == machine || !self.machines[peer].runs[&run].works() {
                continue;
            }
            // Before the training has formed, ranks are connected only to the TCPStore.
            if !self.trainings[&world].formed {
                continue;
            }
            if self.linked(machine, peer) {
                self.lose_peers(peer, &run, 0, 60);
            } else {
                self.trainings
                    .get_mut(&world)
                    .expect("worlds stay")
                    .unheard
                    .insert((machine, peer));
            }
        }
    }

    /// A machine went down without a message. Its peers hear of it when the machine is back and
    /// answers.
    pub(crate) fn unheard_by_all(&mut self, world: u64, machine: usize) {
        let peers: Vec<usize> = self
            .members(world)
            .into_iter()
            .map(|(peer, _)| peer)
            .filter(|peer| *peer != machine)
            .collect();
        if let Some(training) = self.trainings.get_mut(&world) {
            training
                .unheard
                .extend(peers.into_iter().map(|peer| (machine, peer)));
        }
    }

    /// Every rank of this group reports that its peer went away, and ends.
    pub(crate) fn lose_peers(&mut self, machine: usize, run: &RunId, low_ms: u64, high_ms: u64) {
        let Some(group) = self.machines[machine].runs.get(run) else {
            return;
        };
        let (life, ranks) = (group.life, group.ranks.len());
        for local in 0..ranks {
            let after = self.rng.ms(low_ms, high_ms);
            let (exit, error) = (Exit::Code(1), Some(PEER_LOST));
            self.queue.push(
                self.now + after,
                Event::RankEnds {
                    machine,
                    run: run.clone(),
                    life,
                    local,
                    exit,
                    error,
                },
            );
        }
    }

    /// Whether workers on these two machines reach each other. A machine without power does not
    /// answer.
    pub(crate) fn linked(&self, a: usize, b: usize) -> bool {
        a == b || !self.fabric_cuts.contains_key(&(a.min(b), a.max(b)))
    }

    pub(crate) fn cut_fabric(&mut self, a: usize, b: usize) {
        if a == b {
            return;
        }
        let cut = self.fresh();
        self.fabric_cuts.insert((a.min(b), a.max(b)), cut);
        // The limit is the collective's own, or TCP's.
        let most = if self.plan.stalls { 120_000 } else { 30_000 };
        let patience = self.rng.ms(1_000, most);
        self.queue
            .push(self.now + patience, Event::FabricTimeout { a, b, cut });
    }

    /// Workers on both sides that waited for each other over a broken way give up.
    pub(crate) fn fabric_timeout(&mut self, a: usize, b: usize, cut: u64) {
        if self.fabric_cuts.get(&(a.min(b), a.max(b))) != Some(&cut) {
            return;
        }
        self.peers_reset(a, b);
    }

    /// Connections between two machines' workers break.
    pub(crate) fn peers_reset(&mut self, a: usize, b: usize) {
        let worlds: Vec<u64> = self
            .trainings
            .iter()
            .filter(|(_, training)| training.formed)
            .map(|(id, _)| *id)
            .collect();
        for world in worlds {
            let members = self.members(world);
            let of = |machine: usize| {
                members
                    .iter()
                    .find(|(member, _)| *member == machine)
                    .cloned()
            };
            if let (Some(a), Some(b)) = (of(a), of(b)) {
                self.did(a.0, &a.1, Kind::PeersParted, None);
                self.did(b.0, &b.1, Kind::PeersParted, None);
                self.lose_peers(a.0, &a.1, 0, 200);
                self.lose_peers(b.0, &b.1, 0, 200);
            }
        }
    }

    pub(crate) fn heal_fabric(&mut self, a: usize, b: usize) {
        if self.fabric_cuts.remove(&(a.min(b), a.max(b))).is_none() {
            return;
        }
        self.late_news(a, b);
        // Workers that waited at a TCPStore they could not reach now arrive.
        for machine in [a, b] {
            let waiting: Vec<RunId> = self.machines[machine]
                .working()
                .filter(|(_, group)| group.joined_at.is_none())
                .map(|(run, _)| run.clone())
                .collect();
            waiting
                .into_iter()
                .for_each(|run| self.joins(machine, &run));
        }
    }

    /// Machines that have not heard of this one's end, and machines whose end it has not heard.
    pub(crate) fn unheard_peers(&self, machine: usize) -> BTreeSet<usize> {
        let pairs = self
            .trainings
            .values()
            .flat_map(|training| &training.unheard);
        pairs
            .filter(|(a, b)| *a == machine || *b == machine)
            .flat_map(|(a, b)| [*a, *b])
            .collect()
    }

    /// The way between two machines is back. A process that is left of a connection hears that its
    /// other end is gone.
    pub(crate) fn late_news(&mut self, a: usize, b: usize) {
        let unheard: Vec<(u64, usize)> = self
            .trainings
            .iter()
            .flat_map(|(world, training)| training.unheard.iter().map(move |pair| (*world, *pair)))
            .filter(|(_, pair)| *pair == (a, b) || *pair == (b, a))
            .map(|(world, pair)| (world, pair.0))
            .collect();
        for (world, gone) in unheard {
            self.trainings
                .get_mut(&world)
                .expect("worlds stay")
                .unheard
                .retain(|pair| *pair != (a, b) && *pair != (b, a));
            self.peers_will_notice(world, gone, 1, 100);
        }
    }
}

/// A machine's address contains its number.
pub(crate) fn address(machine: usize) -> String {
    format!("10.0.0.{machine}")
}

fn machine_of_address(host: &str) -> Option<usize> {
    host.rsplit('.').next()?.parse().ok()
}
