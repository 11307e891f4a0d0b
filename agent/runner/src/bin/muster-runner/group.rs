//! What is known about the worker group: the launcher, its ranks, the stop that was asked for. This
//! module only records what happens; the runner acts.
//!
//! `Holding` (nothing has started; a launcher may be parked) -> `Running` -> `Stopping` (a stop was
//! asked for, or something has failed) -> `Dead` (proven). A failed rank alone does not make the
//! runner stop the others. torchrun sees the failure too and ends them, or the agent asks for a
//! stop. A rank that can be restarted may fail while the group stays `Running`. It also stays so while
//! what its ranks have left behind at a good end is being ended.

mod movement;
mod restart;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use muster_runner::procfs::Stat;
use muster_runner::wire::{
    ArrivalsStatus, DeathProof, Exit, ExitRecord, Hold, LauncherStatus, Leftover, MAX_LEFTOVERS,
    Phase, ProofKind, RankStatus, StartSpec, Status, StopStatus, StoreStatus, VERSION,
};

use crate::below::{Below, Proc};
use crate::memory::Memory;
use crate::movement::Movement;
use crate::mpi::unasked;
use crate::output::Output;
use crate::parked::Parked;
use crate::phases::{Phases, Traces, Watched};
use crate::time::{self, micros};
use crate::why::{Files, Reason};

/// How long a launcher may outlive its last rank during a stop. torchrun needs about 0.1 s, but
/// waits 300 s at an exit barrier that not all nodes will reach.
const LINGER: Duration = Duration::from_secs(1);

/// Why everything is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kill {
    LauncherGone,
    GraceOver,
    RanksEnded,
}

impl Kill {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Kill::LauncherGone => "the launcher has ended while others lived",
            Kill::GraceOver => "the grace is over",
            Kill::RanksEnded => "all ranks have ended",
        }
    }
}

#[derive(Default)]
pub(crate) struct Group {
    /// The connection to a launcher that waits for its order. The launcher counts as part of the
    /// group only from the start on.
    pub(crate) parked: Option<Parked>,
    pub(crate) spec: Option<StartSpec>,
    pub(crate) launcher: Option<Launcher>,
    pub(crate) ranks: BTreeMap<u32, Rank>,
    pub(crate) stop: Option<Stop>,
    /// The launcher failed by itself, and torchrun was executed in its place.
    pub(crate) fell_back: bool,
    failed: bool,
    /// When killing began, until death is proven.
    pub(crate) killing: Option<Duration>,
    pub(crate) stuck: Vec<i32>,
    /// All ranks have ended well, and something that they have left behind is being ended.
    pub(crate) leaving: Option<Leaving>,
    /// What ranks have left behind, as people are told.
    pub(crate) leftovers: Vec<Leftover>,
    pub(crate) dead: Option<DeathProof>,
    /// Looks for ranks below the ranks.
    pub(crate) below: Below,
    /// Watches what the start of the ranks is spent on.
    phases: Phases,
    /// Watches whether the ranks move.
    movement: Movement,
    /// When ranks come to their collectives, by the last look.
    pub(crate) arrivals: BTreeMap<u32, ArrivalsStatus>,
    /// Knows what the kernel has killed.
    pub(crate) memory: Memory,
}

/// The global ranks of a node, those of each member by themselves.
pub(crate) struct Expected(pub(crate) Vec<Range<u32>>);

impl Expected {
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(Range::len).sum()
    }

    /// The local rank of a global one. `None`: it is not of this node.
    pub(crate) fn local(&self, rank: u32) -> Option<u32> {
        let own = self.0.iter().find(|ranks| ranks.contains(&rank))?;
        Some(rank - own.start)
    }

    /// The place of a global rank among all ranks of its node.
    pub(crate) fn place(&self, rank: u32) -> Option<usize> {
        self.0.iter().cloned().flatten().position(|own| own == rank)
    }
}

/// `0..4`, or `0..1, 5..6`.
impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, ranks) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{}..{}", ranks.start, ranks.end)?;
        }
        Ok(())
    }
}

