//! Jobs that wait, and the room that they keep.

use super::{selection::fleet, *};
use crate::fleet::shortage::Shortage;

/// So many nodes, each with so many GPUs.
fn of(nodes: i64, gpus: i64, priority: i64) -> SpecDocument {
    SpecDocument {
        gpus_per_node: Some(gpus),
        priority: Some(priority),
        ..document(nodes, nodes, nodes)
    }
}

fn four() -> Bench {
    fleet(&[("a", "x", 1), ("b", "x", 1), ("c", "x", 1), ("d", "x", 1)])
}

fn waits(bench: &Bench, job: &str) -> bool {
    bench.job(job).current.is_none()
}

fn lacks(bench: &Bench, job: &str) -> Option<Shortage> {
    bench.fleet.live[&bench.job(job).uid].shortage
}

#[test]
fn a_lower_priority_does_not_take_what_a_higher_one_waits_for() {
    let mut bench = four();
    bench.submit("first", of(1, 1, 9));
    bench.submit("large", of(4, 1, 5));
    assert!(waits(&bench, "large"));
    bench.submit("small", of(1, 1, 0));
    let small = bench.job("small");
    assert_eq!(
        small.message,
        "0 of at least 1 nodes available: a 0 of 1 GPUs free, b kept for default/large, which waits, \
         c kept for default/large, which waits, d kept for default/large, which waits"
    );
    assert_eq!(lacks(&bench, "small"), Some(Shortage::NodesReserved));
    bench.pass(60 * SECOND);
    assert!(waits(&bench, "small"), "time changes nothing");
    cancel(&mut bench, "first");
    assert_eq!(bench.members("large").len(), 4);
    assert!(waits(&bench, "small"));
    cancel(&mut bench, "large");
    assert!(!waits(&bench, "small"));
}

#[test]
fn an_equal_one_goes_first_until_the_large_one_has_waited_long() {
    let mut bench = four();
    bench.submit("first", of(1, 1, 0));
    bench.submit("large", of(4, 1, 0));
    bench.submit("early", of(1, 1, 0));
    assert!(!waits(&bench, "early"));
    bench.pass(bench.fleet.policy.reserve_after);
    bench.submit("late", of(1, 1, 0));
    assert!(waits(&bench, "late"));
    bench.submit("urgent", of(1, 1, 1));
    assert!(!waits(&bench, "urgent"), "it comes before the large one");
    for job in ["first", "early", "urgent"] {
        cancel(&mut bench, job);
        assert!(waits(&bench, "late"));
    }
    assert_eq!(bench.members("large").len(), 4);
}

/// It has its place, and a failure does not cost it.
#[test]
fn a_job_that_restarts_keeps_its_nodes() {
    let mut bench = four();
    bench.submit("old", of(2, 1, 0));
    bench.submit("large", of(4, 1, 5));
    bench.pass(20 * SECOND);
    bench.rank_exits("old", 0, Exit::Code(1), Some("ValueError: x"));
    bench.pass(20 * SECOND);
    assert_eq!(bench.members("old").len(), 2);
    assert!(bench.job("old").last_generation > Generation(1));
    assert!(waits(&bench, "large"));
}

#[test]
fn a_job_that_could_not_start_on_an_empty_fleet_keeps_nothing() {
    let mut bench = four();
    bench.submit("huge", of(5, 1, 5));
    bench.submit("fat", of(1, 2, 5));
    bench.submit("small", of(4, 1, 0));
    assert!(!waits(&bench, "small"));
}

#[test]
fn a_suspended_job_keeps_nothing() {
    let mut bench = four();
    bench.submit("first", of(1, 1, 9));
    bench.submit("large", of(4, 1, 5));
    bench.submit("small", of(1, 1, 0));
    assert!(waits(&bench, "small"));
    let name = bench.job("large").name.clone();
    bench.request(Request::Suspend {
        name,
        suspended: true,
    });
    assert!(!waits(&bench, "small"), "it is asked in the same turn");
}

