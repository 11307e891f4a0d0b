//! A store that is an old copy: what proves it, and what becomes of jobs until an operator has
//! decided.

use super::*;

#[test]
fn a_node_that_knows_more_than_the_store_is_left_alone_with_its_jobs() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 2, 2));
    let (jobs, nodes) = (bench.stored_jobs.clone(), bench.stored_nodes.clone());
    bench.rank_exits("digits", 0, Exit::Signal(11), None);
    bench.pass(SECOND);
    let ran = bench.agents[&"a".into()].runs.clone();
    assert_eq!(bench.job("digits").last_generation.0, 2);

    // An old copy of the store is put back, and the term happens to match.
    (bench.stored_jobs, bench.stored_nodes) = (jobs.clone(), nodes.clone());
    bench.restart_coordinator();
    ["a", "b", "c"].iter().for_each(|node| bench.connect(node));
    bench.pass(20 * SECOND);
    assert_eq!(bench.agents[&"a".into()].runs, ran, "nothing is stopped");
    let job = bench.job("digits");
    assert_eq!(
        (job.last_generation.0, job.reason),
        (1, Reason::StoreBehind),
        "{}",
        job.message
    );
    let view = bench.fleet.node_view(&"a".into()).unwrap();
    assert!(
        view.conditions[0].contains("generation 2")
            && view.conditions[0].contains("--accept-store"),
        "{:?}",
        view.conditions
    );
    let name = JobName {
        namespace: "default".into(),
        name: "digits".into(),
    };
    let refused = bench.request(Request::Cancel { name });
    assert!(
        matches!(refused, Answer::Refused(Refusal::Precondition(_))),
        "{refused:?}"
    );

    // Once the operator has accepted the store, it is right, and no number is given out twice.
    (bench.stored_jobs, bench.stored_nodes) = (jobs, nodes);
    bench.restart_coordinator();
    bench.fleet.policy.accept_store = true;
    ["a", "b", "c"].iter().for_each(|node| bench.connect(node));
    bench.pass(20 * SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0),
        (Phase::Running, 3),
        "{}",
        job.message
    );
}

#[test]
fn a_generation_of_which_only_ledgers_know_proves_an_old_store() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    let (jobs, nodes) = (bench.stored_jobs.clone(), bench.stored_nodes.clone());
    bench.rank_exits("digits", 0, Exit::Signal(11), None);
    bench.pass(SECOND);
    let uid = bench.job("digits").uid.clone();
    assert_eq!(bench.job("digits").last_generation, Generation(2));

    // Both nodes have forgotten generation 2 since, and the node epochs happen to match.
    for node in ["a", "b"] {
        let agent = bench.agents.get_mut(&node.into()).unwrap();
        agent.runs.clear();
        agent.seen.insert(
            uid.clone(),
            Obeyed {
                generation: Generation(2),
                over: true,
            },
        );
    }
    (bench.stored_jobs, bench.stored_nodes) = (jobs.clone(), nodes.clone());
    bench.restart_coordinator();
    ["a", "b"].iter().for_each(|node| bench.connect(node));
    bench.pass(20 * SECOND);
    assert_eq!(bench.job("digits").reason, Reason::StoreBehind);
    let halt = bench.stored_nodes[&"a".into()]
        .halt
        .clone()
        .expect("halted, and stored");
    assert!(
        halt.why
            .starts_with("it has obeyed generation 2 of default/digits, the store says 1"),
        "{}",
        halt.why
    );

    (bench.stored_jobs, bench.stored_nodes) = (jobs, nodes);
    bench.restart_coordinator();
    bench.fleet.policy.accept_store = true;
    ["a", "b"].iter().for_each(|node| bench.connect(node));
    bench.pass(20 * SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0),
        (Phase::Running, 3),
        "{}",
        job.message
    );
}

