//! The runner's one loop: it waits, handles events, writes exits down, drives the group to its
//! proven death, and pushes its status.
//!
//! It has one thread on purpose: this thread forks the children, and the kernel ties their death
//! signal to the thread that forked them. Each turn does a bounded amount of work, so a worker that
//! floods its output delays an answer by a few milliseconds.

mod command;
mod ending;
mod launcher;
mod leaving;
mod look;
mod phases;
mod restart;
mod signal;
mod stacks;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use muster_runner::wire::{Exit, ExitRecord, Hold, Phase, Reply, Status, StoreStatus};
use muster_runner::{journal, record};
use rustix::process::{Pid, Signal};

use crate::control::Control;
use crate::fence::{CLOSED, Fence};
use crate::group::{Group, Process};
use crate::inspect::Inspector;
use crate::logs::Log;
use crate::mouth::Mouth;
use crate::output::{CHUNK, Output, Read};
use crate::poll::{Interest, Poll, Source};
use crate::rank_link::STOPPED;
use crate::ranks::{Event, Hear, Ranks};
use crate::register::Register;
use crate::search::Search;
use crate::served::{News, Served};
use crate::tree::{self, Cgroup, Reaped};
use crate::{sys, time};

/// The gap between two pushes of news that is not urgent: at most 20 a second.
const PUSH_GAP: Duration = Duration::from_millis(50);

/// The gap between two attempts to write when the disk is full.
pub(crate) const DISK_GAP: Duration = Duration::from_secs(1);

/// How long the runner of a dead group without a TCPStore stays when no client is connected. It may
/// end, because its outcome is on disk.
const DEAD_IDLE: Duration = Duration::from_secs(2);

/// A runner with a TCPStore waits longer: launchers of other nodes may be between two connections.
const STORE_IDLE: Duration = Duration::from_secs(60);

/// The launcher's number among the outputs. Rank R has the number R + 1.
const LAUNCHER: u32 = 0;

pub(crate) struct Runner {
    pub(crate) hold: Hold,
    pub(crate) poll: Poll,
    pub(crate) signals: OwnedFd,
    pub(crate) control: Control,
    pub(crate) ranks: Ranks,
    pub(crate) served: Option<Served>,
    pub(crate) cgroup: Option<Cgroup>,
    pub(crate) logs: OwnedFd,
    pub(crate) exits: journal::Writer,
    pub(crate) search: Search,
    pub(crate) group: Group,
    pub(crate) fence: Fence,
    pub(crate) state: LoopState,
    pub(crate) register: Register,
    pub(crate) inspector: Inspector,
}

/// What the loop remembers between turns.
pub(crate) struct LoopState {
    buffer: Vec<u8>,
    /// This turn's exits, to be written with one sync, and the shims that wait for that.
    new_exits: Vec<ExitRecord>,
    waiting_shims: Vec<u32>,
    /// When to try again to write exits after a failure.
    next_exits: Option<Duration>,
    /// Something has changed. Subscribers must hear of it at once (`urgent`) or soon (`changed`).
    urgent: bool,
    changed: bool,
    pushed: Duration,
    /// When the beginning of some line will have waited long enough for its end.
    show_lines: Option<Duration>,
    /// Since when no client has been connected.
    lonely_since: Duration,
    children_changed: bool,
    next_kill: Duration,
    outcome_written: bool,
    next_outcome: Duration,
    released: bool,
    launcher_gone_termed: bool,
    /// The launcher was told to end.
    launcher_termed: bool,
    left: leaving::Told,
    /// The client and the request that wait for an answer of the launcher that stays, by token.
    /// Agents have only a few requests open at a time.
    asked: BTreeMap<u64, (u32, u64)>,
    /// The token of the next request. The start of the launcher has 0.
    asked_next: u64,
    /// Whether runners may make cgroups.
    cgroups: bool,
}

impl LoopState {
    pub(crate) fn new(now: Duration, cgroups: bool) -> Self {
        Self {
            asked: BTreeMap::new(),
            asked_next: 0,
            cgroups,
            buffer: vec![0; CHUNK],
            new_exits: Vec::new(),
            waiting_shims: Vec::new(),
            next_exits: None,
            urgent: false,
            changed: false,
            pushed: Duration::ZERO,
            show_lines: None,
            lonely_since: now,
            children_changed: false,
            next_kill: Duration::ZERO,
            outcome_written: false,
            next_outcome: Duration::ZERO,
            released: false,
            launcher_gone_termed: false,
            launcher_termed: false,
            left: leaving::Told::default(),
        }
    }
}

