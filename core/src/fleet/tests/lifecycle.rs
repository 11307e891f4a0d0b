//! The life of a job: it starts, grows, loses workers and nodes, and ends.

use super::*;

#[test]
fn a_job_starts_as_soon_as_the_minimum_is_there_and_says_what_it_waits_for() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", document(2, 3, 3));
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Pending, Reason::BelowMinimum)
    );
    assert_eq!(job.message, "1 of at least 2 nodes available");
    bench.connect("b");
    assert_eq!(bench.job("digits").phase, Phase::Running);
    assert_eq!(bench.members("digits"), ["a", "b"]);
}

#[test]
fn it_grows_after_the_cool_down_and_survivors_keep_their_order() {
    let mut bench = Bench::new(&["b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    bench.pass(SECOND);
    bench.connect("a");
    bench.pass(3 * SECOND);
    assert_eq!(
        bench.members("digits"),
        ["b", "c"],
        "not before the cool-down"
    );
    bench.pass(2 * SECOND);
    assert_eq!(bench.members("digits"), ["b", "c", "a"]);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0, job.restarts.len()),
        (Phase::Running, 2, 0)
    );
    assert_eq!(job.incidents.last().unwrap().cause, Cause::NodeJoined);
}

#[test]
fn a_failed_worker_costs_the_job_one_restart_and_nobody_else() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    bench.step("digits", 41);
    bench.rank_exits("digits", 1, Exit::Signal(11), None);
    bench.rank_exits("digits", 0, Exit::Code(1), PEER);
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0, job.restarts.len()),
        (Phase::Running, 2, 1)
    );
    bench.step("digits", 38);
    let incident = bench.job("digits").incidents.last().unwrap();
    assert_eq!(
        (incident.cause, incident.charged),
        (Cause::WorkerFailed, Charged::Job)
    );
    assert_eq!(incident.culprit.as_deref(), Some("rank 1 on b"));
    assert_eq!(incident.collateral, ["rank 0 on a"]);
    assert_eq!(incident.steps_lost(), Some(4));
    assert!(
        incident.decided_at.is_some()
            && incident.stopped_at.is_some()
            && incident.launched_at.is_some()
    );
}

#[test]
fn a_cut_node_whose_peers_die_of_it_is_left_out_at_once() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    bench.cut("a");
    bench.rank_exits("digits", 1, Exit::Code(1), PEER);
    bench.pass(Duration::from_millis(100));
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0),
        (Phase::Running, 2),
        "no timer is waited for: {}",
        job.message
    );
    assert_eq!(bench.members("digits"), ["b", "c"]);
    assert!(
        job.restarts.is_empty(),
        "a node's fault costs the job nothing"
    );
    assert_eq!(job.incidents.last().unwrap().cause, Cause::NodeLost);
    // The node comes back with the old generation still alive. That one is stopped, and the job
    // grows again.
    bench.connect("a");
    bench.pass(6 * SECOND);
    assert_eq!(bench.members("digits"), ["b", "c", "a"]);
}

#[test]
fn a_silent_node_is_waited_for_while_nobody_dies() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    bench.agents.get_mut(&"c".into()).unwrap().frozen = true;
    bench.pass(4 * SECOND);
    assert_eq!(
        bench.job("digits").last_generation.0,
        1,
        "suspect is not lost"
    );
    bench.pass(2 * SECOND);
    assert_eq!(bench.members("digits"), ["a", "b"]);
    assert_eq!(bench.job("digits").phase, Phase::Running);
}

#[test]
fn below_the_minimum_a_silent_node_strands_the_job_but_kills_nothing() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.agents.get_mut(&"b".into()).unwrap().frozen = true;
    bench.pass(10 * SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason, job.last_generation.0),
        (Phase::Running, Reason::BelowMinimum, 1)
    );
    bench.agents.get_mut(&"b".into()).unwrap().frozen = false;
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.reason, job.last_generation.0),
        (Reason::Running, 1),
        "it goes on where it was"
    );
}

#[test]
fn a_lone_node_that_vanishes_is_not_replaced_without_proof() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("solo", document(1, 1, 1));
    assert_eq!(bench.members("solo"), ["a"]);
    bench.cut("a");
    bench.pass(10 * SECOND);
    let job = bench.job("solo");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Recovering, Reason::Unreachable)
    );
    assert!(
        job.message.contains("muster delete node a"),
        "{}",
        job.message
    );
    bench.request(Request::DeleteNode { node: "a".into() });
    let job = bench.job("solo");
    assert_eq!(job.phase, Phase::Running, "{}: {}", job.reason, job.message);
    assert_eq!(bench.members("solo"), ["b"]);
}

