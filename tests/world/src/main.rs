//! `muster-world`: runs seeds and says which rules they break.

use std::{ops::Range, path::PathBuf, process::ExitCode, time::Instant};

use clap::Parser;
use muster_world::{Cut, Options, Planted, Size, Story, campaign, log, record, shrink};

/// Runs the coordinator's and the agents' brains through random histories and checks the rules
/// after every event.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Seeds to run, as 0..1000
    #[arg(long, value_name = "A..B", value_parser = seeds, default_value = "0..1000")]
    seeds: Range<u64>,
    /// One seed alone
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How large the histories are
    #[arg(long, value_enum, default_value = "mixed")]
    size: SizeName,
    /// Take something away from the world, as machines=2,jobs=1,faults=AgentCrash+CutUp,skip=3+4
    #[arg(long, value_name = "CUT", default_value = "")]
    cut: Cut,
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
    /// Seeds at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// A history that breaks a rule is made smaller and written here, for `muster replay`; with
    /// --seed, any history
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Keep what came of it, for the report
    #[arg(long)]
    record: bool,
    /// Put every planted mistake in, one after the other, and record which rule saw it
    #[arg(long)]
    hunt: bool,
    /// Write REPORT.md from what is recorded
    #[arg(long)]
    report: bool,
}

/// A planted mistake must be seen within this many seeds.
const PATIENCE: u64 = 10_000;

#[derive(Clone, Copy, clap::ValueEnum)]
enum SizeName {
    Small,
    Mixed,
    Large,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("write it as 0..1000")?;
    let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text:?}: {e}"));
    Ok(number(from)?..number(to)?)
}

fn planted(text: &str) -> Result<Planted, String> {
    let known = || {
        Planted::all()
            .map(|planted| planted.to_string())
            .collect::<Vec<_>>()
            .join(", ")
    };
    Planted::all()
        .find(|planted| planted.to_string() == text)
        .ok_or_else(|| format!("one of {}", known()))
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// True if no rule was broken.
fn run(args: Args) -> std::io::Result<bool> {
    if args.hunt {
        let told = |caught: &record::Caught| match caught.seeds {
            Some(seeds) => println!(
                "{}: broke {} in seed {}: {}",
                caught.name,
                caught.rule,
                seeds - 1,
                caught.said
            ),
            None => println!("{}: NOT SEEN in {PATIENCE} seeds", caught.name),
        };
        return record::hunt(PATIENCE, args.threads, told);
    }
    if args.report {
        return record::report().map(|()| true);
    }
    let size = match args.size {
        SizeName::Small => Size::Small,
        SizeName::Mixed => Size::Mixed,
        SizeName::Large => Size::Large,
    };
    let options = Options {
        size,
        cut: args.cut,
        planted: args.planted,
        ..Options::default()
    };
    if let (Some(seed), true) = (args.seed, args.log) {
        let report = muster_world::run(
            seed,
            &Options {
                log: true,
                whole: true,
                ..options.clone()
            },
        );
        report
            .whole
            .iter()
            .for_each(|(at, text)| println!("{at} {text}"));
    }
    if let (Some(seed), Some(path)) = (args.seed, &args.log_file) {
        log::write(path, seed, &options)?;
    }
    let range = args.seed.map_or(args.seeds, |seed| seed..seed + 1);
    let begun = Instant::now();
    let totals = campaign::run(
        range.clone(),
        &options,
        args.threads,
        args.violations,
        |_| {},
    );
    let seconds = begun.elapsed().as_secs_f64();
    if args.record {
        let line = record::histories(size, (range.start, range.end), &totals, begun.elapsed());
        record::append(&record::histories_file(), &line)?;
    }
    for (seed, violation) in &totals.violations {
        if args.brief {
            println!("seed {seed} breaks {}: {}", violation.rule, violation.what);
            continue;
        }
        let smaller = shrink::shrink(*seed, &options).map(|(cut, _)| Options {
            cut,
            ..options.clone()
        });
        let smaller = smaller.as_ref().unwrap_or(&options);
        if let (Some(path), None) = (&args.log_file, args.seed) {
            log::write(path, *seed, smaller)?;
            println!("told by: muster replay {}", path.display());
        }
        match Story::tell(*seed, smaller) {
            Some(story) => println!("{story}\n"),
            None => println!(
                "seed {seed} breaks a rule only sometimes: the world is not deterministic\n"
            ),
        }
    }
    println!(
        "{} seeds in {seconds:.1} s ({:.0} seeds/s), {} events, {} generations, {} steps",
        totals.seeds,
        totals.seeds as f64 / seconds,
        totals.events,
        totals.generations,
        totals.steps
    );
    println!("faults: {}", totals.faults_total());
    for (fault, count) in &totals.faults {
        println!("  {count:>9} {fault}");
    }
    println!(
        "blames: {}",
        totals
            .blames
            .iter()
            .filter(|(blame, _)| blame.verdict.is_blame())
            .map(|(_, count)| count)
            .sum::<u64>()
    );
    for (blame, count) in &totals.blames {
        println!(
            "  {count:>9} {:?}: {}; {}",
            blame.cause,
            blame.truly,
            blame.verdict.words()
        );
    }
    println!("violations: {}", totals.violations.len());
    Ok(totals.violations.is_empty())
}
