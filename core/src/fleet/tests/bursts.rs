//! Which evidence of a burst is judged at once, and which waits for more.

use super::*;

#[test]
fn a_victim_that_is_seen_first_waits_for_its_culprit() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    bench.rank_exits("digits", 0, Exit::Code(1), PEER);
    bench.rank_exits("digits", 2, Exit::Signal(11), None);
    assert_eq!(bench.job("digits").last_generation.0, 1, "more may come");
    bench.pass(SECOND);
    let incident = bench.job("digits").incidents.last().unwrap();
    assert_eq!(
        (incident.culprit.as_deref(), incident.charged),
        (Some("rank 2 on c"), Charged::Job)
    );
    assert_eq!(incident.collateral, ["rank 0 on a"]);
}

#[test]
fn who_was_killed_from_outside_is_replaced_without_waiting_for_more() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    bench.submit("digits", document(2, 3, 3));
    let busy = |bench: &mut Bench, busy| {
        ["a", "c"].map(|node| bench.agents.get_mut(&node.into()).unwrap().frozen = busy)
    };
    busy(&mut bench, true);
    bench.rank_exits("digits", 1, Exit::Signal(9), None);
    let broken = bench.job("digits").retiring[0].clone();
    assert_eq!(
        bench.job("digits").last_generation.0,
        2,
        "no time has passed"
    );
    // What its peers report arrives later, and still belongs on the receipt.
    bench.rank_of_exits("digits", &broken, 0, Exit::Code(1), PEER);
    bench.rank_of_exits("digits", &broken, 2, Exit::Signal(9), None);
    busy(&mut bench, false);
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.last_generation.0, job.restarts.len()),
        (Phase::Running, 2, 1)
    );
    let incident = job.incidents.last().unwrap();
    assert_eq!(
        (incident.cause, incident.culprit.as_deref()),
        (Cause::WorkerKilled, Some("rank 1 on b"))
    );
    assert_eq!(
        incident.collateral,
        ["rank 0 on a"],
        "who was stopped fell to nobody"
    );
}

/// However many jobs end at once, and however many wait: no room is left over for a later turn.
#[test]
fn all_room_of_a_burst_is_given_away_in_its_turn() {
    const JOBS: usize = 6;
    let names: Vec<String> = (0..JOBS).map(|i| format!("n{i}")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bench = Bench::new(&nodes);
    for i in 0..JOBS {
        bench.submit(&format!("ends-{i}"), document(1, 1, 1));
    }
    bench.pass(SECOND);
    for i in 0..JOBS {
        // They are asked first, before the others have made room.
        let spec = SpecDocument {
            priority: Some(5),
            ..document(1, 1, 1)
        };
        bench.submit(&format!("waits-{i}"), spec);
    }
    bench.pass(SECOND);
    assert_eq!(bench.job("waits-0").reason, Reason::BelowMinimum);
    let inputs: Vec<Input> = bench
        .agents
        .values_mut()
        .map(|agent| {
            for run in agent.runs.values_mut() {
                run.phase = RunPhase::Dead;
                for rank in &mut run.ranks {
                    rank.exit = Some(Exit::Code(0));
                }
            }
            Input::Runs {
                session: agent.session.unwrap(),
                runs: agent.runs.values().cloned().collect(),
            }
        })
        .collect();
    bench.fleet.turn_all(bench.now, inputs);
    for i in 0..JOBS {
        assert_eq!(bench.job(&format!("ends-{i}")).phase, Phase::Succeeded);
        let waits = bench.job(&format!("waits-{i}"));
        assert!(waits.current.is_some(), "{}", waits.message);
    }
}

#[test]
fn who_came_and_went_within_one_burst_is_not_welcomed() {
    let mut bench = Bench::new(&["a"]);
    let hello = |node: &str, incarnation| Hello {
        node: node.into(),
        boot_id: "boot-1".into(),
        uptime: None,
        incarnation,
        speaks: Speaks::OURS,
        term_seen: Term(0),
        epoch_seen: NodeEpoch(0),
        jobs_seen: BTreeMap::new(),
        report: NodeReport::default(),
        runs: Vec::new(),
    };
    let comes = |session, incarnation| Input::Connected {
        session: SessionId(session),
        hello: hello("b", incarnation),
    };
    let goes = |session| Input::Disconnected {
        session: SessionId(session),
    };
    let inputs = [comes(101, 1), goes(101), comes(102, 2), comes(103, 2)];
    let turn = bench.fleet.turn_all(bench.now, inputs);
    let welcomed = turn.effects.iter().filter_map(|effect| match effect {
        Effect::Welcome { session, .. } => Some(session.0),
        _ => None,
    });
    assert_eq!(welcomed.collect::<Vec<_>>(), [103]);
}
