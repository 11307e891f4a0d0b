//! Nodes that refuse to start a job: who pays, and when it is final.

use super::*;
use crate::{
    fleet::live::AVOID,
    run::{DueTo, Refusal},
};

/// Agents that answer only as a test says.
fn silent(nodes: &[&str]) -> Bench {
    let mut bench = Bench::new(nodes);
    for node in nodes {
        bench.agents.get_mut(&(*node).into()).unwrap().frozen = true;
    }
    bench
}

/// The node says this of the run that it was told to make ready.
fn says(bench: &mut Bench, node: &str, phase: RunPhase, due_to: DueTo) {
    let job = bench.job("digits");
    let run = job
        .current
        .as_ref()
        .expect("a generation")
        .run(&job.uid.clone());
    let report = RunReport {
        phase,
        refused_due_to: due_to,
        ..RunReport::preparing(run.clone(), Term(1))
    };
    let agent = bench.agents.get_mut(&node.into()).unwrap();
    agent.runs.insert(run, report);
    let runs = agent.runs.values().cloned().collect();
    let session = agent.session.unwrap();
    bench.input(Input::Runs { session, runs });
}

fn refuses(bench: &mut Bench, node: &str, refusal: Refusal) {
    let phase = RunPhase::Refused(refusal.reason);
    says(bench, node, phase, refusal.due_to);
}

fn no_script(node: &str) -> Refusal {
    DueTo::Job.because(format!("script /t.py not found on {node}"))
}

fn spec(nodes: i64, restarts: i64) -> SpecDocument {
    SpecDocument {
        restart_policy: Some(crate::spec::RestartPolicyDocument {
            max_restarts: Some(restarts),
            window: None,
            max_same_failures: None,
        }),
        ..document(nodes, nodes, nodes)
    }
}

fn ended(bench: &Bench) -> (Phase, Reason) {
    let job = bench.job("digits");
    (job.phase, job.reason)
}

#[test]
fn a_gpu_in_a_strangers_hands_is_neithers_failure_and_the_job_waits() {
    let mut bench = silent(&["a"]);
    bench.submit("digits", spec(1, 0));
    let why = "a is not fit for it: GPU-1 is used by process 2885 (python), which no job of Muster started";
    refuses(&mut bench, "a", DueTo::Stranger.because(why));
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Pending, Reason::BelowMinimum)
    );
    assert!(
        job.message.contains("used by process 2885"),
        "{}",
        job.message
    );
    let broke = job.incidents.iter().find(|one| one.from.is_some()).unwrap();
    assert_eq!((broke.charged, &broke.culprit), (Charged::Nobody, &None));
    let marks = |bench: &Bench| {
        bench
            .fleet
            .nodes
            .get(&"a".into())
            .unwrap()
            .record
            .marks
            .len()
    };
    assert_eq!(marks(&bench), 0);
    // The node is asked again, and by then the process may be gone.
    bench.agents.get_mut(&"a".into()).unwrap().frozen = false;
    bench.pass(AVOID + SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0),
        (Phase::Running, 2),
        "{}",
        job.message
    );
}

#[test]
fn a_fault_of_the_only_node_is_not_the_jobs() {
    let mut bench = silent(&["a"]);
    bench.submit("digits", spec(1, 0));
    let why = "/dev/nvidiactl is missing, without which CUDA cannot use a GPU";
    refuses(&mut bench, "a", DueTo::Node.because(why));
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(job.reason, Reason::BelowMinimum, "{}", job.message);
    assert_eq!(job.incidents.last().unwrap().charged, Charged::Node);
}

#[test]
fn what_no_node_finds_is_final_at_once() {
    let mut bench = silent(&["a", "b"]);
    bench.submit("digits", spec(2, 3));
    refuses(&mut bench, "a", no_script("a"));
    bench.pass(SECOND);
    // The other node has not answered yet.
    assert_eq!(bench.job("digits").last_generation, Generation(1));
    refuses(&mut bench, "b", no_script("b"));
    bench.pass(SECOND);
    assert_eq!(ended(&bench), (Phase::Failed, Reason::CannotStart));
    let message = &bench.job("digits").message;
    assert!(message.contains("script /t.py not found"), "{message}");
    assert!(
        message.ends_with("all 2 nodes say the same, so it cannot start"),
        "{message}"
    );
}

/// A rack without its file system ends no job that other nodes can start.
#[test]
fn what_a_node_lacks_is_looked_for_elsewhere_before_it_is_final() {
    let mut bench = silent(&["a", "b", "c"]);
    bench.submit("digits", spec(1, 3));
    let on = |bench: &Bench| {
        let current = bench.job("digits").current.as_ref();
        current.expect("a generation").members[0].node.clone()
    };
    let first = on(&bench);
    refuses(&mut bench, first.as_str(), no_script(first.as_str()));
    bench.pass(10 * SECOND);
    let second = on(&bench);
    assert_ne!(second, first, "others are asked first");
    refuses(&mut bench, second.as_str(), no_script(second.as_str()));
    bench.pass(SECOND);
    assert_eq!(ended(&bench), (Phase::Failed, Reason::CannotStart));

    let mut bench = silent(&["a", "b", "c", "d"]);
    bench.submit("digits", spec(2, 3));
    for node in ["a", "b"] {
        refuses(&mut bench, node, no_script(node));
    }
    bench.pass(10 * SECOND);
    let job = bench.job("digits");
    assert!(!job.phase.is_over(), "{}", job.message);
    let members = &job.current.as_ref().expect("a generation").members;
    let members: Vec<&str> = members.iter().map(|member| member.node.as_str()).collect();
    assert_eq!(members, ["c", "d"]);
}

