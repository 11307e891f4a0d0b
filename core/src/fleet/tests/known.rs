//! Which nodes are known. A node that is gone slows no verdict down. It is forgotten in the end,
//! but never while something of it may run.

use super::*;

fn gone(name: &str) -> NodeRecord {
    NodeRecord {
        gone: true,
        gone_since: Some(Timestamp(0)),
        ..crate::fleet::budget::tests::node(name)
    }
}

fn reconnects(fleet: &mut Fleet, node: &str, session: u64, now: Timestamp) -> Vec<Effect> {
    let hello = Hello {
        node: node.into(),
        boot_id: "boot".into(),
        uptime: None,
        incarnation: 1,
        speaks: Speaks::OURS,
        term_seen: Term(0),
        epoch_seen: NodeEpoch(0),
        jobs_seen: BTreeMap::new(),
        report: NodeReport {
            address: "127.0.0.1".into(),
            slots: 1,
            ..NodeReport::default()
        },
        runs: Vec::new(),
    };
    fleet
        .turn(
            now,
            Input::Connected {
                session: SessionId(session),
                hello,
            },
        )
        .effects
}

#[test]
fn names_of_nodes_that_are_gone_slow_no_verdict_down() {
    let nodes = (0..19_000).map(|i| gone(&format!("gone-{i:05}"))).collect();
    let start = Timestamp(1_000_000_000);
    let mut fleet = Fleet::new(
        Policy::default(),
        Term(2),
        Stored {
            nodes,
            ..Stored::default()
        },
        start,
    );
    assert_eq!(
        fleet.presence.listen_until,
        start + Policy::default().listen,
        "nobody is waited for"
    );
    let effects = reconnects(&mut fleet, "a", 1, start);
    let told = effects.iter().find_map(|effect| {
        if let Effect::Welcome { heartbeat, .. } = effect {
            Some(*heartbeat)
        } else {
            None
        }
    });
    assert_eq!(told, Some(SECOND));
    let mut now = start;
    while now < start + 5 * SECOND {
        now = now + Policy::default().tick;
        fleet.turn(now, Input::Tick);
    }
    assert_eq!(
        fleet.node_view(&"a".into()).unwrap().liveness,
        Liveness::Lost,
        "silent for five seconds"
    );
}

#[test]
fn who_is_gone_for_long_is_forgotten_unless_something_of_it_may_run() {
    let mut bench = Bench::new(&["a", "b", "c", "d"]);
    bench.submit("solo", document(1, 1, 1));
    assert_eq!(bench.members("solo"), ["a"]);
    bench.request(Request::Cordon {
        node: "c".into(),
        reason: "fan".into(),
    });
    for node in ["a", "b", "c"] {
        bench.cut(node);
    }
    bench.pass(10 * SECOND);
    bench.now = bench.now + Policy::default().forget_after;
    bench.connect("d");
    bench.pass(SECOND);
    let known = |bench: &Bench| {
        bench
            .stored_nodes
            .keys()
            .map(|name| name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        known(&bench),
        ["a", "c", "d"],
        "workers on a are not proven dead, and c is cordoned"
    );
    let told = bench
        .events
        .iter()
        .find(|event| event.reason == "NodesForgotten")
        .unwrap();
    assert_eq!(told.message, "forgotten, gone for 48h: 1 nodes (b)");
    bench.connect("b");
    assert_eq!(known(&bench), ["a", "b", "c", "d"], "it may come back");
}

#[test]
fn new_names_are_refused_where_nobody_can_make_room() {
    let start = Timestamp(1_000_000_000);
    let stored = Stored {
        nodes: vec![
            gone("old"),
            NodeRecord {
                gone_since: Some(Timestamp(9)),
                ..gone("older-not")
            },
        ],
        ..Stored::default()
    };
    let mut fleet = Fleet::new(
        Policy {
            nodes_max: 3,
            ..Policy::default()
        },
        Term(2),
        stored,
        start,
    );
    let names = |fleet: &Fleet| {
        fleet
            .nodes
            .names()
            .map(|name| name.to_string())
            .collect::<Vec<_>>()
    };
    reconnects(&mut fleet, "a", 1, start);
    reconnects(&mut fleet, "b", 2, start);
    assert_eq!(
        names(&fleet),
        ["a", "b", "older-not"],
        "who was gone longest made room"
    );
    reconnects(&mut fleet, "c", 3, start);
    let effects = reconnects(&mut fleet, "d", 4, start);
    let why = effects.iter().find_map(|effect| {
        if let Effect::Refuse { why, .. } = effect {
            Some(why.as_str())
        } else {
            None
        }
    });
    assert!(
        why.unwrap()
            .contains("knows 3 nodes, its limit (--nodes-max)"),
        "{why:?}"
    );
    assert_eq!(names(&fleet), ["a", "b", "c"]);
    assert!(
        reconnects(&mut fleet, "a", 5, start)
            .iter()
            .any(|effect| matches!(effect, Effect::Welcome { .. })),
        "it is known"
    );
}

#[test]
fn a_restarted_coordinator_tells_in_one_event_that_all_are_back() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    let before = bench.events.len();
    bench.restart_coordinator();
    for node in ["a", "b", "c"] {
        bench.connect(node);
    }
    bench.pass(20 * SECOND);
    let told: Vec<&str> = bench.events[before..]
        .iter()
        .map(|event| event.message.as_str())
        .collect();
    assert_eq!(told, ["3 nodes are back, all that were there, after 0.0 s"]);
    // A node to which something has happened gets an event of its own.
    bench.cut("c");
    bench.connect("c");
    assert!(bench.events.iter().any(|event| event.reason == "NodeReady"
        && event.node == Some("c".into())
        && event.sequence > before as u64));
}
