use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::fleet::placement::{
    Demand, Placement, Share, place,
    tests::{node, spread},
};

/// A node of a rack in a zone. Both may be missing.
fn at<'a>(name: &str, zone: &'a str, rack: &'a str, node_rank: Option<u32>) -> Candidate<'a> {
    let value = |value: &'a str| (!value.is_empty()).then_some(Cow::from(value));
    Candidate {
        domains: vec![value(zone), value(rack)],
        ..node(name, node_rank)
    }
}

fn need(min: u32, wanted: u32) -> Demand {
    spread(min, wanted, 0)
}

/// Within one zone if it is required, and one rack if possible.
fn chosen<'a>(
    nodes: &[Candidate<'a>],
    need: Demand,
    zone_required: bool,
) -> Placement<'a, Vec<Share<'a>>> {
    static LEVELS: LazyLock<[String; 2]> = LazyLock::new(|| ["zone".into(), "rack".into()]);
    let (preferred, both) = (&LEVELS[1..], &LEVELS[..]);
    let levels = match zone_required {
        true => Levels {
            required: Some("zone"),
            preferred,
        },
        false => Levels {
            required: None,
            preferred: both,
        },
    };
    place(nodes.to_vec(), levels, &need)
}

fn names<'a>(placement: &Placement<'a, Vec<Share<'a>>>) -> Vec<&'a str> {
    match placement {
        Placement::Gang(gang) => gang.iter().map(|share| share.node.as_str()).collect(),
        Placement::Short(short) => panic!("{short}"),
    }
}

#[test]
fn a_required_domain_is_kept_also_if_more_nodes_are_free_in_all() {
    let nodes = [
        at("a1", "a", "", None),
        at("a2", "a", "", None),
        at("b1", "b", "", None),
        at("b2", "b", "", None),
        at("b3", "b", "", None),
        at("c1", "", "", None),
    ];
    assert_eq!(names(&chosen(&nodes, need(2, 4), true)), ["b1", "b2", "b3"]);
    // The smallest that does, so that the larger one stays free.
    assert_eq!(names(&chosen(&nodes, need(2, 2), true)), ["a1", "a2"]);
    let Placement::Short(short) = chosen(&nodes, need(4, 4), true) else {
        panic!("no zone has four")
    };
    assert_eq!(
        short.to_string(),
        "3 of at least 4 nodes available in zone=b: a1 is in zone=a, a2 is in zone=a, c1 has no label zone"
    );
    assert_eq!(
        short.shortage(),
        crate::fleet::shortage::Shortage::TopologyTooSmall
    );
}

#[test]
fn a_job_stays_where_most_of_it_is() {
    let nodes = [
        at("a1", "a", "", Some(0)),
        at("a2", "a", "", Some(1)),
        at("b1", "b", "", None),
        at("b2", "b", "", None),
        at("b3", "b", "", None),
    ];
    assert_eq!(names(&chosen(&nodes, need(2, 3), true)), ["a1", "a2"]);
    assert_eq!(
        names(&chosen(&nodes, need(3, 3), true)),
        ["b1", "b2", "b3"],
        "it cannot stay"
    );
}

#[test]
fn a_preferred_domain_costs_no_node_and_moves_no_member() {
    let nodes = [
        at("a1", "z", "r1", None),
        at("b1", "z", "r2", None),
        at("b2", "z", "r2", None),
        at("c1", "z", "r3", None),
        at("c2", "z", "r3", None),
        at("c3", "z", "r3", None),
    ];
    assert_eq!(names(&chosen(&nodes, need(1, 2), true)), ["b1", "b2"]);
    assert_eq!(names(&chosen(&nodes, need(1, 3), true)), ["c1", "c2", "c3"]);
    assert_eq!(
        names(&chosen(&nodes, need(1, 5), true)),
        ["c1", "c2", "c3", "b1", "b2"],
        "whole racks, and neighbours in the order of ranks"
    );
    let mut nodes = nodes;
    nodes[0] = at("a1", "z", "r1", Some(0));
    nodes[3] = at("c1", "z", "r3", Some(1));
    assert_eq!(names(&chosen(&nodes, need(1, 2), true)), ["a1", "c1"]);
}

#[test]
fn a_job_with_no_label_in_the_fleet_says_so() {
    let nodes = [at("a", "", "", None), at("b", "", "", None)];
    let Placement::Short(short) = chosen(&nodes, need(1, 2), true) else {
        panic!("there is no zone")
    };
    assert_eq!(
        short.to_string(),
        "0 of at least 1 nodes available: a has no label zone, b has no label zone"
    );
    assert_eq!(names(&chosen(&nodes, need(1, 2), false)), ["a", "b"]);
}

fn fleets() -> impl Strategy<Value = Vec<Candidate<'static>>> {
    let one = (0..3_usize, 0..4_usize, any::<bool>(), any::<bool>());
    prop::collection::vec(one, 0..9).prop_map(|all| {
        let all = all.into_iter().enumerate();
        all.map(|(number, (zone, rack, had, free))| {
            let (zones, racks) = (["a", "b", ""], ["r1", "r2", "r3", ""]);
            let mut node = at(
                &format!("n{number}"),
                zones[zone],
                racks[rack],
                had.then_some(number as u32),
            );
            node.slots_free = u32::from(free);
            node
        })
        .collect()
    })
}

proptest! {
    /// Against all subsets of a small fleet.
    #[test]
    fn no_better_gang_is_overlooked(fleet in fleets(), min in 1..4_u32, more in 0..4_u32) {
        let need = need(min, min + more);
        let zone = |name: &str| {
            let node = fleet.iter().find(|node| node.node.as_str() == name).unwrap();
            node.domains[0].as_deref().map(str::to_owned)
        };
        let mut largest = 0;
        for name in ["a", "b"] {
            let free = fleet.iter().filter(|node| node.slots_free > 0 && node.domains[0].as_deref() == Some(name));
            largest = largest.max(free.count() as u32);
        }
        match chosen(&fleet, need.clone(), true) {
            Placement::Gang(gang) => {
                let zones: std::collections::BTreeSet<_> = gang.iter().map(|share| zone(share.node.as_str())).collect();
                prop_assert!(zones.len() == 1 && !zones.contains(&None), "{zones:?}");
                prop_assert!(gang.len() as u32 >= min && gang.len() as u32 <= need.wanted);
                let had = |gang: &[Share<'_>]| gang.iter().filter(|share| fleet.iter().any(|node| node.node == share.node && node.node_rank.is_some())).count();
                // Smaller than another only to keep more of what the job has.
                for name in ["a", "b"] {
                    let free: Vec<&Candidate<'_>> = fleet.iter().filter(|node| node.slots_free > 0 && node.domains[0].as_deref() == Some(name)).collect();
                    let could = (free.len() as u32).min(need.wanted);
                    let stay = free.iter().filter(|node| node.node_rank.is_some()).count().min(need.wanted as usize);
                    if could >= min {
                        prop_assert!((stay, could) <= (had(&gang), gang.len() as u32), "{name}");
                    }
                }
            }
            Placement::Short(_) => prop_assert!(largest < min, "{largest}"),
        }
    }
}
