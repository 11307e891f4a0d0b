//! All mistakes of a file are told at once, in the order of its lines, and none of them twice.
//!
//! Each mistake is one line of a good file. What the file with that line alone is refused for must be told in
//! every file that has it, whatever else is wrong there, and nothing may be told that no single line is refused for.

mod cases;

use std::collections::BTreeSet;

use self::cases::{CASES, Case};
use super::read_text;
use crate::{Options, Verdict};

/// Line and reason. The name of a field changes with a misspelt name around it.
type Finding = (u64, String);

/// Everything that the file with these mistakes is refused for, in the order in which it is told.
fn told(case: &Case, mistakes: &[usize]) -> Vec<Finding> {
    let mut lines: Vec<&str> = case.good.lines().collect();
    for mistake in mistakes {
        let (good, bad) = case.mistakes[*mistake];
        let at = case.good.lines().position(|line| line == good);
        lines[at.unwrap_or_else(|| panic!("{}: {good:?} is no line", case.name))] = bad;
    }
    let reading = read_text(&lines.join("\n"), &Options::default());
    let refused = reading.remarks.into_iter();
    refused
        .filter(|remark| remark.verdict == Verdict::Refusal)
        .map(|remark| (remark.place.line, remark.message))
        .collect()
}

/// Whether one of them makes the other unseen: both are in one line, or one is in a block that is not read
/// because of the other. A name that is misspelt hides what stands below it.
fn exclude_each_other(case: &Case, one: usize, two: usize) -> bool {
    let place = |mistake: usize| {
        let good = case.mistakes[mistake].0;
        case.good.lines().position(|line| line == good).unwrap()
    };
    let (one, two) = match place(one) <= place(two) {
        true => (one, two),
        false => (two, one),
    };
    if place(one) == place(two) {
        return true;
    }
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '-']).len();
    let lines: Vec<&str> = case.good.lines().collect();
    let opens = case.mistakes[one].0.ends_with(':');
    let below = lines[place(one) + 1..=place(two)]
        .iter()
        .all(|line| indent(line) > indent(lines[place(one)]));
    opens && below
}

/// Mistakes that are about one number: only one of them can be judged.
const DEPEND: [(&str, &str); 14] = [
    ("minReplicas: 3", "replicas: two"),
    ("minReplicas: 3", "replica: 2"),
    ("minReplicas: 3", "replicas: 0"),
    ("minReplicas: 3", "maxReplicas: 4.5"),
    ("maxReplicas: 1", "minReplica: 1"),
    ("maxReplicas: 4.5", "replicas: 0"),
    ("-np, \"9\"", "replicas: 0"),
    ("-np, \"9\"", "replicas: -1"),
    ("-np, \"9\"", "Workers:"),
    ("-np, \"9\"", "slotPerWorker"),
    ("-np, \"9\"", "slotsPerWorker: \"2\""),
    // Without the other one there is no chief beside it.
    ("Chef:", "Master:"),
    // Which container trains is not known, or there is none.
    ("name: torch", "contianers"),
    ("numNodes: 0", "numNode: 2"),
];

/// What stands in the container is not read if it is not found.
fn is_unread(case: &Case, one: usize, two: usize) -> bool {
    let bad = |mistake: usize| case.mistakes[mistake].1;
    let hides = |one: &str, two: &str| {
        one.contains("- name: torch") && two.starts_with("            ")
            || one.contains("volume: []") && two.contains("volumeMounts")
    };
    let depend = |one: &str, two: &str| {
        let pairs = DEPEND.iter();
        pairs
            .clone()
            .any(|(a, b)| one.contains(a) && two.contains(b))
    };
    let (one, two) = (bad(one), bad(two));
    hides(one, two) || hides(two, one) || depend(one, two) || depend(two, one)
}

/// What is wrong with what a file with these mistakes is refused for.
fn check(case: &Case, chosen: &[usize], alone: &[BTreeSet<Finding>]) -> Option<String> {
    let found = told(case, chosen);
    let lines: Vec<u64> = found.iter().map(|(line, _)| *line).collect();
    assert!(lines.is_sorted(), "{}: {found:#?}", case.name);
    let must: BTreeSet<Finding> = chosen.iter().flat_map(|one| alone[*one].clone()).collect();
    let is: BTreeSet<Finding> = found.iter().cloned().collect();
    let shown: Vec<&str> = chosen.iter().map(|one| case.mistakes[*one].1).collect();
    let missing: Vec<_> = must.difference(&is).collect();
    let more: Vec<_> = is.difference(&must).collect();
    (!missing.is_empty() || !more.is_empty()).then(|| {
        format!(
            "{}: {shown:?}\n  is not told: {missing:?}\n  is no mistake of its own: {more:?}",
            case.name
        )
    })
}

#[test]
fn all_mistakes_of_a_file_are_told_at_once() {
    let (mut largest, mut wrong) = (0, Vec::new());
    for case in CASES {
        assert_eq!(told(case, &[]), [], "{} is good", case.name);
        let count = case.mistakes.len();
        let alone: Vec<BTreeSet<Finding>> = (0..count)
            .map(|one| {
                let found = told(case, &[one]);
                assert!(!found.is_empty(), "{}: {:?}", case.name, case.mistakes[one]);
                found.into_iter().collect()
            })
            .collect();
        let apart = |one: usize, two: usize| {
            !exclude_each_other(case, one, two) && !is_unread(case, one, two)
        };
        for one in 0..count {
            for two in (0..count).filter(|two| one < *two && apart(one, *two)) {
                wrong.extend(check(case, &[one, two], &alone));
            }
        }
        // As many as go together, from each mistake on.
        for first in 0..count {
            let mut chosen = vec![first];
            for next in (0..count).map(|step| (first + step * 7 + step) % count) {
                if !chosen.contains(&next) && chosen.iter().all(|one| apart(*one, next)) {
                    chosen.push(next);
                }
            }
            for next in 0..count {
                if !chosen.contains(&next) && chosen.iter().all(|one| apart(*one, next)) {
                    chosen.push(next);
                }
            }
            largest = largest.max(chosen.len());
            wrong.extend(check(case, &chosen, &alone));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(largest > 15, "{largest}");
}

/// A field that is misspelt is not missing as well.
#[test]
fn what_is_misspelt_is_not_missing() {
    for case in CASES {
        for one in 0..case.mistakes.len() {
            let found = told(case, &[one]);
            let meant = found.iter().any(|(_, why)| why.contains("did you mean"));
            let missing = found.iter().any(|(_, why)| why.starts_with("has no"));
            assert!(!(meant && missing), "{}: {found:#?}", case.name);
        }
    }
}