pub(crate) struct Launcher {
    pub(crate) process: Process,
    pub(crate) output: Output,
}

pub(crate) struct Rank {
    pub(crate) local_rank: u32,
    pub(crate) output: Output,
    /// None until the shim has said `started`.
    pub(crate) process: Option<Process>,
    /// Which start of the rank this is, from 1.
    attempt: u32,
    /// The next attempt was ordered, and has not said hello yet.
    ordered: bool,
    /// A stop had to kill it, after this grace.
    killed_after: Option<Duration>,
    /// How the attempt before ended. Shown until this one has started.
    before: Option<RankStatus>,
    tail: Vec<String>,
    reason: Reason,
    /// What the rank may leave for the runner to read.
    pub(crate) files: Files,
}

/// One process and its end.
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) start_time: u64,
    pub(crate) started_us: u64,
    pub(crate) end: Option<(Exit, u64)>,
}

/// The end of what ranks have left behind at a good end.
pub(crate) struct Leaving {
    /// Until then it may end by itself, and nobody hears of it.
    pub(crate) told_at: Duration,
    pub(crate) deadline: Duration,
}

pub(crate) struct Stop {
    pub(crate) reason: String,
    pub(crate) asked: Duration,
    pub(crate) deadline: Duration,
    /// The grace that was granted first. A later request may have made it shorter.
    granted: Duration,
    pub(crate) killed: Option<Duration>,
    pub(crate) fenced: bool,
}

impl Group {
    pub(crate) fn phase(&self) -> Phase {
        match () {
            () if self.dead.is_some() => Phase::Dead,
            () if self.spec.is_none() && self.stop.is_none() => Phase::Holding,
            () if self.stop.is_some() || self.failed || self.killing.is_some() => Phase::Stopping,
            () => Phase::Running,
        }
    }

    /// The global ranks that this node was started with.
    pub(crate) fn expected(&self) -> Option<Expected> {
        let spec = self.spec.as_ref()?;
        Some(Expected(spec.members_ranks()))
    }

    /// Asks for a stop. A repeated request can only bring the end nearer. True: this is the first.
    pub(crate) fn ask_stop(&mut self, now: Duration, grace: Duration, reason: &str) -> bool {
        // A grace that ends beyond any uptime means "no limit".
        let deadline = now.checked_add(grace).unwrap_or(Duration::MAX);
        match &mut self.stop {
            Some(stop) => {
                stop.deadline = stop.deadline.min(deadline);
                false
            }
            None => {
                self.stop = Some(Stop {
                    reason: reason.to_owned(),
                    asked: now,
                    deadline,
                    granted: grace,
                    killed: None,
                    fenced: false,
                });
                true
            }
        }
    }

    /// Whether everything must be killed now, and why. Otherwise the next moment to ask again.
    /// `awaited`: something that ranks have left behind may still be saving.
    pub(crate) fn must_kill(&self, now: Duration, awaited: bool) -> Result<Kill, Option<Duration>> {
        let Some(launcher) = &self.launcher else {
            return Err(None);
        };
        let launcher_gone = launcher.process.end.is_some();
        if let Some(leaving) = self.leaving.as_ref().filter(|_| self.stop.is_none()) {
            return match now >= leaving.deadline {
                true => Ok(Kill::GraceOver),
                false => Err(Some(leaving.deadline)),
            };
        }
        let Some(stop) = &self.stop else {
            return if launcher_gone {
                Ok(Kill::LauncherGone)
            } else {
                Err(None)
            };
        };
        if now >= stop.deadline {
            return Ok(Kill::GraceOver);
        }
        // Without a shim it is unknown which processes matter, so all of them keep their grace.
        let Some(last) = self.last_rank_end() else {
            return Err(Some(stop.deadline));
        };
        if awaited {
            return Err(Some(stop.deadline));
        }
        let lingers_until = last.max(stop.asked) + LINGER;
        if launcher_gone || now >= lingers_until {
            return Ok(Kill::RanksEnded);
        }
        Err(Some(lingers_until.min(stop.deadline)))
    }

