//! The arithmetic beside an oracle, for all small trees that are drawn and everything their queues may hold.
//!
//! The oracle follows GPUs as they flow up and down the tree: a queue passes up what it does not use, and down what it lacks.
//! It knows nothing of pools and guarantees.

use proptest::prelude::*;

use super::*;

/// Name, parent, quota, `borrowingLimit`, `lendingLimit`.
type Said = (
    &'static str,
    Option<usize>,
    Option<u32>,
    Option<u32>,
    Option<u32>,
);

fn queue((name, parent, quota, borrowing_limit, lending_limit): Said) -> Queue {
    Queue {
        name: name.into(),
        parent,
        quota,
        borrowing_limit,
        lending_limit,
        ..Queue::default()
    }
}

fn tree(said: &[Said]) -> Queues {
    Queues::new(said.iter().copied().map(queue).collect()).unwrap()
}

/// The least that flows from above into this queue. An error: more than may.
fn least_in(queues: &Queues, at: usize, usage: &Usage) -> Result<i64, ()> {
    let one = &queues.all[at].queue;
    let children =
        || (0..queues.all.len()).filter(|child| queues.all[*child].queue.parent == Some(at));
    let below: i64 = children()
        .map(|child| i64::from(queues.all[child].quota))
        .sum();
    let own = i64::from(queues.all[at].quota) - below;
    let mut flows = i64::from(usage.0[at]) - own;
    for child in children() {
        flows += least_in(queues, child, usage)?;
    }
    let flows = flows.max(-i64::from(one.lending_limit.unwrap_or(u32::MAX)));
    let most = match one.parent {
        Some(_) => i64::from(one.borrowing_limit.unwrap_or(u32::MAX)),
        None => 0,
    };
    if flows > most { Err(()) } else { Ok(flows) }
}

/// Whether the queues may hold so much together.
fn allowed(queues: &Queues, usage: &Usage) -> bool {
    let tops = (0..queues.all.len()).filter(|at| queues.all[*at].queue.parent.is_none());
    tops.into_iter()
        .all(|top| least_in(queues, top, usage).is_ok())
}

fn bottom(queues: &Queues) -> Vec<QueueId> {
    let all = 0..queues.all.len();
    all.filter(|at| queues.all[*at].children.is_empty())
        .map(QueueId)
        .collect()
}

prop_compose! {
    fn any_queue()(
        parent in any::<prop::sample::Index>(),
        quota in 0..5_u32,
        more in 0..3_u32,
        borrows in prop::option::of(0..4_u32),
        lends in prop::option::of(0..4_u32),
    ) -> (prop::sample::Index, u32, u32, Option<u32>, Option<u32>) {
        (parent, quota, more, borrows, lends)
    }
}

fn any_tree() -> impl Strategy<Value = Queues> {
    prop::collection::vec(any_queue(), 1..7).prop_map(|drawn| {
        let mut queues: Vec<Queue> = Vec::new();
        for (at, (parent, quota, _, borrows, lends)) in drawn.iter().enumerate() {
            let parent = (at > 0).then(|| parent.index(at));
            queues.push(Queue {
                name: format!("q{at}"),
                parent,
                quota: Some(*quota),
                borrowing_limit: borrows.filter(|_| at > 0),
                lending_limit: lends.filter(|_| at > 0),
                namespaces: [format!("n{at}")].into(),
                max_priority: None,
                weight: None,
            });
        }
        // A queue above others has at least what they have.
        for at in (0..queues.len()).rev() {
            let below = queues.iter().filter(|one| one.parent == Some(at));
            let below: Vec<u32> = below.filter_map(|one| one.quota).collect();
            if !below.is_empty() {
                queues[at].quota = Some(below.iter().sum::<u32>() + drawn[at].2);
                queues[at].namespaces.clear();
            }
        }
        Queues::new(queues).unwrap()
    })
}

