//! `muster-decidebench traces`: synthetic traces with the run times and sizes of two real clusters, played against the real brain in
//! virtual time, beside the same jobs without elasticity and beside plain first-fit.
//!
//! | file | owns |
//! |---|---|
//! | `rng` | chance |
//! | `run_times` | a distribution that is known by some of its quantiles |
//! | `shape` | what is known of the two clusters |
//! | `trace` | which jobs come when, and how much work they are |
//! | `free` | which GPUs no job holds |
//! | `books` | the life of each job, and what the GPUs did |
//! | `agent` | a simulated agent |
//! | `play` | a trace against the brain |
//! | `first_fit` | a trace against the plainest scheduler |
//! | `summary`, `table` | what is said of it |

mod agent;
mod books;
mod first_fit;
mod free;
mod play;
mod rng;
mod run_times;
mod shape;
mod summary;
mod table;
#[cfg(test)]
mod tests;
mod trace;

use std::time::Duration;

use clap::{Args, ValueEnum};
use play::{Sizes, World};
use shape::Shape;
use summary::{Summary, summary};
use trace::{Params, Trace, seconds};

/// Plays synthetic traces against the brain, in virtual time.
#[derive(Args)]
pub(crate) struct TracesArgs {
    /// Which trace
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "philly,openb"
    )]
    trace: Vec<Kind>,
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    nodes: usize,
    /// GPUs that jobs want on average, in percent of all
    #[arg(
        long,
        value_name = "PERCENT,...",
        value_delimiter = ',',
        default_value = "90"
    )]
    load: Vec<f64>,
    /// Which share of the jobs with several GPUs is elastic
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0)]
    elastic: f64,
    /// Which share of the elastic jobs may have twice what they wanted
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0)]
    grows: f64,
    /// After how long a job that waits keeps room from those that came later; as `--reserve-after` of the coordinator
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    reserve_after: u64,
    /// For how long jobs come
    #[arg(long, value_name = "HOURS", default_value_t = 1.5)]
    hours: f64,
    /// How much of that passes before anything is measured
    #[arg(long, value_name = "HOURS", default_value_t = 0.5)]
    warm_up: f64,
    /// For how long a job that begins, or begins anew in another size, does no work
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    start_cost: f64,
    /// What each GPU of a job still does when the job has twice as many. 100: two worlds of half the size are as fast as one
    #[arg(long, value_name = "PERCENT", default_value_t = 100.0)]
    efficiency: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Philly,
    Openb,
}

impl Kind {
    fn shape(self) -> &'static Shape {
        match self {
            Kind::Philly => &shape::PHILLY,
            Kind::Openb => &shape::OPENB,
        }
    }
}

/// Who places the jobs of a trace.
const MUSTER: [(&str, Sizes); 3] = [
    ("Muster, elastic", Sizes::Elastic),
    ("Muster, elastic jobs yield", Sizes::Yielding),
    (FIXED, Sizes::Fixed),
];
const FIXED: &str = "Muster, fixed sizes";
const FIRST_FIT: &str = "first-fit, fixed sizes";

pub(crate) fn run(args: &TracesArgs) {
    let mut all = Vec::new();
    for kind in &args.trace {
        for load in &args.load {
            let trace = Trace::new(kind.shape(), args.params(*load));
            if !args.json {
                table::begin(kind.shape(), &trace, args, *load);
            }
            all.extend(args.play(kind.shape(), &trace, *load));
        }
    }
    if args.json {
        let text = serde_json::to_string_pretty(&all).expect("numbers and texts");
        println!("{text}");
    } else {
        table::end();
    }
}

impl TracesArgs {
    fn params(&self, load: f64) -> Params {
        Params {
            nodes: self.nodes,
            load: load / 100.0,
            elastic: self.elastic / 100.0,
            grows: self.grows / 100.0,
            length: seconds(self.hours * 3_600.0),
            warm_up: seconds(self.warm_up * 3_600.0),
            seed: self.seed,
        }
    }

    /// The trace under each scheduler.
    fn play(&self, shape: &Shape, trace: &Trace, load: f64) -> Vec<Summary> {
        let mut all = Vec::new();
        let mut tell = |summary: Summary| {
            if !self.json {
                table::line(&summary);
            }
            all.push(summary);
        };
        for (who, sizes) in MUSTER {
            let world = World {
                sizes,
                start_cost: self.start_cost,
                efficiency: self.efficiency / 100.0,
                reserve_after: Duration::from_secs(self.reserve_after),
            };
            let played = play::play(trace, world);
            assert_eq!(played.held_twice, Vec::<String>::new(), "of {who}");
            tell(summary((shape.name, load, who), trace, &played));
        }
        let played = first_fit::play(trace, self.start_cost);
        tell(summary((shape.name, load, FIRST_FIT), trace, &played));
        if !self.json {
            table::ratio(&all);
        }
        all
    }
}