    /// Whether the launcher and all ranks have ended well, and nobody has asked for a stop.
    pub(crate) fn ended_well(&self) -> bool {
        let well = |process: &Process| process.end.is_some_and(|(exit, _)| exit.success());
        let launcher = self.launcher.as_ref().map(|launcher| &launcher.process);
        let mut ranks = self.ranks.values().map(|rank| rank.process.as_ref());
        self.stop.is_none()
            && self.killing.is_none()
            && launcher.is_some_and(well)
            && !self.ranks.is_empty()
            && ranks.all(|process| process.is_some_and(well))
    }

    /// Whether every rank that this node was told to start has been started.
    pub(crate) fn all_started(&self) -> bool {
        let expected = self.expected().map_or(0, |ranks| ranks.len());
        let started = self.ranks.values().filter(|rank| rank.process.is_some());
        expected > 0 && started.count() >= expected
    }

    /// Whether all ranks have been started and have ended.
    pub(crate) fn all_ended(&self) -> bool {
        self.last_rank_end().is_some()
    }

    /// The pids of the ranks that live, and of those that have ended.
    pub(crate) fn rank_pids(&self) -> (BTreeSet<i32>, BTreeSet<i32>) {
        let processes = self.ranks.values().filter_map(|rank| rank.process.as_ref());
        let (living, ended): (Vec<&Process>, Vec<&Process>) =
            processes.partition(|process| process.end.is_none());
        let pids = |of: Vec<&Process>| of.into_iter().map(|process| process.pid).collect();
        (pids(living), pids(ended))
    }

    /// Whether a SIGTERM has ended a rank.
    pub(crate) fn ended_by_term(&self) -> bool {
        let mut processes = self.ranks.values().filter_map(|rank| rank.process.as_ref());
        processes.any(|process| {
            let exit = process.end.map(|(exit, _)| exit);
            matches!(
                exit,
                Some(Exit::Signal {
                    signal: libc::SIGTERM,
                    ..
                })
            )
        })
    }

    /// The grace of a stop that was kept to its end. `None`: none was granted, or it was cut short.
    fn kept_grace(&self) -> Option<Duration> {
        let stop = self.stop.as_ref()?;
        let kept = !stop.granted.is_zero() && stop.deadline == stop.asked + stop.granted;
        kept.then_some(stop.granted)
    }

    /// Notes what is killed because its grace is over.
    pub(crate) fn grace_is_over(&mut self, left: &[(i32, String)]) {
        if self.stop.is_some() && self.kept_grace().is_none() {
            return;
        }
        let grace = self.kept_grace();
        for rank in self.ranks.values_mut() {
            if rank
                .process
                .as_ref()
                .is_some_and(|process| process.end.is_none())
            {
                rank.killed_after = grace;
            }
        }
        for (pid, program) in left {
            self.left_behind(*pid, program.clone(), true);
        }
    }

    /// Notes a process that ranks have left behind, once.
    pub(crate) fn left_behind(&mut self, pid: i32, program: String, killed: bool) {
        let known = self.leftovers.iter_mut().find(|left| left.pid == pid);
        if let Some(left) = known {
            left.killed |= killed;
        } else if self.leftovers.len() < MAX_LEFTOVERS {
            self.leftovers.push(Leftover {
                pid,
                program,
                killed,
            });
        }
    }

    /// When the last rank ended. None while one lives, or where there never was one.
    fn last_rank_end(&self) -> Option<Duration> {
        let ends = self
            .ranks
            .values()
            .map(|rank| Some(rank.process.as_ref()?.end?.1));
        ends.collect::<Option<Vec<u64>>>()?
            .into_iter()
            .max()
            .map(Duration::from_micros)
    }

    /// Notes that the launcher has ended.
    pub(crate) fn launcher_ended(&mut self, exit: Exit, at_us: u64) -> Option<ExitRecord> {
        self.failed |= !exit.success();
        self.launcher.as_mut()?.process.end(None, 1, exit, at_us)
    }

