//! Ranks that stand still while they live: asleep in their own code, stopped by a signal, held by a device, or in another
//! collective than the others. And jobs that only look like it: they save slowly, or work for long between two steps.
//!
//! The runner notices which ranks move, as in production. Whoever is asked where a rank is says what a stack would show.

use std::time::Duration;

use muster_core::{
    id::NodeName,
    protocol,
    run::RunId,
    spec::SpecDocument,
    stacks::{Frame, Position, Process, RankStack},
    stall::Still,
    time::Timestamp,
};

use crate::{
    event::Event,
    fault::Fault,
    invariants,
    machine::{Group, Rank, Runner},
    trace::note,
    words,
    world::World,
};

/// The gap between two looks of a runner, and when a rank is told to be still. Both as in production.
const GAP: Duration = Duration::from_secs(2);
const STILL_AFTER: Duration = Duration::from_secs(4);

/// What a rank does instead of taking part in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// In its own code: a loader that hangs, a lock.
    Sleeps,
    /// A signal has stopped it.
    Stopped,
    /// It waits in the kernel for a device.
    Device,
    /// It waits in a collective that the others have not called.
    OtherCall,
    /// It writes a checkpoint to a server, which no node sees.
    Saves,
    /// It uses a processor, prints, or writes files.
    Works,
    Prints,
    Writes,
}

impl Doing {
    /// Whether it moves as far as its node can see.
    pub(crate) fn moves(self) -> bool {
        matches!(self, Doing::Works | Doing::Prints | Doing::Writes)
    }

    /// Whether no script does this to itself.
    pub(crate) fn is_the_nodes(self) -> bool {
        matches!(self, Doing::Stopped | Doing::Device)
    }

    /// It in words for people.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Doing::Sleeps => "the rank slept in its own code",
            Doing::Stopped => "a signal had stopped the rank",
            Doing::Device => "the rank waited for a device",
            Doing::OtherCall => "the rank had called another collective",
            Doing::Saves => "the rank wrote a checkpoint",
            Doing::Works | Doing::Prints | Doing::Writes => "the rank worked",
        }
    }
}

/// What a node can say of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sees {
    Stacks,
    /// Only what the kernel says: a program has started the ranks.
    Kernel,
    /// Its agent is of an older version.
    Nothing,
}

/// What a rank does, and what its runner has seen of it. The times of the runner are on the machine's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Movement {
    pub(crate) stand: Option<Stand>,
    moved: Timestamp,
    seen: Timestamp,
    looked: Timestamp,
    idle_since: Option<Timestamp>,
    /// What the last look has found.
    still: Option<Still>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Stand {
    pub(crate) doing: Doing,
    /// `None`: for ever.
    until: Option<Timestamp>,
}

/// What a rank truly did, for the checks.
#[derive(Clone, Debug)]
pub(crate) struct Stood {
    pub(crate) run: RunId,
    pub(crate) machine: usize,
    pub(crate) rank: u32,
    pub(crate) doing: Doing,
    pub(crate) from: Timestamp,
    pub(crate) until: Option<Timestamp>,
}

impl Stood {
    pub(crate) fn lasts_at(&self, at: Timestamp) -> bool {
        self.from <= at && self.until.is_none_or(|until| at <= until)
    }
}

/// A moment at which a run moved. `seen`: more than a processor was used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) at: Timestamp,
    pub(crate) seen: bool,
}

impl Rank {
    fn doing(&self) -> Option<Doing> {
        self.movement.stand.map(|stand| stand.doing)
    }

    /// A stopped process obeys no signal but SIGKILL.
    pub(crate) fn is_stopped(&self) -> bool {
        self.doing() == Some(Doing::Stopped)
    }
}

