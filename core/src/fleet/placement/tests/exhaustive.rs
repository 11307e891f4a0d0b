//! The placer against every choice there is, on small fleets: with roles, with shared nodes, and with agents that hold one member.

use proptest::prelude::*;

use super::{node, placed, role};
use crate::{
    fleet::placement::{Candidate, Demand, Had, Placement, RoleDemand},
    spec::Multiple,
};

/// What a node still has: GPUs, slots, and places for members.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Room {
    gpus: u32,
    slots: u32,
    members: u32,
}

/// Whether members that need so many GPUs each, or a slot, can all be placed.
fn fits(members: &[u32], rooms: &mut [Room]) -> bool {
    let Some((gpus, rest)) = members.split_first() else {
        return true;
    };
    (0..rooms.len()).any(|at| {
        let before = rooms[at];
        let has = match gpus {
            0 => before.slots > 0,
            gpus => before.gpus >= *gpus,
        };
        // Of nodes that are alike, one will do.
        if before.members == 0 || !has || rooms[..at].contains(&before) {
            return false;
        }
        rooms[at] = Room {
            gpus: before.gpus - gpus,
            slots: before.slots - u32::from(*gpus == 0),
            members: before.members - 1,
        };
        let fits = fits(rest, rooms);
        rooms[at] = before;
        fits
    })
}

/// The size of the largest gang. `None`: there is none.
fn largest(nodes: &[Candidate<'_>], demand: &Demand) -> Option<u32> {
    let room = |node: &Candidate<'_>| Room {
        gpus: node.gpus_free,
        slots: node.slots_free,
        members: if node.one_member { 1 } else { demand.per_node },
    };
    let rooms: Vec<Room> = nodes.iter().map(room).collect();
    let most = demand.wanted.clamp(demand.min(), demand.max());
    let fixed = |role: &&RoleDemand| role.min == role.max;
    let fixed: u32 = demand.roles.iter().filter(fixed).map(|role| role.min).sum();
    let elastic = demand.roles.iter().find(|role| role.min < role.max);
    let is_multiple =
        |size: &u32| elastic.is_none_or(|role| (*size - fixed).is_multiple_of(role.multiple.get()));
    let possible = |size: &u32| {
        let of_role = |role: &RoleDemand| match role.min == role.max {
            true => role.min,
            false => *size - fixed,
        };
        let counts = demand.roles.iter().map(|role| (role, of_role(role)));
        let mut members: Vec<u32> = counts
            .flat_map(|(role, count)| vec![role.gpus; count as usize])
            .collect();
        members.sort_unstable_by_key(|gpus| std::cmp::Reverse(*gpus));
        fits(&members, &mut rooms.clone())
    };
    let mut sizes = (demand.min()..=most).rev().filter(is_multiple);
    sizes.find(possible).filter(|size| *size > 0)
}

fn fleet(old_agents: bool) -> impl Strategy<Value = Vec<Candidate<'static>>> {
    let one = (0..=8_u32, 0..=3_u32, 0..6_usize, 0..4_u32);
    prop::collection::vec(one, 1..6).prop_map(move |nodes| {
        let nodes = nodes.into_iter().enumerate();
        let of = |(at, (gpus, slots_free, had, agent)): (usize, (u32, u32, usize, u32))| {
            let number = at as u32;
            Candidate {
                gpus_free: gpus,
                slots_free,
                one_member: old_agents && agent == 0,
                // Half of them are new to the job.
                had: (had < 3)
                    .then_some(Had { number, role: had })
                    .into_iter()
                    .collect(),
                ..node(&format!("n{at}"), (had < 3).then_some(number))
            }
        };
        nodes.map(of).collect()
    })
}

/// Up to three roles, of which one changes its size, by a multiple of its own. GPUs are powers of two, or none.
fn demand(per_node: u32) -> impl Strategy<Value = Demand> {
    let gpus = prop_oneof![Just(0_u32), Just(1), Just(2), Just(4)];
    let one = (0..=3_u32, gpus);
    let roles = prop::collection::vec(one, 1..4);
    let drawn = (roles, 0..3_usize, 0..4_u32, 1..9_u32, 1..4_u32);
    drawn.prop_map(move |(drawn, elastic, more, wanted, multiple)| {
        let multiple = Multiple::of(multiple);
        let of = |(at, (min, gpus)): (usize, (u32, u32))| match at == elastic {
            false => role(min, min, gpus),
            true => RoleDemand {
                multiple,
                ..role(min * multiple.get(), (min + more) * multiple.get(), gpus)
            },
        };
        Demand {
            roles: drawn.into_iter().enumerate().map(of).collect(),
            wanted,
            per_node,
        }
    })
}

fn size(nodes: &[Candidate<'_>], demand: &Demand) -> Option<u32> {
    match placed(nodes, demand) {
        Placement::Gang(gang) => Some(gang.iter().map(|share| share.members.len() as u32).sum()),
        Placement::Short(_) => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn with_a_node_for_each_member_no_larger_gang_is_overlooked(nodes in fleet(false), demand in demand(1)) {
        prop_assert_eq!(size(&nodes, &demand), largest(&nodes, &demand));
    }

    #[test]
    fn on_shared_nodes_no_larger_gang_is_overlooked(nodes in fleet(false), demand in demand(u32::MAX)) {
        prop_assert_eq!(size(&nodes, &demand), largest(&nodes, &demand));
    }

    /// Agents that hold one member make the choice harder than a greedy one can answer for sure. No gang is too large, and whatever one
    /// role asks for is found.
    #[test]
    fn with_older_agents_no_gang_is_too_large(nodes in fleet(true), demand in demand(u32::MAX)) {
        let (found, most) = (size(&nodes, &demand), largest(&nodes, &demand));
        prop_assert!(found <= most);
        if demand.roles.len() == 1 {
            prop_assert_eq!(found, most);
        }
    }
}