    /// Notes that a rank has ended, and keeps the last lines of stderr if it failed.
    pub(crate) fn rank_ended(&mut self, rank: u32, exit: Exit, at_us: u64) -> Option<ExitRecord> {
        let ranks = self.spec.as_ref().map_or(1, |s| s.ranks);
        let alone = self.spec.as_ref().is_some_and(|s| s.may_restart(rank));
        let entry = self.ranks.get_mut(&rank)?;
        let process = entry.process.as_mut()?;
        let process_start = process.started_us;
        let record = process.end(Some(rank), entry.attempt, exit, at_us)?;
        if !exit.success() {
            self.failed |= !alone;
            entry.tail = entry.output.tail(ranks);
            let again = entry.attempt > 1;
            let started = again.then(|| time::wall(Duration::from_micros(process_start)));
            let left = entry.files.read(started);
            entry.reason = entry.output.reason(exit, left);
            if unasked::no_rank_began(self.spec.as_ref(), exit) {
                entry.reason.no_rank_began();
            }
            // What a killed rank has printed cannot be why.
            let by_us = self.killing.is_some();
            if let Some(why) = (!by_us).then(|| self.memory.reason(rank, exit)).flatten() {
                entry.reason.killed(why);
            }
        }
        Some(record)
    }

    /// The rank whose program is this process, if it has not ended.
    pub(crate) fn rank_of(&self, pid: i32) -> Option<u32> {
        let live = |rank: &Rank| {
            rank.process
                .as_ref()
                .is_some_and(|p| p.pid == pid && p.end.is_none())
        };
        self.ranks
            .iter()
            .find(|(_, rank)| live(rank))
            .map(|(rank, _)| *rank)
    }

    /// Looks for ranks below the ranks among these processes. True: it has just found some.
    pub(crate) fn look_below(&mut self, all: &[Stat]) -> bool {
        let of_members = |spec: &StartSpec| spec.members.first()?.env.get("MASTER_PORT").cloned();
        let port = self.spec.as_ref().and_then(|spec| {
            let own = spec.env.get("MASTER_PORT").cloned();
            own.or_else(|| of_members(spec))
        });
        let live = self.ranks.iter().filter_map(|(rank, entry)| {
            let process = entry.process.as_ref()?;
            process.end.is_none().then_some((*rank, process.pid))
        });
        let live: Vec<(u32, i32)> = live.collect();
        self.below.look(all, &live, port.as_deref(), &Proc)
    }

    /// Watches what the start of the ranks is spent on. What it returns is as [`Phases::mind`] says it.
    pub(crate) fn mind_phases(
        &mut self,
        now: Duration,
        at_once: bool,
        traces: &impl Traces,
    ) -> (bool, Option<Duration>) {
        let watched = self.ranks.iter().filter_map(|(rank, entry)| {
            let process = entry.process.as_ref()?;
            Some(Watched {
                rank: *rank,
                local: entry.local_rank,
                pid: process.pid,
                started_us: process.started_us,
                over: process.end.is_some() || entry.output.steps.first.is_some(),
            })
        });
        let watched: Vec<Watched> = watched.collect();
        self.phases.mind(now, &watched, at_once, traces)
    }

    /// Pid and start time of every known process that has not ended.
    pub(crate) fn living(&self) -> impl Iterator<Item = (i32, u64)> {
        let launcher = self.launcher.iter().map(|launcher| &launcher.process);
        let ranks = self.ranks.values().filter_map(|rank| rank.process.as_ref());
        ranks
            .chain(launcher)
            .filter(|process| process.end.is_none())
            .map(|process| (process.pid, process.start_time))
    }

    /// Notes that the group is proven dead. A rank without a recorded end was killed together with
    /// its shim.
    pub(crate) fn die(&mut self, now: Duration, how: ProofKind) -> Vec<ExitRecord> {
        let unseen: Vec<u32> = self.ranks.keys().copied().collect();
        let killed = Exit::Signal {
            signal: libc::SIGKILL,
            core: false,
        };
        let records = unseen
            .into_iter()
            .filter_map(|rank| self.rank_ended(rank, killed, micros(now)))
            .collect();
        self.dead = Some(DeathProof {
            at_us: micros(now),
            how,
            survivors: 0,
        });
        self.killing = None;
        self.stuck.clear();
        records
    }