/// Nodes that the job does not choose, and nodes that are full, are no others.
#[test]
fn only_nodes_with_room_for_the_job_are_others() {
    let mut bench = selection::fleet(&[("a", "x", 0), ("b", "x", 0), ("c", "y", 0), ("d", "y", 0)]);
    for node in ["a", "b"] {
        bench.agents.get_mut(&node.into()).unwrap().frozen = true;
    }
    let of_pool = |pool: &str, spec: SpecDocument| SpecDocument {
        node_selector: [("pool".to_owned(), pool.to_owned())].into(),
        ..spec
    };
    bench.submit("digits", of_pool("x", spec(2, 3)));
    for node in ["a", "b"] {
        refuses(&mut bench, node, no_script(node));
    }
    bench.pass(SECOND);
    assert_eq!(ended(&bench), (Phase::Failed, Reason::CannotStart));

    let mut bench = silent(&["a", "b"]);
    bench.submit("digits", spec(1, 3));
    let on = bench.job("digits").current.as_ref().unwrap().members[0]
        .node
        .clone();
    let mut four = spec(1, 0);
    four.exclude_nodes = vec![on.to_string()];
    for number in 0..4 {
        bench.submit(&format!("full-{number}"), four.clone());
    }
    refuses(&mut bench, on.as_str(), no_script(on.as_str()));
    bench.pass(10 * SECOND);
    let current = bench.job("digits").current.as_ref();
    let again = current.expect("it waits for nobody").members[0]
        .node
        .clone();
    assert_eq!(again, on);
}

#[test]
fn what_one_of_two_nodes_finds_is_not_final() {
    let mut bench = silent(&["a", "b"]);
    bench.submit("digits", spec(2, 3));
    refuses(&mut bench, "a", no_script("a"));
    says(&mut bench, "b", RunPhase::Ready, DueTo::Unknown);
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Pending, Reason::BelowMinimum)
    );
    assert_eq!(job.failed_start, None);
}

#[test]
fn a_node_that_never_answers_is_not_awaited_for_long() {
    let mut bench = silent(&["a", "b"]);
    bench.submit("digits", spec(2, 3));
    refuses(&mut bench, "a", no_script("a"));
    let broken = |bench: &Bench| bench.job("digits").incidents.len() > 1;
    let mut waited = 0;
    // Both nodes are heard all the time. One only says nothing of the run.
    while !broken(&bench) && waited < 10 {
        for node in ["a", "b"] {
            let session = bench.agents[&node.into()].session.unwrap();
            bench.input(Input::Heartbeat { session });
        }
        bench.pass(SECOND);
        waited += 1;
    }
    assert_eq!(waited, 5);
    let broke = bench.job("digits").incidents.last().unwrap();
    assert_eq!(
        (broke.charged, broke.culprit.as_deref()),
        (Charged::Node, Some("a"))
    );
    assert_ne!(bench.job("digits").reason, Reason::CannotStart);
}

#[test]
fn the_same_refusal_twice_is_final() {
    let mut bench = silent(&["a"]);
    bench.submit("digits", spec(1, 3));
    refuses(&mut bench, "a", no_script("a"));
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").last_generation, Generation(2));
    refuses(&mut bench, "a", no_script("a"));
    bench.pass(SECOND);
    assert_eq!(ended(&bench), (Phase::Failed, Reason::CannotStart));
}

#[test]
fn a_script_that_cannot_be_read_ends_at_its_second_start() {
    for (exit, error, last) in [
        (1, Some("SyntaxError: invalid syntax"), 2),
        (127, None, 2),
        (1, Some("RuntimeError: a full disk"), 4),
    ] {
        let mut bench = Bench::new(&["a"]);
        bench.submit("digits", spec(1, 3));
        for _ in 0..4 {
            if bench.job("digits").current.is_some() {
                bench.rank_exits("digits", 0, Exit::Code(exit), error);
                bench.pass(10 * SECOND);
            }
        }
        let job = bench.job("digits");
        let reason = if last == 2 {
            Reason::CannotStart
        } else {
            Reason::RestartBudgetSpent
        };
        assert_eq!(
            (job.phase, job.reason, job.last_generation.0),
            (Phase::Failed, reason, last),
            "{}",
            job.message
        );
    }
}

#[test]
fn a_job_that_has_made_a_step_goes_by_its_budget() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", spec(1, 3));
    bench.step("digits", 1);
    for _ in 0..2 {
        bench.rank_exits("digits", 0, Exit::Code(1), Some("SyntaxError: edited"));
        bench.pass(10 * SECOND);
    }
    assert_eq!(bench.job("digits").phase, Phase::Running);
}

#[test]
fn a_rule_that_restarts_is_obeyed() {
    let rule = crate::spec::RuleDocument::read("exit codes 127: restart, at most 5 in 1h");
    let mut bench = Bench::new(&["a"]);
    let spec = SpecDocument {
        rules: vec![rule.unwrap()],
        ..spec(1, 3)
    };
    bench.submit("digits", spec);
    for _ in 0..3 {
        bench.rank_exits("digits", 0, Exit::Code(127), None);
        bench.pass(10 * SECOND);
    }
    assert_eq!(bench.job("digits").phase, Phase::Running);
}
