//! When jobs that wait will start.

use std::collections::BTreeMap;

use super::{selection::fleet, *};
use crate::fleet::{
    expected_end::Basis,
    held_back::HeldBack,
    history::Over,
    start_estimate::{NoEstimate, Start, StartEstimate},
};

/// So many nodes, each with so many GPUs.
fn of(nodes: i64, gpus: i64) -> SpecDocument {
    SpecDocument {
        gpus_per_node: Some(gpus),
        ..document(nodes, nodes, nodes)
    }
}

fn two() -> Bench {
    fleet(&[("a", "x", 1), ("b", "x", 1)])
}

/// A job of this name succeeded before, and had nodes for so long.
fn took(bench: &mut Bench, name: &str, seconds: u64) {
    took_in(bench, "default", name, seconds);
}

fn took_in(bench: &mut Bench, namespace: &str, name: &str, seconds: u64) {
    bench.next += 1;
    let finished = bench.now;
    let over = Over {
        key: (format!("over-{}", bench.next).as_str().into(), finished),
        name: JobName {
            namespace: namespace.into(),
            name: name.into(),
        },
        phase: Phase::Succeeded,
        finished,
        spec_hash: String::new(),
        ran: Duration::from_secs(seconds),
        started: finished,
        held_until: finished,
        owner: None,
        queue: None,
        gpu_time: None,
    };
    let policy = bench.fleet.policy.clone();
    assert!(bench.fleet.history.add(over, &policy, finished).is_some());
}

/// What is said of each job that waits.
fn starts(bench: &mut Bench) -> BTreeMap<String, Start> {
    bench.fleet.plans = Default::default();
    match bench.request(Request::Starts) {
        Answer::Starts(starts) => starts
            .into_iter()
            .map(|(name, start)| (name.name, start))
            .collect(),
        other => panic!("{other:?}"),
    }
}

fn estimate(bench: &mut Bench, name: &str) -> StartEstimate {
    match starts(bench).remove(name) {
        Some(Start::Expected(estimate)) => estimate,
        other => panic!("{name}: {other:?}"),
    }
}

fn unknown(bench: &mut Bench, name: &str) -> NoEstimate {
    match starts(bench).remove(name) {
        Some(Start::Unknown(why)) => why,
        other => panic!("{name}: {other:?}"),
    }
}

/// In so many seconds from now.
fn within(bench: &mut Bench, name: &str) -> u64 {
    let at = estimate(bench, name).at;
    assert_eq!(at.0 % 1_000_000, 0);
    (at.0 - bench.now.0) / 1_000_000
}

fn after(estimate: &StartEstimate) -> Vec<(&str, bool)> {
    let jobs = estimate.after.iter();
    jobs.map(|one| (one.job.name.as_str(), one.end.basis == Basis::Deadline))
        .collect()
}

#[test]
fn a_deadline_is_an_upper_bound() {
    let mut bench = two();
    let mut first = of(2, 1);
    first.active_deadline_seconds = Some(100);
    bench.submit("first", first);
    bench.submit("second", of(1, 1));
    bench.pass(10 * SECOND);
    let estimate = estimate(&mut bench, "second");
    assert_eq!(estimate.at, bench.now + 90 * SECOND);
    assert_eq!(after(&estimate), [("first", true)]);
}

#[test]
fn what_was_measured_counts_from_when_the_job_got_its_nodes() {
    let mut bench = two();
    for seconds in [50, 70, 60] {
        took(&mut bench, "first", seconds);
    }
    bench.submit("first", of(2, 1));
    bench.submit("second", of(1, 1));
    bench.pass(10 * SECOND);
    let estimate = estimate(&mut bench, "second");
    assert_eq!(estimate.at, bench.now + 50 * SECOND);
    let Basis::Measured(measured) = estimate.after[0].end.basis else {
        panic!("{estimate:?}");
    };
    assert_eq!(
        (measured.jobs, measured.shortest, measured.longest),
        (3, 50 * SECOND, 70 * SECOND)
    );
    bench.pass(50 * SECOND);
    assert_eq!(within(&mut bench, "second"), 10, "it has outlived two");
    bench.pass(10 * SECOND);
    assert_eq!(
        unknown(&mut bench, "second"),
        NoEstimate::UnknownEnds {
            jobs: vec![bench.job("first").name.clone()],
            more: 0
        }
    );
}

#[test]
fn the_second_waits_for_the_first_that_waits() {
    let mut bench = two();
    took(&mut bench, "now", 100);
    took(&mut bench, "next", 30);
    for (name, nodes) in [("now", 2), ("next", 2), ("last", 2), ("behind", 1)] {
        bench.submit(name, of(nodes, 1));
        bench.pass(SECOND);
    }
    assert_eq!(within(&mut bench, "next"), 96);
    let last = estimate(&mut bench, "last");
    assert_eq!(last.at, bench.now + 126 * SECOND);
    assert_eq!(after(&last), [("next", false), ("now", false)]);
    // Nobody knows how long the last one takes.
    assert_eq!(
        unknown(&mut bench, "behind"),
        NoEstimate::UnknownEnds {
            jobs: vec![bench.job("last").name.clone()],
            more: 0
        }
    );
}

