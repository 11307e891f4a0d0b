//! Whose jobs come first among equals, by what their owners have used of late.

use super::{
    queues::{cancel, queue, size},
    selection::fleet,
    *,
};
use crate::fleet::queues::{Queue, Queues};

const HOUR: Duration = Duration::from_secs(3_600);

/// Two nodes with a GPU each.
fn bench(queues: Vec<Queue>) -> Bench {
    let mut bench = fleet(&[("a", "p", 1), ("b", "p", 1)]);
    bench.fleet.policy.queues = Queues::new(queues).unwrap();
    bench.fleet.policy.fair_share_half_life = Some(HOUR);
    bench
}

fn job(nodes: i64) -> SpecDocument {
    SpecDocument {
        gpus_per_node: Some(1),
        ..document(nodes, nodes, nodes)
    }
}

fn submit(bench: &mut Bench, user: &str, name: &str, spec: SpecDocument) {
    bench.actor = Actor::User { name: user.into() };
    bench.submit(name, spec);
    // Age is what is left to tell equal ones apart.
    bench.pass(SECOND);
}

/// The jobs that wait, in their order.
fn order(bench: &mut Bench) -> Vec<String> {
    match bench.request(Request::Order) {
        Answer::Order(order) => order.into_iter().map(|name| name.name).collect(),
        other => panic!("{other:?}"),
    }
}

/// Ann has used both nodes for a while, and both of hers and of Ben's wait, hers for longer.
fn anns_turn_is_over(mut bench: Bench, of_ann: &str, of_ben: &str) -> Bench {
    submit(&mut bench, "ann", &format!("{of_ann}/uses"), job(2));
    bench.pass(90 * SECOND);
    submit(&mut bench, "ann", &format!("{of_ann}/first"), job(1));
    submit(&mut bench, "ben", &format!("{of_ben}/second"), job(1));
    bench
}

#[test]
fn whoever_has_used_less_comes_first() {
    let mut bench = anns_turn_is_over(bench(vec![]), "x", "x");
    assert_eq!(order(&mut bench), ["second", "first"]);
    let mut urgent = job(2);
    urgent.priority = Some(1);
    submit(&mut bench, "ann", "x/urgent", urgent);
    submit(&mut bench, "ben", "x/third", job(1));
    assert_eq!(
        order(&mut bench),
        ["urgent", "second", "third", "first"],
        "priority goes before, and age behind"
    );
    cancel(&mut bench, "urgent");
    // Its nodes come back one after the other, and its own rank is between those that wait.
    cancel(&mut bench, "uses");
    let sizes = ["second", "third", "first"].map(|job| size(&bench, job));
    assert_eq!(sizes, [1, 1, 0]);
}

#[test]
fn it_is_not_the_default() {
    let mut bench = bench(vec![]);
    bench.fleet.policy.fair_share_half_life = Policy::default().fair_share_half_life;
    let mut bench = anns_turn_is_over(bench, "x", "x");
    assert_eq!(order(&mut bench), ["first", "second"]);
    assert_eq!(bench.request(Request::Shares), Answer::Shares(None));
}

/// What was used long ago counts less than a little that was used just now.
#[test]
fn what_was_used_is_forgotten() {
    let mut bench = anns_turn_is_over(bench(vec![]), "x", "x");
    cancel(&mut bench, "uses");
    assert_eq!((size(&bench, "first"), size(&bench, "second")), (1, 1));
    cancel(&mut bench, "first");
    // Ann has used 180 GPU-seconds, and Ben uses a GPU from now on.
    submit(&mut bench, "ann", "x/later", job(2));
    submit(&mut bench, "ben", "x/last", job(2));
    assert_eq!(order(&mut bench), ["last", "later"]);
    for (half_life, first) in [(HOUR, "last"), (20 * SECOND, "later")] {
        bench.fleet.policy.fair_share_half_life = Some(half_life);
        bench.pass(70 * SECOND);
        assert_eq!(order(&mut bench)[0], first, "{half_life:?}");
    }
}

