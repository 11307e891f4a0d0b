//! On which nodes a job that waits keeps room.

use proptest::prelude::*;

use super::{selection::fleet, *};
use crate::spec::{Preemption, RoleDocument};

/// Jobs of so many members, each with so many GPUs, that share nodes.
fn of(nodes: i64, gpus: i64, priority: i64) -> SpecDocument {
    SpecDocument {
        gpus_per_node: Some(gpus),
        priority: Some(priority),
        ..document(nodes, nodes, nodes)
    }
}

fn waits(bench: &Bench, job: &str) -> bool {
    bench.job(job).current.is_none()
}

fn ask_to_end(bench: &mut Bench, name: &str) {
    let name = bench.job(name).name.clone();
    bench.request(Request::Cancel { name });
}

/// Two nodes are free by half, and one alone is all that it needs beside the one that is free.
#[test]
fn it_keeps_no_more_nodes_than_it_needs() {
    let mut bench = fleet(&[("a", "x", 2), ("b", "x", 2), ("c", "x", 2)]);
    for name in ["one", "two", "three"] {
        bench.submit(name, of(1, 1, 9));
    }
    assert_eq!(bench.members("two"), ["a"]);
    assert_eq!(bench.members("three"), ["b"]);
    ask_to_end(&mut bench, "one");
    bench.pass(SECOND);
    bench.submit("large", of(2, 2, 5));
    bench.submit("small", of(1, 1, 0));
    assert!(waits(&bench, "large"));
    assert_eq!(
        bench.members("small"),
        ["b"],
        "as much is missing on a, and a comes first"
    );
    bench.submit("another", of(1, 1, 0));
    let another = bench.job("another");
    assert_eq!(
        another.message,
        "0 of at least 1 nodes available: a kept for default/large, which waits, b 0 of 1 GPUs free, \
         c kept for default/large, which waits"
    );
    cancel(&mut bench, "two");
    assert_eq!(bench.members("large"), ["a", "c"]);
}

/// What others hold for ever is no reason to wait for them: a node that is free takes their place.
#[test]
fn a_node_that_comes_free_takes_the_place_of_one_that_does_not() {
    let mut bench = fleet(&[("a", "x", 2), ("b", "x", 2)]);
    bench.submit("long", of(1, 1, 9));
    bench.submit("whole", of(1, 2, 9));
    assert_eq!(bench.members("long"), ["a"]);
    bench.submit("large", of(1, 2, 5));
    bench.submit("small", of(1, 1, 0));
    assert!(
        waits(&bench, "large") && waits(&bench, "small"),
        "a is kept"
    );
    cancel(&mut bench, "whole");
    assert_eq!(bench.members("large"), ["b"]);
    assert_eq!(bench.members("small"), ["a"]);
}

#[test]
fn what_comes_free_is_kept_for_one_after_the_other() {
    let mut bench = fleet(&[("a", "x", 2), ("b", "x", 2), ("c", "x", 2), ("d", "x", 2)]);
    for name in ["one", "two", "three", "four"] {
        bench.submit(name, of(1, 2, 9));
    }
    bench.submit("first", of(2, 2, 5));
    bench.submit("second", of(1, 2, 5));
    bench.submit("behind", of(1, 2, 0));
    // Whichever ends, the first has two of the four.
    for ends in ["one", "two", "three"] {
        cancel(&mut bench, ends);
    }
    assert_eq!(bench.members("first").len(), 2);
    assert_eq!(bench.members("second").len(), 1);
    assert!(waits(&bench, "behind"));
    cancel(&mut bench, "four");
    assert_eq!(bench.members("behind").len(), 1);
}

/// A job on the one node that is kept does not end, so with time others are kept as well.
#[test]
fn who_waits_long_keeps_more_nodes() {
    let mut bench = fleet(&[("a", "x", 2), ("b", "x", 2)]);
    for name in ["endless", "a-2", "b-1", "b-2"] {
        bench.submit(name, of(1, 1, 9));
    }
    bench.submit("large", of(1, 2, 5));
    bench.submit("small-1", of(1, 1, 0));
    cancel(&mut bench, "b-1");
    assert_eq!(bench.members("small-1"), ["b"]);
    bench.submit("small-2", of(1, 1, 0));
    bench.pass(3600 * SECOND);
    cancel(&mut bench, "b-2");
    assert!(waits(&bench, "small-2"));
    cancel(&mut bench, "small-1");
    assert_eq!(bench.members("large"), ["b"]);
}

