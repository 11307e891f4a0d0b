//! Every planted mistake is seen, and a history that shows one can be made small and told.
//!
//! Mistakes in the brains need `--features planted` (`tools/test` does that). Mistakes in the
//! shells are always there.

use muster_world::{Options, Planted, Size, log, record, shrink};

/// A mistake must be seen within this many histories. The goal for a release is the same.
const PATIENCE: u64 = 10_000;

#[test]
fn every_planted_mistake_is_seen() {
    let mut unseen = Vec::new();
    for planted in Planted::all() {
        // The recorded seed nearly always sees it again, and saves minutes of looking.
        let seen = record::seen_again(planted);
        match seen.or_else(|| record::first_seen(planted, PATIENCE, 2)) {
            Some((size, seed, violation)) => println!(
                "{planted}: {} in {} seed {seed}",
                violation.rule,
                size.name()
            ),
            None => unseen.push(planted.to_string()),
        }
    }
    assert_eq!(unseen, [""; 0], "not seen within {PATIENCE} histories");
    assert!(Planted::all().count() >= 15);
}

#[test]
fn a_history_that_breaks_a_rule_is_made_small_and_written_down() {
    let options = Options {
        size: Size::Small,
        planted: Some(Planted::SlotTooMany),
        ..Options::default()
    };
    let seed = (0..1_000)
        .find(|seed| muster_world::run(*seed, &options).violation.is_some())
        .expect("it is seen at once");
    let whole = muster_world::run(seed, &options);
    let (cut, small) = shrink::shrink(seed, &options).expect("it breaks a rule");
    assert_eq!(
        small.violation.as_ref().map(|v| v.rule),
        whole.violation.as_ref().map(|v| v.rule)
    );
    assert!(
        small.events < whole.events
            && small.faults.values().sum::<u64>() <= whole.faults.values().sum(),
        "{cut}"
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    log::write(&path, seed, &Options { cut, ..options }).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (&lines[0]["version"], &lines[0]["broken"]["rule"]),
        (&1.into(), &small.violation.unwrap().rule.into())
    );
    assert!(lines[1..].iter().any(|line| line["kind"] == "broken"));
    assert!(lines[1..].is_sorted_by_key(|line| line["atUs"].as_u64()));
}

/// The report in the tree matches the records in the tree.
#[test]
fn the_report_is_made_from_the_records() {
    let committed =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/REPORT.md")).unwrap();
    // The report is long, so a difference is named and not shown.
    assert!(
        record::rendered().unwrap() == committed,
        "write it anew: cargo run -p muster-world -- --report"
    );
}
