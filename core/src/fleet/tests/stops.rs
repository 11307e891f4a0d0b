//! Planned stops: when none comes because ranks end, what ranks leave behind, and what is told of
//! what had to be killed.

use super::*;
use crate::{
    health::{Finding, Health, Remedy, Severity, Subject, TERMINATION_NOTICE},
    run::{Disobedience, Leftover, StepPatternFault},
};

fn scale(bench: &mut Bench, nodes: u32) {
    let name = bench.job("digits").name.clone();
    bench.request(Request::Scale { name, nodes });
    bench.pass(10 * SECOND);
}

fn finds(bench: &mut Bench, node: &str, check: &str) {
    let session = bench.agents[&node.into()].session.unwrap();
    let finding = Finding {
        check: check.into(),
        subject: Subject::Node,
        severity: Severity::Drain,
        remedy: Remedy::GpuReset,
        reason: "a reason".into(),
        since_unix_us: 0,
        runs: Vec::new(),
    };
    let report = NodeReport {
        address: "127.0.0.1".into(),
        slots: 1,
        health: Health {
            findings: vec![finding],
        },
        ..NodeReport::default()
    };
    bench.input(Input::Report { session, report });
    bench.obey();
}

/// Changes what a node says of the run of the newest generation.
fn says(bench: &mut Bench, node: &str, change: impl FnOnce(&mut RunReport)) {
    let agent = bench.agents.get_mut(&node.into()).unwrap();
    change(agent.runs.values_mut().next_back().unwrap());
    let (session, runs) = (
        agent.session.unwrap(),
        agent.runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
    bench.obey();
}

fn told(bench: &Bench, reason: &str) -> Vec<String> {
    let events = bench.events.iter().filter(|event| event.reason == reason);
    events.map(|event| event.message.clone()).collect()
}

fn left(pid: u32, program: &str, killed: bool) -> Leftover {
    Leftover {
        pid,
        program: program.into(),
        killed,
    }
}

#[test]
fn a_job_whose_rank_has_ended_well_keeps_its_nodes_to_the_end() {
    type Change = fn(&mut Bench);
    let changes: [(&str, Change); 5] = [
        ("a node joins", |bench| bench.connect("a")),
        ("a user wants more", |bench| {
            bench.connect("a");
            scale(bench, 3);
        }),
        ("a user wants less", |bench| scale(bench, 1)),
        ("a node ails", |bench| {
            bench.connect("a");
            finds(bench, "c", "xid:48");
        }),
        ("the node of the one that ended ails", |bench| {
            bench.connect("a");
            finds(bench, "b", "xid:48");
        }),
    ];
    for (what, change) in changes {
        for (rank, node) in [(0, "b"), (1, "c")] {
            let mut bench = Bench::new(&["b", "c"]);
            bench.submit("digits", document(1, 2, 3));
            if what == "a node joins" {
                bench = Bench::new(&["b", "c"]);
                bench.submit("digits", document(2, 3, 3));
            }
            bench.step("digits", 7);
            bench.rank_exits("digits", rank, Exit::Code(0), None);
            change(&mut bench);
            bench.pass(60 * SECOND);
            let job = bench.job("digits");
            assert_eq!(
                (job.last_generation.0, bench.members("digits")),
                (1, vec!["b", "c"]),
                "{what}: {}",
                job.message
            );
            if what.starts_with("a user wants") {
                let why = format!("because rank {rank} on {node} has ended with exit code 0");
                assert!(job.message.ends_with(&why), "{what}: {}", job.message);
            }
            bench.rank_exits("digits", 1 - rank, Exit::Code(0), None);
            bench.pass(SECOND);
            assert_eq!(bench.job("digits").phase, Phase::Succeeded, "{what}");
        }
    }
}

#[test]
fn a_node_that_goes_anyway_is_left_although_a_rank_has_ended_well() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(1, 2, 2));
    bench.rank_exits("digits", 0, Exit::Code(0), None);
    finds(&mut bench, "b", TERMINATION_NOTICE);
    bench.pass(SECOND);
    assert_eq!(bench.members("digits"), ["a", "c"]);
}

#[test]
fn what_ranks_leave_behind_is_named_and_waited_for() {
    let mut bench = Bench::new(&["a", "b"]);
    let spec = SpecDocument {
        stop_grace_period: Some("20s".into()),
        ..document(2, 2, 2)
    };
    bench.submit("digits", spec);
    bench.rank_exits("digits", 0, Exit::Code(0), None);
    let ended = |run: &mut RunReport| {
        run.ranks[0].exit = Some(Exit::Code(0));
        run.torchrun_exit = Some(Exit::Code(0));
        run.leftovers = vec![left(41, "python train.py", false), left(42, "sleep", false)];
    };
    says(&mut bench, "b", ended);
    bench.pass(15 * SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.message.as_str()),
        (
            Phase::Running,
            "every rank ended with exit code 0; waiting for what they have left behind: python train.py (pid 41), sleep (pid 42) on b"
        )
    );
    let named = told(&bench, "LeftBehind");
    assert_eq!(named.len(), 1, "{named:?}");
    assert!(
        named[0]
            .contains("on b have ended and left behind: python train.py (pid 41), sleep (pid 42)."),
        "{named:?}"
    );
    assert!(named[0].contains("20s"), "{named:?}");
    let over = |run: &mut RunReport| {
        run.leftovers[0].killed = true;
        (run.phase, run.dead_at) = (RunPhase::Dead, Some(Timestamp(1)));
    };
    says(&mut bench, "b", over);
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").phase, Phase::Succeeded);
    let killed = told(&bench, "GraceOver");
    assert_eq!(killed.len(), 1, "{killed:?}");
    assert!(
        killed[0].starts_with(
            "python train.py (pid 41), left behind by the ranks on b, had not ended within"
        ),
        "{killed:?}"
    );
    assert_eq!(told(&bench, "LeftBehind").len(), 1);
}