#[test]
fn nothing_is_begun_on_a_node_booted_anew_while_another_holds_its_job_up() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 2, 2));
    let (jobs, nodes) = (bench.stored_jobs.clone(), bench.stored_nodes.clone());
    assert_eq!(bench.members("digits"), ["a", "b"]);
    bench.rank_exits("digits", 0, Exit::Signal(11), None);
    bench.pass(SECOND);
    (bench.stored_jobs, bench.stored_nodes) = (jobs, nodes);
    bench.restart_coordinator();
    bench.connect("a");
    let b = bench.agents.get_mut(&"b".into()).unwrap();
    b.runs.clear();
    (b.epoch, b.boot, b.desired) = (NodeEpoch(0), 1, None);
    bench.connect("b");
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").reason, Reason::StoreBehind);
    assert!(
        bench.agents[&"b".into()].runs.is_empty(),
        "{:?}",
        bench.agents[&"b".into()].runs
    );
}

#[test]
fn a_node_with_a_newer_epoch_proves_an_old_store() {
    let mut bench = Bench::new(&["a"]);
    bench.agents.get_mut(&"a".into()).unwrap().epoch = NodeEpoch(9);
    bench.connect("a");
    let halt = bench.stored_nodes[&"a".into()]
        .halt
        .clone()
        .expect("halted, and stored");
    assert!(
        halt.why
            .starts_with("it has obeyed node epoch 9, the store says 1"),
        "{}",
        halt.why
    );
    bench.submit("digits", document(1, 1, 1));
    assert!(
        bench
            .job("digits")
            .message
            .contains("a knows more than the store"),
        "{}",
        bench.job("digits").message
    );
    bench.restart_coordinator();
    bench.connect("a");
    assert!(
        bench.stored_nodes[&"a".into()].halt.is_some(),
        "a restart does not mend it"
    );
}

#[test]
fn workers_of_a_job_the_store_never_knew_are_left_alone() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", document(1, 1, 1));
    bench.pass(SECOND);
    bench.stored_jobs.clear();
    bench.stored_nodes.clear();
    bench.restart_coordinator();
    bench.connect("a");
    bench.pass(SECOND);
    assert!(
        bench.agents[&"a".into()]
            .runs
            .values()
            .all(|run| run.phase == RunPhase::Running)
    );
    assert!(
        bench
            .events
            .iter()
            .any(|event| event.reason == "StoreBehind")
    );
}

#[test]
fn a_number_given_out_again_proves_an_old_store() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(1, 1, 1));
    let (jobs, nodes) = (bench.stored_jobs.clone(), bench.stored_nodes.clone());
    bench.cut("a");
    bench.pass(10 * SECOND);
    assert_eq!(
        (bench.members("digits"), bench.job("digits").last_generation),
        (vec!["b"], Generation(2))
    );
    let ran = bench.agents[&"b".into()].runs.clone();

    // The old copy gives number 2 out again, to a third node. The node that has the first
    // generation 2 is heard later.
    (bench.stored_jobs, bench.stored_nodes) = (jobs, nodes);
    bench.restart_coordinator();
    bench.connect("c");
    bench.agents.get_mut(&"a".into()).unwrap().boot = 1;
    bench.connect("a");
    bench.pass(20 * SECOND);
    assert_eq!(bench.job("digits").last_generation, Generation(2));
    assert_ne!(bench.members("digits"), ["b"]);
    bench.agents.get_mut(&"b".into()).unwrap().desired = None;
    bench.connect("b");
    let halt = bench.stored_nodes[&"b".into()]
        .halt
        .clone()
        .expect("halted, and stored");
    assert!(
        halt.why.starts_with(
            "it holds generation 2 of default/digits, whose members in the store are others"
        ),
        "{}",
        halt.why
    );
    bench.pass(20 * SECOND);
    assert_eq!(bench.agents[&"b".into()].runs, ran, "nothing is stopped");
}

