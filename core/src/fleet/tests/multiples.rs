//! Jobs that run on a multiple of some number of nodes, through all that changes their size.

use super::{selection::fleet, *};
use crate::spec::RoleDocument;

const NINE: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];

/// So many nodes, each with one GPU.
fn nodes(count: usize) -> Bench {
    let nodes: Vec<(&str, &str, u32)> = NINE[..count].iter().map(|name| (*name, "x", 1)).collect();
    fleet(&nodes)
}

/// From `min` to `most` nodes, in fours.
fn in_fours(min: i64, most: i64, priority: i64) -> SpecDocument {
    SpecDocument {
        gpus_per_node: Some(1),
        priority: Some(priority),
        multiple_of: Some(4),
        scale_up_cooldown: Some("0s".into()),
        ..document(min, most, most)
    }
}

fn elastic(min: i64, most: i64, priority: i64) -> SpecDocument {
    SpecDocument {
        multiple_of: None,
        ..in_fours(min, most, priority)
    }
}

fn size(bench: &Bench, job: &str) -> u32 {
    let current = bench.job(job).current.as_ref();
    current.map_or(0, GenerationRecord::size)
}

fn scale(bench: &mut Bench, nodes: u32) -> Answer {
    let name = bench.job("digits").name.clone();
    bench.request(Request::Scale { name, nodes })
}

#[test]
fn as_many_as_fit_start_rounded_down_to_a_multiple() {
    for (there, starts) in [(3, 0), (4, 4), (7, 4), (8, 8), (9, 8)] {
        let mut bench = nodes(there);
        bench.submit("digits", in_fours(4, 8, 0));
        bench.pass(10 * SECOND);
        assert_eq!(size(&bench, "digits"), starts, "of {there}");
    }
}

#[test]
fn a_lost_node_costs_four_and_the_other_three_are_spares() {
    let mut bench = nodes(8);
    bench.submit("digits", in_fours(4, 8, 0));
    bench.pass(10 * SECOND);
    assert_eq!(size(&bench, "digits"), 8);
    bench.cut("b");
    bench.pass(20 * SECOND);
    assert_eq!(bench.members("digits"), ["a", "c", "d", "e"]);
    // The spares are free for others.
    bench.submit("other", elastic(3, 3, 0));
    bench.pass(5 * SECOND);
    assert_eq!(size(&bench, "other"), 3);
    cancel(&mut bench, "other");
    // A second loss takes a spare, and the job keeps its size.
    bench.cut("c");
    bench.pass(20 * SECOND);
    assert_eq!(size(&bench, "digits"), 4);
}

#[test]
fn nothing_is_restarted_for_nodes_that_make_no_multiple() {
    let mut bench = nodes(5);
    bench.submit("digits", in_fours(4, 8, 0));
    bench.pass(10 * SECOND);
    let before = bench.job("digits").last_generation;
    bench.pass(200 * SECOND);
    assert_eq!(size(&bench, "digits"), 4);
    assert_eq!(bench.job("digits").last_generation, before);
}

#[test]
fn scale_takes_multiples_and_names_the_nearest() {
    let mut bench = nodes(9);
    bench.submit("digits", in_fours(4, 8, 0));
    bench.pass(10 * SECOND);
    let Answer::Refused(Refusal::Invalid { field, message }) = scale(&mut bench, 6) else {
        panic!("6 is no multiple of 4");
    };
    assert_eq!(
        (field.as_str(), message.as_str()),
        (
            "nodes",
            "is 6, must be a multiple of 4 (multipleOf): give 4 or 8"
        )
    );
    assert_eq!(size(&bench, "digits"), 8);
    scale(&mut bench, 4);
    bench.pass(10 * SECOND);
    assert_eq!(size(&bench, "digits"), 4);
    scale(&mut bench, 8);
    bench.pass(10 * SECOND);
    assert_eq!(size(&bench, "digits"), 8);
}

/// Whatever is asked of it, it gives up four: a generation of seven would train nothing.
#[test]
fn it_shrinks_by_four_for_a_higher_priority_and_grows_by_four_after_it() {
    let mut bench = nodes(8);
    bench.submit("low", in_fours(4, 8, 0));
    bench.pass(10 * SECOND);
    bench.submit("urgent", elastic(1, 1, 5));
    bench.pass(10 * SECOND);
    assert_eq!((size(&bench, "low"), size(&bench, "urgent")), (4, 1));
    bench.submit("second", elastic(3, 3, 5));
    bench.pass(10 * SECOND);
    assert_eq!((size(&bench, "low"), size(&bench, "second")), (4, 3));
    cancel(&mut bench, "urgent");
    bench.pass(10 * SECOND);
    assert_eq!(size(&bench, "low"), 4);
    cancel(&mut bench, "second");
    bench.pass(10 * SECOND);
    assert_eq!(size(&bench, "low"), 8);
}

#[test]
fn nobody_gives_to_a_multiple_what_makes_none() {
    let mut bench = nodes(5);
    bench.submit("low", elastic(2, 5, 0));
    bench.pass(10 * SECOND);
    bench.submit("urgent", in_fours(4, 8, 5));
    bench.pass(20 * SECOND);
    assert_eq!(size(&bench, "low"), 5, "three would not do");
    assert_eq!(size(&bench, "urgent"), 0);
}

#[test]
fn the_limit_of_a_namespace_is_filled_with_multiples() {
    let mut bench = nodes(9);
    bench.fleet.policy.gpus_max.named = [("default".to_owned(), 7)].into();
    bench.submit("digits", in_fours(4, 8, 0));
    bench.pass(10 * SECOND);
    assert_eq!(size(&bench, "digits"), 4);
}

#[test]
fn a_role_has_its_multiple_beside_the_others() {
    let role = |name: &str, sizes: [i64; 3]| RoleDocument {
        name: name.into(),
        replicas: Some(sizes[1]),
        min_replicas: Some(sizes[0]),
        max_replicas: Some(sizes[2]),
        ..RoleDocument::default()
    };
    let workers = RoleDocument {
        multiple_of: Some(2),
        ..role("worker", [2, 6, 6])
    };
    let spec = SpecDocument {
        framework: Some("plain".into()),
        gpus_per_node: Some(1),
        roles: vec![role("head", [1, 1, 1]), workers],
        ..document(1, 1, 1)
    };
    let spec = SpecDocument {
        placement: Some("spread".into()),
        replicas: None,
        min_replicas: None,
        max_replicas: None,
        ..spec
    };
    for (there, starts) in [(2, 0), (3, 3), (4, 3), (5, 5), (6, 5), (9, 7)] {
        let mut bench = nodes(there);
        bench.submit("digits", spec.clone());
        bench.pass(10 * SECOND);
        assert_eq!(size(&bench, "digits"), starts, "of {there}");
    }
}
