//! Jobs that fail by themselves at the same place, and generations that bring a job no further.

use super::*;
use crate::{
    error_class::ErrorClass,
    run::RankException,
    spec::{RestartPolicyDocument, RuleDocument},
};

fn patient(max_same_failures: Option<i64>) -> SpecDocument {
    SpecDocument {
        restart_policy: Some(RestartPolicyDocument {
            max_restarts: Some(1_000),
            window: None,
            max_same_failures,
        }),
        ..document(1, 1, 1)
    }
}

/// The job trains until this step, and its rank raises this error in this line.
fn fails_at(bench: &mut Bench, job: &str, step: Option<u64>, error: &str, line: u32) {
    bench.pass(400 * SECOND);
    if let Some(step) = step {
        bench.step(job, step);
    }
    let generation = bench.job(job).current.clone().unwrap();
    let run = generation.run(&bench.job(job).uid);
    let node = generation.node_of(0).unwrap().clone();
    let (name, text) = error.split_once(": ").unwrap();
    let run = bench.agents.get_mut(&node).unwrap().runs.get_mut(&run);
    run.unwrap().ranks[0].exception = Some(RankException {
        name: name.into(),
        text: text.into(),
        frames: vec![
            "/job/train.py:90 in <module>".into(),
            format!("/job/train.py:{line} in load"),
        ],
        left_script: true,
    });
    bench.rank_exits(job, 0, Exit::Code(1), Some(error));
    bench.pass(2 * SECOND);
}

fn told(bench: &Bench) -> (Phase, Reason) {
    let job = bench.job("one");
    (job.phase, job.reason)
}

const ENDED: (Phase, Reason) = (Phase::Failed, Reason::DeterministicFailure);

#[test]
fn the_same_failure_at_the_same_step_ends_the_job_before_its_budget_does() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", patient(None));
    for _ in 0..2 {
        fails_at(&mut bench, "one", Some(100), "ValueError: bad 1", 7);
        assert_eq!(bench.job("one").finished, None);
        bench.restart_coordinator();
        bench.connect("a");
        bench.connect("b");
    }
    fails_at(&mut bench, "one", Some(100), "ValueError: bad 2", 7);
    assert_eq!(told(&bench), ENDED);
    let job = bench.job("one");
    let words = "ValueError at /job/train.py:7 in load after step 100, 3 times on 2 nodes";
    assert!(job.message.contains(words), "{}", job.message);
    assert!(job.message.contains("maxSameFailures: 0"));
    let classes = job.incidents.iter().filter_map(|incident| incident.class);
    assert!(classes.eq([ErrorClass::Code; 3]));
}

#[test]
fn a_job_that_comes_further_each_time_goes_on() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", patient(None));
    for step in 1..20 {
        fails_at(&mut bench, "one", Some(100 * step), "ValueError: bad", 7);
    }
    // Twice at one step, and then further.
    for step in [3_000, 3_000, 3_001, 3_000, 3_000, 3_002] {
        fails_at(&mut bench, "one", Some(step), "ValueError: bad", 7);
        assert_eq!(bench.job("one").finished, None, "{step}");
    }
}

#[test]
fn another_line_another_kind_or_no_kind_begins_anew() {
    for (error, line) in [
        ("ValueError: bad", 8),
        ("KeyError: 7", 7),
        ("RuntimeError: bad", 7),
        ("OSError: [Errno 116] Stale file handle: '/data/a'", 7),
    ] {
        let mut bench = Bench::new(&["a", "b"]);
        bench.submit("one", patient(None));
        for (error, line) in [
            ("ValueError: bad", 7),
            ("ValueError: bad", 7),
            (error, line),
        ] {
            fails_at(&mut bench, "one", Some(100), error, line);
        }
        for _ in 0..2 {
            fails_at(&mut bench, "one", Some(100), "ValueError: bad", 7);
            assert_eq!(bench.job("one").finished, None, "{error}");
        }
    }
}

#[test]
fn an_error_that_the_hardware_or_the_storage_may_cause_ends_no_job_early() {
    for error in [
        "RuntimeError: bad",
        "OSError: [Errno 116] Stale file handle: '/data/a'",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ] {
        let mut bench = Bench::new(&["a", "b"]);
        bench.submit("one", patient(None));
        for _ in 0..9 {
            fails_at(&mut bench, "one", Some(100), error, 7);
            assert_eq!(bench.job("one").finished, None, "{error}");
        }
    }
}

#[test]
fn a_policy_or_a_rule_may_want_more_of_the_same() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", patient(Some(0)));
    let rules = vec![RuleDocument::read("exit codes 1: restart").unwrap()];
    bench.submit(
        "two",
        SpecDocument {
            rules,
            ..patient(None)
        },
    );
    for _ in 0..6 {
        for job in ["one", "two"] {
            fails_at(&mut bench, job, Some(100), "ValueError: bad", 7);
            assert_eq!(bench.job(job).finished, None, "{job}");
        }
    }
}

#[test]
fn generations_in_vain_are_counted_and_told_once_until_the_job_comes_further() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", patient(Some(0)));
    let told = |bench: &Bench| {
        let events = bench.events.iter();
        events.filter(|event| event.reason == "NoProgress").count()
    };
    for (step, generations, times) in [
        (Some(100), 0, 0),
        (Some(90), 1, 0),
        (None, 2, 0),
        (Some(100), 3, 1),
        (Some(99), 4, 1),
        (Some(101), 0, 1),
        (Some(1), 1, 1),
        (Some(1), 2, 1),
        (Some(1), 3, 2),
    ] {
        fails_at(&mut bench, "one", step, "ValueError: bad", 7);
        let found = bench.job("one").generations_in_vain.generations;
        assert_eq!((found, told(&bench)), (generations, times), "{step:?}");
    }
    let event = bench
        .events
        .iter()
        .find(|event| event.reason == "NoProgress");
    let words = "default/one: the last 3 generations made no step beyond 100, the best so far";
    assert_eq!(event.unwrap().message, words);
}
