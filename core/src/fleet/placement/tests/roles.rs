//! Jobs with roles, a node for each member.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{Placed, names, placed, role};
use crate::{
    fleet::placement::{Candidate, Demand, Had, Placement, RoleDemand},
    id::NodeName,
    nccl::mixture::Kind,
};

const MODELS: [&str; 3] = ["A100", "H100", "L40"];

/// A node with so many GPUs. `before`: its role and its rank in the latest generation.
fn node(name: &str, gpus: u32, before: Option<(usize, u32)>) -> Candidate<'static> {
    let had = before.map(|(role, number)| Had { number, role });
    Candidate {
        gpus_free: gpus,
        had: had.into_iter().collect(),
        trained: before.is_some(),
        ..super::node(name, before.map(|(_, node_rank)| node_rank))
    }
}

fn place_roles<'a>(nodes: &[Candidate<'a>], roles: &[RoleDemand], wanted: u32) -> Placed<'a> {
    let demand = Demand {
        roles: roles.to_vec(),
        wanted,
        per_node: 1,
    };
    placed(nodes, &demand)
}

#[test]
fn a_role_with_gpus_gets_the_nodes_that_have_them() {
    let nodes = [
        node("a", 4, None),
        node("b", 0, None),
        node("c", 4, None),
        node("d", 0, None),
    ];
    // Two parameter servers come first in the order of ranks, and leave the GPUs to the workers.
    let roles = [role(2, 2, 0), role(2, 2, 4)];
    let Placement::Gang(gang) = place_roles(&nodes, &roles, 4) else {
        panic!("must fit")
    };
    let shares: Vec<(&str, u32)> = gang
        .iter()
        .map(|share| (share.node.as_str(), share.members[0].gpus))
        .collect();
    assert_eq!(shares, [("b", 0), ("d", 0), ("a", 4), ("c", 4)]);
}

#[test]
fn nodes_keep_their_roles_and_a_spare_replaces_the_lost_chief() {
    let nodes = [
        node("a", 0, Some((1, 1))),
        node("b", 0, None),
        node("c", 0, Some((1, 2))),
    ];
    let roles = [role(1, 1, 0), role(1, 2, 0)];
    assert_eq!(names(place_roles(&nodes, &roles, 3)), ["b", "a", "c"]);
    // Without a spare the last worker becomes the chief, and the elastic role shrinks. The others keep their ranks.
    let left = [nodes[0].clone(), nodes[2].clone()];
    assert_eq!(names(place_roles(&left, &roles, 3)), ["c", "a"]);
}

#[test]
fn a_shortfall_says_which_nodes_do_not_do_for_a_role() {
    let nodes = [node("a", 4, None), node("b", 2, None), node("c", 0, None)];
    let roles = [role(1, 1, 0), role(2, 2, 4)];
    let Placement::Short(shortfall) = place_roles(&nodes, &roles, 3) else {
        panic!("must be short")
    };
    assert_eq!(
        shortfall.to_string(),
        "2 of at least 3 nodes available: b 2 of 4 GPUs free"
    );
}

#[test]
fn all_members_with_gpus_are_of_one_kind_and_others_of_any() {
    let of_kind = |name, gpus, model| Candidate {
        kind: Kind::of_model(model).into(),
        ..node(name, gpus, None)
    };
    let nodes = [
        of_kind("a1", 4, "A100"),
        of_kind("a2", 1, "A100"),
        of_kind("h1", 4, "H100"),
        of_kind("h2", 4, "H100"),
        node("c", 0, None),
    ];
    // A chief without GPUs, a worker with four, and an evaluator with one.
    let roles = [role(1, 1, 0), role(2, 2, 4), role(1, 1, 1)];
    let short = place_roles(&nodes, &roles, 4);
    let Placement::Short(shortfall) = short else {
        panic!("{short:?}");
    };
    assert!(
        shortfall.to_string().contains("A100, not H100"),
        "{shortfall}"
    );
    let roles = [role(1, 1, 0), role(1, 1, 4), role(1, 1, 1)];
    let names = names(place_roles(&nodes, &roles, 3));
    assert_eq!(names, ["c", "h1", "h2"], "the newer of two kinds that do");
    let roles = [role(2, 2, 0), role(2, 2, 4)];
    let names = super::names(place_roles(&nodes, &roles, 4));
    assert_eq!(names[2..], ["h1", "h2"], "only this kind has enough");
}

