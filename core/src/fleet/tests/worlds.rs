//! Ranks that do not form the world that their job asked for are told of, once, and nobody else.

use super::*;
use crate::run::{NestedWorld, WorldReport};

/// Two nodes with two ranks each, which have just been started.
fn trains(spec: SpecDocument) -> Bench {
    let mut bench = Bench::new(&["a", "b"]);
    let spec = SpecDocument {
        proc_per_node: Some(2),
        ..spec
    };
    bench.submit("digits", spec);
    bench
}

/// What the nodes report from now on: the first serves the TCPStore.
fn seen(bench: &mut Bench, change: impl Fn(&NodeName, &mut RunReport)) {
    let generation = bench.job("digits").current.clone().unwrap();
    let uid = bench.job("digits").uid.clone();
    for member in &generation.members {
        let agent = bench.agents.get_mut(&member.node).unwrap();
        change(
            &member.node,
            agent.runs.get_mut(&generation.run(&uid)).unwrap(),
        );
        let (session, runs) = (
            agent.session.unwrap(),
            agent.runs.values().cloned().collect(),
        );
        bench.input(Input::Runs { session, runs });
    }
}

/// The node that serves the TCPStore counts those who announce themselves; all nodes use this lane.
fn announced(bench: &mut Bench, lane: &str, count: u32) {
    seen(bench, |_, run| {
        run.lane.name = lane.into();
        run.world.announced = run.store.is_some().then_some(count);
    });
}

fn told(bench: &Bench) -> Vec<(&str, bool)> {
    let reasons = ["NestedWorld", "WorldNotFormed", "NoRankHasJoined"];
    let events = bench.events.iter();
    events
        .filter(|event| reasons.contains(&event.reason.as_str()))
        .map(|event| (event.reason.as_str(), event.warning))
        .collect()
}

const NOTHING: [(&str, bool); 0] = [];

#[test]
fn steps_without_a_meeting_are_a_warning_once_in_the_life_of_a_job() {
    // Each torchrun announces itself, and its ranks do not.
    for (lane, count) in [("fork", 0), ("direct", 0), ("cold", 2), ("parked", 2)] {
        let mut bench = trains(document(2, 2, 2));
        announced(&mut bench, lane, count);
        bench.step("digits", 1);
        bench.pass(59 * SECOND);
        assert_eq!(told(&bench), NOTHING, "{lane}: a minute is not over");
        bench.pass(2 * SECOND);
        assert_eq!(told(&bench), [("WorldNotFormed", true)], "{lane}");
        let event = bench.events.iter().find(|e| e.reason == "WorldNotFormed");
        let message = &event.unwrap().message;
        assert!(
            message.starts_with("generation 1 has made steps, and 60 s after its start none of its 4 ranks has joined the TCPStore"),
            "{message}"
        );
        assert_eq!(
            bench.job("digits").message,
            "world 4 on 2 nodes; but none of its ranks has joined the TCPStore"
        );
        // Neither time, nor another generation, nor another coordinator says it again.
        bench.pass(120 * SECOND);
        bench.rank_exits("digits", 0, Exit::Signal(7), None);
        bench.pass(10 * SECOND);
        assert_eq!(bench.job("digits").last_generation, Generation(2));
        announced(&mut bench, lane, count);
        bench.step("digits", 1);
        bench.pass(120 * SECOND);
        assert_eq!(told(&bench).len(), 1, "{lane}");
    }
}

#[test]
fn without_steps_it_is_a_note_and_a_warning_once_there_are_some() {
    let mut bench = trains(document(2, 2, 2));
    announced(&mut bench, "fork", 0);
    bench.pass(61 * SECOND);
    assert_eq!(told(&bench), [("NoRankHasJoined", false)]);
    assert_eq!(bench.job("digits").message, "world 4 on 2 nodes");
    bench.pass(120 * SECOND);
    assert_eq!(told(&bench).len(), 1);
    // Steps decide nothing at once. The job is looked at again within a minute.
    bench.step("digits", 7);
    bench.pass(61 * SECOND);
    assert_eq!(
        told(&bench),
        [("NoRankHasJoined", false), ("WorldNotFormed", true)]
    );
}