#[test]
fn a_node_that_never_reports_the_end_of_what_is_left_holds_no_job_for_ever() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", document(1, 1, 1));
    let ended = |run: &mut RunReport| {
        run.ranks[0].exit = Some(Exit::Code(0));
        run.torchrun_exit = Some(Exit::Code(0));
        run.leftovers = vec![left(41, "sleep", false)];
    };
    says(&mut bench, "a", ended);
    bench.pass(34 * SECOND);
    assert_eq!(bench.job("digits").phase, Phase::Running);
    bench.pass(2 * SECOND);
    assert_eq!(bench.job("digits").phase, Phase::Succeeded);
}

#[test]
fn each_rank_that_was_killed_when_its_grace_was_over_is_told_once() {
    let mut bench = Bench::new(&["a", "b"]);
    let spec = SpecDocument {
        proc_per_node: Some(20),
        ..document(1, 2, 2)
    };
    bench.submit("digits", spec);
    bench.agents.get_mut(&"a".into()).unwrap().frozen = true;
    scale(&mut bench, 1);
    let killed = |run: &mut RunReport| {
        for rank in &mut run.ranks {
            rank.exit = Some(Exit::Signal(9));
            rank.killed_after = Some(30 * SECOND);
        }
        (run.phase, run.dead_at) = (RunPhase::Dead, Some(Timestamp(1)));
    };
    bench.agents.get_mut(&"a".into()).unwrap().frozen = false;
    says(&mut bench, "a", killed);
    bench.pass(SECOND);
    let told = told(&bench, "GraceOver");
    assert_eq!(told.len(), 17, "{told:?}");
    assert_eq!(
        told[0],
        "rank 0 on a was killed: it had not ended within its stopGracePeriod of 30s after SIGTERM; set stopGracePeriod to what saving takes, at most 15m"
    );
    assert!(told[16].starts_with("4 more ranks on a, from rank 16 on, were killed"));
    let event = bench
        .events
        .iter()
        .find(|e| e.reason == "GraceOver")
        .unwrap();
    assert!(event.warning && event.node == Some("a".into()) && event.generation.is_some());
}

#[test]
fn a_runner_that_did_not_obey_is_told_once() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(1, 2, 2));
    bench.agents.get_mut(&"a".into()).unwrap().frozen = true;
    scale(&mut bench, 1);
    let disobeys = |run: &mut RunReport| {
        run.phase = RunPhase::Stopping;
        run.disobedience = Some(Disobedience {
            grace: 30 * SECOND,
            late: 20 * SECOND,
            answered: false,
        });
    };
    // The same report again, before the node obeys.
    bench.agents.get_mut(&"a".into()).unwrap().frozen = true;
    for _ in 0..2 {
        says(&mut bench, "a", disobeys);
        bench.pass(SECOND);
    }
    let killed = told(&bench, "RunnerKilled");
    assert_eq!(killed.len(), 1, "{killed:?}");
    assert!(
        killed[0].starts_with(
            "the runner on a was ordered to end its ranks with a grace of 30s, and 20s after that it did not even answer"
        ),
        "{killed:?}"
    );
    let event = bench.events.iter().find(|e| e.reason == "RunnerKilled");
    let event = event.unwrap();
    assert!(event.warning && event.node == Some("a".into()) && event.generation.is_some());
}

#[test]
fn a_pattern_that_is_not_searched_for_is_told_once_and_ends_nothing() {
    for (fault, why) in [
        (
            StepPatternFault::TooSlow,
            "took more than 20 ms on too many lines",
        ),
        (StepPatternFault::TooLarge, "larger than a pattern may be"),
    ] {
        let mut bench = Bench::new(&["a", "b"]);
        bench.submit("digits", document(2, 2, 2));
        for node in ["a", "b"] {
            says(&mut bench, node, |run| run.step_pattern_fault = Some(fault));
            bench.pass(SECOND);
        }
        let given_up = told(&bench, "StepPatternGivenUp");
        assert_eq!(given_up.len(), 1, "{given_up:?}");
        assert!(given_up[0].contains(why), "{given_up:?}");
        assert_eq!(bench.job("digits").phase, Phase::Running);
    }
}