impl World {
    /// True if there was something to hit. `works`: the group, its life and how many ranks it has.
    pub(crate) fn strike_stalls(
        &mut self,
        fault: Fault,
        machine: usize,
        works: Option<(RunId, u64, usize)>,
    ) -> bool {
        let Some((run, life, ranks)) = works else {
            return false;
        };
        let group = &self.machines[machine].runs[&run];
        let (Some(world), true) = (group.world, group.joined_at.is_some() && group.trains()) else {
            return false;
        };
        // A rank that waits for others can only be stopped from outside.
        let waits = self.somebody_stands(&self.members(world)) || !self.fabric_cuts.is_empty();
        let longest = if self.plan.stalls_long {
            500_000
        } else {
            60_000
        };
        let a_while = self.rng.ms(5_000, longest);
        let (doing, lasts) = match fault {
            Fault::RankStalls => {
                use Doing::{Device, OtherCall, Sleeps, Stopped};
                let doing = self.rng.pick(&[Sleeps, Sleeps, Stopped, OtherCall, Device]);
                let doing = *doing.expect("there are five");
                let for_ever = doing == OtherCall || self.rng.percent(60);
                (doing, (!for_ever).then_some(a_while))
            }
            Fault::SlowSave => (Doing::Saves, Some(a_while)),
            _ => {
                let doing = self.rng.pick(&[Doing::Works, Doing::Prints, Doing::Writes]);
                (*doing.expect("there are three"), Some(a_while))
            }
        };
        if waits && !doing.is_the_nodes() {
            return false;
        }
        let all = fault != Fault::RankStalls && self.rng.percent(40);
        let local = self.rng.below(ranks);
        let whole = if all { self.members(world) } else { Vec::new() };
        if all {
            for (machine, run) in whole {
                let group = &self.machines[machine].runs[&run];
                let (life, ranks) = (group.life, group.ranks.len());
                (0..ranks).for_each(|local| self.stands(machine, &run, life, local, doing, lasts));
            }
        } else {
            self.stands(machine, &run, life, local, doing, lasts);
        }
        self.count(fault);
        true
    }

    fn stands(
        &mut self,
        machine: usize,
        run: &RunId,
        life: u64,
        local: usize,
        doing: Doing,
        lasts: Option<Duration>,
    ) {
        let now = self.now;
        let Some(group) = self.group(machine, run, life) else {
            return;
        };
        let there = group.ranks.get_mut(local).filter(|rank| rank.alive);
        let Some(rank) = there.filter(|rank| rank.movement.stand.is_none()) else {
            return;
        };
        let until = lasts.map(|lasts| now + lasts);
        rank.movement.stand = Some(Stand { doing, until });
        let rank = rank.report.rank;
        note!(
            self,
            "n{machine}: rank {rank} of {}: {doing:?} for {lasts:?}",
            words::run(run)
        );
        self.truth.stands.push(Stood {
            run: run.clone(),
            machine,
            rank,
            doing,
            from: now,
            until: None,
        });
        if let Some(lasts) = lasts {
            let ends = Event::StandEnds {
                machine,
                run: run.clone(),
                life,
                local,
            };
            self.after(lasts, ends);
        }
    }

    pub(crate) fn stand_ends(&mut self, machine: usize, run: RunId, life: u64, local: usize) {
        let now = self.now;
        let Some(group) = self.group(machine, &run, life) else {
            return;
        };
        let Some(rank) = group.ranks.get_mut(local) else {
            return;
        };
        let over = |stand: &mut Stand| stand.until.is_some_and(|until| until <= now);
        let Some(Stand { doing, .. }) = rank.movement.stand.take_if(over) else {
            return;
        };
        let number = rank.report.rank;
        note!(
            self,
            "n{machine}: rank {number} of {} goes on",
            words::run(&run)
        );
        let its = |stood: &&mut Stood| stood.run == run && stood.rank == number;
        for stood in self.truth.stands.iter_mut().filter(its) {
            stood.until.get_or_insert(now);
        }
        // What has computed for long may hang at the end of it.
        if doing == Doing::Works && self.healed.is_none() && self.rng.percent(40) {
            self.stands(machine, &run, life, local, Doing::Sleeps, None);
        }
    }

