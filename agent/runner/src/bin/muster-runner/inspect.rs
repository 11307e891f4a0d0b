//! Asks ranks where they are: CPython's own handler for the stacks, torch's worker server over its socket for the
//! collectives, and the kernel for what does not answer.
//!
//! Nothing here waits: connections are part of the runner's one loop, and whatever has not answered in time
//! is left out. A rank may be stopped, may hold its interpreter's lock for ever, or may write whatever it
//! likes into its socket. So bytes ([`muster_inspect::ANSWER_MAX`]), connections ([`AT_A_TIME`]) and time
//! ([`PATIENCE`], [`LIMIT`]) are bounded, and one question is answered at a time.

mod arrivals;
mod ask;
mod dump;

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use muster_inspect::{Question, positions, threads};
use muster_runner::Folder;
use muster_runner::procfs::{self, Stat};
use muster_runner::wire::{
    ArrivalsStatus, Position, ProcessLook, RankStacks, Refusal, RefusalKind, worker_server,
};

use crate::inspect::arrivals::Arrivals;
use crate::inspect::ask::{Ask, Heard};
use crate::inspect::dump::Dump;
use crate::poll::Poll;
use crate::time::micros;

/// How long a rank may take. On an H200 its server took 6 to 8 ms, and the stacks take less than 1 ms once the
/// process gets a processor.
const PATIENCE: Duration = Duration::from_millis(1_000);
/// Over how long the processor time of a rank without stacks is measured.
const SAMPLE: Duration = Duration::from_millis(200);
/// How long a question may take, however many ranks it is about.
const LIMIT: Duration = Duration::from_millis(3_000);
/// How many ranks are asked at the same time. Each takes two connections.
const AT_A_TIME: usize = 64;
/// How often a file of stacks is looked at while it is awaited.
const LOOK: Duration = Duration::from_millis(20);

/// A rank that is asked for.
pub(crate) enum Target {
    Living {
        rank: u32,
        pid: i32,
        start_time: u64,
    },
    /// It does not run.
    Not(RankStacks),
}

/// Who asked: the client and its request.
type Asker = (u32, u64);

#[derive(Default)]
pub(crate) struct Inspector {
    current: Option<Inspection>,
    /// Connections by their number.
    asks: BTreeMap<u32, Ask>,
    next: u32,
    /// The looks at when ranks come to their collectives.
    arrivals: Arrivals,
}

struct Inspection {
    asker: Asker,
    waiting: VecDeque<Look>,
    looks: Vec<Look>,
    done: Vec<RankStacks>,
    until: Duration,
}

/// One rank that is being asked.
struct Look {
    found: RankStacks,
    start_time: u64,
    begun: Duration,
    cpu: Duration,
    /// The stacks that the interpreter was told to write.
    dump: Option<Dump>,
    /// The questions that have not been answered.
    open: Vec<Question>,
}

impl Inspector {
    pub(crate) fn begin(
        &mut self,
        targets: Vec<Target>,
        asker: Asker,
        now: Duration,
        poll: &Poll,
    ) -> Result<(), Refusal> {
        if self.current.is_some() {
            let text = "somebody else is asking where its ranks are: ask again in a moment";
            return Err(Refusal::new(RefusalKind::Busy, text));
        }
        let mut current = Inspection {
            asker,
            waiting: VecDeque::new(),
            looks: Vec::new(),
            done: Vec::new(),
            until: now + LIMIT,
        };
        for target in targets {
            match target {
                Target::Not(stacks) => current.done.push(stacks),
                Target::Living {
                    rank,
                    pid,
                    start_time,
                } => current.waiting.push_back(Look::new(rank, pid, start_time)),
            }
        }
        self.current = Some(current);
        self.take_more(now, poll);
        Ok(())
    }

    /// Asks as many of the ranks that wait as may be asked now.
    fn take_more(&mut self, now: Duration, poll: &Poll) {
        let Some(mut current) = self.current.take() else {
            return;
        };
        while current.looks.len() < AT_A_TIME
            && let Some(mut look) = current.waiting.pop_front()
        {
            self.ask(&mut look, now, poll);
            current.looks.push(look);
        }
        self.current = Some(current);
    }