    pub(crate) fn status(&self, hold: &Hold, now: Duration, store: Option<StoreStatus>) -> Status {
        let started = self.launcher.as_ref().filter(|_| self.spec.is_some());
        let launcher = started.map(|l| LauncherStatus {
            pid: l.process.pid,
            start_time: l.process.start_time,
            started_us: l.process.started_us,
            exit: l.process.end.map(|e| e.0),
            exited_us: l.process.end.map(|e| e.1),
        });
        let stop = self.stop.as_ref().map(|s| StopStatus {
            reason: s.reason.clone(),
            asked_us: micros(s.asked),
            grace_ms: s.deadline.saturating_sub(s.asked).as_millis() as u64,
            killed_us: s.killed.map(micros),
            fenced: s.fenced,
        });
        Status {
            v: VERSION,
            job: hold.job.clone(),
            generation: hold.generation,
            phase: self.phase(),
            now_us: micros(now),
            launcher,
            ranks: self
                .ranks
                .iter()
                .filter_map(|(number, rank)| rank.status(*number))
                .map(|rank| self.with_movement(rank))
                .collect(),
            store,
            stop,
            dead: self.dead.clone(),
            stuck: self.stuck.clone(),
            leftovers: self.leftovers.clone(),
            fell_back: self.fell_back,
            nested: self.below.found.clone(),
            step_pattern_fault: None,
            phases: self.phases.status(),
        }
    }
}

impl Rank {
    pub(crate) fn new(local_rank: u32, output: Output, files: Files) -> Self {
        Self {
            local_rank,
            output,
            process: None,
            attempt: 1,
            ordered: false,
            killed_after: None,
            before: None,
            tail: Vec::new(),
            reason: Reason::default(),
            files,
        }
    }

    fn status(&self, rank: u32) -> Option<RankStatus> {
        let Some(process) = &self.process else {
            return self.before.clone();
        };
        let steps = &self.output.steps;
        let last = steps.last.as_ref().map(|(step, _)| step);
        Some(RankStatus {
            rank,
            local_rank: self.local_rank,
            pid: process.pid,
            start_time: process.start_time,
            started_us: process.started_us,
            attempt: self.attempt,
            exit: process.end.map(|e| e.0),
            exited_us: process.end.map(|e| e.1),
            killed_after_ms: self.killed_after.map(|grace| grace.as_millis() as u64),
            last_step: last.map(|s| s.count),
            last_step_us: steps.last.as_ref().map(|s| micros(s.1)),
            first_step: steps.first.map(|s| s.0),
            first_step_us: steps.first.map(|s| micros(s.1)),
            total_steps: last.and_then(|s| s.total),
            loss: last.and_then(|s| s.loss.clone()),
            rate: last.and_then(|s| s.rate.clone()),
            step_format: last.map(|s| s.format.clone()),
            stepless_lines: if last.is_none() {
                steps.lines_before
            } else {
                0
            },
            tail: self.tail.clone(),
            first_error: self.reason.first_error.clone(),
            exception: self.reason.exception.clone(),
            last_output: self.reason.last_output.clone(),
            log_bytes: self.output.bytes,
            still: None,
            arrivals: None,
        })
    }
}

impl Process {
    /// Notes the end, once.
    fn end(
        &mut self,
        rank: Option<u32>,
        attempt: u32,
        exit: Exit,
        exited_us: u64,
    ) -> Option<ExitRecord> {
        if self.end.is_some() {
            return None;
        }
        self.end = Some((exit, exited_us));
        self.record(rank, attempt)
    }

    /// The line for the journal, if the process has ended.
    fn record(&self, rank: Option<u32>, attempt: u32) -> Option<ExitRecord> {
        let Self {
            pid,
            start_time,
            started_us,
            end,
        } = *self;
        let (exit, exited_us) = end?;
        Some(ExitRecord {
            v: VERSION,
            rank,
            pid,
            start_time,
            started_us,
            exit,
            exited_us,
            attempt,
            restarted: false,
        })
    }
}
