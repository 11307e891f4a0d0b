//! Queues with quotas: what jobs borrow, and how it comes back.

use std::collections::BTreeSet;

use super::{selection::fleet, *};
use crate::{
    fleet::{
        queues::{Queue, Queues},
        shortage::Shortage,
    },
    spec::Preemption,
};

const NODES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

pub(super) fn queue(name: &str, parent: Option<usize>, quota: Option<u32>) -> Queue {
    let namespaces = match parent {
        Some(_) => BTreeSet::from([name.to_owned()]),
        None => BTreeSet::new(),
    };
    Queue {
        name: name.into(),
        parent,
        quota,
        namespaces,
        ..Queue::default()
    }
}

/// Queues `x` and `y` of one tree, for the namespaces of these names.
fn two(x: u32, y: u32) -> Vec<Queue> {
    vec![
        queue("all", None, None),
        queue("x", Some(0), Some(x)),
        queue("y", Some(0), Some(y)),
    ]
}

/// A queue beside them, for the namespace `z`.
fn another_tree() -> Queue {
    Queue {
        namespaces: BTreeSet::from(["z".to_owned()]),
        ..queue("z", None, Some(8))
    }
}

/// So many nodes, each with one GPU.
fn bench(nodes: usize, queues: Vec<Queue>) -> Bench {
    let nodes: Vec<(&str, &str, u32)> = NODES[..nodes].iter().map(|name| (*name, "p", 1)).collect();
    let mut bench = fleet(&nodes);
    bench.fleet.policy.queues = Queues::new(queues).unwrap();
    bench
}

fn job(min: i64, most: i64, priority: i64) -> SpecDocument {
    SpecDocument {
        gpus_per_node: Some(1),
        priority: Some(priority),
        ..document(min, most, most)
    }
}

fn named<'b>(bench: &'b Bench, job: &str) -> &'b JobRecord {
    bench.job(job.rsplit('/').next().unwrap())
}

pub(super) fn cancel(bench: &mut Bench, job: &str) {
    let name = named(bench, job).name.clone();
    bench.request(Request::Cancel { name });
    bench.pass(SECOND);
}

pub(super) fn size(bench: &Bench, job: &str) -> usize {
    let current = named(bench, job).current.as_ref();
    current.map_or(0, |generation| generation.members.len())
}

fn message<'b>(bench: &'b Bench, job: &str) -> &'b str {
    &named(bench, job).message
}

fn lacks(bench: &Bench, job: &str) -> Option<Shortage> {
    let uid = &named(bench, job).uid;
    bench.fleet.live.get(uid).and_then(|live| live.shortage)
}

#[test]
fn a_job_beyond_its_quota_borrows_and_beyond_that_it_waits_with_the_numbers() {
    let mut bench = bench(4, two(1, 2));
    bench.submit("x/first", job(2, 2, 0));
    assert_eq!(size(&bench, "x/first"), 2, "one is borrowed");
    bench.submit("x/more", job(2, 2, 0));
    assert_eq!(
        message(&bench, "x/more"),
        "queue x has a quota of 1 GPUs: its other jobs hold 2, 1 more are left to borrow, and this one needs at least 2"
    );
    assert_eq!(lacks(&bench, "x/more"), Some(Shortage::QueueQuota));
    bench.submit("x/elastic", job(1, 4, 0));
    assert_eq!(size(&bench, "x/elastic"), 1, "though two nodes are free");
    assert!(message(&bench, "x/elastic").contains("quota"));
    bench.submit("z/stranger", job(1, 1, 0));
    assert_eq!(
        message(&bench, "z/stranger"),
        "no queue has jobs of namespace z (--queues of the coordinator), and this one needs at least 1"
    );
    let none = SpecDocument {
        gpus_per_node: Some(0),
        ..document(1, 1, 1)
    };
    bench.submit("z/none", none);
    assert_eq!(size(&bench, "z/none"), 1, "it takes no GPU");
}

