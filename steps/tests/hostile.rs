//! Output that nobody meant for a step reader: it must not panic, and every line has its price.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use muster_steps::{Formats, PatternError, Reader};
use proptest::prelude::*;

/// Pieces from which lines are made that are nearly steps.
const PIECES: [&str; 30] = [
    "step",
    "iter",
    "ation",
    "Epoch",
    "[",
    "]",
    "/",
    ": ",
    "=",
    "12",
    "0",
    "18446744073709551615",
    "99999999999999999999",
    "%|",
    "|",
    "━",
    "\u{1b}[A",
    "\u{1b}[",
    "00:",
    "<",
    ",",
    "it/s",
    "loss",
    "nan",
    "1e",
    ".",
    "Train: ",
    "Test",
    " ",
    "ms/step",
];

proptest! {
    #[test]
    fn lines_of_pieces_are_read(lines in prop::collection::vec(prop::collection::vec(0..PIECES.len(), 0..24), 1..20)) {
        let formats = Formats::standard();
        let mut reader = Reader::new();
        for line in lines {
            let line: String = line.iter().map(|piece| PIECES[*piece]).collect();
            let _ = reader.look(&formats, line.as_bytes(), Duration::ZERO);
        }
    }

    #[test]
    fn any_bytes_are_read(line in prop::collection::vec(any::<u8>(), 0..700)) {
        let _ = Reader::new().look(&Formats::standard(), &line, Duration::ZERO);
    }

    #[test]
    fn any_table_is_read_or_refused(text in "[a-z*^${} \n|/\\[\\]step]{0,80}") {
        if let Ok(formats) = Formats::with(&text) {
            let _ = Reader::new().look(&formats, b"step 12/100 loss 0.5", Duration::ZERO);
        }
    }
}

#[test]
fn a_step_far_into_the_line_is_not_looked_for() {
    let line = " ".repeat(1024) + "step 3";
    let step = Reader::new().look(&Formats::standard(), line.as_bytes(), Duration::ZERO);
    assert_eq!(step, None);
}

#[test]
fn an_own_pattern_has_a_budget_per_window() {
    let formats = Formats::own(r"^it\s+(\d+)").unwrap();
    let mut reader = Reader::new();
    let now = Duration::from_secs(9);
    let mut count = |line: &str, now| {
        let step = reader.look(&formats, line.as_bytes(), now);
        step.map(|step| step.count)
    };
    for _ in 0..200 {
        assert_eq!(count("it  31", now), Some(31));
    }
    assert_eq!(count("it  31", now), None);
    let later = now + Duration::from_millis(100);
    assert_eq!(count("it  31", later), Some(31));
    assert_eq!(
        count("step 31", later),
        None,
        "the job's own pattern alone counts"
    );
}

#[test]
fn an_own_pattern_may_name_its_groups() {
    let formats = Formats::own(r"tick (?<step>\d+) of (?<total>\d+), cost (?<loss>\S+)").unwrap();
    let step = Reader::new().look(&formats, b"tick 3 of 9, cost 0.5", Duration::ZERO);
    let step = step.unwrap();
    assert_eq!(
        (step.count, step.total, step.loss.as_deref()),
        (3, Some(9), Some("0.5"))
    );
    let formats = Formats::own(r"tick (?<step>\d+), (?<rate>.+ games)").unwrap();
    let rate_of = |line: &str| {
        let step = Reader::new().look(&formats, line.as_bytes(), Duration::ZERO);
        step.unwrap().rate
    };
    assert_eq!(rate_of("tick 3, 7.5 games").as_deref(), Some("7.5 games"));
    assert_eq!(rate_of("tick 3, \u{1b}[2J games"), None);
    let formats = Formats::own(r"e(?<epoch>\d+) b(?<batch>\d+)/(?<batches>\d+)").unwrap();
    let step = Reader::new()
        .look(&formats, b"e2 b3/10", Duration::ZERO)
        .unwrap();
    assert_eq!(step.count, 23);
}

#[test]
fn patterns_that_cannot_work_are_refused() {
    assert_eq!(
        Formats::own("step").unwrap_err().to_string(),
        "the pattern has no capture group"
    );
    assert!(Formats::own("(").is_err());
    // It would cost more than ten seconds for one line.
    assert_eq!(
        Formats::own("((?:(?:[a-y]{0,50}){0,50}){0,50}z)").unwrap_err(),
        PatternError::TooLarge
    );
}

#[test]
fn an_operator_s_format_comes_first() {
    let formats = Formats::with("ours  tick {step} of {total}\nstep off\n").unwrap();
    let mut reader = Reader::new();
    let step = reader
        .look(&formats, b"tick 3 of 9", Duration::ZERO)
        .unwrap();
    assert_eq!(
        (step.count, step.total, &*step.format),
        (3, Some(9), "ours")
    );
    assert_eq!(reader.look(&formats, b"step 4", Duration::ZERO), None);
}