/// A tree, and what its queues have come to hold by asking for one GPU after another.
fn any_use() -> impl Strategy<Value = (Queues, Usage)> {
    let asks = prop::collection::vec(any::<prop::sample::Index>(), 0..30);
    (any_tree(), asks).prop_map(|(queues, asks)| {
        let (mut usage, all) = (queues.unused(), bottom(&queues));
        for ask in asks {
            let queue = *ask.get(&all);
            let more = u32::from(queues.available(queue, &usage) > 0);
            usage.add(queue, more);
        }
        (queues, usage)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// No more is available than may be held, and no less: a refusal is really impossible.
    #[test]
    fn what_is_available_is_exactly_what_may_be_held((queues, usage) in any_use()) {
        prop_assert!(allowed(&queues, &usage));
        for queue in bottom(&queues) {
            let available = queues.available(queue, &usage);
            for more in 0..=available + 2 {
                let mut after = usage.clone();
                after.add(queue, more);
                prop_assert_eq!(allowed(&queues, &after), more <= available, "{:?} {}", queue, more);
            }
        }
    }

    /// A queue gets its whole quota: it is free, or it can be taken back, without touching any other queue's quota.
    #[test]
    fn what_was_lent_can_be_taken_back((queues, usage) in any_use()) {
        for queue in bottom(&queues) {
            let need = queues.entitled(queue, &usage);
            if queues.has_parent(queue) {
                prop_assert!(need >= queues.quota(queue).saturating_sub(usage.of(queue)));
            }
            let mut left = usage.clone();
            while queues.available(queue, &left) < need {
                let mut others = bottom(&queues).into_iter();
                let lends = others.find(|other| queues.may_take_back(queue, need, *other, &left));
                prop_assert!(lends.is_some(), "{:?} needs {} beside {:?}", queue, need, left);
                let other = lends.unwrap();
                left.take(other, 1);
                prop_assert!(left.of(other) >= queues.quota(other));
            }
        }
    }

    /// Whoever has taken back what it had lent has nothing that the other may take back.
    #[test]
    fn what_was_taken_back_is_not_taken_again((queues, usage) in any_use(), need in 1..6_u32) {
        for one in bottom(&queues) {
            for other in bottom(&queues) {
                if !queues.may_take_back(one, need, other, &usage) {
                    continue;
                }
                let mut after = usage.clone();
                after.take(other, need.min(usage.of(other)));
                after.add(one, need);
                prop_assert!(!queues.may_take_back(other, 1, one, &after));
            }
        }
    }
}

#[test]
fn a_queue_borrows_what_its_neighbour_leaves_and_no_more_than_both_limits_allow() {
    let said = |borrows, lends| {
        tree(&[
            ("all", None, None, None, None),
            ("a", Some(0), Some(4), borrows, None),
            ("b", Some(0), Some(4), None, lends),
        ])
    };
    let (a, b) = (QueueId(1), QueueId(2));
    for (borrows, lends, available) in [
        (None, None, 8),
        (Some(1), None, 5),
        (None, Some(3), 7),
        (Some(2), Some(3), 6),
        (Some(0), None, 4),
    ] {
        let queues = said(borrows, lends);
        let none = queues.unused();
        assert_eq!(queues.available(a, &none), available);
        assert_eq!(queues.entitled(a, &none), 4);
        let mut used = none.clone();
        used.add(a, available);
        assert_eq!(queues.available(b, &used), 8 - available);
        assert_eq!(queues.entitled(b, &used), 4);
        assert_eq!(queues.may_take_back(b, 4, a, &used), available > 4);
        assert!(!queues.may_take_back(b, 5, a, &used), "more than its quota");
        assert!(!queues.may_take_back(a, 1, b, &used));
    }
}

#[test]
fn what_two_queues_have_together_comes_back_to_either_before_others_borrow_it() {
    // Teams a and b share 4 GPUs beyond their own; c is a stranger.
    let queues = tree(&[
        ("all", None, None, None, None),
        ("team", Some(0), Some(8), None, None),
        ("a", Some(1), Some(2), None, None),
        ("b", Some(1), Some(2), None, None),
        ("c", Some(0), Some(2), None, None),
    ]);
    let (a, b, c) = (QueueId(2), QueueId(3), QueueId(4));
    let mut used = queues.unused();
    used.add(c, 10);
    assert_eq!(queues.available(a, &used), 0);
    assert_eq!(queues.entitled(a, &used), 8);
    assert!(queues.may_take_back(a, 8, c, &used));
    let mut used = queues.unused();
    used.add(a, 8);
    used.add(c, 2);
    assert!(queues.may_take_back(b, 2, a, &used));
    assert!(!queues.may_take_back(b, 3, a, &used));
    assert!(
        !queues.may_take_back(c, 1, a, &used),
        "the team has not borrowed"
    );
}

#[test]
fn a_namespace_has_its_first_queue_and_a_star_has_the_rest() {
    let mut all = vec![
        queue(("a", None, Some(1), None, None)),
        queue(("b", None, Some(2), None, None)),
    ];
    all[0].namespaces = ["*".to_owned()].into();
    all[1].namespaces = ["x".to_owned()].into();
    let queues = Queues::new(all.clone()).unwrap();
    assert_eq!(queues.of("x", None), Ok(QueueId(1)));
    assert_eq!(queues.of("y", None), Ok(QueueId(0)));
    all[0].namespaces.clear();
    let queues = Queues::new(all).unwrap();
    let none = queues.of("y", None).unwrap_err();
    assert_eq!(
        none.to_string(),
        "no queue has jobs of namespace y (--queues of the coordinator)"
    );
}

#[test]
fn a_job_may_name_another_queue_of_its_namespace() {
    let of = |name, namespaces: &[&str]| Queue {
        namespaces: namespaces.iter().map(ToString::to_string).collect(),
        ..queue((name, Some(0), Some(1), None, None))
    };
    let queues = Queues::new(vec![
        queue(("all", None, None, None, None)),
        of("a", &["x"]),
        of("b", &["x", "y"]),
        of("rest", &["*"]),
    ]);
    let queues = queues.unwrap();
    for (namespace, named, id) in [
        ("x", None, 1),
        ("x", Some("a"), 1),
        ("x", Some("b"), 2),
        ("y", None, 2),
        ("z", None, 3),
        ("z", Some("rest"), 3),
    ] {
        let of = queues.of(namespace, named);
        assert_eq!(of, Ok(QueueId(id)), "{namespace} {named:?}");
    }
    for (namespace, named, why) in [
        ("x", "c", "there is no queue c"),
        ("y", "a", "queue a has no jobs of namespace y"),
        ("x", "all", "queue all has no jobs of namespace x"),
        ("x", "rest", "queue rest has no jobs of namespace x"),
    ] {
        let none = queues.of(namespace, Some(named)).unwrap_err();
        assert_eq!(
            none.to_string(),
            format!("{why} (--queues of the coordinator)")
        );
    }
}

#[test]
fn all_that_is_wrong_is_said() {
    let mut all = vec![
        queue(("a", None, Some(3), Some(1), None)),
        queue(("b", Some(0), Some(2), None, None)),
        queue(("b", Some(0), Some(2), None, None)),
        queue(("c", None, None, None, None)),
    ];
    all[0].namespaces = ["x".to_owned()].into();
    let wrong = Queues::new(all).unwrap_err();
    let said: Vec<(usize, &str)> = wrong.iter().map(|one| (one.queue, one.field)).collect();
    assert_eq!(
        said,
        [
            (0, "namespaces"),
            (0, "borrowingLimit"),
            (2, "name"),
            (3, "quota"),
            (0, "quota"),
        ]
    );
    assert!(
        wrong[4]
            .why
            .starts_with("is 3, and the queues below it have 4")
    );
}
