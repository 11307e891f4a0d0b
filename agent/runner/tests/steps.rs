//! A job's own pattern that costs too much: no order waits for it, and the job is told.
#![allow(clippy::unwrap_used)]

mod rig;

use std::time::Duration;

use muster_runner::wire::{Phase, StepPatternFault};
use rig::{Client, Rig};

/// Takes more than ten seconds for one line of 511 bytes.
const HUGE: &str = "((?:(?:[a-y]{0,50}){0,50}){0,50}z)";
/// Below the bound, and slow all the same: it is tried at every byte, with hundreds of states.
const SLOW: &str = "((?:(?:[a-y]{0,9}){0,8}){0,4}z)";

/// A rank that prints long lines without end.
fn flooded(pattern: &str) -> (Rig, Client) {
    let mut rig = Rig::new();
    rig.hold.step_pattern = Some(pattern.into());
    let mut client = rig.ready();
    let line = "a".repeat(511);
    client.start(rig.ranks(1, &format!("while :; do echo {line}; done")));
    (rig, client)
}

fn obeys_without_steps(pattern: &str, fault: StepPatternFault) {
    let (rig, mut client) = flooded(pattern);
    let status = client.until(|s| s.step_pattern_fault.is_some());
    assert_eq!(status.step_pattern_fault, Some(fault));
    assert_eq!(status.phase, Phase::Running, "the job goes on");
    let bytes = status.ranks.first().map_or(0, |rank| rank.log_bytes);
    client.until(|s| s.ranks.first().is_some_and(|r| r.log_bytes > bytes));
    client.stop(Duration::ZERO);
    client.until_dead();
    assert_eq!(
        rig.record().outcome.unwrap().step_pattern_fault,
        Some(fault)
    );
}

#[test]
fn a_pattern_above_the_bound_is_not_searched_for() {
    obeys_without_steps(HUGE, StepPatternFault::TooLarge);
}

#[test]
fn a_pattern_that_is_slow_on_many_lines_is_given_up() {
    obeys_without_steps(SLOW, StepPatternFault::TooSlow);
}
