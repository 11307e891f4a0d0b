//! The world: the brains of coordinator and agents, which are the very code of production, in a
//! simulation with one thread, one virtual clock and one seed. Everything that can break does
//! break, and the rules are checked after every event.
//!
//! | file | owns |
//! |---|---|
//! | `world` | all state, and the place where events happen |
//! | `event`, `queue` | what is still to happen |
//! | `plan`, `fault`, `strike`, `leaver` | what kind of world a seed makes, and what goes wrong in it |
//! | `coordinator`, `store` | the coordinator's shell: commit, then act |
//! | `agent`, `network` | the agents' shells, and their connections |
//! | `disk` | the disk below an agent's ledger |
//! | `machine`, `runner`, `training` | power, disks, processes; ranks that train together |
//! | `leftovers` | processes that outlive their runner |
//! | `fence` | workers that live by the coordinator's word |
//! | `standstill` | machines that stand still as a whole |
//! | `stalls`, `looks` | ranks that stand still, and the looks at them |
//! | `strangers` | agents and machines that are not what their name says |
//! | `namesake` | a second machine with the name of a node whose workers live |
//! | `operator` | what a person does about it |
//! | `users` | submissions and other requests |
//! | `cluster` | a Kubernetes cluster: Node objects, and people who cordon them |
//! | `pods` | worker pods: an API server, a scheduler, kubelets, and what goes wrong with them |
//! | `truth`, `troubles` | what really happened, for the checks only |
//! | `blame` | what the coordinator says of it, and how that compares |
//! | `invariants`, `liveness` | the rules |
//! | `shrink`, `log` | a history that broke a rule, made smaller and written down for `muster replay` |
//! | `receivers` | who is told of what happens |
//! | `campaign`, `record` | many seeds and their results: REPORT.md |
//! | `clock` | clocks that jump and drift |
//! | `planted` | mistakes that are put in on purpose, to see the checks fail |
//!
//! To replay a seed: `cargo run -p muster-world -- --seed N --log`.
#![forbid(unsafe_code)]

// The same brains, with mistakes that can be switched on.
#[cfg(feature = "planted")]
extern crate muster_planted as muster_core;

use std::{collections::BTreeMap, fmt, time::Duration};

use muster_core::time::Timestamp;

mod agent;
mod ages;
pub mod blame;
pub mod campaign;
mod clock;
mod cluster;
mod commit;
mod coordinator;
mod crowd;
mod disk;
mod event;
mod fault;
mod fence;
mod invariants;
mod leaver;
mod leftovers;
mod liveness;
pub mod log;
mod looks;
mod machine;
mod namesake;
mod network;
mod operator;
mod pairs;
mod plan;
mod planted;
mod pods;
mod prewarm;
mod queue;
mod receivers;
pub mod record;
mod restarts;
mod rng;
mod runner;
pub mod shrink;
mod stalls;
mod standstill;
mod store;
mod strangers;
mod strike;
mod tell;
mod trace;
mod training;
mod troubles;
mod truth;
mod users;
mod words;
mod world;

pub use fault::Fault;
pub use plan::{Cut, Size};
pub use planted::Planted;

/// How to run a seed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub size: Size,
    pub cut: Cut,
    pub planted: Option<Planted>,
    /// Keep the last lines of the log.
    pub log: bool,
    /// Keep all lines, for a file.
    pub whole: bool,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The number of the rule: see [`invariants`](self), or the table in REPORT.md.
    pub rule: &'static str,
    pub what: String,
}

/// What happened in the world of one seed.
#[derive(Clone, Debug)]
pub struct Report {
    pub violation: Option<Violation>,
    /// Equal histories have equal hashes.
    pub hash: u64,
    /// The last lines of the log if it was kept, and in `whole` all of them with their times.
    pub lines: Vec<String>,
    pub whole: Vec<(Timestamp, String)>,
    pub faults: BTreeMap<Fault, u64>,
    /// The coordinator's blames, each compared with the truth.
    pub blames: BTreeMap<blame::Blame, u64>,
    pub events: u64,
    pub generations: u64,
    pub steps: u64,
    /// The parts of the history. [`shrink`] needs them to make it smaller.
    pub strikes: u64,
    pub machines: usize,
    pub jobs: usize,
    pub trouble: Duration,
    pub lasted: Duration,
    pub kinds: Vec<Fault>,
}

/// Runs the world of one seed to its end.
pub fn run(seed: u64, options: &Options) -> Report {
    world::World::new(seed, options).run()
}

/// A violation, with all that is needed to reproduce it.
pub struct Story {
    pub seed: u64,
    pub options: Options,
    pub violation: Violation,
    pub lines: Vec<String>,
}

impl Story {
    /// Runs a seed that broke a rule again, now with its log.
    pub fn tell(seed: u64, options: &Options) -> Option<Self> {
        let options = Options {
            log: true,
            ..options.clone()
        };
        let report = run(seed, &options);
        Some(Self {
            seed,
            options,
            violation: report.violation?,
            lines: report.lines,
        })
    }
}

impl Story {
    /// The command that runs this seed again.
    pub fn command(seed: u64, options: &Options) -> String {
        let mut command = format!("cargo run -p muster-world -- --seed {seed} --log");
        if options.size != Size::default() {
            command += &format!(" --size {}", format!("{:?}", options.size).to_lowercase());
        }
        if options.cut != Cut::default() {
            command += &format!(" --cut {}", options.cut);
        }
        if let Some(planted) = options.planted {
            command += &format!(" --planted {planted}");
        }
        command
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines
            .iter()
            .try_for_each(|line| writeln!(f, "  {line}"))?;
        writeln!(
            f,
            "seed {} breaks {}: {}",
            self.seed, self.violation.rule, self.violation.what
        )?;
        write!(f, "again: {}", Self::command(self.seed, &self.options))
    }
}