#[test]
fn what_the_large_one_cannot_use_is_given_away() {
    let mut bench = fleet(&[("a", "x", 1), ("b", "x", 1), ("c", "y", 1)]);
    bench.submit("first", of(1, 1, 9));
    let large = SpecDocument {
        node_selector: [("pool".to_owned(), "x".to_owned())].into(),
        ..of(2, 1, 5)
    };
    bench.submit("large", large);
    assert!(waits(&bench, "large"));
    bench.submit("small", of(1, 1, 0));
    assert_eq!(bench.members("small"), ["c"]);
}

/// An elastic job of lower priority does not grow into what a higher one waits for.
#[test]
fn nobody_behind_grows_into_it() {
    let mut bench = four();
    bench.submit("first", of(3, 1, 9));
    let elastic = SpecDocument {
        gpus_per_node: Some(1),
        ..document(1, 4, 4)
    };
    bench.submit("elastic", elastic);
    bench.pass(10 * SECOND);
    assert_eq!(bench.members("elastic").len(), 1);
    bench.submit("blocker", of(1, 1, 9));
    bench.submit("large", of(3, 1, 5));
    cancel(&mut bench, "first");
    bench.pass(60 * SECOND);
    // The blocker took one, so two are left, and the large one wants three.
    assert_eq!(bench.members("blocker").len(), 1);
    assert!(waits(&bench, "large"));
    assert_eq!(bench.members("elastic").len(), 1);
}

/// A turn without news decides nothing.
#[test]
fn a_second_turn_changes_nothing() {
    let mut bench = four();
    bench.submit("first", of(1, 1, 9));
    bench.submit("large", of(4, 1, 5));
    bench.submit("small", of(1, 1, 0));
    let before = bench.stored_jobs.clone();
    bench.fleet.fresh = true;
    bench.input(Input::Tick);
    assert_eq!(before, bench.stored_jobs);
}

/// A user's limit counts in all namespaces, and for nobody whose name is not proven.
#[test]
fn jobs_of_a_user_hold_no_more_gpus_than_he_may() {
    let mut bench = four();
    bench.fleet.policy.user_gpus_max.others = Some(1);
    bench.fleet.policy.user_gpus_max.named = [("ada".to_owned(), 2)].into();
    bench.actor = Actor::User { name: "ada".into() };
    bench.submit("one", of(1, 1, 0));
    bench.submit("x/large", of(2, 1, 5));
    let large = bench.job("large");
    assert_eq!(
        large.message,
        "jobs of user ada may hold 2 GPUs (--user-gpus-max of the coordinator): the others hold 1, and this one needs at least 2"
    );
    assert_eq!(lacks(&bench, "large"), Some(Shortage::UserGpusMax));
    bench.submit("x/fits", of(1, 1, 0));
    assert_eq!(bench.members("fits").len(), 1);
    bench.actor = Actor::User { name: "bob".into() };
    bench.submit("two", of(2, 1, 0));
    assert_eq!(lacks(&bench, "two"), Some(Shortage::UserGpusMax));
    bench.actor = Actor::Unknown {
        claimed: "bob".into(),
    };
    bench.submit("nobody", of(2, 1, 0));
    assert_eq!(bench.members("nobody").len(), 2);
    // What he gives back he may have again.
    let name = bench.job("one").name.clone();
    bench.request(Request::Cancel { name });
    bench.pass(SECOND);
    let name = bench.job("fits").name.clone();
    bench.request(Request::Cancel { name });
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("large").len(), 2);
}