#[test]
fn limits_bound_what_is_borrowed() {
    let mut queues = two(1, 3);
    queues[1].borrowing_limit = Some(1);
    let mut limited = bench(4, queues);
    limited.submit("x/first", job(3, 3, 0));
    assert_eq!(
        message(&limited, "x/first"),
        "queue x has a quota of 1 GPUs and may borrow 1 more: its other jobs hold 0, and this one needs at least 3"
    );
    let mut queues = two(1, 3);
    queues[2].lending_limit = Some(1);
    let mut limited = bench(4, queues);
    limited.submit("x/first", job(1, 4, 0));
    assert_eq!(size(&limited, "x/first"), 2);
    limited.submit("y/own", job(2, 2, 0));
    assert_eq!(size(&limited, "y/own"), 2, "it was not lent");
    let mut top = bench(4, vec![queue("q", None, Some(2))]);
    top.fleet.policy.queues = {
        let mut only = queue("q", None, Some(2));
        only.namespaces = ["*".to_owned()].into();
        Queues::new(vec![only]).unwrap()
    };
    top.submit("x/first", job(3, 3, 0));
    assert_eq!(
        message(&top, "x/first"),
        "queue q has a quota of 2 GPUs: its other jobs hold 0, and this one needs at least 3"
    );
}

/// Its priority is higher, it shrinks all the same, and it does not grow back while the lender waits or holds its own.
#[test]
fn what_was_lent_comes_back_by_shrinking() {
    let mut bench = bench(4, two(2, 2));
    bench.submit("x/borrows", job(1, 4, 9));
    bench.pass(10 * SECOND);
    bench.step("borrows", 7);
    assert_eq!(size(&bench, "x/borrows"), 4);
    bench.submit("y/lends", job(2, 2, 0));
    bench.pass(2 * SECOND);
    assert_eq!((size(&bench, "x/borrows"), size(&bench, "y/lends")), (2, 2));
    let mut incidents = named(&bench, "x/borrows").incidents.iter();
    let given = incidents.find(|one| one.cause == Cause::Preempted).unwrap();
    assert_eq!(
        given.message,
        "gives up c, d to a job of queue y, which has lent this"
    );
    assert!(named(&bench, "x/borrows").restarts.is_empty());
    bench.pass(120 * SECOND);
    assert_eq!(named(&bench, "x/borrows").last_generation, Generation(2));
    cancel(&mut bench, "y/lends");
    bench.pass(10 * SECOND);
    assert_eq!(size(&bench, "x/borrows"), 4);
}

#[test]
fn a_queue_never_loses_its_own_quota() {
    let mut bench = bench(4, two(2, 2));
    bench.fleet.policy.preemption = Preemption::Evict;
    bench.fleet.policy.evict_after = Duration::ZERO;
    bench.submit("x/own", job(1, 2, 0));
    bench.submit("y/mine", job(1, 1, 0));
    bench.pass(10 * SECOND);
    bench.submit("y/more", job(3, 3, 9));
    bench.submit("y/urgent", job(2, 2, 5));
    bench.pass(10 * SECOND);
    // The urgent one takes from its own queue, where one is idle and the other has a lower priority.
    let sizes = ["x/own", "y/mine", "y/urgent", "y/more"].map(|job| size(&bench, job));
    assert_eq!(sizes, [2, 0, 2, 0]);
    assert_eq!(named(&bench, "x/own").last_generation, Generation(1));
    assert_eq!(named(&bench, "y/mine").last_generation, Generation(1));
}

/// What a higher priority takes within a queue is quota, and whoever gave it does not take it back on another node.
#[test]
fn who_gives_room_within_a_queue_does_not_borrow_it_back() {
    let mut bench = bench(8, two(2, 2));
    bench.submit("x/low", job(1, 4, 0));
    bench.pass(10 * SECOND);
    bench.submit("x/high", job(2, 2, 5));
    bench.pass(60 * SECOND);
    assert_eq!((size(&bench, "x/low"), size(&bench, "x/high")), (2, 2));
    assert_eq!(named(&bench, "x/low").last_generation, Generation(2));
}