impl Runner {
    /// Runs until nobody needs this runner any more.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut timeout = Some(Duration::ZERO);
        loop {
            for source in self.poll.wait(timeout)? {
                self.hear(source)?;
            }
            let now = time::boot();
            if std::mem::take(&mut self.state.children_changed) {
                self.reap(now);
            }
            self.write_exits(now);
            let lines = self.show_lines(now);
            let advance = self.advance(now);
            self.poll.ring_at(advance)?;
            let look = self.mind_register(now);
            let phases = self.mind_phases(now, false);
            let stacks = self.mind_stacks(now);
            self.write_exits(now);
            self.tell(now);
            match self.rest(now) {
                Rest::Go => return Ok(()),
                Rest::Until(at) => {
                    let next = [
                        advance,
                        at,
                        lines,
                        look,
                        phases,
                        stacks,
                        self.state.next_exits,
                    ]
                    .into_iter()
                    .flatten()
                    .min();
                    timeout = next.map(|at| at.saturating_sub(now));
                }
            }
        }
    }

    fn hear(&mut self, source: Source) -> io::Result<()> {
        let now = time::boot();
        match source {
            Source::Alarm => {}
            Source::Launcher => self.hear_launcher(),
            Source::Signals => self.hear_signals(now),
            Source::ControlListener => self.control.accept(&self.poll),
            Source::Client(id) => {
                self.control.ready(id, &self.poll);
                self.answer_client(id, now);
            }
            Source::RanksListener => self
                .ranks
                .accept(&self.poll, self.group.expected().as_ref()),
            Source::Shim(id) => self.hear_shim(id, now),
            Source::Stream(id, side) => self.read_output(id, side, now),
            Source::WorkerServer(id) => self.inspector.hear(id, &self.poll),
            Source::Store => {
                let Some(served) = &mut self.served else {
                    return Ok(());
                };
                match served.turn(now).map_err(io::Error::other)? {
                    News::Joined => self.state.urgent = true,
                    News::Clients => self.state.changed = true,
                    News::None => {}
                }
            }
        }
        Ok(())
    }

    fn hear_signals(&mut self, now: Duration) {
        while let Some(signal) = sys::next_signal(&self.signals) {
            if signal == libc::SIGCHLD {
                self.state.children_changed = true;
            } else if signal == libc::SIGTERM && std::process::id() == 1 {
                let grace = Duration::from_millis(self.hold.term_grace_ms);
                self.stop(now, grace, "the runner, PID 1, got SIGTERM");
            }
        }
    }

    /// Tells the ranks to end, through their shims. The launcher hears of it after them, or at once if
    /// it has not started all of them: torchrun would kill them after its own grace, and in older
    /// versions share its process group with them and their helpers.
    pub(crate) fn stop(&mut self, now: Duration, grace: Duration, reason: &str) {
        self.state.urgent = true;
        if self.group.dead.is_some() || !self.group.ask_stop(now, grace, reason) {
            return;
        }
        if !self.group.all_started() {
            self.tell_launcher();
        }
        self.note_commands();
        self.ranks.signal(libc::SIGTERM);
    }

    /// Sends TERM to the launcher's process group, once.
    fn tell_launcher(&mut self) {
        if let Some(launcher) = &self.group.launcher
            && launcher.process.end.is_none()
            && let Some(pid) = Pid::from_raw(launcher.process.pid)
            && !std::mem::replace(&mut self.state.launcher_termed, true)
        {
            // The launcher is not reaped yet, so the pid is still its own.
            let _ = rustix::process::kill_process_group(pid, Signal::TERM);
        }
    }

    /// Stops a group with a fence if the coordinator was not heard for too long. Returns when to
    /// look again.
    pub(crate) fn mind_fence(&mut self, now: Duration) -> Option<Duration> {
        let due = self
            .fence
            .due(&self.hold)
            .filter(|_| !self.fence.closed && self.group.dead.is_none())?;
        if now < due {
            return Some(due);
        }
        self.fence.closed = true;
        let of_itself = matches!(self.group.phase(), Phase::Holding | Phase::Running);
        // The grace counts from the moment the fence was due. If the machine or the runner stood
        // still, the grace may already be over.
        let grace = due
            .saturating_add(Duration::from_millis(self.hold.term_grace_ms))
            .saturating_sub(now);
        self.stop(now, grace, CLOSED);
        if let Some(stop) = self.group.stop.as_mut().filter(|_| of_itself) {
            stop.fenced = true;
        }
        say!("{} {CLOSED}", time::stamp());
        None
    }

    fn hear_shim(&mut self, id: u32, now: Duration) {
        let expected = self.group.expected();
        for event in self.ranks.read(id, &self.poll, expected.as_ref()) {
            self.state.urgent = true;
            match event {
                Event::Hello {
                    rank,
                    local_rank,
                    stdout,
                    stderr,
                } => self.hello(rank, local_rank, stdout, stderr),
                Event::Started {
                    rank,
                    pid,
                    start_time,
                    at_us,
                    error_file,
                } => {
                    if let Some(entry) = self.group.ranks.get_mut(&rank) {
                        if let Some(file) = error_file {
                            entry.files.with_error_file(file.into());
                        }
                        entry.process = Some(Process {
                            pid,
                            start_time,
                            started_us: at_us,
                            end: None,
                        });
                        self.register.started(pid, now);
                        self.group.memory.started(rank, pid);
                    }
                    self.ranks.answer(
                        rank,
                        &Hear {
                            ok: true,
                            ..Hear::default()
                        },
                    );
                    if self.group.stop.is_some() {
                        // The stop came between hello and start.
                        self.ranks.answer(
                            rank,
                            &Hear {
                                signal: Some(libc::SIGTERM),
                                ..Hear::default()
                            },
                        );
                    }
                }
                Event::Exited { rank, exit, at_us } => {
                    self.rank_ended(rank, exit, at_us, now);
                    self.state.waiting_shims.push(rank);
                }
            }
        }
    }

    fn hello(&mut self, rank: u32, local_rank: u32, stdout: OwnedFd, stderr: OwnedFd) {
        let hear = if self.group.stop.is_some() || self.group.killing.is_some() {
            Hear {
                error: Some(STOPPED.into()),
                signal: Some(libc::SIGTERM),
                ..Hear::default()
            }
        } else {
            match self.take_rank(rank, local_rank, stdout, stderr) {
                Ok(()) => Hear {
                    ok: true,
                    ..Hear::default()
                },
                Err(e) => Hear {
                    error: Some(format!("{}: {e}", record::rank_log(rank))),
                    ..Hear::default()
                },
            }
        };
        self.ranks.answer(rank, &hear);
    }

    fn take_output(
        &mut self,
        id: u32,
        name: &str,
        stdout: OwnedFd,
        stderr: OwnedFd,
    ) -> io::Result<Output> {
        let log = Log::open(&self.logs, name, self.hold.log_bytes)?;
        let mouth = self.hold.echo.as_deref().filter(|_| id != LAUNCHER);
        let mouth = mouth.and_then(|path| {
            Mouth::open(path, &self.hold.name, id - 1)
                .inspect_err(|e| say!("{} {}: {e}", time::stamp(), path.display()))
                .ok()
        });
        let output = Output::new(log, mouth, stdout, stderr)?;
        for (side, fd) in output.open() {
            self.poll
                .add(fd, Source::Stream(id, side), Interest::Read)?;
        }
        Ok(output)
    }

    fn read_output(&mut self, id: u32, side: u8, now: Duration) {
        let output = match id {
            LAUNCHER => self.group.launcher.as_mut().map(|l| &mut l.output),
            rank => self.group.ranks.get_mut(&(rank - 1)).map(|r| &mut r.output),
        };
        let Some(output) = output else { return };
        let stepped = output.steps.first.is_some();
        let read = output.read(
            side,
            &mut self.state.buffer,
            &mut self.search,
            now,
            &time::stamp(),
        );
        let first_step = id != LAUNCHER && !stepped && output.steps.first.is_some();
        self.state.urgent |= first_step;
        self.state.show_lines = [self.state.show_lines, output.due()]
            .into_iter()
            .flatten()
            .min();
        match read {
            Read::Some => self.state.changed |= id != LAUNCHER,
            Read::Nothing => {}
            Read::End(fd) => self.poll.remove(fd),
        }
        if first_step {
            self.mind_phases(now, true);
        }
    }

    /// Writes the beginnings of lines that have waited long enough for their ends. Returns when to
    /// do so again.
    fn show_lines(&mut self, now: Duration) -> Option<Duration> {
        if self.state.show_lines.is_some_and(|due| due <= now) {
            let launcher = self
                .group
                .launcher
                .iter_mut()
                .map(|launcher| &mut launcher.output);
            let outputs =
                launcher.chain(self.group.ranks.values_mut().map(|rank| &mut rank.output));
            let stamp = time::stamp();
            let mut next = None;
            for output in outputs {
                output.show(&mut self.search, now, &stamp);
                next = [next, output.due()].into_iter().flatten().min();
            }
            (self.state.show_lines, self.state.changed) = (next, true);
        }
        self.state.show_lines
    }

    /// Notes a rank's end, after reading everything that the rank wrote.
    fn rank_ended(&mut self, rank: u32, exit: Exit, at_us: u64, now: Duration) {
        if let Some(entry) = self.group.ranks.get_mut(&rank) {
            let ended = entry.output.drain(
                &mut self.state.buffer,
                &mut self.search,
                now,
                &time::stamp(),
            );
            ended.iter().for_each(|fd| self.poll.remove(fd));
        }
        self.state
            .new_exits
            .extend(self.group.rank_ended(rank, exit, at_us));
        self.state.urgent = true;
    }

    /// Reaps all processes that have ended. True: no child is left. The launcher's end counts as
    /// its exit. A rank becomes our child only once its shim is gone.
    fn reap(&mut self, now: Duration) -> bool {
        loop {
            let (pid, exit) = match tree::reap() {
                Reaped::Living => return false,
                Reaped::NoChild => return true,
                Reaped::Ended(pid, status) => (pid, tree::exit_of(status)),
            };
            if self
                .group
                .launcher
                .as_ref()
                .is_some_and(|l| l.process.pid == pid)
            {
                if self.group.spec.is_none() && self.group.stop.is_none() {
                    self.forget_parked(exit, now);
                    continue;
                }
                if self.fall_back(exit, now) {
                    continue;
                }
                self.state
                    .new_exits
                    .extend(self.group.launcher_ended(exit, time::micros(now)));
                self.state.urgent = true;
            } else if let Some(rank) = self.group.rank_of(pid) {
                self.rank_ended(rank, exit, time::micros(now), now);
            }
        }
    }

    /// Puts the exits on disk with one sync, then tells their shims to end.
    fn write_exits(&mut self, now: Duration) {
        if !self.state.new_exits.is_empty() && self.state.next_exits.is_none_or(|at| now >= at) {
            match self.exits.append(&self.state.new_exits) {
                Ok(()) => {
                    self.state.new_exits.clear();
                    self.state.next_exits = None;
                }
                Err(e) => {
                    if self.state.next_exits.is_none() {
                        say!(
                            "{} {}: {e}; tried again every second",
                            time::stamp(),
                            record::EXITS
                        );
                    }
                    self.state.next_exits = Some(now + DISK_GAP);
                }
            }
        }
        // In a stop torchrun sees no rank end before all have.
        let (living, _) = self.group.rank_pids();
        if self.group.stop.is_some() && self.group.killing.is_none() && !living.is_empty() {
            return;
        }
        // A full disk keeps no rank from ending: the exit stays in memory until it can be written.
        for rank in std::mem::take(&mut self.state.waiting_shims) {
            self.ranks.answer(
                rank,
                &Hear {
                    ok: true,
                    ..Hear::default()
                },
            );
        }
    }

    pub(crate) fn status(&self, now: Duration) -> Status {
        let store = self.served.as_ref().map(Served::status);
        whole(&self.group, &self.hold, now, store, &self.search)
    }

    /// Pushes to subscribers, urgent news at once, and sends what the sockets take.
    fn tell(&mut self, now: Duration) {
        if self.state.urgent || (self.state.changed && now >= self.state.pushed + PUSH_GAP) {
            self.control.changed();
            (self.state.urgent, self.state.changed, self.state.pushed) = (false, false, now);
        }
        let Self {
            group,
            hold,
            served,
            control,
            poll,
            search,
            ..
        } = self;
        control.flush(poll, || {
            let store = served.as_ref().map(Served::status);
            Reply::status(None, whole(group, hold, now, store, search))
        });
    }

    /// Whether this runner may go: it was released, or nobody has come for long enough.
    fn rest(&mut self, now: Duration) -> Rest {
        let mut until = self.state.changed.then(|| self.state.pushed + PUSH_GAP);
        let store_clients = self.served.as_ref().map(Served::clients);
        if self.control.clients() > 0 || store_clients.is_some_and(|n| n > 0) {
            self.state.lonely_since = now;
        }
        let idle = match (self.group.phase(), store_clients) {
            (Phase::Dead, _) if self.state.released && !self.control.unsent() => return Rest::Go,
            (Phase::Dead, _) if !self.state.outcome_written => None,
            // Nobody reads how a launcher ended.
            (Phase::Dead, _) if self.hold.launcher => return Rest::Go,
            (Phase::Dead, None) => Some(DEAD_IDLE),
            (Phase::Dead, Some(_)) => Some(STORE_IDLE),
            (Phase::Holding, _) => Some(Duration::from_millis(self.hold.idle_timeout_ms)),
            (Phase::Running | Phase::Stopping, _) => None,
        };
        if let Some(idle) = idle {
            let goes = self.state.lonely_since.saturating_add(idle);
            if now >= goes {
                if self.group.launcher.is_none() || self.group.phase() == Phase::Dead {
                    return Rest::Go;
                }
                self.stop(now, Duration::ZERO, "nobody has started it");
                return Rest::Until(Some(now));
            }
            if self.control.clients() == 0 {
                until = Some(until.map_or(goes, |u| u.min(goes)));
            }
        }
        Rest::Until(until)
    }
}

fn whole(
    group: &Group,
    hold: &Hold,
    now: Duration,
    store: Option<StoreStatus>,
    search: &Search,
) -> Status {
    Status {
        step_pattern_fault: search.fault,
        ..group.status(hold, now, store)
    }
}

enum Rest {
    Go,
    Until(Option<Duration>),
}
