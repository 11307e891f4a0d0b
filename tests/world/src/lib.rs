//! The world: the brains of coordinator and agents, the very code that runs in production, in a world of one thread, one virtual clock and
//! one seed, where everything that can break does; and checks of the rules after every event.
//!
//! | file | owns |
//! |---|---|
//! | `world` | everything that is, and where events happen |
//! | `event`, `queue` | what is still to happen |
//! | `plan`, `fault`, `strike` | what kind of world a seed makes, and what goes wrong in it |
//! | `coordinator`, `store` | the coordinator's shell: commit, then act |
//! | `agent`, `network` | the agents' shells, and their connections |
//! | `machine`, `runner`, `training` | power, disks, processes; worlds that train |
//! | `users` | submissions and other requests |
//! | `truth` | what really happened, for the checks only |
//! | `invariants`, `liveness` | the rules |
//! | `planted` | mistakes put in on purpose, to see the checks go red |
//!
//! A seed is replayed with `cargo run -p muster-world -- --seed N --log`.
#![forbid(unsafe_code)]

use std::{collections::BTreeMap, fmt};

mod agent;
mod ages;
mod coordinator;
mod event;
mod fault;
mod invariants;
mod liveness;
mod machine;
mod network;
mod plan;
mod planted;
mod queue;
mod rng;
mod runner;
mod store;
mod strike;
mod trace;
mod training;
mod truth;
mod users;
mod words;
mod world;

pub use fault::Fault;
pub use planted::Planted;

/// How to run a seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub planted: Option<Planted>,
    /// Keep the last lines of the log.
    pub log: bool,
    /// Print every line as it happens.
    pub print: bool,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its number in DESIGN 6.
    pub rule: &'static str,
    pub what: String,
}

/// What one seed led to.
#[derive(Clone, Debug)]
pub struct Report {
    pub violation: Option<Violation>,
    /// Equal for equal histories.
    pub hash: u64,
    /// The last lines of the log, if it was kept.
    pub lines: Vec<String>,
    pub faults: BTreeMap<Fault, u64>,
    pub events: u64,
    pub generations: u64,
    pub steps: u64,
}

/// Runs the world of one seed to its end.
pub fn run(seed: u64, options: &Options) -> Report {
    world::World::new(seed, options).run()
}

/// A violation with all that is needed to see it again.
pub struct Story {
    pub seed: u64,
    pub planted: Option<Planted>,
    pub violation: Violation,
    pub lines: Vec<String>,
}

impl Story {
    /// Runs a seed that broke a rule once more, this time with its log.
    pub fn tell(seed: u64, planted: Option<Planted>) -> Option<Self> {
        let report = run(seed, &Options { planted, log: true, print: false });
        Some(Self { seed, planted, violation: report.violation?, lines: report.lines })
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        writeln!(f, "seed {} breaks {}: {}", self.seed, self.violation.rule, self.violation.what)?;
        write!(f, "replay: cargo run -p muster-world -- --seed {} --log", self.seed)?;
        match self.planted {
            Some(planted) => write!(f, " --planted {planted}"),
            None => Ok(()),
        }
    }
}
