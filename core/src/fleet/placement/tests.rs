use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::{
    fleet::{placement::choose::choose, registry::Liveness},
    id::NodeName,
    nccl::{mixture::Kind, stack::Stack},
    spec::Multiple,
};

mod exhaustive;
mod kept;
mod roles;
mod shared;

/// A name that lives as long as the tests.
pub(super) fn name(name: &str) -> &'static NodeName {
    Box::leak(Box::new(name.into()))
}

pub(super) fn node(called: &str, node_rank: Option<u32>) -> Candidate<'static> {
    Candidate {
        node: name(called),
        boot_id: "boot",
        liveness: Liveness::Ready,
        connected: true,
        cordoned: false,
        halted: false,
        kept: None,
        gpus_all: 0,
        misfit: None,
        liking: 0,
        domains: Vec::new(),
        domain: 0,
        avoided: None,
        shunned: false,
        slots_free: 1,
        gpus_held: Held::default(),
        gpus_free: 0,
        node_rank,
        had: node_rank
            .map(|number| Had { number, role: 0 })
            .into_iter()
            .collect(),
        kind: Default::default(),
        stack: Stack::default(),
        trained: false,
        one_member: false,
    }
}

/// One role, with a node for each member.
pub(super) fn spread(min: u32, wanted: u32, gpus: u32) -> Demand {
    Demand {
        roles: vec![role(min, wanted, gpus)],
        wanted,
        per_node: 1,
    }
}

pub(super) fn role(min: u32, max: u32, gpus: u32) -> RoleDemand {
    RoleDemand {
        min,
        max,
        multiple: Multiple::default(),
        gpus,
        procs: 1,
    }
}

pub(super) type Placed<'a> = Placement<'a, Vec<Share<'a>>>;

pub(super) fn placed<'a>(nodes: &[Candidate<'a>], demand: &Demand) -> Placed<'a> {
    let nodes: Vec<&Candidate<'a>> = nodes.iter().collect();
    choose(&nodes, demand)
}

pub(super) fn names(placement: Placed<'_>) -> Vec<&str> {
    match placement {
        Placement::Gang(shares) => shares.iter().map(|share| share.node.as_str()).collect(),
        Placement::Short(shortfall) => panic!("{shortfall}"),
    }
}

#[test]
fn survivors_keep_their_order_and_newcomers_follow() {
    let nodes = [
        node("a", None),
        node("b", Some(2)),
        node("c", Some(0)),
        node("d", None),
    ];
    assert_eq!(names(placed(&nodes, &spread(2, 3, 0))), ["c", "b", "a"]);
}

#[test]
fn a_shortfall_says_how_many_and_why() {
    let mut nodes = [node("a", None), node("b", None), node("c", None)];
    nodes[1].cordoned = true;
    nodes[2].liveness = Liveness::Lost;
    let Placement::Short(shortfall) = placed(&nodes, &spread(2, 3, 0)) else {
        panic!("must be short")
    };
    assert_eq!(
        shortfall.to_string(),
        "1 of at least 2 nodes available: b cordoned, c lost"
    );
    nodes[1].cordoned = false;
    nodes[1].avoided = Some(Avoided::CouldNotStart("b did not get ready in time"));
    let Placement::Short(shortfall) = placed(&nodes, &spread(2, 3, 0)) else {
        panic!("must be short")
    };
    assert_eq!(
        shortfall.to_string(),
        "1 of at least 2 nodes available: b did not get ready in time, c lost"
    );
}

#[test]
fn a_shunned_node_is_taken_only_where_others_lack_and_keeps_its_rank() {
    let mut nodes = [
        node("a", Some(0)),
        node("b", Some(1)),
        node("c", Some(2)),
        node("d", None),
    ];
    nodes[0].shunned = true;
    assert_eq!(names(placed(&nodes, &spread(2, 3, 0))), ["b", "c", "d"]);
    assert_eq!(
        names(placed(&nodes[..3], &spread(2, 3, 0))),
        ["a", "b", "c"]
    );
}

/// Nodes of these kinds, named a, b and so on.
fn kinds(models: &[&str]) -> Vec<Candidate<'static>> {
    let named = models
        .iter()
        .zip('a'..)
        .map(|(model, name)| (model, node(&name.to_string(), None)));
    named
        .map(|(model, node)| Candidate {
            kind: Kind::of_model(model).into(),
            gpus_free: 1,
            ..node
        })
        .collect()
}

#[test]
fn of_nodes_that_do_not_go_together_the_larger_kind_is_taken() {
    assert_eq!(
        names(placed(
            &kinds(&["A100", "H100", "H100", "A100", "H100"]),
            &spread(2, 3, 1)
        )),
        ["b", "c", "e"]
    );
    let Placement::Short(shortfall) = placed(&kinds(&["A100", "H100"]), &spread(2, 3, 1)) else {
        panic!("must be short")
    };
    assert_eq!(
        shortfall.to_string(),
        "1 of at least 2 nodes available: a does not go with the others (A100, not H100)"
    );
}

#[test]
fn survivors_of_a_kind_stay_as_long_as_they_are_enough() {
    let mut nodes = kinds(&["A100", "A100", "H100", "H100", "H100"]);
    for (number, name) in [(0, "a"), (1, "b")] {
        nodes[number] = Candidate {
            kind: Rc::clone(&nodes[number].kind),
            gpus_free: 1,
            ..node(name, Some(number as u32))
        };
    }
    assert_eq!(names(placed(&nodes, &spread(2, 3, 1))), ["a", "b"]);
    nodes[1].liveness = Liveness::Lost;
    assert_eq!(
        names(placed(&nodes, &spread(2, 3, 1))),
        ["c", "d", "e"],
        "one alone is not enough"
    );
}

