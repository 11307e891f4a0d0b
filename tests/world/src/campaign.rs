//! Runs many seeds on a given number of threads, and sums up the results. Each seed is a world of
//! its own. The threads share only the sums.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{Fault, Options, Report, Violation, blame::Blame};

/// The result of a range of seeds.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub seeds: u64,
    pub events: u64,
    pub generations: u64,
    pub steps: u64,
    /// The time that passed on the worlds' clocks, summed up.
    pub lasted: Duration,
    pub faults: BTreeMap<Fault, u64>,
    pub blames: BTreeMap<Blame, u64>,
    /// The violations in the order in which they were found. With several threads that is not the
    /// order of the seeds.
    pub violations: Vec<(u64, Violation)>,
}

impl Totals {
    fn add(&mut self, seed: u64, report: Report) {
        self.seeds += 1;
        self.events += report.events;
        self.generations += report.generations;
        self.steps += report.steps;
        self.lasted += report.lasted;
        for (fault, count) in report.faults {
            *self.faults.entry(fault).or_insert(0) += count;
        }
        for (blame, count) in report.blames {
            *self.blames.entry(blame).or_insert(0) += count;
        }
        self.violations
            .extend(report.violation.map(|violation| (seed, violation)));
    }

    pub fn faults_total(&self) -> u64 {
        self.faults.values().sum()
    }
}

/// Runs seeds to the end, or until a given number of them has broken a rule. `told` is called for
/// every finished seed.
pub fn run(
    seeds: Range<u64>,
    options: &Options,
    threads: usize,
    enough: usize,
    told: impl Fn(&Totals) + Sync,
) -> Totals {
    let (next, totals) = (AtomicU64::new(seeds.start), Mutex::new(Totals::default()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end
                        || totals.lock().expect("no seed panics").violations.len() >= enough
                    {
                        break;
                    }
                    let report = crate::run(seed, options);
                    let mut totals = totals.lock().expect("no seed panics");
                    totals.add(seed, report);
                    told(&totals);
                }
            });
        }
    });
    totals.into_inner().expect("no seed panics")
}