#[test]
fn an_agent_that_has_obeyed_what_it_has_let_go_of_is_no_stranger() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", document(1, 1, 1));
    let uid = bench.job("digits").uid.clone();
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    (agent.session, agent.desired) = (None, None);
    agent.runs.clear();
    (agent.epoch, agent.incarnation) = (NodeEpoch(0), 0);
    bench.connect("a");
    let refused = |bench: &Bench| {
        bench
            .events
            .iter()
            .filter(|event| event.reason == "SessionRefused")
            .count()
    };
    assert_eq!(
        refused(&bench),
        1,
        "of an agent that knows nothing nobody can tell"
    );
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    agent.seen.insert(
        uid.clone(),
        Obeyed {
            generation: Generation(1),
            over: false,
        },
    );
    bench.connect("a");
    assert_eq!(
        refused(&bench),
        2,
        "it may have been started by another since"
    );
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    agent.seen.insert(
        uid,
        Obeyed {
            generation: Generation(1),
            over: true,
        },
    );
    agent.epoch = NodeEpoch(0);
    bench.connect("a");
    assert_eq!(
        (refused(&bench), bench.stored_nodes[&"a".into()].epoch),
        (2, NodeEpoch(2))
    );
}

#[test]
fn nobody_need_know_of_workers_that_were_started_on_another_boot() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", document(1, 1, 1));
    // The node rebooted and said so. The coordinator ended before it noted the deaths which that
    // proves.
    let node = bench.stored_nodes.get_mut(&"a".into()).unwrap();
    (node.boot_id, node.epoch) = ("boot-1".into(), NodeEpoch(2));
    bench.restart_coordinator();
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    agent.runs.clear();
    (agent.boot, agent.epoch, agent.incarnation) = (1, NodeEpoch(0), 0);
    bench.connect("a");
    bench.pass(20 * SECOND);
    assert!(
        bench
            .events
            .iter()
            .all(|event| event.reason != "SessionRefused"),
        "{:?}",
        bench.events.last()
    );
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation),
        (Phase::Running, Generation(2)),
        "{}",
        job.message
    );
}

#[test]
fn what_a_stranger_to_a_generation_knows_does_not_end_it() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 2, 2));
    assert_eq!(bench.members("digits"), ["a", "b"]);
    let uid = bench.job("digits").uid.clone();
    bench.fleet.policy.accept_store = true;
    let seen = |bench: &mut Bench, node: &str, number| {
        let agent = bench.agents.get_mut(&node.into()).unwrap();
        agent.seen.insert(
            uid.clone(),
            Obeyed {
                generation: Generation(number),
                over: true,
            },
        );
        bench.connect(node);
        bench.pass(SECOND);
    };
    seen(&mut bench, "c", 4);
    let job = bench.job("digits");
    assert_eq!(
        (job.current.as_ref().unwrap().number, job.last_generation),
        (Generation(1), Generation(4)),
        "it trains on"
    );

    // A member has gone on to a generation that no other node reports. That is an incident.
    bench.agents.get_mut(&"a".into()).unwrap().runs.clear();
    seen(&mut bench, "a", 3);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation),
        (Phase::Running, Generation(5)),
        "{}",
        job.message
    );
    assert_eq!(job.incidents.last().unwrap().cause, Cause::StoreAccepted);
}

#[test]
fn what_one_member_knows_ends_nothing_that_a_halted_one_holds_up() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    let uid = bench.job("digits").uid.clone();
    // A node's report of generation 2 was accepted. That coordinator ended before it heard the
    // member that is still halted.
    bench.stored_jobs.get_mut(&uid).unwrap().last_generation = Generation(2);
    bench.stored_nodes.get_mut(&"b".into()).unwrap().halt = Some(Halt {
        at: Timestamp(0),
        why: "it knows more".into(),
    });
    for node in ["a", "b"] {
        let agent = bench.agents.get_mut(&node.into()).unwrap();
        agent.runs.clear();
        agent.seen.insert(
            uid.clone(),
            Obeyed {
                generation: Generation(2),
                over: true,
            },
        );
    }
    bench.restart_coordinator();
    ["a", "b"].iter().for_each(|node| bench.connect(node));
    bench.pass(20 * SECOND);
    let job = bench.job("digits");
    let current = job.current.as_ref().expect("left as it was");
    assert_eq!(
        (current.number, &current.stopping, job.reason),
        (Generation(1), &None, Reason::StoreBehind),
        "{}",
        job.message
    );

    // This is what a start with --accept-store does to the record.
    bench.stored_nodes.get_mut(&"b".into()).unwrap().halt = None;
    bench.restart_coordinator();
    bench.fleet.policy.accept_store = true;
    ["a", "b"].iter().for_each(|node| bench.connect(node));
    bench.pass(20 * SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation),
        (Phase::Running, Generation(3)),
        "{}",
        job.message
    );
}