#[test]
fn whoever_has_come_or_is_not_counted_is_not_told_of() {
    type Change = fn(&mut RunReport);
    let cases: [(&str, &str, Change); 6] = [
        ("a rank beside two torchruns", "cold", |run| {
            run.world.announced = Some(3);
        }),
        ("a rank without a torchrun", "fork", |run| {
            run.world.announced = Some(1);
        }),
        ("gloo names a rank", "fork", |run| {
            run.world.announced = Some(0);
            run.joined_ranks = vec![2];
        }),
        ("all have come", "fork", |run| {
            run.world.announced = Some(0);
            run.all_joined_at = run.launched_at;
        }),
        ("an agent that does not count", "fork", |run| {
            run.world.announced = None;
        }),
        ("a rank is not started yet", "fork", |run| {
            run.world.announced = Some(0);
            run.ranks[0].started_at = None;
        }),
    ];
    for (case, lane, change) in cases {
        let mut bench = trains(document(2, 2, 2));
        seen(&mut bench, |_, run| {
            run.lane.name = lane.into();
            if run.store.is_some() {
                change(run);
            }
        });
        bench.step("digits", 1);
        bench.pass(200 * SECOND);
        assert_eq!(told(&bench), NOTHING, "{case}");
    }
}

#[test]
fn a_job_without_a_world_of_torch_is_not_told_of() {
    let nested = |_: &NodeName, run: &mut RunReport| {
        run.world.announced = Some(0);
        run.world.nested = Some(world(0));
    };
    let mut plain = trains(SpecDocument {
        framework: Some("plain".into()),
        ..document(2, 2, 2)
    });
    seen(&mut plain, nested);
    plain.step("digits", 1);
    plain.pass(200 * SECOND);
    assert_eq!(told(&plain), NOTHING);
    // One rank may start a world of its own: it is the job's.
    let mut alone = Bench::new(&["a"]);
    alone.submit("digits", document(1, 1, 1));
    seen(&mut alone, nested);
    alone.step("digits", 1);
    alone.pass(200 * SECOND);
    assert_eq!(told(&alone), NOTHING);
}

fn world(rank: u32) -> NestedWorld {
    NestedWorld {
        rank,
        pid: 77,
        launcher: "torchrun".into(),
        world_size: 2,
    }
}

#[test]
fn a_world_below_a_rank_is_a_warning_once() {
    let mut bench = trains(document(2, 2, 2));
    // Both nodes see one.
    seen(&mut bench, |_, run| {
        run.world = WorldReport {
            announced: None,
            nested: Some(world(run.ranks[0].rank)),
        };
    });
    assert_eq!(told(&bench), [("NestedWorld", true)]);
    let event = bench.events.iter().find(|e| e.reason == "NestedWorld");
    let event = event.unwrap();
    assert!(
        event.message.starts_with(
            "rank 0 on a has started ranks of its own with torchrun (process 77): they are a world of 2 beside the job's world of 4"
        ),
        "{}",
        event.message
    );
    assert_eq!(event.node, Some("a".into()));
    assert_eq!(event.generation, Some(Generation(1)));
    assert_eq!(
        bench.job("digits").message,
        "world 4 on 2 nodes; but rank 0 on a has started a world of its own, of 2"
    );
    bench.pass(120 * SECOND);
    bench.rank_exits("digits", 0, Exit::Signal(7), None);
    bench.pass(10 * SECOND);
    assert_eq!(bench.job("digits").message, "world 4 on 2 nodes");
    seen(&mut bench, |_, run| run.world.nested = Some(world(1)));
    assert_eq!(told(&bench).len(), 1);
    assert!(
        bench
            .job("digits")
            .message
            .contains("rank 1 on a has started")
    );
}