#[test]
fn a_job_of_unknown_length_is_in_nobodys_way_where_there_is_room_beside_it() {
    let mut bench = two();
    took(&mut bench, "known", 40);
    bench.submit("unknown", of(1, 1));
    bench.submit("known", of(1, 1));
    bench.submit("small", of(1, 1));
    bench.submit("large", of(2, 1));
    assert_eq!(within(&mut bench, "small"), 40);
    let NoEstimate::UnknownEnds { jobs, more: 0 } = unknown(&mut bench, "large") else {
        panic!("nobody knows it");
    };
    let named: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(named, ["unknown", "small"]);
}

#[test]
fn an_elastic_job_starts_smaller_and_grows_before_those_behind_it() {
    let mut bench = two();
    for (name, seconds) in [("one", 20), ("two", 60)] {
        took(&mut bench, name, seconds);
        bench.submit(name, of(1, 1));
    }
    let elastic = SpecDocument {
        gpus_per_node: Some(1),
        ..document(1, 2, 2)
    };
    bench.submit("elastic", elastic);
    assert_eq!(within(&mut bench, "elastic"), 20);
    took(&mut bench, "elastic", 90);
    bench.submit("whole", of(2, 1));
    assert_eq!(within(&mut bench, "whole"), 110);
}

#[test]
fn a_job_is_not_said_to_start_before_its_time() {
    let mut bench = two();
    took(&mut bench, "now", 40);
    bench.submit("now", of(2, 1));
    for (name, seconds, expected) in [("early", 10, 40), ("late", 90, 90)] {
        let at = (bench.now + seconds * SECOND).rfc3339_seconds();
        let mut spec = of(1, 1);
        spec.start_after = Some(at);
        bench.submit(name, spec);
        assert_eq!(within(&mut bench, name), expected, "{name}");
    }
    let late = estimate(&mut bench, "late");
    assert!(late.after.iter().all(|one| one.job.name == "now"));
}

#[test]
fn what_holds_a_job_back_is_said() {
    let mut bench = two();
    bench.submit("now", of(2, 1));
    let mut then = of(1, 1);
    then.after = vec![crate::spec::AfterDocument {
        job: "now".into(),
        ..Default::default()
    }];
    bench.submit("then", then);
    assert!(matches!(
        unknown(&mut bench, "then"),
        NoEstimate::HeldBack(HeldBack::Waits(_))
    ));
    bench.submit("huge", of(3, 1));
    assert_eq!(unknown(&mut bench, "huge"), NoEstimate::Never);
    let mut hasty = of(1, 1);
    hasty.start_deadline_seconds = Some(30);
    took(&mut bench, "now", 60);
    bench.submit("hasty", hasty);
    assert_eq!(
        unknown(&mut bench, "hasty"),
        NoEstimate::TooLate {
            deadline: bench.now + 30 * SECOND
        }
    );
}

#[test]
fn only_the_first_that_wait_are_estimated() {
    let mut bench = two();
    took(&mut bench, "now", 60);
    bench.submit("now", of(2, 1));
    for number in 0..18 {
        bench.pass(SECOND);
        bench.submit(&format!("small-{number:02}"), of(1, 1));
    }
    let starts = starts(&mut bench);
    let too_far = Start::Unknown(NoEstimate::TooFarBack);
    let too_far: Vec<&String> = starts
        .iter()
        .filter(|(_, start)| **start == too_far)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(too_far, ["small-16", "small-17"]);
}

/// A limit holds a job back until one of its namespace has ended, on whatever node that is.
#[test]
fn a_limit_is_waited_for() {
    let mut bench = fleet(&[("a", "x", 1), ("b", "x", 1), ("c", "x", 1)]);
    bench.fleet.policy.gpus_max = GpusMax::each(Some(2));
    took(&mut bench, "now", 60);
    bench.submit("now", of(2, 1));
    bench.submit("next", of(1, 1));
    let next = estimate(&mut bench, "next");
    assert_eq!(next.at, bench.now + 60 * SECOND);
    assert_eq!(after(&next), [("now", false)]);
    bench.submit("large", of(3, 1));
    assert_eq!(unknown(&mut bench, "large"), NoEstimate::Never);
}

#[test]
fn a_question_changes_nothing() {
    let mut bench = two();
    took(&mut bench, "now", 60);
    bench.submit("now", of(2, 1));
    bench.submit("next", of(1, 1));
    let (jobs, events) = (bench.stored_jobs.clone(), bench.events.len());
    let live = bench.fleet.jobs.clone();
    starts(&mut bench);
    assert_eq!(
        (bench.stored_jobs.clone(), bench.events.len()),
        (jobs, events)
    );
    assert_eq!(bench.fleet.jobs, live);
}

mod oracle;