#[test]
fn a_reboot_is_proof_of_death() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("solo", document(1, 1, 1));
    bench.cut("a");
    bench.agents.get_mut(&"a".into()).unwrap().boot = 1;
    bench.connect("a");
    bench.pass(SECOND);
    let job = bench.job("solo");
    assert_eq!((job.phase, job.last_generation.0), (Phase::Running, 2));
    assert_eq!(job.incidents.last().unwrap().cause, Cause::NodeRebooted);
}

/// A node is not ready before its workers of all earlier generations are dead.
#[test]
fn the_time_to_get_ready_counts_the_grace_of_every_earlier_generation() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    let spec = SpecDocument {
        stop_grace_period: Some("200s".into()),
        ..document(2, 2, 3)
    };
    bench.submit("digits", spec);
    bench.agents.get_mut(&"a".into()).unwrap().frozen = true;
    let name = bench.job("digits").name.clone();
    bench.request(Request::Scale { name, nodes: 3 });
    assert!(!bench.job("digits").current.as_ref().unwrap().started);
    bench.cut("b");
    bench.agents.get_mut(&"b".into()).unwrap().boot = 1;
    bench.connect("b");
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!((job.last_generation.0, job.retiring.len()), (3, 2));
    let current = job.current.as_ref().unwrap();
    assert_eq!(current.previous_grace, Duration::from_secs(200));
}

#[test]
fn a_crash_loop_backs_off_and_then_fails_with_its_last_error() {
    let mut bench = Bench::new(&["a"]);
    bench.submit(
        "bad",
        SpecDocument {
            restart_policy: None,
            ..document(1, 1, 1)
        },
    );
    for _ in 0..4 {
        assert_eq!(bench.job("bad").phase, Phase::Running);
        bench.rank_exits("bad", 0, Exit::Code(7), Some("ValueError: no"));
        bench.pass(5 * SECOND);
    }
    let job = bench.job("bad");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Failed, Reason::RestartBudgetSpent)
    );
    assert!(
        job.message.contains("exit code 7: ValueError: no"),
        "{}",
        job.message
    );
    assert!(
        bench.fleet.nodes[&"a".into()].record.cordon.is_none(),
        "one bad job cordons nobody"
    );
}

#[test]
fn a_node_is_cordoned_when_two_jobs_last_longer_without_it() {
    let mut bench = Bench::new(&["a", "b"]);
    for (name, cordoned) in [("one", false), ("two", true)] {
        fails_twice(&mut bench, name);
        assert_eq!(bench.members(name), ["b"], "it is tried elsewhere");
        bench.pass(50 * SECOND);
        assert!(
            bench.fleet.nodes[&"a".into()].record.cordon.is_none(),
            "not proven yet"
        );
        bench.pass(20 * SECOND);
        assert_eq!(
            bench.fleet.nodes[&"a".into()].record.cordon.is_some(),
            cordoned,
            "{name}"
        );
        cancel(&mut bench, name);
    }
    let cordon = bench.stored_nodes[&"a".into()].cordon.clone().unwrap();
    assert_eq!(cordon.by, CordonedBy::Muster);
    assert!(
        cordon
            .reason
            .contains("4 failures of 2 jobs count against it"),
        "{}",
        cordon.reason
    );
}

#[test]
fn two_faulty_jobs_cordon_no_healthy_node() {
    let mut bench = Bench::new(&["a", "b"]);
    for name in ["one", "two"] {
        fails_twice(&mut bench, name);
        assert_eq!(bench.members(name), ["b"]);
        bench.pass(5 * SECOND);
        bench.rank_exits(name, 0, Exit::Signal(7), None);
        bench.pass(5 * SECOND);
        let standings = |bench: &Bench, node: &str| -> Vec<Standing> {
            let marks = &bench.stored_nodes[&node.into()].marks;
            marks
                .iter()
                .filter(|mark| mark.name.name == name)
                .map(|mark| mark.standing)
                .collect()
        };
        assert_eq!(standings(&bench, "a"), [Standing::Acquitted; 2]);
        assert_eq!(standings(&bench, "b"), [Standing::Acquitted; 1]);
        bench.pass(200 * SECOND);
        bench.rank_exits(name, 0, Exit::Signal(7), None);
        bench.pass(SECOND);
        let job = bench.job(name);
        assert!(
            job.message
                .contains("its failures began on 2 different nodes"),
            "{}",
            job.message
        );
    }
    assert!(
        bench
            .stored_nodes
            .values()
            .all(|node| node.cordon.is_none())
    );
}

