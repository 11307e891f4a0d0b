//! `muster-world`: runs seeds and says which rules they break.

use std::{collections::BTreeMap, ops::Range, process::ExitCode, time::Instant};

use clap::Parser;
use muster_world::{Fault, Options, Planted, Story};

/// Runs the coordinator's and the agents' brains through random histories and checks the rules after every event.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Seeds to run, as 0..1000
    #[arg(long, value_name = "A..B", value_parser = seeds, default_value = "0..1000")]
    seeds: Range<u64>,
    /// One seed alone
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// With --seed: print everything that happens
    #[arg(long, requires = "seed")]
    log: bool,
    /// Put this mistake into the world
    #[arg(long, value_name = "NAME", value_parser = planted)]
    planted: Option<Planted>,
    /// Go on after a violation, up to this many
    #[arg(long, value_name = "N", default_value_t = 1)]
    violations: usize,
    /// One line for each violation
    #[arg(long)]
    brief: bool,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("write it as 0..1000")?;
    let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text:?}: {e}"));
    Ok(number(from)?..number(to)?)
}

fn planted(text: &str) -> Result<Planted, String> {
    let known = || Planted::ALL.map(|planted| planted.to_string()).join(", ");
    Planted::ALL.into_iter().find(|planted| planted.to_string() == text).ok_or_else(|| format!("one of {}", known()))
}

fn main() -> ExitCode {
    let args = Args::parse();
    let range = args.seed.map_or(args.seeds, |seed| seed..seed + 1);
    let options = Options { planted: args.planted, log: args.log, print: args.log };
    let begun = Instant::now();
    let (mut run, mut events, mut broken) = (0u64, 0u64, 0usize);
    let (mut generations, mut steps) = (0u64, 0u64);
    let mut faults: BTreeMap<Fault, u64> = BTreeMap::new();
    for seed in range {
        if broken >= args.violations {
            break;
        }
        let report = muster_world::run(seed, &options);
        run += 1;
        events += report.events;
        generations += report.generations;
        steps += report.steps;
        for (fault, count) in report.faults {
            *faults.entry(fault).or_insert(0) += count;
        }
        if let Some(violation) = report.violation {
            broken += 1;
            if args.brief {
                println!("seed {seed} breaks {}: {}", violation.rule, violation.what);
                continue;
            }
            match Story::tell(seed, args.planted) {
                Some(story) => println!("{story}\n"),
                None => println!("seed {seed} breaks a rule only sometimes: the world is not deterministic\n"),
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{run} seeds in {seconds:.1} s ({:.0} seeds/s), {events} events, {generations} generations, {steps} steps",
        run as f64 / seconds
    );
    println!("faults: {}", faults.values().sum::<u64>());
    for (fault, count) in &faults {
        println!("  {count:>9} {fault}");
    }
    println!("violations: {broken}");
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