#[test]
fn what_an_accepted_store_knows_to_be_over_is_stopped_where_it_goes_on() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", document(1, 1, 1));
    let name = JobName {
        namespace: "default".into(),
        name: "digits".into(),
    };
    let ran = bench.agents[&"a".into()]
        .runs
        .values()
        .next()
        .unwrap()
        .clone();
    bench.request(Request::Cancel { name });
    bench.pass(SECOND);
    assert!(bench.job("digits").phase.is_over());
    bench.fleet.policy.accept_store = true;
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    let newer = RunId {
        generation: Generation(2),
        ..ran.run.clone()
    };
    agent.runs = [(
        newer.clone(),
        RunReport {
            run: newer.clone(),
            ..ran
        },
    )]
    .into();
    bench.connect("a");
    bench.pass(SECOND);
    assert!(
        !bench.agents[&"a".into()].runs.contains_key(&newer),
        "{:?}",
        bench.agents[&"a".into()].runs
    );
}

#[test]
fn an_agent_that_does_not_know_what_was_started_on_its_boot_is_another() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(1, 1, 1));
    bench.pass(SECOND);
    assert_eq!(bench.members("digits"), ["a"]);
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    let (runs, epoch) = (
        std::mem::take(&mut agent.runs),
        std::mem::take(&mut agent.epoch),
    );
    bench.connect("a");
    let said = bench.events.last().unwrap();
    assert!(
        said.reason == "SessionRefused"
            && said
                .message
                .contains("does not know of generation 1 of default/digits"),
        "{said:?}"
    );
    assert!(
        said.message.contains("node epoch 1") && bench.agents[&"a".into()].runs.is_empty(),
        "{}",
        said.message
    );

    // The agent that was told comes back, and nothing has happened.
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    (agent.runs, agent.epoch) = (runs, epoch);
    bench.connect("a");
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0),
        (Phase::Running, 1),
        "{}",
        job.message
    );

    // After a reboot none of the workers is left, whatever the disk says.
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    agent.runs.clear();
    (agent.epoch, agent.boot) = (NodeEpoch(0), 1);
    bench.cut("a");
    bench.connect("a");
    bench.pass(SECOND);
    assert_eq!(bench.job("digits").last_generation.0, 2);
}

/// A node was deleted while its workers ran, then their job. A coordinator that starts after that
/// still knows that it had such a job.
#[test]
fn workers_of_a_deleted_job_on_a_deleted_node_are_stopped_after_a_restart() {
    let mut bench = Bench::new(&["a"]);
    bench.submit("digits", document(1, 1, 1));
    bench.pass(SECOND);
    // Its network breaks, and its workers go on.
    let agent = bench.agents.get_mut(&"a".into()).unwrap();
    agent.frozen = true;
    let session = agent.session.take().unwrap();
    bench.input(Input::Disconnected { session });
    bench.pass(10 * SECOND);
    bench.request(Request::DeleteNode { node: "a".into() });
    cancel(&mut bench, "digits");
    bench.pass(SECOND);
    let name = bench.job("digits").name.clone();
    let deleted = bench.request(Request::Delete { name });
    assert_eq!(deleted, Answer::Done);

    bench.restart_coordinator();
    bench.agents.get_mut(&"a".into()).unwrap().frozen = false;
    bench.connect("a");
    bench.pass(SECOND);
    let behind = |event: &&Event| event.reason == "StoreBehind";
    assert_eq!(bench.events.iter().find(behind), None);
    assert!(bench.stored_nodes[&"a".into()].halt.is_none());
    let runs = &bench.agents[&"a".into()].runs;
    assert!(runs.values().all(|run| run.phase.is_over()), "{runs:?}");
}