#[test]
fn jobs_that_are_over_count_and_a_new_coordinator_knows_it() {
    let mut bench = anns_turn_is_over(bench(vec![]), "x", "x");
    cancel(&mut bench, "uses");
    let name = bench.job("uses").name.clone();
    bench.request(Request::Delete { name });
    for job in ["first", "second"] {
        cancel(&mut bench, job);
    }
    submit(&mut bench, "carl", "x/all", job(2));
    submit(&mut bench, "ann", "x/older", job(1));
    submit(&mut bench, "ben", "x/newer", job(1));
    bench.restart_coordinator();
    bench.fleet.policy.fair_share_half_life = Some(HOUR);
    bench.pass(20 * SECOND);
    assert_eq!(order(&mut bench), ["newer", "older"]);
}

/// Ben has used nothing, but his namespace has.
#[test]
fn namespaces_are_compared_before_their_users() {
    let mut bench = anns_turn_is_over(bench(vec![]), "x", "x");
    submit(&mut bench, "ann", "y/other", job(1));
    assert_eq!(order(&mut bench), ["other", "second", "first"]);
    submit(&mut bench, "ann", "x/again", job(1));
    bench.pass(70 * SECOND);
    assert_eq!(order(&mut bench), ["other", "second", "first", "again"]);
}

#[test]
fn queues_are_compared_by_their_weights_from_the_top() {
    let tree = |of_x, of_y| {
        let weighs = |weight, queue| Queue { weight, ..queue };
        vec![
            queue("all", None, None),
            weighs(of_x, queue("x", Some(0), Some(1))),
            weighs(of_y, queue("y", Some(0), Some(1))),
        ]
    };
    let uses = |bench: &mut Bench| {
        // 140 GPU-seconds of x, and 70 of y.
        submit(bench, "ann", "x/long", job(1));
        submit(bench, "ben", "y/short", job(1));
        bench.pass(70 * SECOND);
        cancel(bench, "short");
        submit(bench, "ben", "y/mine", job(1));
        cancel(bench, "mine");
        submit(bench, "ann", "x/first", job(2));
        submit(bench, "ben", "y/second", job(2));
        bench.pass(70 * SECOND);
        order(bench)
    };
    let mut equal = bench(tree(None, None));
    assert_eq!(uses(&mut equal)[..2], ["second", "first"]);
    let mut heavy = bench(tree(Some(9), None));
    assert_eq!(uses(&mut heavy)[..2], ["first", "second"]);
    let Answer::Shares(Some(shares)) = heavy.request(Request::Shares) else {
        panic!("there are shares");
    };
    let told: Vec<(&str, Option<&str>, u32, u32)> = shares
        .iter()
        .map(|share| {
            let queue = share.queue.as_deref().unwrap();
            (queue, share.user.as_deref(), share.weight, share.place)
        })
        .collect();
    assert_eq!(
        told,
        [
            ("all", None, 2, 2),
            ("x", None, 9, 2),
            ("x", Some("ann"), 1, 2),
            ("y", None, 1, 3),
            ("y", Some("ben"), 1, 2),
        ]
    );
    let below = shares[1].used + shares[3].used;
    assert!(shares[0].used.abs_diff(below) <= 1, "whole seconds");
}

/// Ben waits behind the room that Ann keeps. When she has used more than he, he comes first and takes it.
#[test]
fn when_the_order_changes_all_that_wait_are_asked() {
    let mut bench = fleet(&[("a", "p", 1), ("b", "p", 1), ("c", "p", 1)]);
    bench.fleet.policy.fair_share_half_life = Some(HOUR);
    bench.fleet.policy.reserve_after = Duration::ZERO;
    submit(&mut bench, "ann", "uses", job(2));
    submit(&mut bench, "ann", "large", job(2));
    submit(&mut bench, "ben", "small", job(1));
    let sizes = |bench: &Bench| (size(bench, "large"), size(bench, "small"));
    assert_eq!(sizes(&bench), (0, 0), "the room is kept for the older job");
    bench.pass(70 * SECOND);
    assert_eq!(sizes(&bench), (0, 1));
}