    fn ask(&mut self, look: &mut Look, now: Duration, poll: &Poll) {
        if !look.begin(now) {
            return;
        }
        let rank = look.found.rank;
        let server = Folder::trusted(Path::new("."));
        for question in Question::ALL {
            let stream = server.as_ref().map_err(|e| e.kind()).and_then(|folder| {
                let stream = folder.connect_at_once(worker_server(rank));
                stream.map_err(|e| e.kind())
            });
            let asked = match stream {
                Ok(stream) => {
                    Ask::begin(stream, rank, question, question.request(), self.next, poll)
                        .map_err(|e| format!("its worker server cannot be asked: {e}"))
                }
                Err(ErrorKind::NotFound) => Err(dump::why_no_server(rank)),
                Err(kind) => Err(format!("its worker server cannot be reached: {kind}")),
            };
            match asked {
                Ok(ask) => {
                    self.asks.insert(self.next, ask);
                    self.next = self.next.wrapping_add(1);
                }
                Err(why) => look.heard(question, Err(why)),
            }
        }
    }

    /// A connection has something to read, or has ended.
    pub(crate) fn hear(&mut self, id: u32, poll: &Poll) {
        if self.arrivals.hear(id, poll) {
            return;
        }
        if let Some(ask) = self.asks.get_mut(&id) {
            ask.read(poll);
        }
    }

    /// Goes on. Returns the answer once it is complete, and when to come back.
    pub(crate) fn mind(
        &mut self,
        now: Duration,
        poll: &Poll,
    ) -> (Option<(Asker, Vec<RankStacks>)>, Option<Duration>) {
        self.hand_out();
        let Some(current) = &mut self.current else {
            return (None, None);
        };
        let over = now >= current.until;
        let mut kept = Vec::new();
        for mut look in std::mem::take(&mut current.looks) {
            if look.mind(now) || over {
                let rank = look.found.rank;
                self.asks.retain(|_, ask| {
                    let stays = ask.rank != rank;
                    if !stays {
                        ask.end(poll);
                    }
                    stays
                });
                current.done.push(look.end(now));
            } else {
                kept.push(look);
            }
        }
        current.looks = kept;
        if over {
            for look in current.waiting.drain(..) {
                current.done.push(RankStacks {
                    why: Some("there was no time to ask it: ask for fewer ranks".into()),
                    ..look.found
                });
            }
        }
        self.take_more(now, poll);
        match self.current.take_if(|c| c.looks.is_empty()) {
            Some(current) => {
                let mut done = current.done;
                done.sort_by_key(|stacks| stacks.rank);
                (Some((current.asker, done)), None)
            }
            None => {
                let looks = self.current.iter().flat_map(|c| &c.looks);
                (None, looks.map(Look::due).min())
            }
        }
    }

    /// Goes on with the looks at when these ranks come to their collectives. See [`Arrivals::mind`].
    pub(crate) fn mind_arrivals(
        &mut self,
        ranks: &[u32],
        now: Duration,
        poll: &Poll,
    ) -> (Option<BTreeMap<u32, ArrivalsStatus>>, Option<Duration>) {
        self.arrivals.mind(ranks, &mut self.next, now, poll)
    }

    /// Gives each rank the answers that have come.
    fn hand_out(&mut self) {
        let Some(current) = &mut self.current else {
            return;
        };
        for look in &mut current.looks {
            let rank = look.found.rank;
            let done = |ask: &Ask| ask.rank == rank && ask.is_done();
            for ask in self.asks.extract_if(.., |_, ask| done(ask)) {
                look.hear(ask.1.question, ask.1.answer());
            }
        }
    }
}

impl Look {
    fn new(rank: u32, pid: i32, start_time: u64) -> Self {
        let process = ProcessLook {
            pid,
            ..ProcessLook::default()
        };
        Look {
            found: RankStacks {
                rank,
                process: Some(process),
                ..RankStacks::default()
            },
            start_time,
            begun: Duration::ZERO,
            cpu: Duration::ZERO,
            dump: None,
            open: Question::ALL.to_vec(),
        }
    }

