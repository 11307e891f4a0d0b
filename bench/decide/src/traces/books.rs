//! What is written down while a trace is played, whoever decides: the life of each job, and what the GPUs did.

use std::{collections::BTreeSet, time::Duration};

use muster_core::time::Timestamp;

use super::{free::Free, trace::Trace};

/// A job that came less than this ago is about to start, and does not wait yet.
const STARTS: Duration = Duration::from_secs(1);

/// The life of one job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Life {
    /// When its first generation began.
    pub(super) began: Option<Timestamp>,
    pub(super) ended: Option<Timestamp>,
    /// How often it began.
    pub(super) worlds: u32,
    pub(super) evicted: u32,
}

/// What is written down.
#[derive(Debug, PartialEq)]
pub(super) struct Books {
    window: (Timestamp, Timestamp),
    pub(super) lives: Vec<Life>,
    /// Those that came and have never begun, in the order in which they came.
    pub(super) waiting: BTreeSet<usize>,
    /// Since when the two rates below hold.
    since: Timestamp,
    /// GPUs of jobs that run.
    held: u32,
    /// GPU-seconds of work in a second.
    speed: f64,
    /// GPU-seconds in the window.
    pub(super) held_seconds: f64,
    pub(super) work: f64,
    pub(super) looks: Looks,
}

/// What was seen once in a minute of the window, if somebody waited.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Looks {
    pub(super) all: u32,
    pub(super) somebody_waits: u32,
    /// GPUs that were free, and those of them that the job that had waited longest could not use.
    pub(super) free: u64,
    pub(super) fragmented: u64,
    /// Some job that waited would have found room.
    pub(super) one_would_fit: u32,
    /// How many GPUs were free then.
    pub(super) free_then: u64,
    pub(super) waiting: u64,
}

impl Books {
    pub(super) fn new(trace: &Trace) -> Self {
        Self {
            window: trace.window,
            lives: vec![Life::default(); trace.jobs.len()],
            waiting: BTreeSet::new(),
            since: trace.window.0,
            held: 0,
            speed: 0.0,
            held_seconds: 0.0,
            work: 0.0,
            looks: Looks::default(),
        }
    }

    pub(super) fn submitted(&mut self, job: usize) {
        self.waiting.insert(job);
    }

    pub(super) fn begins(&mut self, job: usize, now: Timestamp, gpus: u32, speed: f64) {
        self.settle(now);
        self.held += gpus;
        self.speed += speed;
        self.waiting.remove(&job);
        let life = &mut self.lives[job];
        life.began.get_or_insert(now);
        life.worlds += 1;
    }

    /// It holds these GPUs no longer.
    pub(super) fn stops(&mut self, now: Timestamp, gpus: u32, speed: f64) {
        self.settle(now);
        self.held -= gpus;
        self.speed -= speed;
    }

    pub(super) fn ends(&mut self, job: usize, now: Timestamp) {
        self.lives[job].ended = Some(now);
    }

    /// So many GPU-seconds were not work, but a start.
    pub(super) fn lost(&mut self, now: Timestamp, work: f64) {
        if self.is_measured(now) {
            self.work -= work;
        }
    }

    pub(super) fn is_measured(&self, now: Timestamp) -> bool {
        now >= self.window.0 && now < self.window.1
    }

    fn settle(&mut self, now: Timestamp) {
        let until = now.min(self.window.1);
        let seconds = until.since(self.since).as_secs_f64();
        self.held_seconds += f64::from(self.held) * seconds;
        self.work += self.speed * seconds;
        self.since = self.since.max(until);
    }

    /// The end of the window has passed.
    pub(super) fn close(&mut self) {
        self.settle(self.window.1);
    }

    /// Looks at who waits beside what is free. `least` says how many members a job must have at least.
    pub(super) fn look(
        &mut self,
        trace: &Trace,
        now: Timestamp,
        free: &Free,
        least: impl Fn(usize) -> u32,
    ) {
        let looks = &mut self.looks;
        looks.all += 1;
        let waits = |job: &&usize| now.since(trace.jobs[**job].at) >= STARTS;
        let mut waiting = self.waiting.iter().filter(waits);
        let Some(first) = waiting.clone().next() else {
            return;
        };
        looks.somebody_waits += 1;
        looks.waiting += waiting.clone().count() as u64;
        let gpus = trace.jobs[*first].gpus_per_member;
        looks.free += u64::from(free.gpus());
        looks.fragmented += u64::from(free.gpus() - free.members(gpus) * gpus);
        let fits = |job: &usize| free.members(trace.jobs[*job].gpus_per_member) >= least(*job);
        if waiting.any(fits) {
            looks.one_would_fit += 1;
            looks.free_then += u64::from(free.gpus());
        }
    }
}