#[test]
fn only_the_elastic_role_takes_more() {
    let nodes = ["a", "b", "c", "d", "e"].map(|name| node(name, 0, None));
    let roles = [role(1, 1, 0), role(1, 3, 0)];
    assert_eq!(names(place_roles(&nodes, &roles, 3)).len(), 3);
    assert_eq!(
        names(place_roles(&nodes, &roles, 9)).len(),
        4,
        "the roles have no more"
    );
}

fn candidates() -> impl Strategy<Value = Vec<Candidate<'static>>> {
    let one = (
        0..=4u32,
        0..2u32,
        any::<bool>(),
        proptest::option::of(0..3usize),
        0..3usize,
    );
    type Drawn = (u32, u32, bool, Option<usize>, usize);
    let all = (proptest::collection::vec(one, 0..9), any::<bool>());
    all.prop_map(|(drawn, mixed)| {
        let node = |(i, (gpus, slots, cordoned, role, kind)): (usize, Drawn)| {
            let before = role.map(|role| (role, i as u32));
            let mut node = node(&format!("n{i}"), gpus, before);
            (node.slots_free, node.cordoned) = (slots, cordoned && i % 3 == 0);
            if mixed && gpus > 0 {
                node.kind = Kind::of_model(MODELS[kind]).into();
            }
            node
        };
        drawn.into_iter().enumerate().map(node).collect()
    })
}

fn roles() -> impl Strategy<Value = Vec<RoleDemand>> {
    let one = (0..3u32, 0..4u32);
    (proptest::collection::vec(one, 1..4), 0..3usize, 0..3u32).prop_map(|(drawn, elastic, more)| {
        let role = |(i, (min, gpus)): (usize, (u32, u32))| {
            super::role(min, min + if i == elastic { more } else { 0 }, gpus)
        };
        drawn.into_iter().enumerate().map(role).collect()
    })
}

/// Whether all roles can have their minimum, found by trying every assignment with every kind.
fn possible(nodes: &[Candidate<'_>], roles: &[RoleDemand]) -> bool {
    let kinds = nodes.iter().map(|node| node.kind.clone());
    kinds.chain([Default::default()]).any(|kind| {
        let mut nodes = nodes.to_vec();
        for node in nodes.iter_mut().filter(|node| node.kind != kind) {
            node.gpus_free = 0;
        }
        possible_with(&nodes, roles)
    })
}

fn possible_with(nodes: &[Candidate<'_>], roles: &[RoleDemand]) -> bool {
    let Some((node, rest)) = nodes.split_first() else {
        return roles.iter().all(|role| role.min == 0);
    };
    let with = (0..roles.len()).any(|i| {
        let fits = node.gpus_free >= roles[i].gpus
            && (roles[i].gpus > 0 || node.slots_free > 0)
            && !node.cordoned;
        roles[i].min > 0 && fits && {
            let mut roles = roles.to_vec();
            roles[i].min -= 1;
            possible_with(rest, &roles)
        }
    });
    with || possible_with(rest, roles)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_role_has_its_nodes_or_there_are_too_few(nodes in candidates(), roles in roles(), wanted in 0..12u32) {
        let min: u32 = roles.iter().map(|role| role.min).sum();
        match place_roles(&nodes, &roles, wanted.max(min)) {
            Placement::Gang(gang) => {
                let size = gang.len() as u32;
                prop_assert!(min <= size && size <= wanted.max(min));
                let mut seen: Vec<&NodeName> = gang.iter().map(|share| share.node).collect();
                seen.sort();
                seen.dedup();
                prop_assert_eq!(seen.len(), gang.len(), "no node twice");
                let kinds = gang.iter().filter(|share| share.members[0].gpus > 0);
                let kinds = kinds.map(|share| &nodes.iter().find(|node| node.node == share.node).unwrap().kind);
                prop_assert!(kinds.collect::<BTreeSet<_>>().len() <= 1, "one kind of GPU");
                // The elastic role has what is above the minimum of all.
                let mut members = gang.iter();
                for role in &roles {
                    let count = if role.max > role.min { role.min + size - min } else { role.min };
                    prop_assert!(count <= role.max);
                    for share in members.by_ref().take(count as usize) {
                        let node = nodes.iter().find(|node| node.node == share.node).unwrap();
                        prop_assert_eq!(share.members[0].gpus, role.gpus);
                        prop_assert!(!node.cordoned);
                        prop_assert!(role.gpus > 0 || node.slots_free > 0);
                    }
                }
                prop_assert!(members.next().is_none());
            }
            Placement::Short(shortfall) => {
                prop_assert!(shortfall.have < shortfall.need);
                prop_assert!(min == 0 || !possible(&nodes, &roles), "{}", shortfall);
            }
        }
    }
}