    /// Whoever stands still goes on.
    pub(crate) fn stalls_heal(&mut self) {
        let now = self.now;
        let mut standing = Vec::new();
        for (machine, place) in self.machines.iter_mut().enumerate() {
            for (run, group) in &mut place.runs {
                for (local, rank) in group.ranks.iter_mut().enumerate() {
                    if let Some(stand) = &mut rank.movement.stand {
                        stand.until = Some(now);
                        standing.push((machine, run.clone(), group.life, local));
                    }
                }
            }
        }
        for (machine, run, life, local) in standing {
            self.stand_ends(machine, run, life, local);
        }
    }

    /// Whether the step of these members waits for a rank.
    pub(crate) fn somebody_stands(&self, members: &[(usize, RunId)]) -> bool {
        let groups = members
            .iter()
            .map(|(machine, run)| &self.machines[*machine].runs[run]);
        let mut ranks = groups.flat_map(|group| &group.ranks);
        ranks.any(|rank| rank.alive && rank.movement.stand.is_some())
    }

    /// The ranks of this group have just made a step, or have just been started.
    pub(crate) fn group_moved(&mut self, machine: usize, run: &RunId) {
        if !self.plan.stalls {
            return;
        }
        let now = self.now;
        let place = &mut self.machines[machine];
        let clock = place.clock(now);
        if let Some(group) = place.runs.get_mut(run) {
            for rank in group.ranks.iter_mut().filter(|rank| rank.alive) {
                (rank.movement.moved, rank.report.still) = (clock, None);
            }
        }
        self.note_moved(run, true);
    }

    fn note_moved(&mut self, run: &RunId, seen: bool) {
        let at = self.now;
        let moved = self.truth.moved.entry(run.clone()).or_default();
        // The last one of a second stands for all of it.
        let first = moved.iter().rev().nth(1).map(|before| before.at);
        if first.is_some_and(|before| at.since(before) < Duration::from_secs(1)) {
            moved.pop();
        }
        moved.push(Moved { at, seen });
    }

    /// The runner looks which ranks move.
    pub(crate) fn look_movement(&mut self, machine: usize, run: RunId, life: u64) {
        let now = self.now;
        let (sees, clock) = (self.sees(machine), self.machines[machine].clock(now));
        let spins = self.plan.spins;
        let Some(group) = self.group(machine, &run, life) else {
            return;
        };
        if !group.has_ranks() || group.runner != Runner::Up {
            return;
        }
        let formed = group.joined_at.is_some();
        let (mut news, mut moved, mut works) = (false, false, false);
        for rank in group.ranks.iter_mut().filter(|rank| rank.alive) {
            let doing = rank.doing();
            let own = &mut rank.movement;
            let prints = matches!(doing, Some(Doing::Prints | Doing::Writes));
            moved |= prints;
            works |= doing == Some(Doing::Works);
            if own.looked == Timestamp(0) || own.moved > own.looked || prints {
                own.seen = clock;
            }
            let busy = match doing {
                Some(doing) => doing == Doing::Works || doing == Doing::OtherCall && spins,
                None => spins && formed,
            };
            let since = own.looked.max(own.seen);
            own.idle_since = (!busy).then(|| own.idle_since.unwrap_or(since));
            own.looked = clock;
            let still = Still {
                since: own.seen,
                idle_since: own.idle_since,
            };
            let is_still = sees != Sees::Nothing && clock >= own.seen + STILL_AFTER;
            let before = std::mem::replace(&mut own.still, is_still.then_some(still));
            rank.report.still = own.still;
            let told = |still: Option<Still>| still.map(|still| still.idle_since.is_some());
            news |= told(before) != told(own.still);
        }
        if moved || works {
            self.note_moved(&run, moved);
        }
        if news {
            self.speak_soon(machine, run.clone());
        }
        self.after(GAP, Event::LookMovement { machine, run, life });
    }

    pub(crate) fn sees(&self, machine: usize) -> Sees {
        let place = &self.machines[machine];
        let agent = place.agent.as_ref();
        let speaks = agent.map_or(place.speaks, |agent| agent.speaks);
        match speaks.newest < protocol::NEWEST {
            true => Sees::Nothing,
            false => place.sees,
        }
    }