#[test]
fn the_node_that_is_left_with_the_fewest_gpus_is_taken() {
    let mut nodes = [node("a", None), node("b", None), node("c", None)];
    nodes[0].gpus_free = 4;
    nodes[1].gpus_free = 2;
    nodes[2].gpus_free = 3;
    let one = spread(1, 1, 2);
    assert_eq!(names(placed(&nodes, &one)), ["b"], "whole nodes stay whole");
    assert_eq!(names(placed(&nodes, &spread(1, 2, 2))), ["b", "c"]);
    nodes[0] = Candidate {
        gpus_free: 4,
        ..node("a", Some(0))
    };
    assert_eq!(
        names(placed(&nodes, &one)),
        ["a"],
        "a survivor stays where its data is"
    );
}

#[test]
fn of_nodes_without_gpus_the_fullest_is_taken() {
    let mut nodes = [node("a", None), node("b", None), node("c", None)];
    (
        nodes[0].slots_free,
        nodes[1].slots_free,
        nodes[2].slots_free,
    ) = (3, 1, 2);
    assert_eq!(names(placed(&nodes, &spread(2, 3, 0))), ["b", "c", "a"]);
    assert_eq!(names(placed(&nodes, &spread(2, 2, 0))), ["b", "c"]);
}

/// The facts of one node. Each may be a reason not to take it, or not.
#[derive(Clone, Debug)]
struct Facts {
    liveness: Liveness,
    /// The reason against the node, as a number: not connected, cordoned, halted or avoided. Most
    /// nodes have none.
    trouble: Option<u8>,
    shunned: bool,
    slots_free: u32,
    gpus_free: u32,
    node_rank: Option<u32>,
}

fn facts() -> impl Strategy<Value = Facts> {
    let liveness = prop_oneof![
        4 => Just(Liveness::Ready), 1 => Just(Liveness::Suspect), 1 => Just(Liveness::Lost), 1 => Just(Liveness::Unknown)
    ];
    let trouble = prop_oneof![3 => Just(None), 1 => (0u8..4).prop_map(Some)];
    (
        liveness,
        trouble,
        prop::bool::weighted(0.2),
        0u32..3,
        0u32..=8,
        prop::option::of(0u32..50),
    )
        .prop_map(
            |(liveness, trouble, shunned, slots_free, gpus_free, node_rank)| Facts {
                liveness,
                trouble,
                shunned,
                slots_free,
                gpus_free,
                node_rank,
            },
        )
}

fn candidate(number: usize, facts: &Facts) -> Candidate<'static> {
    Candidate {
        liveness: facts.liveness,
        connected: facts.trouble != Some(0),
        cordoned: facts.trouble == Some(1),
        halted: facts.trouble == Some(2),
        avoided: (facts.trouble == Some(3))
            .then_some(Avoided::CouldNotStart("it could not start there")),
        shunned: facts.shunned,
        slots_free: facts.slots_free,
        gpus_free: facts.gpus_free,
        ..node(
            &format!("n{number:02}"),
            facts.node_rank.map(|rank| rank * 100 + number as u32),
        )
    }
}

proptest! {
    /// The oracle re-derives which nodes can be taken, and sorts all of them. A gang must be
    /// exactly the head of that list, and a refusal must be unavoidable.
    #[test]
    fn gangs_are_the_best_there_is_and_refusals_true(
        facts in prop::collection::vec(facts(), 0..12), min in 1u32..6, extra in 0u32..4, gpus in 0u32..5,
    ) {
        let nodes: Vec<Candidate<'static>> = facts.iter().enumerate().map(|(number, facts)| candidate(number, facts)).collect();
        let demand = spread(min, min + extra, gpus);
        let is_usable = |facts: &Facts| {
            let room = if gpus > 0 { facts.gpus_free >= gpus } else { facts.slots_free > 0 };
            facts.liveness == Liveness::Ready && facts.trouble.is_none() && room
        };
        let usable: Vec<&Candidate<'static>> =
            nodes.iter().zip(&facts).filter(|(_, facts)| is_usable(facts)).map(|(node, _)| node).collect();
        match placed(&nodes, &demand) {
            Placement::Short(shortfall) => {
                prop_assert!((usable.len() as u32) < min);
                prop_assert_eq!((shortfall.need, shortfall.have), (min, usable.len() as u32));
                let left_out: Vec<&NodeName> = shortfall.excluded.iter().map(|(node, _)| *node).collect();
                let expected: Vec<&NodeName> =
                    nodes.iter().map(|node| node.node).filter(|name| usable.iter().all(|node| node.node != *name)).collect();
                prop_assert_eq!(left_out, expected, "each node that was left out has a reason");
            }
            Placement::Gang(shares) => {
                prop_assert!(usable.len() as u32 >= min);
                // Order within a gang: survivors in their old order, then the fullest nodes. The choice for a gang uses
                // the same order, but shunned nodes come last.
                let place = |node: &Candidate<'static>| {
                    (node.node_rank.is_none(), node.node_rank, node.gpus_free, node.slots_free, node.node)
                };
                let mut expected = usable;
                expected.sort_by_key(|node| (node.shunned, place(node)));
                expected.truncate(demand.wanted as usize);
                expected.sort_by_key(|node| place(node));
                let names: Vec<&NodeName> = shares.iter().map(|share| share.node).collect();
                prop_assert_eq!(names, expected.iter().map(|node| node.node).collect::<Vec<_>>());
                for (number, share) in (0..).zip(shares) {
                    let members: Vec<(u32, u32)> = share.members.iter().map(|member| (member.number, member.gpus)).collect();
                    prop_assert_eq!(members, [(number, gpus)]);
                }
            }
        }
    }
}
