//! The summaries as a table for people.

use super::{
    TracesArgs,
    shape::Shape,
    summary::{Spread, Summary},
    trace::Trace,
};

pub(super) fn begin(shape: &Shape, trace: &Trace, args: &TracesArgs, load: f64) {
    let counted = trace.jobs.iter().filter(|job| job.counts).count();
    println!(
        "{}: {} nodes, {} GPUs, {load} % of them wanted; {} jobs in {} h, {counted} of them after {} h; seed {}",
        shape.name,
        trace.nodes.len(),
        trace.gpus(),
        trace.jobs.len(),
        args.hours,
        args.warm_up,
        args.seed,
    );
    println!(
        "{:<27} {:>6} {:>30} {:>9} {:>9} {:>9} {:>9} {:>6} {:>6} {:>5} {:>6} {:>6} {:>5} {:>6} {:>5} {:>7} {:>8} {:>7} {:>8} {:>7}",
        "",
        "ENDED",
        "WAIT s MEAN/P50/P90/P99",
        "OF >1 GPU",
        "ELASTIC",
        "LARGEST",
        "COMPL. s",
        "GPUS %",
        "WORK %",
        "WAITS",
        "FRAG %",
        "FREE %",
        "FIT %",
        "RESIZE",
        "EVICT",
        "TURNS",
        "STARTS/s",
        "P50 ms",
        "P99 ms",
        "MAX ms",
    );
}

fn spread(spread: &Spread) -> String {
    let Spread {
        mean,
        p50,
        p90,
        p99,
        ..
    } = spread;
    format!("{mean:.1} / {p50:.1} / {p90:.1} / {p99:.0}")
}

pub(super) fn line(one: &Summary) {
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let brain = one.brain.as_ref().map(|brain| {
        format!(
            " {:>7} {:>8.0} {:>7.2} {:>8.2} {:>7.0}",
            brain.turns, brain.starts_per_second, brain.p50_ms, brain.p99_ms, brain.max_ms
        )
    });
    println!(
        "{:<27} {:>6} {:>30} {:>9.1} {:>9.1} {:>9.0} {:>9.0} {:>6} {:>6} {:>5.0} {:>6} {:>6} {:>5} {:>6.2} {:>5}{}",
        one.who,
        one.ended,
        spread(&one.wait),
        one.wait_of_several.mean,
        one.wait_of_elastic.mean,
        one.largest_wait,
        one.completion.mean,
        percent(one.held),
        percent(one.work),
        one.waiting,
        percent(one.fragmentation),
        percent(one.free),
        percent(one.one_would_fit),
        one.reforms,
        one.evictions,
        brain.unwrap_or_default(),
    );
    if one.lost > 0 {
        println!("{} jobs never ended", one.lost);
    }
}

/// Seconds. A start takes some hundredths of a second, and a ratio to such a wait says nothing.
const NO_WAIT: f64 = 0.1;

/// Each beside fixed sizes under Muster.
pub(super) fn ratio(all: &[Summary]) {
    let Some(fixed) = all.iter().find(|one| one.who == super::FIXED) else {
        return;
    };
    for one in all.iter().filter(|one| one.who != fixed.who) {
        let wait = match fixed.wait.mean >= NO_WAIT {
            true => format!("mean wait {:.2} times", one.wait.mean / fixed.wait.mean),
            false => "nobody waits with fixed sizes".to_owned(),
        };
        println!(
            "{} beside {}: {wait}, work {:.3} times, completion {:.2} times",
            one.who,
            fixed.who,
            one.work / fixed.work,
            one.completion.mean / fixed.completion.mean,
        );
    }
    println!();
}

pub(super) fn end() {
    println!(
        "Rates that others have published of themselves, not measured here: Kueue 37 to 43 workloads/s, Volcano 40 to 56 pods/s, KAI 10 jobs/s \
         on 500 nodes, and 49 s for one gang of 512 pods. Theirs include an API server; ours are decisions alone."
    );
}