/// The operator's word bounds what is done: without eviction a rigid borrower keeps what it has.
#[test]
fn a_rigid_borrower_is_evicted_only_if_the_operator_allows_it() {
    for allowed in [Preemption::Never, Preemption::Shrink, Preemption::Evict] {
        let mut bench = bench(4, two(2, 2));
        bench.fleet.policy.preemption = allowed;
        bench.fleet.policy.evict_after = Duration::from_secs(20);
        bench.submit("x/rigid", job(4, 4, 9));
        bench.pass(10 * SECOND);
        bench.submit("y/lends", job(1, 1, 0));
        bench.pass(5 * SECOND);
        assert_eq!((size(&bench, "x/rigid"), size(&bench, "y/lends")), (4, 0));
        assert_eq!(
            message(&bench, "y/lends"),
            "queue y has a quota of 2 GPUs: its other jobs hold 0, other queues hold what they have borrowed of it, and this one needs at least 1"
        );
        bench.pass(60 * SECOND);
        let sizes = (size(&bench, "x/rigid"), size(&bench, "y/lends"));
        match allowed {
            Preemption::Evict => assert_eq!(sizes, (0, 1)),
            _ => assert_eq!(sizes, (4, 0)),
        }
    }
}

/// There are fewer nodes than quotas: what is lent are nodes, and its quota would let the borrower grow back at once.
#[test]
fn nodes_come_back_where_there_are_fewer_than_quotas() {
    let mut bench = bench(4, two(1, 8));
    bench.submit("x/borrows", job(1, 4, 9));
    bench.pass(10 * SECOND);
    assert_eq!(size(&bench, "x/borrows"), 4);
    bench.submit("y/lends", job(3, 3, 0));
    bench.pass(60 * SECOND);
    assert_eq!((size(&bench, "x/borrows"), size(&bench, "y/lends")), (1, 3));
    assert_eq!(named(&bench, "x/borrows").last_generation, Generation(2));
}

/// There are more nodes than quotas: nodes that the one that waits does not select give their quota all the same.
#[test]
fn quota_comes_back_from_nodes_that_are_of_no_use() {
    let mut bench = bench(8, two(2, 2));
    bench.submit("x/borrows", job(1, 4, 9));
    bench.pass(10 * SECOND);
    let other = SpecDocument {
        exclude_nodes: NODES[..4].iter().map(|name| (*name).to_owned()).collect(),
        ..job(2, 2, 0)
    };
    bench.submit("y/lends", other);
    bench.pass(10 * SECOND);
    assert_eq!((size(&bench, "x/borrows"), size(&bench, "y/lends")), (2, 2));
}

/// A borrower that trains on a node where it could not begin again gives that node first.
#[test]
fn quota_comes_back_from_a_cordoned_node_first() {
    let mut bench = bench(4, two(1, 2));
    bench.submit("x/borrows", job(1, 3, 9));
    bench.pass(10 * SECOND);
    let first = bench.members("borrows")[0].to_owned();
    bench.request(Request::Cordon {
        node: first.as_str().into(),
        reason: "fan".into(),
    });
    bench.submit("y/lends", job(2, 2, 0));
    bench.pass(10 * SECOND);
    assert_eq!((size(&bench, "x/borrows"), size(&bench, "y/lends")), (1, 2));
}

/// A job that could never start keeps nobody from borrowing, and takes nothing back.
#[test]
fn a_job_that_no_node_fits_stops_no_loan() {
    let mut bench = bench(4, two(2, 2));
    let nowhere = SpecDocument {
        node_selector: [("pool".to_owned(), "none".to_owned())].into(),
        ..job(2, 2, 9)
    };
    bench.submit("y/nowhere", nowhere);
    bench.submit("x/borrows", job(1, 4, 0));
    bench.pass(60 * SECOND);
    assert_eq!(size(&bench, "x/borrows"), 4);
}

/// Jobs that their quota holds back are none of the first, however many they are and whatever their priority is.
#[test]
fn a_long_queue_hides_nobody_who_waits_within_its_quota() {
    let mut bench = bench(4, two(2, 2));
    bench.submit("x/borrows", job(1, 4, 0));
    for number in 0..20 {
        bench.submit(&format!("x/later-{number}"), job(4, 4, 9));
    }
    bench.pass(10 * SECOND);
    bench.submit("y/lends", job(2, 2, 0));
    bench.pass(60 * SECOND);
    assert_eq!(size(&bench, "y/lends"), 2);
}