/// A namespace's limit holds a job back, with the numbers, and it keeps nothing from others meanwhile.
#[test]
fn jobs_of_a_namespace_hold_no_more_gpus_than_it_may() {
    let mut bench = four();
    bench.fleet.policy.gpus_max.named = [("default".to_owned(), 3)].into();
    bench.submit("first", of(2, 1, 0));
    bench.submit("large", of(2, 1, 5));
    let large = bench.job("large");
    assert_eq!(
        large.message,
        "jobs of namespace default may hold 3 GPUs (--gpus-max of the coordinator): the others hold 2, and this one needs at least 2"
    );
    assert_eq!(lacks(&bench, "large"), Some(Shortage::NamespaceGpusMax));
    let elastic = SpecDocument {
        gpus_per_node: Some(1),
        ..document(1, 2, 2)
    };
    bench.submit("elastic", elastic);
    assert_eq!(bench.members("elastic").len(), 1, "one more is allowed");
    bench.submit("none", of(1, 0, 0));
    assert!(!waits(&bench, "none"), "it takes no GPU");
    cancel(&mut bench, "first");
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("large").len(), 2);
    assert_eq!(bench.members("elastic").len(), 1);
    let elastic = bench.job("elastic");
    assert!(
        elastic.message.contains("--gpus-max"),
        "{}",
        elastic.message
    );
    cancel(&mut bench, "large");
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("elastic").len(), 2);
}

/// Submits a job of one node that may start in half a minute, so that it is asked for nodes in a certain turn.
fn submit_for_later(bench: &mut Bench, name: &str, priority: i64) {
    let at = bench.now + 30 * SECOND;
    let spec = SpecDocument {
        start_after: Some(at.rfc3339_seconds()),
        ..of(1, 1, priority)
    };
    bench.submit(name, spec);
}

/// A job ends in the turn in which others may start.
fn ends_in_the_turn_of(bench: &mut Bench, name: &str, others: &[&str]) {
    let generation = bench.job(name).current.clone().unwrap();
    let at = bench.job(others[0]).spec.start.start_after.unwrap();
    bench.pass(at.since(bench.now) - Duration::from_millis(50));
    assert!(others.iter().all(|other| waits(bench, other)));
    bench.now = at;
    let mut inputs = Vec::new();
    for rank in 0..generation.members.len() as u32 {
        let node = bench.rank_ends(name, &generation, rank, Exit::Code(0), None);
        let agent = &bench.agents[&node];
        inputs.push(Input::Runs {
            session: agent.session.unwrap(),
            runs: agent.runs.values().cloned().collect(),
        });
    }
    inputs.push(Input::Tick);
    bench.inputs(inputs);
    bench.obey();
}

/// What a job that ends gives back of a limit is for the first that wait for it, whoever is asked in the same turn.
#[test]
fn what_a_limit_gives_back_goes_to_the_first() {
    let nodes = ["a", "b", "c", "d", "e"].map(|name| (name, "x", 1));
    let mut bench = fleet(&nodes);
    bench.fleet.policy.gpus_max.named = [("default".to_owned(), 2)].into();
    bench.submit("ends", of(2, 1, 5));
    bench.submit("high", of(2, 1, 9));
    bench.submit("low", of(1, 1, 0));
    assert_eq!(lacks(&bench, "high"), Some(Shortage::NamespaceGpusMax));
    assert_eq!(lacks(&bench, "low"), Some(Shortage::NamespaceGpusMax));
    // It is asked before the job has ended, and the other one after that.
    submit_for_later(&mut bench, "x/another", 7);
    submit_for_later(&mut bench, "later", 0);
    ends_in_the_turn_of(&mut bench, "ends", &["another", "later"]);
    assert_eq!(bench.members("another").len(), 1);
    assert_eq!(bench.members("high").len(), 2);
    assert!(waits(&bench, "low") && waits(&bench, "later"));
}