/// One that is before it would choose what is freed for it, so nobody gives anything.
#[test]
fn nothing_is_freed_for_one_that_another_would_keep_it_from() {
    let mut bench = fleet(&["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| (name, "x", 1)));
    bench.fleet.policy.preemption = Preemption::Evict;
    bench.fleet.policy.evict_after = Duration::ZERO;
    for name in ["one", "two", "three", "four", "five"] {
        bench.submit(name, of(1, 1, 9));
    }
    let low = ["six", "seven", "eight"];
    for name in low {
        bench.submit(name, of(1, 1, 0));
    }
    bench.pass(10 * SECOND);
    bench.submit("large", of(4, 1, 5));
    bench.submit("small", of(1, 1, 4));
    bench.pass(60 * SECOND);
    assert!(low.iter().all(|name| !waits(&bench, name)));
    assert!(waits(&bench, "large") && waits(&bench, "small"));
}

/// Its members differ. A full node with many slots is not as good as an empty one.
#[test]
fn slots_are_no_gpus_to_a_job_with_roles() {
    let mut bench = fleet(&[("a", "x", 2), ("b", "x", 2), ("c", "x", 2), ("d", "x", 2)]);
    for name in ["one", "two", "three", "four"] {
        bench.submit(name, of(1, 2, 9));
    }
    let role = |name: &str| RoleDocument {
        name: name.into(),
        replicas: Some(1),
        gpus_per_node: Some(2),
        args: vec![format!("{name}.py")],
        ..RoleDocument::default()
    };
    let large = SpecDocument {
        priority: Some(5),
        roles: vec![role("actor"), role("learner")],
        ..SpecDocument::default()
    };
    bench.submit("large", large);
    assert!(waits(&bench, "large"));
    bench.submit("small", of(1, 2, 0));
    cancel(&mut bench, "three");
    assert!(waits(&bench, "small"), "c is kept");
    cancel(&mut bench, "four");
    assert_eq!(bench.members("large"), ["c", "d"]);
}

/// What is being freed for a job is as good as free, so it keeps that, and not where it was half free before.
#[test]
fn it_keeps_what_is_being_freed_for_it() {
    let mut bench = fleet(&[("a", "x", 2), ("b", "x", 2)]);
    bench.fleet.policy.preemption = Preemption::Evict;
    bench.fleet.policy.evict_after = Duration::ZERO;
    bench.submit("long", of(1, 1, 9));
    bench.submit("low", of(1, 2, 0));
    assert_eq!(bench.members("low"), ["b"]);
    bench.pass(10 * SECOND);
    bench.agents.get_mut(&"b".into()).unwrap().frozen = true;
    bench.submit("urgent", of(1, 2, 5));
    assert_eq!(bench.job("low").reason, Reason::Preempted);
    bench.submit("small", of(1, 1, 5));
    assert_eq!(bench.members("small"), ["a"]);
    bench.pass(SECOND);
    bench.submit("equal", of(1, 2, 5));
    let b = bench.agents.get_mut(&"b".into()).unwrap();
    b.frozen = false;
    let session = b.session.unwrap();
    for run in b.runs.values_mut() {
        (run.phase, run.dead_at) = (RunPhase::Dead, Some(bench.now));
    }
    let runs = b.runs.values().cloned().collect();
    bench.input(Input::Runs { session, runs });
    bench.obey();
    assert_eq!(bench.members("urgent"), ["b"]);
    assert!(waits(&bench, "equal"));
}

/// A gang whose nodes have to be of one kind keeps enough of one, however little is missing on the others.
#[test]
fn nodes_that_would_not_do_together_are_not_enough() {
    let mut bench = fleet(&[
        ("a", "x", 1),
        ("b", "y", 1),
        ("c", "x", 1),
        ("d", "y", 1),
        ("e", "y", 1),
    ]);
    let on = |pool: &str, priority| SpecDocument {
        node_selector: [("pool".to_owned(), pool.to_owned())].into(),
        ..of(1, 1, priority)
    };
    bench.submit("one", on("y", 9));
    bench.submit("two", on("y", 9));
    bench.submit("three", on("x", 9));
    let together = SpecDocument {
        required_topology: Some("pool".into()),
        ..of(3, 1, 5)
    };
    bench.submit("large", together);
    assert!(waits(&bench, "large"), "{}", bench.job("large").message);
    bench.submit("small", of(1, 1, 0));
    assert_eq!(bench.members("small"), ["c"]);
    bench.submit("more", of(1, 1, 0));
    assert!(waits(&bench, "more"), "e is kept");
    for ends in ["one", "two"] {
        cancel(&mut bench, ends);
    }
    assert_eq!(bench.members("large"), ["b", "d", "e"]);
}

/// Random ends of jobs: `random` chooses the next one.
struct Stream {
    number: usize,
    runs: Vec<String>,
    random: u64,
}

impl Stream {
    fn next(&mut self, below: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.random >> 33) as usize % below
    }

    /// Another small job comes.
    fn comes(&mut self, bench: &mut Bench) {
        let name = format!("small-{}", self.number);
        self.number += 1;
        let gpus = 1 + self.next(2) as i64;
        bench.submit(&name, of(1, gpus, 0));
        self.runs.push(name);
    }
}

fn free(bench: &Bench) -> usize {
    let held = bench.stored_jobs.values().flat_map(|job| &job.current);
    let members = held.flat_map(|generation| &generation.members);
    16 - members.map(|member| member.gpus.len()).sum::<usize>()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Small jobs come and end without pause. The large one gets its nodes all the same, and meanwhile no more stands idle
    /// than it needs.
    #[test]
    fn it_begins_however_many_small_ones_come(seed: u64, nodes in 1_i64..=5) {
        let mut bench = fleet(&["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| (name, "x", 2)));
        bench.fleet.policy.submits_burst = 10_000;
        bench.fleet.policy.reserve_after = Duration::ZERO;
        let mut stream = Stream { number: 0, runs: Vec::new(), random: seed };
        for _ in 0..20 {
            stream.comes(&mut bench);
        }
        bench.submit("large", of(nodes, 2, 0));
        let mut ends = 0;
        while waits(&bench, "large") {
            // The oldest third ends first or last, so each of them ends in time.
            let among = stream.runs.len().div_ceil(3);
            let next = stream.next(among);
            let next = stream.runs.remove(next);
            ask_to_end(&mut bench, &next);
            bench.pass(SECOND);
            stream.comes(&mut bench);
            stream.comes(&mut bench);
            prop_assert!(free(&bench) <= 2 * nodes as usize, "{} GPUs stand idle", free(&bench));
            ends += 1;
            prop_assert!(ends < 200, "it waits for ever");
        }
    }
}