/// Nor do those that no node fits.
#[test]
fn twenty_jobs_that_no_node_fits_hide_no_lender() {
    let mut bench = bench(4, two(2, 2));
    bench.submit("x/borrows", job(1, 4, 0));
    for number in 0..20 {
        let nowhere = SpecDocument {
            node_selector: [("pool".to_owned(), "none".to_owned())].into(),
            ..job(1, 1, 9)
        };
        bench.submit(&format!("y/nowhere-{number}"), nowhere);
    }
    bench.pass(10 * SECOND);
    bench.submit("y/lends", job(2, 2, 0));
    bench.pass(60 * SECOND);
    assert_eq!(size(&bench, "y/lends"), 2);
    assert_eq!(size(&bench, "x/borrows"), 2, "it does not grow back");
}

/// While a job waits within its quota, another does not borrow what it waits for.
#[test]
fn nobody_borrows_what_a_lender_waits_for() {
    let mut bench = bench(4, two(2, 2));
    bench.submit("x/rigid", job(3, 3, 0));
    bench.pass(10 * SECOND);
    bench.submit("y/lends", job(2, 2, 0));
    bench.submit("x/late", job(1, 1, 9));
    bench.pass(60 * SECOND);
    assert_eq!((size(&bench, "x/late"), size(&bench, "y/lends")), (0, 0));
    assert_eq!(
        message(&bench, "x/late"),
        "queue x has a quota of 2 GPUs: its other jobs hold 3, what it could borrow is kept for jobs that wait within the quota of their queue, and this one needs at least 1"
    );
    cancel(&mut bench, "x/rigid");
    bench.pass(10 * SECOND);
    assert_eq!((size(&bench, "x/late"), size(&bench, "y/lends")), (1, 2));
}

/// A running job keeps what it has through a restart of the coordinator under another file.
#[test]
fn a_smaller_quota_stops_nothing_that_runs() {
    let mut bench = bench(4, two(2, 2));
    bench.submit("x/borrows", job(2, 4, 0));
    bench.pass(10 * SECOND);
    bench.fleet.policy.queues = Queues::new(two(0, 1)).unwrap();
    bench.fleet.fresh = true;
    bench.input(Input::Tick);
    bench.pass(60 * SECOND);
    assert_eq!(size(&bench, "x/borrows"), 4);
    assert_eq!(named(&bench, "x/borrows").last_generation, Generation(1));
    bench.submit("y/own", job(1, 1, 0));
    bench.pass(60 * SECOND);
    assert_eq!(
        size(&bench, "y/own"),
        0,
        "two are its least, and one is the quota of all"
    );
}

/// The lowest limit on the way up counts, and it is named.
#[test]
fn a_priority_above_the_limit_of_its_queue_is_refused() {
    let mut queues = two(2, 2);
    queues[0].max_priority = Some(5);
    queues[1].max_priority = Some(7);
    let mut bench = bench(4, queues);
    let answer = bench.submit("x/high", job(1, 1, 6));
    let Answer::Refused(refusal) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(
        refusal.to_string(),
        "spec.priority: is 6, and queue all allows at most 5 (maxPriority in --queues of the coordinator)"
    );
    bench.submit("x/fine", job(1, 1, 5));
    assert_eq!(size(&bench, "x/fine"), 1);
}

/// The namespace is that of both queues, and what a job holds counts in the one that it names.
#[test]
fn a_job_uses_the_quota_of_the_queue_that_it_names() {
    let mut queues = two(2, 2);
    queues[1].borrowing_limit = Some(0);
    queues[2].borrowing_limit = Some(0);
    queues[2].namespaces.insert("x".into());
    let mut bench = bench(4, queues);
    let of = |queue: Option<&str>, most| SpecDocument {
        queue: queue.map(str::to_owned),
        ..job(1, most, 0)
    };
    bench.submit("x/first", of(None, 4));
    bench.submit("x/other", of(Some("y"), 4));
    bench.submit("x/late", of(Some("x"), 1));
    bench.pass(SECOND);
    assert_eq!(size(&bench, "x/first"), 2);
    assert_eq!(size(&bench, "x/other"), 2);
    assert_eq!(lacks(&bench, "x/late"), Some(Shortage::QueueQuota));
    assert!(
        message(&bench, "x/late").contains("queue x has a quota of 2 GPUs"),
        "{}",
        message(&bench, "x/late")
    );
    // Its queue gets room, not that of the other job.
    cancel(&mut bench, "x/other");
    bench.pass(60 * SECOND);
    assert_eq!(size(&bench, "x/late"), 0);
    cancel(&mut bench, "x/first");
    bench.pass(60 * SECOND);
    assert_eq!(size(&bench, "x/late"), 1);
}

