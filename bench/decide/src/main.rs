//! What decisions of the brain cost, without a network, a store or a disk: one large gang on a mixed fleet, many small jobs at once, and a turn
//! beside many jobs that wait. Prints a table, or with `--json` one object. `traces` plays hours of a fleet instead.

mod fleet;
mod traces;

use std::time::Duration;

use clap::{Parser, Subcommand};
use fleet::Bench;
use muster_core::fleet::{Answer, plan::Outcome};
use serde::Serialize;

/// Times the decisions of the coordinator's brain.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Nodes of the fleet, of 8 GPUs each
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    nodes: usize,
    /// Nodes of the large gang
    #[arg(long, value_name = "N", default_value_t = 1_024)]
    gang: u32,
    /// How often each turn is timed
    #[arg(long, value_name = "N", default_value_t = 30)]
    times: usize,
    /// How many jobs wait beside the turns that are timed
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "10,100"
    )]
    waiting: Vec<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    Traces(traces::TracesArgs),
}

/// Some turns of one kind.
#[derive(Serialize)]
struct Row {
    what: String,
    turns: usize,
    p50_ms: f64,
    p99_ms: f64,
    total_ms: f64,
}

fn row(what: impl Into<String>, mut took: Vec<Duration>) -> Row {
    took.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
    let at = |percent: usize| took.get((took.len() * percent / 100).min(took.len() - 1));
    Row {
        what: what.into(),
        turns: took.len(),
        p50_ms: at(50).copied().map_or(0.0, ms),
        p99_ms: at(99).copied().map_or(0.0, ms),
        total_ms: ms(took.iter().sum()),
    }
}

/// Jobs of 1 to 64 nodes hold seven tenths of the fleet; every fifth takes half of its nodes' GPUs.
fn mixed(nodes: usize) -> Bench {
    const SIZES: [u32; 8] = [1, 1, 2, 4, 8, 16, 32, 64];
    let mut bench = Bench::new(nodes);
    let (mut held, mut number) = (0, 0);
    while held < nodes * 7 / 10 {
        let size = SIZES[number % SIZES.len()].min((nodes / 20).max(1) as u32);
        let gpus = if number % 5 == 4 { 4 } else { 8 };
        bench.submit(size, gpus, 0, false);
        held += size as usize;
        number += 1;
    }
    bench
}

fn starts(answer: &Answer) -> bool {
    match answer {
        Answer::Planned { plan, .. } => matches!(plan.outcome, Outcome::Starts(_)),
        Answer::Job { job, .. } => job.record.current.is_some(),
        _ => false,
    }
}

fn gang(args: &Args) -> Vec<Row> {
    let mut bench = mixed(args.nodes);
    let mut asked = Vec::new();
    for _ in 0..args.times {
        let (answer, took) = bench.submit(args.gang, 8, 0, true);
        assert!(starts(&answer), "there is room: {answer:?}");
        asked.push(took);
    }
    let (answer, took) = bench.submit(args.gang, 8, 0, false);
    assert!(starts(&answer), "there is room");
    let nodes = args.gang;
    vec![
        row(format!("where {nodes} nodes would go (plan)"), asked),
        row(format!("{nodes} nodes begin"), vec![took]),
    ]
}

fn small(args: &Args) -> Row {
    const JOBS: usize = 1_000;
    let mut bench = mixed(args.nodes);
    let jobs = JOBS.min(args.nodes / 10);
    let one = |bench: &mut Bench| {
        let (answer, took) = bench.submit(1, 1, 0, false);
        assert!(starts(&answer), "there is room");
        took
    };
    let took = (0..jobs).map(|_| one(&mut bench)).collect();
    row(format!("{jobs} jobs of one GPU begin, one turn each"), took)
}

/// Turns beside so many jobs that wait.
fn beside(args: &Args, waiting: usize) -> Vec<Row> {
    let mut bench = mixed(args.nodes);
    let (first, _) = bench.submit(1, 8, 0, false);
    let Answer::Job { job, .. } = first else {
        panic!("it is accepted");
    };
    // Nobody has so many nodes free.
    let large = (args.nodes * 4 / 10).min(4_096) as u32;
    let submits = (0..waiting)
        .map(|_| bench.submit(large, 8, 0, false).1)
        .collect();
    let beats = (0..args.times)
        .map(|node| bench.heartbeat(node % args.nodes))
        .collect();
    let news = (0..args.times)
        .map(|_| bench.scale(&job.record.name, 1))
        .collect();
    let freed = (0..args.times.min(10)).map(|node| {
        bench.cordon(args.nodes - 1 - node, true);
        bench.cordon(args.nodes - 1 - node, false)
    });
    let freed = freed.collect();
    vec![
        row(format!("{waiting} wait: each is submitted"), submits),
        row(format!("{waiting} wait: a heartbeat"), beats),
        row(format!("{waiting} wait: news of another job"), news),
        row(format!("{waiting} wait: a node becomes free"), freed),
    ]
}

fn main() {
    let args = Args::parse();
    if let Some(Command::Traces(args)) = &args.command {
        return traces::run(args);
    }
    if !args.json {
        println!("{} nodes of 8 GPUs, seven tenths of them held", args.nodes);
        println!(
            "{:<48} {:>7} {:>10} {:>10} {:>11}",
            "", "TURNS", "P50 ms", "P99 ms", "ALL ms"
        );
    }
    let mut rows = Vec::new();
    let mut tell = |new: Vec<Row>| {
        if !args.json {
            new.iter().for_each(print);
        }
        rows.extend(new);
    };
    tell(gang(&args));
    tell(vec![small(&args)]);
    for waiting in &args.waiting {
        tell(beside(&args, *waiting));
    }
    if args.json {
        let text = serde_json::to_string_pretty(&rows).expect("numbers and texts");
        println!("{text}");
    }
}

fn print(row: &Row) {
    let Row {
        what,
        turns,
        p50_ms,
        p99_ms,
        total_ms,
    } = row;
    println!("{what:<48} {turns:>7} {p50_ms:>10.3} {p99_ms:>10.3} {total_ms:>11.1}");
}
