//! A synthetic trace: which jobs come when, what they ask for, and how much work they are.
//!
//! It begins in the middle of a fleet's life. Run times have a long tail, so a fleet that began empty would take weeks to reach its load:
//! jobs that are under way come first, with what is left of them. After these, jobs come independently of each other.
//!
//! A job's work is the GPU-seconds that it takes with as many GPUs as it wanted. Some of the jobs with several GPUs are elastic: they
//! may have half or a quarter of their members, and some of them twice as many. Whether a job is elastic is part of the trace; a fleet
//! without elasticity gives each what it wanted.

use std::time::Duration;

use muster_core::time::Timestamp;

use super::{
    rng::Rng,
    shape::{Shape, Size},
};

/// GPUs of the largest member.
const MEMBER_MAX: u32 = 8;
/// An elastic job has so many members, if it has as many GPUs and none gets too large.
const MEMBERS: u32 = 4;
/// When the trace begins.
pub(super) const START: Timestamp = Timestamp(1_000_000_000);

/// What a trace is made from.
#[derive(Clone, Copy)]
pub(super) struct Params {
    pub(super) nodes: usize,
    /// GPUs that jobs want on average, as a share of all.
    pub(super) load: f64,
    /// Which share of the jobs with several GPUs is elastic.
    pub(super) elastic: f64,
    /// Which share of these may have twice what it wanted.
    pub(super) grows: f64,
    /// How long jobs come.
    pub(super) length: Duration,
    /// Nothing is measured before.
    pub(super) warm_up: Duration,
    pub(super) seed: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Job {
    pub(super) at: Timestamp,
    pub(super) gpus_per_member: u32,
    /// Members.
    pub(super) wanted: u32,
    pub(super) min: u32,
    pub(super) max: u32,
    /// GPU-seconds.
    pub(super) work: f64,
    /// It came within the time that is measured.
    pub(super) counts: bool,
}

impl Job {
    pub(super) fn gpus_wanted(&self) -> u32 {
        self.wanted * self.gpus_per_member
    }

    pub(super) fn is_elastic(&self) -> bool {
        self.min < self.max
    }

    /// How fast so many members work, in GPU-seconds a second. `efficiency` is what each GPU still does when there are twice as many.
    pub(super) fn speed(&self, members: u32, efficiency: f64) -> f64 {
        let times = f64::from(members) / f64::from(self.wanted);
        f64::from(self.gpus_wanted()) * times * efficiency.powf(times.log2())
    }
}

pub(super) struct Trace {
    /// The GPUs of each node.
    pub(super) nodes: Vec<u32>,
    /// In the order in which they come.
    pub(super) jobs: Vec<Job>,
    /// What is measured.
    pub(super) window: (Timestamp, Timestamp),
}

impl Trace {
    pub(super) fn new(shape: &Shape, params: Params) -> Self {
        let mut rng = Rng::new(params.seed);
        let nodes = shape.fleet(params.nodes);
        let gpus: u32 = nodes.iter().sum();
        let demanded = f64::from(gpus) * params.load;
        let window = (START + params.warm_up, START + params.length);
        let mut jobs = Vec::new();
        let mut under_way = 0.0;
        while under_way < demanded {
            let size = pick(shape, Size::running, &mut rng);
            let seconds = size.run_times.draw_met(&mut rng) * rng.unit();
            under_way += f64::from(size.gpus);
            jobs.push(job(START, size, seconds, params, &mut rng));
        }
        let gap = shape.mean_work() / demanded;
        let mut at = START + seconds(rng.gap(gap));
        while at < window.1 {
            let size = pick(shape, |size| size.share, &mut rng);
            let run_time = size.run_times.draw(&mut rng);
            let counts = at >= window.0;
            jobs.push(Job {
                counts,
                ..job(at, size, run_time, params, &mut rng)
            });
            at = at + seconds(rng.gap(gap));
        }
        Self {
            nodes,
            jobs,
            window,
        }
    }

    pub(super) fn gpus(&self) -> u32 {
        self.nodes.iter().sum()
    }

    /// How long the time is that is measured, in seconds.
    pub(super) fn measured(&self) -> f64 {
        self.window.1.since(self.window.0).as_secs_f64()
    }
}

/// One of the sizes, by these weights.
fn pick<'s>(shape: &'s Shape, weight: impl Fn(&Size) -> f64, rng: &mut Rng) -> &'s Size {
    let mut left = rng.unit() * shape.sizes.iter().map(&weight).sum::<f64>();
    let found = shape.sizes.iter().find(|size| {
        left -= weight(size);
        left < 0.0
    });
    found.unwrap_or(&shape.sizes[0])
}

fn job(at: Timestamp, size: &Size, seconds: f64, params: Params, rng: &mut Rng) -> Job {
    let elastic = size.gpus > 1 && rng.happens(params.elastic);
    let gpus_per_member = match elastic {
        true => (size.gpus / MEMBERS).clamp(1, MEMBER_MAX),
        false => size.gpus.min(MEMBER_MAX),
    };
    let wanted = size.gpus / gpus_per_member;
    let (shrinks, grows) = (
        if rng.happens(0.5) { 2 } else { 4 },
        rng.happens(params.grows),
    );
    Job {
        at,
        gpus_per_member,
        wanted,
        min: if elastic {
            (wanted / shrinks).max(1)
        } else {
            wanted
        },
        max: if elastic && grows { 2 * wanted } else { wanted },
        work: f64::from(size.gpus) * seconds,
        counts: false,
    }
}

/// As a period of the brain's clock, which has microseconds.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::from_micros((seconds * 1e6).round() as u64)
}