    /// What this machine's agent finds out about these ranks.
    pub(crate) fn rank_stacks(&self, machine: usize, run: &RunId, ranks: &[u32]) -> Vec<RankStack> {
        let place = &self.machines[machine];
        let Some(group) = place.runs.get(run) else {
            return Vec::new();
        };
        let asked = |rank: &&Rank| rank.alive && ranks.contains(&rank.report.rank);
        let found = group.ranks.iter().filter(asked);
        let sees = self.sees(machine);
        found
            .map(|rank| self.rank_stack(&place.name, run, group, rank, sees))
            .collect()
    }

    fn rank_stack(
        &self,
        node: &NodeName,
        run: &RunId,
        group: &Group,
        rank: &Rank,
        sees: Sees,
    ) -> RankStack {
        const TORCH: &str = "/lib/torch/distributed/distributed_c10d.py";
        let formed = group.joined_at.is_some();
        let steps = rank.report.last_step.unwrap_or_default();
        let number = rank.report.rank;
        let (mut state, mut innermost) = ("S", (TORCH, 2_810, "all_reduce"));
        let (mut called, mut call) = (steps + 1, "all_reduce");
        if !formed {
            innermost = ("/lib/torch/distributed/rendezvous.py", 200, "rendezvous");
        }
        if let Some(doing) = rank.doing() {
            called = steps;
            match doing {
                Doing::Sleeps => innermost = ("/train/data.py", 41, "load_batch"),
                Doing::Stopped => state = "T",
                Doing::Device => state = "D",
                Doing::OtherCall => {
                    innermost = (TORCH, 4_100, "barrier");
                    (called, call) = (steps + 1, "barrier");
                }
                Doing::Saves => innermost = ("/train/train.py", 120, "save_checkpoint"),
                Doing::Works => {
                    (state, innermost) = ("R", ("/train/data.py", 60, "tokenize"));
                }
                Doing::Prints | Doing::Writes => {
                    innermost = ("/train/data.py", 70, "export");
                }
            }
        }
        let frame = |(file, line, function): (&str, u32, &str)| Frame {
            file: file.into(),
            line,
            function: function.into(),
        };
        let answers = sees == Sees::Stacks && !matches!(state, "T" | "D");
        let threads = match answers {
            true => vec![vec![
                frame(innermost),
                frame(("/train/train.py", 88, "<module>")),
            ]],
            false => Vec::new(),
        };
        let position = Position {
            group: "0".into(),
            description: "default_pg".into(),
            ranks: (0..group.assignment.world_size).collect(),
            called,
            completed: steps,
            call: (called > steps).then(|| call.to_owned()),
            waiting: None,
        };
        RankStack {
            rank: number,
            node: node.clone(),
            threads,
            positions: match answers && formed && self.plan.recorder {
                true => vec![position],
                false => Vec::new(),
            },
            process: Some(Process {
                pid: rank.report.pid as i32,
                state: state.into(),
                ..Process::default()
            }),
            error: (!answers).then(|| format!("no stack of {}", words::run(run))),
        }
    }
}

impl World {
    pub(crate) fn stalls_begin(&mut self) {
        if !self.plan.stalls {
            return;
        }
        for machine in 0..self.machines.len() {
            self.machines[machine].sees = match self.rng.below(10) {
                0 => Sees::Nothing,
                1 | 2 => Sees::Kernel,
                _ => Sees::Stacks,
            };
        }
        self.after(GAP, Event::LookAtStalls);
    }

    pub(crate) fn look_at_stalls(&mut self) {
        invariants::stalls_are_told(self);
        self.after(GAP, Event::LookAtStalls);
    }

    /// What a job says about standing still, in worlds in which ranks do.
    pub(crate) fn stall_words(&mut self) -> SpecDocument {
        let mut spec = SpecDocument::default();
        if self.plan.stalls {
            let limits = ["10s", "15s", "30s"];
            let says = self
                .rng
                .percent(if self.plan.stalls_long { 25 } else { 60 });
            let limit = self.rng.pick(&limits).filter(|_| says);
            spec.stall_after = limit.map(|limit| (*limit).to_owned());
            spec.on_stall = self.rng.percent(20).then(|| "report".to_owned());
        }
        spec
    }
}