#[test]
fn a_good_end_without_a_node_counts_against_it_too() {
    let mut bench = Bench::new(&["a", "b"]);
    fails_twice(&mut bench, "one");
    bench.pass(SECOND);
    bench.rank_exits("one", 0, Exit::Code(0), None);
    bench.pass(SECOND);
    assert_eq!(bench.job("one").phase, Phase::Succeeded);
    assert!(
        bench.stored_nodes[&"a".into()]
            .marks
            .iter()
            .all(|mark| mark.standing == Standing::Accused)
    );
}

#[test]
fn scale_is_obeyed_without_cool_down_and_kept_within_bounds() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(1, 1, 3));
    let name = JobName {
        namespace: "default".into(),
        name: "digits".into(),
    };
    bench.request(Request::Scale {
        name: name.clone(),
        nodes: 3,
    });
    assert_eq!(bench.members("digits"), ["a", "b", "c"]);
    bench.request(Request::Scale {
        name: name.clone(),
        nodes: 2,
    });
    assert_eq!(bench.members("digits"), ["a", "b"]);
    let refused = bench.request(Request::Scale { name, nodes: 4 });
    assert!(
        matches!(refused, Answer::Refused(Refusal::Invalid { .. })),
        "{refused:?}"
    );
}

/// Members stay on cordoned nodes, but a new generation could not have them.
#[test]
fn a_job_shrinks_only_if_the_smaller_generation_has_nodes() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    for node in ["a", "b"] {
        bench.request(Request::Cordon {
            node: node.into(),
            reason: "fan".into(),
        });
    }
    let name = bench.job("digits").name.clone();
    bench.request(Request::Scale { name, nodes: 2 });
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!((job.last_generation.0, job.phase), (1, Phase::Running));
    let waits = "3 nodes, and 2 wanted; it keeps them until so many can be had: ";
    assert!(job.message.starts_with(waits), "{}", job.message);
    bench.connect("d");
    bench.pass(SECOND);
    assert_eq!(bench.members("digits"), ["c", "d"]);
}

#[test]
fn it_ends_well_when_all_ranks_do_and_frees_its_nodes() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("one", document(2, 2, 2));
    bench.submit("two", document(2, 2, 2));
    assert_eq!(bench.job("two").reason, Reason::BelowMinimum);
    bench.rank_exits("one", 0, Exit::Code(0), None);
    assert_eq!(
        bench.job("one").phase,
        Phase::Running,
        "one of two has ended"
    );
    bench.rank_exits("one", 1, Exit::Code(0), None);
    assert_eq!(bench.job("one").phase, Phase::Succeeded);
    assert_eq!(bench.job("two").phase, Phase::Running);
    let name = JobName {
        namespace: "default".into(),
        name: "one".into(),
    };
    assert_eq!(
        bench.request(Request::Delete { name: name.clone() }),
        Answer::Done
    );
    assert!(!bench.stored_jobs.values().any(|job| job.name == name));
}

#[test]
fn a_node_lost_after_its_workers_finished_does_not_cost_the_job() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    for node in ["a", "b"] {
        let agent = bench.agents.get_mut(&node.into()).unwrap();
        for run in agent.runs.values_mut() {
            run.ranks
                .iter_mut()
                .for_each(|rank| rank.exit = Some(Exit::Code(0)));
        }
        let (session, runs) = (
            agent.session.unwrap(),
            agent.runs.values().cloned().collect(),
        );
        bench.input(Input::Runs { session, runs });
    }
    let session = bench
        .agents
        .get_mut(&"a".into())
        .unwrap()
        .session
        .take()
        .unwrap();
    bench.input(Input::Disconnected { session });
    bench.obey();
    assert_eq!(bench.job("digits").phase, Phase::Succeeded);
}

#[test]
fn a_launcher_ended_after_its_ranks_finished_is_no_failure() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.rank_exits("digits", 0, Exit::Code(0), None);
    let run = bench
        .agents
        .get_mut(&"a".into())
        .unwrap()
        .runs
        .values_mut()
        .next()
        .unwrap();
    run.torchrun_exit = Some(Exit::Signal(9));
    let (session, runs) = (
        bench.agents[&"a".into()].session.unwrap(),
        bench.agents[&"a".into()].runs.values().cloned().collect(),
    );
    bench.input(Input::Runs { session, runs });
    bench.pass(SECOND);
    assert_eq!(
        (
            bench.job("digits").phase,
            bench.job("digits").last_generation.0
        ),
        (Phase::Running, 1)
    );
    bench.rank_exits("digits", 1, Exit::Code(0), None);
    assert_eq!(bench.job("digits").phase, Phase::Succeeded);
}
