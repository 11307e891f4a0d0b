//! A second machine with a node's name, and a node that really rebooted.

use super::*;

/// An empty machine claims this name. Returns why it is refused, if it is.
fn claims(bench: &mut Bench, node: &str, boot: &str, uptime: Option<Duration>) -> Option<String> {
    bench.next += 1;
    let report = NodeReport {
        address: "10.0.0.2".into(),
        hostname: "second".into(),
        slots: 1,
        ..NodeReport::default()
    };
    let hello = Hello {
        node: node.into(),
        boot_id: boot.into(),
        uptime,
        incarnation: bench.next,
        speaks: Speaks::OURS,
        term_seen: Term(0),
        epoch_seen: NodeEpoch(0),
        jobs_seen: BTreeMap::new(),
        report,
        runs: Vec::new(),
    };
    let session = SessionId(bench.next);
    let effects = bench.input(Input::Connected { session, hello });
    effects.into_iter().find_map(|effect| match effect {
        Effect::Refuse { session: to, why } if to == session => Some(why),
        _ => None,
    })
}

/// The node's connection breaks. Its workers go on.
fn breaks(bench: &mut Bench, node: &str) {
    let agent = bench.agents.get_mut(&node.into()).unwrap();
    agent.desired = None;
    let session = agent.session.take().unwrap();
    bench.input(Input::Disconnected { session });
}

fn dead(bench: &Bench, job: &str) -> Vec<NodeName> {
    bench
        .job(job)
        .unproven_generations()
        .flat_map(|generation| generation.dead.iter().cloned())
        .collect()
}

fn at_work() -> Bench {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").phase, Phase::Running);
    bench
}

#[test]
fn a_second_machine_proves_nothing_dead_after_one_broken_session() {
    let mut bench = at_work();
    let before = bench.job("digits").current.clone();
    breaks(&mut bench, "a");
    bench.pass(2 * SECOND);
    let why = claims(&mut bench, "a", "another", Some(3_600 * SECOND)).expect("it is refused");
    assert_eq!(
        why,
        "another machine has the name a and may still run generation 1 of default/digits: 127.0.0.1, last heard 2s ago. This one, second \
         (10.0.0.2), has been up for 1h, so it is not that machine after a reboot. Start its agent with a name of its own (--node-name); \
         or, if the other machine is gone and none of its workers runs any more, strike it off (muster delete node a)"
    );
    assert!(
        bench
            .events
            .iter()
            .any(|event| event.reason == "SessionRefused" && event.warning)
    );
    // The first machine comes back and trains on.
    bench.connect("a");
    bench.pass(10 * SECOND);
    assert_eq!(
        (bench.job("digits").phase, &bench.job("digits").current),
        (Phase::Running, &before)
    );
}

#[test]
fn a_lost_machine_is_not_proven_dead_by_its_namesake_but_by_an_operator() {
    let mut bench = at_work();
    breaks(&mut bench, "a");
    bench.pass(60 * SECOND);
    assert!(claims(&mut bench, "a", "another", Some(3_600 * SECOND)).is_some());
    assert_eq!(dead(&bench, "digits"), Vec::<NodeName>::new());
    bench.request(Request::DeleteNode { node: "a".into() });
    assert_eq!(
        claims(&mut bench, "a", "another", Some(3_600 * SECOND)),
        None
    );
}

#[test]
fn a_node_that_was_booted_anew_proves_its_workers_dead() {
    for (silent, uptime) in [
        (2, Some(SECOND)),
        (60, Some(40 * SECOND)),
        (60, Some(64 * SECOND)),
        (60, None),
    ] {
        let mut bench = at_work();
        breaks(&mut bench, "a");
        bench.pass(silent * SECOND);
        assert_eq!(
            claims(&mut bench, "a", "another", uptime),
            None,
            "{silent} {uptime:?}"
        );
        assert_eq!(dead(&bench, "digits"), ["a".into()], "{silent} {uptime:?}");
    }
}

#[test]
fn a_name_may_move_when_nothing_runs_under_it() {
    let mut bench = Bench::new(&["a"]);
    breaks(&mut bench, "a");
    assert_eq!(
        claims(&mut bench, "a", "another", Some(3_600 * SECOND)),
        None
    );
}

#[test]
fn a_started_coordinator_goes_by_what_it_has_heard_itself() {
    let mut bench = at_work();
    bench.pass(60 * SECOND);
    bench.restart_coordinator();
    bench.pass(600 * SECOND);
    // The earlier coordinator's clock may have been wrong, so the length of the node's silence is
    // not known.
    assert_eq!(
        claims(&mut bench, "a", "another", Some(3_600 * SECOND)),
        None
    );

    let mut bench = at_work();
    bench.restart_coordinator();
    bench.connect("a");
    breaks(&mut bench, "a");
    assert!(claims(&mut bench, "a", "another", Some(3_600 * SECOND)).is_some());
}

#[test]
fn what_a_coordinator_finds_after_a_stall_may_be_as_old_as_its_stall() {
    let mut bench = at_work();
    // The coordinator stands still, and the node reboots meanwhile.
    bench.now = bench.now + 60 * SECOND;
    let session = bench.agents[&"a".into()].session.unwrap();
    bench.input(Input::Heartbeat { session });
    breaks(&mut bench, "a");
    assert_eq!(claims(&mut bench, "a", "another", Some(40 * SECOND)), None);
}

/// Found by the world (small seeds 2005605, 2012219, 2041743).
#[test]
fn a_generation_that_was_opened_on_old_words_proves_nothing() {
    let mut bench = Bench::new(&["a"]);
    let session = bench.agents[&"a".into()].session.unwrap();
    // The coordinator stands still, and the node reboots meanwhile.
    bench.now = bench.now + 60 * SECOND;
    bench.input(Input::Heartbeat { session });
    bench.agents.get_mut(&"a".into()).unwrap().frozen = true;
    bench.submit("solo", document(1, 1, 1));
    assert_eq!(bench.members("solo"), ["a"]);
    breaks(&mut bench, "a");
    assert_eq!(claims(&mut bench, "a", "another", Some(40 * SECOND)), None);
}

/// Found by the world (small seed 2000232). The node's report says only that its runner is gone.
#[test]
fn a_node_that_was_booted_anew_and_went_again_was_booted_anew() {
    let mut bench = at_work();
    breaks(&mut bench, "a");
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    (agent.boot, agent.frozen) = (1, true);
    let run = agent.runs.values_mut().next().unwrap();
    (run.phase, run.dead_at) = (RunPhase::Dead, Some(bench.now));
    bench.connect("a");
    breaks(&mut bench, "a");
    bench.pass(SECOND);
    let incident = bench.job("digits").incidents.last().unwrap();
    assert_eq!(incident.cause, Cause::NodeRebooted, "{}", incident.message);
}

#[test]
fn a_connected_node_keeps_its_name_whatever_the_other_says() {
    let mut bench = Bench::new(&["a"]);
    assert_eq!(
        claims(&mut bench, "a", "another", None).as_deref(),
        Some(
            "another machine is connected as a: 127.0.0.1. Start the agent of this one, second (10.0.0.2), with a name of its own \
             (--node-name)"
        )
    );
}