/// What the list says is what the rules go by, and a queue has what those below it have.
#[test]
fn the_list_of_queues_counts_jobs_where_they_are() {
    let mut queues = two(2, 1);
    queues[2].namespaces.insert("x".into());
    let mut bench = bench(3, queues);
    bench.submit("x/own", job(2, 2, 0));
    bench.submit(
        "x/other",
        SpecDocument {
            queue: Some("y".into()),
            ..job(1, 1, 0)
        },
    );
    bench.submit("y/waits", job(1, 1, 0));
    bench.pass(SECOND);
    let Answer::Queues(all) = bench.request(Request::Queues) else {
        panic!("they were asked for");
    };
    let seen: Vec<_> = all
        .iter()
        .map(|one| {
            let counted = (one.held, one.available, one.jobs, one.waiting);
            (one.name.as_str(), one.parent.as_deref(), counted)
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("all", None, (3, None, 2, 1)),
            ("x", Some("all"), (2, Some(0), 1, 0)),
            ("y", Some("all"), (1, Some(0), 1, 1)),
        ]
    );
    assert_eq!(all[0].quota, 3);
}

#[test]
fn a_queue_that_a_job_may_not_use_is_refused() {
    let mut bench = bench(2, two(1, 1));
    let of = |queue: &str| SpecDocument {
        queue: Some(queue.into()),
        ..job(1, 1, 0)
    };
    let mut refused = |job: &str, queue: &str, why: &str| match bench.submit(job, of(queue)) {
        Answer::Refused(refusal) => assert_eq!(refusal.to_string(), format!("spec.queue: {why}")),
        answer => panic!("{answer:?}"),
    };
    refused(
        "x/none",
        "z",
        "there is no queue z (--queues of the coordinator)",
    );
    refused(
        "x/other",
        "y",
        "queue y has no jobs of namespace x (--queues of the coordinator)",
    );
    bench.fleet.policy.queues = Queues::default();
    let Answer::Refused(refusal) = bench.submit("x/any", of("x")) else {
        panic!("there are no queues");
    };
    assert_eq!(
        refusal.to_string(),
        "spec.queue: is \"x\", and this coordinator has no queues (--queues)"
    );
}

/// What it names is gone after a restart with another file: it waits, and says why; what it had stays.
#[test]
fn a_queue_that_is_gone_holds_its_jobs_up() {
    let mut bench = bench(1, two(2, 1));
    let of_x = || SpecDocument {
        queue: Some("x".into()),
        ..job(1, 1, 0)
    };
    bench.submit("x/runs", of_x());
    bench.submit("x/waits", of_x());
    bench.pass(SECOND);
    let mut queues = two(2, 1);
    queues[1].name = "renamed".into();
    bench.fleet.policy.queues = Queues::new(queues).unwrap();
    bench.fleet.fresh = true;
    bench.input(Input::Tick);
    bench.pass(60 * SECOND);
    assert_eq!(size(&bench, "x/runs"), 1);
    assert_eq!(lacks(&bench, "x/waits"), Some(Shortage::QueueQuota));
    let said = message(&bench, "x/waits");
    assert!(said.contains("there is no queue x"), "{said}");
}

/// A turn without news decides nothing.
#[test]
fn a_second_turn_changes_nothing() {
    let mut bench = bench(4, two(2, 2));
    bench.submit("x/borrows", job(1, 3, 0));
    bench.submit("y/lends", job(2, 2, 5));
    bench.submit("x/late", job(2, 2, 9));
    bench.pass(60 * SECOND);
    let before = bench.stored_jobs.clone();
    bench.fleet.fresh = true;
    bench.input(Input::Tick);
    assert_eq!(before, bench.stored_jobs);
}

