//! Limits of users beside queues: who leaves whom a share of a limit.

use super::{
    queues::{cancel, queue, size},
    selection::fleet,
    *,
};
use crate::fleet::queues::{Queue, Queues};

fn bench(nodes: &[(&str, &str, u32)], queues: Vec<Queue>, of_ann: u32) -> Bench {
    let mut bench = fleet(nodes);
    bench.fleet.policy.queues = Queues::new(queues).unwrap();
    bench.fleet.policy.user_gpus_max.named = [("ann".to_owned(), of_ann)].into();
    bench.actor = Actor::User { name: "ann".into() };
    bench
}

fn job(gpus: i64, min: i64, most: i64, priority: i64) -> SpecDocument {
    SpecDocument {
        gpus_per_node: Some(gpus),
        priority: Some(priority),
        ..document(min, most, most)
    }
}

/// A job that could not begin even with that share.
#[test]
fn whom_a_quota_holds_back_keeps_no_share_of_a_limit() {
    let nodes = ["a", "b", "c", "d", "e", "f"].map(|name| (name, "p", 1));
    let mut queues = vec![
        queue("all", None, None),
        queue("x", Some(0), Some(1)),
        queue("y", Some(0), Some(6)),
    ];
    queues[1].borrowing_limit = Some(0);
    let mut bench = bench(&nodes, queues, 4);
    bench.submit("x/big", job(1, 2, 2, 1));
    bench.submit("y/elastic", job(1, 1, 4, 0));
    bench.pass(10 * SECOND);
    assert_eq!((size(&bench, "big"), size(&bench, "elastic")), (0, 4));
}

/// The order is that of nodes: a lender comes before a borrower, whatever its priority.
#[test]
fn a_borrower_leaves_a_lender_its_share_of_a_limit() {
    let nodes = [("a", "p", 1), ("b", "p", 1), ("c", "p", 1), ("d", "p", 2)];
    let queues = vec![
        queue("all", None, None),
        queue("x", Some(0), Some(0)),
        queue("y", Some(0), Some(5)),
        queue("others", None, None),
        queue("z", Some(3), Some(2)),
    ];
    let mut bench = bench(&nodes, queues, 3);
    bench.actor = Actor::User { name: "ben".into() };
    bench.submit("y/holds", job(2, 1, 1, 2));
    bench.actor = Actor::User { name: "ann".into() };
    bench.submit("z/lender", job(2, 1, 1, 1));
    bench.submit("x/borrows", job(1, 1, 3, 2));
    bench.pass(60 * SECOND);
    assert_eq!((size(&bench, "lender"), size(&bench, "borrows")), (0, 1));
    cancel(&mut bench, "lender");
    bench.pass(60 * SECOND);
    assert_eq!(size(&bench, "borrows"), 3);
}