    fn pid(&self) -> i32 {
        self.found.process.as_ref().map_or(0, |process| process.pid)
    }

    /// Has the interpreter write its stacks. False: there is nobody to ask.
    fn begin(&mut self, now: Duration) -> bool {
        self.begun = now;
        self.cpu = procfs::cpu_time(self.pid()).unwrap_or_default();
        let is_stopped = |stat: Stat| matches!(stat.state, b'T' | b't');
        if Stat::of(self.pid()).is_ok_and(is_stopped) {
            // It would answer when it goes on, which may be never.
            self.open.clear();
            self.miss("it is stopped, so it cannot answer".to_owned());
            return false;
        }
        match Dump::begin(self.found.rank, self.pid(), self.start_time, now) {
            Ok(dump) => self.dump = Some(dump),
            Err(why) => self.miss(why),
        }
        true
    }

    /// Notes why something is missing. The first reason says most.
    fn miss(&mut self, why: String) {
        self.found.why.get_or_insert(why);
    }

    fn hear(&mut self, question: Question, heard: Heard) {
        match heard {
            // Only one of the two recorders is there, as a rule.
            Heard::NoHandler => self.open.retain(|open| *open != question),
            Heard::Body(body) => self.heard(question, Ok(body)),
            Heard::Nothing(why) => self.heard(question, Err(why)),
        }
    }

    fn heard(&mut self, question: Question, heard: Result<Vec<u8>, String>) {
        self.open.retain(|open| *open != question);
        match heard.and_then(|body| positions(&body)) {
            // A script may have groups of both kinds, and the two recorders may be the same one.
            Ok(more) => {
                let known = |p: &Position| self.found.positions.contains(p);
                let more: Vec<Position> = more.into_iter().filter(|p| !known(p)).collect();
                self.found.positions.extend(more);
            }
            Err(why) => self.miss(why),
        }
    }

    /// Whether there is nothing more to wait for.
    fn mind(&mut self, now: Duration) -> bool {
        if let Some(dump) = &mut self.dump
            && let Some(text) = dump.look()
        {
            self.found.threads = threads(&text);
            self.dump = None;
            if self.found.threads.is_empty() {
                self.miss("its interpreter names no Python frame".to_owned());
            }
        }
        if now >= self.begun + PATIENCE {
            if self.dump.take().is_some() {
                self.miss("its interpreter wrote no stacks when it was told to".to_owned());
            }
            if !self.open.is_empty() {
                self.open.clear();
                self.miss("its worker server did not answer".to_owned());
            }
        }
        let sampled = !self.found.threads.is_empty() || now >= self.begun + SAMPLE;
        self.dump.is_none() && self.open.is_empty() && sampled
    }

    /// When there may be something to do.
    fn due(&self) -> Duration {
        match &self.dump {
            Some(dump) => dump.looked + LOOK,
            None if self.open.is_empty() => self.begun + SAMPLE,
            None => self.begun + PATIENCE,
        }
    }

    /// What was found, with what the kernel says now.
    fn end(mut self, now: Duration) -> RankStacks {
        let Some(look) = &mut self.found.process else {
            return self.found;
        };
        let pid = look.pid;
        let same = |stat: &Stat| stat.start_time == self.start_time;
        match Stat::of(pid).ok().filter(same) {
            Some(stat) => {
                look.state = char::from(stat.state).to_string();
                look.threads = stat.threads;
                look.wchan = procfs::wchan(pid);
                look.children = procfs::children(pid) as u32;
                let cpu = procfs::cpu_time(pid).unwrap_or_default();
                look.cpu_us = micros(cpu.saturating_sub(self.cpu));
                look.over_us = micros(now.saturating_sub(self.begun));
            }
            None => {
                self.found.process = None;
                self.found.why = Some("it has ended".to_owned());
            }
        }
        self.found
    }
}