/// The first of a queue uses its quota also if it must borrow besides, so one behind it that need not borrow does not claim it.
#[test]
fn the_first_of_a_queue_may_borrow_beside_the_whole_quota() {
    let mut bench = bench(4, two(2, 4));
    bench.submit("y/other", job(2, 2, 5));
    bench.submit("x/large", job(4, 4, 5));
    bench.submit("x/small", job(2, 2, 0));
    assert_eq!((size(&bench, "x/large"), size(&bench, "x/small")), (0, 0));
    cancel(&mut bench, "y/other");
    assert_eq!(size(&bench, "x/large"), 4, "{}", message(&bench, "x/large"));
    assert_eq!(size(&bench, "x/small"), 0);
}

/// Where the first may not borrow what it needs, those behind it go on within the quota.
#[test]
fn who_may_not_borrow_enough_stops_nobody_behind_it() {
    let mut queues = two(2, 2);
    queues[1].borrowing_limit = Some(1);
    let mut bench = bench(4, queues);
    bench.submit("x/large", job(4, 4, 5));
    bench.submit("x/small", job(2, 2, 0));
    assert_eq!((size(&bench, "x/large"), size(&bench, "x/small")), (0, 2));
}

/// One that may not borrow enough holds up nobody behind it, also if that turns out only when others of its tree have been asked.
#[test]
fn whose_loan_is_claimed_by_a_lender_holds_up_nobody() {
    let mut queues = two(2, 2);
    queues.push(another_tree());
    let mut bench = bench(6, queues);
    let on = |nodes: &[&str], spec: SpecDocument| SpecDocument {
        node_list: nodes.iter().map(ToString::to_string).collect(),
        ..spec
    };
    bench.submit("z/holds", on(&["e", "f"], job(2, 2, 5)));
    bench.submit("z/ends", job(4, 4, 5));
    bench.submit("y/lender", on(&["e", "f"], job(2, 2, 1)));
    bench.submit("y/three", job(3, 3, 3));
    bench.submit("x/four", job(4, 4, 9));
    bench.submit("x/two", job(2, 2, 5));
    cancel(&mut bench, "z/ends");
    // What they would borrow is claimed by the lender, whoever of them is asked first.
    assert_eq!(size(&bench, "x/four"), 0, "{}", message(&bench, "x/four"));
    assert_eq!(size(&bench, "y/three"), 0);
    assert_eq!(size(&bench, "x/two"), 2, "{}", message(&bench, "x/two"));
    cancel(&mut bench, "z/holds");
    assert_eq!(size(&bench, "y/lender"), 2);
}

/// Jobs of several trees do not keep room from each other in a ring.
#[test]
fn jobs_of_two_trees_have_one_order() {
    let mut queues = two(4, 12);
    queues.push(another_tree());
    let mut bench = bench(8, queues);
    bench.submit("z/first", job(8, 8, 5));
    bench.submit("x/borrows", job(8, 8, 9));
    bench.submit("y/entitled", job(8, 8, 0));
    bench.submit("z/next", job(8, 8, 5));
    cancel(&mut bench, "z/first");
    let began: Vec<&str> = ["x/borrows", "y/entitled", "z/next"]
        .into_iter()
        .filter(|name| size(&bench, name) == 8)
        .collect();
    assert_eq!(began, ["z/next"]);
}

/// A job whose minimum is within its quota comes before all whose minimum is not, whatever their tree and priority.
#[test]
fn what_a_lender_gets_back_goes_to_no_borrower_of_another_tree() {
    let mut queues = two(1, 2);
    queues.push(queue("others", None, None));
    queues.push(queue("z", Some(3), Some(0)));
    queues.push(queue("idle", Some(3), Some(2)));
    let mut bench = bench(2, queues);
    bench.fleet.policy.preemption = Preemption::Evict;
    bench.submit("x/borrows", job(2, 2, 2));
    bench.submit("y/lender", job(2, 2, 1));
    bench.submit("z/stranger", job(1, 1, 2));
    bench.pass(310 * SECOND);
    let sizes = ["x/borrows", "y/lender", "z/stranger"].map(|job| size(&bench, job));
    assert_eq!(sizes, [0, 2, 0], "{}", message(&bench, "y/lender"));
}
