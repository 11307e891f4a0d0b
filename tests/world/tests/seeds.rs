//! As many seeds as fit into some seconds, always the same ones first; and that a seed means one history.

use std::time::{Duration, Instant};

use muster_world::{Options, Planted, Story};

/// Seeds every machine runs, however slow. Measured: about 100 a second on one 2-GHz core.
const AT_LEAST: u64 = 300;
const BUDGET: Duration = Duration::from_secs(20);

#[test]
fn no_seed_breaks_a_rule() {
    let begun = Instant::now();
    let mut seeds = 0;
    while seeds < AT_LEAST || begun.elapsed() < BUDGET {
        let report = muster_world::run(seeds, &Options::default());
        if let Some(violation) = report.violation {
            match Story::tell(seeds, &Options::default()) {
                Some(story) => panic!("{story}"),
                None => panic!("seed {seeds} breaks {} only without its log: {}", violation.rule, violation.what),
            }
        }
        seeds += 1;
    }
    println!("{seeds} seeds in {:.1} s", begun.elapsed().as_secs_f64());
}

#[test]
fn a_seed_is_one_history() {
    let quiet = Options::default();
    let told = Options { log: true, ..quiet.clone() };
    let mut hashes = Vec::new();
    for seed in 0..25 {
        let (first, second) = (muster_world::run(seed, &quiet), muster_world::run(seed, &told));
        assert_eq!((first.hash, first.events), (second.hash, second.events), "seed {seed}");
        assert_eq!(second.lines, muster_world::run(seed, &told).lines, "seed {seed}");
        hashes.push(first.hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 25, "every seed has a history of its own");
}

/// Things must happen in the world, else the rules are kept by nobody doing anything.
#[test]
fn much_happens() {
    let (mut faults, mut generations, mut steps) = (std::collections::BTreeMap::new(), 0, 0);
    for seed in 0..200 {
        let report = muster_world::run(seed, &Options::default());
        generations += report.generations;
        steps += report.steps;
        for (fault, count) in report.faults {
            *faults.entry(fault).or_insert(0u64) += count;
        }
    }
    for fault in muster_world::Fault::ALL {
        assert!(faults.get(&fault).is_some_and(|count| *count >= 5), "{fault}: {:?} in 200 seeds", faults.get(&fault));
    }
    assert!(generations > 600 && steps > 20_000, "{generations} generations, {steps} steps");
}

/// A mistake planted in the world must be seen, and by the rule that is about it.
fn seen(planted: Planted, rules: &[&str]) {
    const PATIENCE: u64 = 400;
    let options = Options { planted: Some(planted), ..Options::default() };
    let sees = |seed: &u64| muster_world::run(*seed, &options).violation.is_some_and(|violation| rules.contains(&violation.rule));
    assert!((0..PATIENCE).any(|seed| sees(&seed)), "{PATIENCE} seeds do not see {planted} as a break of {rules:?}");
}

#[test]
fn acting_before_the_commit_is_seen() {
    seen(Planted::ActsBeforeCommit, &["R1"]);
}

#[test]
fn a_commit_that_does_not_last_is_seen() {
    seen(Planted::CommitNotDurable, &["I2", "I3", "I4", "I8"]);
}

#[test]
fn a_term_used_twice_is_seen() {
    seen(Planted::TermNotRaised, &["I4"]);
}

#[test]
fn a_submission_made_twice_is_seen() {
    seen(Planted::RetryIsNew, &["I3"]);
}

#[test]
fn a_ledger_not_synced_is_seen() {
    seen(Planted::LedgerNotSynced, &["I4"]);
}

#[test]
fn a_forgotten_inventory_is_seen() {
    seen(Planted::InventoryForgotten, &["I8", "I2", "I1"]);
}

#[test]
fn a_death_said_before_it_is_proven_is_seen() {
    seen(Planted::StopIsDeath, &["I8"]);
}

#[test]
fn a_boot_that_did_not_happen_is_seen() {
    seen(Planted::BootIdPerProcess, &["I8"]);
}

#[test]
fn a_silence_that_kills_is_seen() {
    seen(Planted::SilenceKills, &["R7"]);
}

#[test]
fn a_victim_taken_for_a_culprit_is_seen() {
    seen(Planted::ErrorLinesLost, &["I6"]);
}

#[test]
fn a_slot_too_many_is_seen() {
    seen(Planted::SlotTooMany, &["I1"]);
}

#[test]
fn reports_that_stop_are_seen() {
    seen(Planted::ReportsStop, &["I9"]);
}