/// Nor does anybody take the room that the first keeps as soon as a limit does not hold it back any more.
#[test]
fn whom_a_limit_holds_back_no_more_keeps_its_room_at_once() {
    let mut bench = four();
    bench.fleet.policy.gpus_max.named = [("default".to_owned(), 3)].into();
    bench.submit("ends", of(1, 1, 5));
    bench.submit("y/other", of(2, 1, 5));
    bench.submit("high", of(3, 1, 9));
    assert_eq!(lacks(&bench, "high"), Some(Shortage::NamespaceGpusMax));
    submit_for_later(&mut bench, "x/first", 7);
    submit_for_later(&mut bench, "x/second", 0);
    ends_in_the_turn_of(&mut bench, "ends", &["first", "second"]);
    // It was asked before the end.
    assert!(!waits(&bench, "first"));
    assert!(waits(&bench, "high") && waits(&bench, "second"));
}

/// Nor does a job take it beyond its minimum, on nodes that are of no use to the first.
#[test]
fn who_grows_leaves_the_first_its_share_of_a_limit() {
    let mut bench = fleet(&[("a", "x", 2), ("b", "x", 1), ("c", "x", 1)]);
    bench.fleet.policy.gpus_max.named = [("default".to_owned(), 3)].into();
    bench.submit("y/holds", of(1, 2, 5));
    bench.submit("high", of(1, 2, 9));
    let elastic = SpecDocument {
        replicas: Some(2),
        max_replicas: Some(2),
        ..of(1, 1, 0)
    };
    bench.submit("grows", elastic);
    bench.pass(60 * SECOND);
    assert!(waits(&bench, "high"));
    assert_eq!(bench.members("grows").len(), 1);
    let says = &bench.job("grows").message;
    assert!(says.contains("2 are kept for jobs that wait"), "{says}");
    cancel(&mut bench, "high");
    bench.pass(60 * SECOND);
    assert_eq!(bench.members("grows").len(), 2);
}

/// Whether a limit holds a job back is the same whoever is asked first in a turn, also if that one has its share of the limit.
#[test]
fn whom_a_limit_holds_back_keeps_nothing_whoever_asks() {
    let mut bench = fleet(&[("a", "x", 2), ("b", "x", 2), ("c", "x", 2)]);
    bench.fleet.policy.gpus_max.named = [("default".to_owned(), 3)].into();
    let elastic = SpecDocument {
        gpus_per_node: Some(2),
        priority: Some(1),
        ..document(1, 2, 2)
    };
    bench.submit("elastic", elastic);
    bench.submit("high", of(2, 1, 9));
    assert_eq!(lacks(&bench, "high"), Some(Shortage::NamespaceGpusMax));
    bench.submit("x/blocker", of(1, 1, 5));
    bench.submit("x/small", of(2, 2, 0));
    assert!(waits(&bench, "small"));
    bench.pass(10 * SECOND);
    let name = bench.job("blocker").name.clone();
    bench.request(Request::Cancel { name });
    bench.pass(SECOND);
    assert_eq!(bench.members("elastic").len(), 1);
    assert!(!waits(&bench, "small"), "{}", bench.job("small").message);
}

/// Two jobs that could not start yet when a later one began wait before it, and a third behind it. Its nodes come back one after the
/// other.
#[test]
fn what_a_job_gives_back_goes_to_those_before_it() {
    let mut bench = fleet(&[("a", "x", 1), ("b", "x", 1)]);
    let at = bench.now + 30 * SECOND;
    for name in ["first", "second"] {
        let later = SpecDocument {
            start_after: Some(at.rfc3339()),
            ..of(1, 1, 0)
        };
        bench.submit(name, later);
    }
    bench.pass(SECOND);
    bench.submit("holds", of(2, 1, 0));
    bench.pass(SECOND);
    bench.submit("third", of(1, 1, 0));
    bench.pass(40 * SECOND);
    assert!(
        ["first", "second", "third"]
            .iter()
            .all(|job| waits(&bench, job))
    );
    cancel(&mut bench, "holds");
    let waiting = ["first", "second", "third"].map(|job| waits(&bench, job));
    assert_eq!(waiting, [false, false, true]);
}
