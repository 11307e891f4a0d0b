//! Jobs whose members may share nodes.

use std::{cmp::Reverse, collections::BTreeSet};

use proptest::prelude::*;

use super::{Placed, placed, role};
use crate::fleet::placement::{Candidate, Demand, Had, Placement, RoleDemand, Share};

fn node(name: &str, gpus: u32, slots: u32) -> Candidate<'static> {
    Candidate {
        gpus_free: gpus,
        slots_free: slots,
        ..super::node(name, None)
    }
}

fn demand(roles: &[RoleDemand], wanted: u32) -> Demand {
    Demand {
        roles: roles.to_vec(),
        wanted,
        per_node: u32::MAX,
    }
}

fn pack<'a>(nodes: &[Candidate<'a>], roles: &[RoleDemand], wanted: u32) -> Placed<'a> {
    placed(nodes, &demand(roles, wanted))
}

/// A node of the latest generation, with the members that it had: their roles and numbers.
fn had(node: Candidate<'static>, node_rank: u32, had: &[(usize, u32)]) -> Candidate<'static> {
    let had = had.iter().map(|(role, number)| Had {
        number: *number,
        role: *role,
    });
    Candidate {
        node_rank: Some(node_rank),
        trained: true,
        had: had.collect(),
        ..node
    }
}

/// `a: 0 2, b: 1`: the members of each node.
fn shown(placement: Placed<'_>) -> String {
    let gang = match placement {
        Placement::Gang(gang) => gang,
        Placement::Short(shortfall) => return shortfall.to_string(),
    };
    let share = |share: &Share<'_>| {
        let numbers = share.members.iter().map(|member| member.number.to_string());
        format!("{}: {}", share.node, numbers.collect::<Vec<_>>().join(" "))
    };
    let shares: Vec<String> = gang.iter().map(share).collect();
    shares.join(", ")
}

#[test]
fn eight_members_with_a_gpu_each_share_a_node() {
    let nodes = [node("a", 4, 1), node("b", 8, 1), node("c", 8, 1)];
    let placed = pack(&nodes, &[role(8, 8, 1)], 8);
    let Placement::Gang(gang) = &placed else {
        panic!("{placed:?}")
    };
    assert!(gang[0].members.iter().all(|member| member.gpus == 1));
    assert_eq!(shown(placed), "b: 0 1 2 3 4 5 6 7");
}

#[test]
fn of_nodes_that_hold_equally_much_the_tightest_is_taken() {
    let nodes = [node("a", 8, 1), node("b", 4, 1), node("c", 8, 1)];
    assert_eq!(shown(pack(&nodes, &[role(2, 2, 2)], 2)), "b: 0 1");
}

#[test]
fn members_without_gpus_need_a_slot_each() {
    // A chief, two workers with GPUs and two parameter servers.
    let roles = [role(1, 1, 0), role(2, 2, 4), role(2, 2, 0)];
    let nodes = [node("a", 8, 2), node("b", 0, 4)];
    assert_eq!(shown(pack(&nodes, &roles, 5)), "a: 0 1 2 3, b: 4");
    let nodes = [node("a", 8, 2)];
    assert_eq!(
        shown(pack(&nodes, &roles, 5)),
        "4 of at least 5 members available"
    );
    let nodes = [node("a", 8, 2), node("b", 0, 0), node("c", 2, 0)];
    assert_eq!(
        shown(pack(&nodes, &roles, 5)),
        "4 of at least 5 members available: b 0 of 4 GPUs free, c 2 of 4 GPUs free"
    );
}

#[test]
fn survivors_stay_and_keep_their_order() {
    // b has lost its node c, whose members 1 and 4 go to a new node.
    let nodes = [
        had(node("a", 4, 1), 0, &[(0, 0), (0, 2)]),
        had(node("b", 2, 1), 2, &[(0, 3), (0, 5)]),
        node("d", 8, 1),
    ];
    let roles = [role(6, 6, 1)];
    assert_eq!(shown(pack(&nodes, &roles, 6)), "a: 0 1 4 5, b: 2 3");
    // Without room beside them a node is added, although d alone would hold all.
    let nodes = [
        had(node("a", 2, 1), 0, &[(0, 0), (0, 2)]),
        had(node("b", 2, 1), 2, &[(0, 3), (0, 5)]),
        node("d", 8, 1),
    ];
    assert_eq!(shown(pack(&nodes, &roles, 6)), "a: 0 1, b: 2 3, d: 4 5");
    // Where the job has failed repeatedly, nobody stays.
    let mut shunned = nodes.clone();
    shunned[0].shunned = true;
    assert_eq!(shown(pack(&shunned, &roles, 6)), "b: 0 1, d: 2 3 4 5");
}

#[test]
fn members_move_if_the_gang_has_no_room_otherwise() {
    // A worker with 2 GPUs stands on a node with 3, and the chief now needs all 3.
    let nodes = [had(node("a", 3, 0), 0, &[(1, 1)]), node("b", 2, 0)];
    assert_eq!(
        shown(pack(&nodes, &[role(1, 1, 3), role(1, 1, 2)], 2)),
        "a: 0, b: 1"
    );
}

#[test]
fn the_elastic_role_takes_what_there_is() {
    let roles = [role(1, 1, 0), role(1, 8, 1)];
    let nodes = [node("a", 2, 1), node("b", 3, 0)];
    assert_eq!(shown(pack(&nodes, &roles, 9)), "a: 0 1 2, b: 3 4 5");
    assert_eq!(shown(pack(&nodes, &roles, 3)), "a: 0 1 2");
}

#[test]
fn an_older_agent_holds_one_member() {
    let old = |name| Candidate {
        one_member: true,
        ..node(name, 8, 8)
    };
    let nodes = [old("a"), node("b", 2, 1)];
    assert_eq!(shown(pack(&nodes, &[role(3, 3, 1)], 3)), "b: 0 1, a: 2");
    assert_eq!(
        shown(pack(&nodes, &[role(4, 4, 1)], 4)),
        "3 of at least 4 members available: a has an agent that holds one member of a job only: upgrade it"
    );
}

#[test]
fn a_node_holds_no_more_processes_than_one_runner_can() {
    let roles = [RoleDemand {
        procs: 100,
        ..role(3, 3, 0)
    }];
    let nodes = [node("a", 0, 3), node("b", 0, 3)];
    assert_eq!(shown(pack(&nodes, &roles, 3)), "a: 0 1, b: 2");
}

fn fleet() -> impl Strategy<Value = Vec<Candidate<'static>>> {
    let one = (0..=8_u32, 0..=4_u32, any::<bool>(), 0..=9_u32);
    proptest::collection::vec(one, 1..6).prop_map(|nodes| {
        let named = nodes.into_iter().enumerate();
        named
            .map(|(at, (gpus, slots, shunned, before))| {
                let mut candidate = node(&format!("n{at}"), gpus, slots);
                candidate.shunned = shunned && before > 7;
                match before {
                    // It had two members, of any roles.
                    0..=4 => had(
                        candidate,
                        at as u32,
                        &[(before as usize % 2, at as u32 * 2), (0, at as u32 * 2 + 1)],
                    ),
                    _ => candidate,
                }
            })
            .collect()
    })
}

fn roles() -> impl Strategy<Value = Vec<RoleDemand>> {
    let one = (
        0..=3_u32,
        0..=3_u32,
        prop_oneof![Just(0), Just(1), Just(2), Just(4)],
    );
    proptest::collection::vec(one, 1..4).prop_map(|roles| {
        let mut elastic = true;
        roles
            .into_iter()
            .map(|(min, more, gpus)| {
                // One role at most changes its size.
                let max = min
                    + if std::mem::take(&mut elastic) {
                        more
                    } else {
                        0
                    };
                role(min, max, gpus)
            })
            .collect()
    })
}

/// Whether members of these sizes can be divided among nodes with so many free: every way is tried.
fn divides(sizes: &[u32], free: &mut [u32]) -> bool {
    let Some((first, rest)) = sizes.split_first() else {
        return true;
    };
    (0..free.len()).any(|at| {
        if free[at] < *first {
            return false;
        }
        free[at] -= first;
        let fits = divides(rest, free);
        free[at] += first;
        fits
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whatever_fits_is_placed_and_nothing_else(nodes in fleet(), roles in roles(), wanted in 1..12_u32) {
        let sizes: Vec<u32> = roles
            .iter()
            .flat_map(|role| vec![role.gpus; role.min as usize])
            .filter(|gpus| *gpus > 0)
            .collect();
        let mut sizes = sizes;
        sizes.sort_unstable_by_key(|size| Reverse(*size));
        let mut free: Vec<u32> = nodes.iter().map(|node| node.gpus_free).collect();
        let slots: u32 = nodes.iter().map(|node| node.slots_free).sum();
        let without: u32 = roles.iter().filter(|role| role.gpus == 0).map(|role| role.min).sum();
        let possible = without <= slots && divides(&sizes, &mut free);
        let least: u32 = roles.iter().map(|role| role.min).sum();
        match pack(&nodes, &roles, wanted) {
            Placement::Short(shortfall) => {
                prop_assert!(!possible || least == 0, "{shortfall} for {roles:?} on {free:?}");
            }
            Placement::Gang(gang) => {
                prop_assert!(possible);
                let size: u32 = gang.iter().map(|share| share.members.len() as u32).sum();
                let most: u32 = roles.iter().map(|role| role.max).sum();
                prop_assert!(size >= least && size <= wanted.clamp(least, most));
                let counts = demand(&roles, size).counts(size);
                prop_assert_eq!(counts.iter().sum::<u32>(), size);
                // Every number is given once, with what its role needs.
                let mut members: Vec<(u32, u32)> = gang.iter().flat_map(|share| &share.members).map(|member| (member.number, member.gpus)).collect();
                members.sort_unstable();
                let wants = roles.iter().zip(counts).flat_map(|(role, count)| vec![role.gpus; count as usize]);
                prop_assert_eq!(members, (0..).zip(wants).collect::<Vec<_>>());
                for share in &gang {
                    let node = nodes.iter().find(|node| node.node == share.node).unwrap();
                    prop_assert!(share.members.iter().map(|member| member.gpus).sum::<u32>() <= node.gpus_free);
                    let slots = share.members.iter().filter(|member| member.gpus == 0).count();
                    prop_assert!(slots as u32 <= node.slots_free);
                }
                let nodes: BTreeSet<_> = gang.iter().map(|share| share.node).collect();
                prop_assert_eq!(nodes.len(), gang.len());
                let first = |share: &Share<'_>| share.members[0].number;
                prop_assert!(gang.windows(2).all(|two| first(&two[0]) < first(&two[1])));
            }
        }
    }

    /// With members that are all alike the fewest nodes are known: the largest ones.
    #[test]
    fn as_few_nodes_as_hold_it(free in proptest::collection::vec(0..=8_u32, 1..8), count in 1..12_u32, gpus in 1..=3_u32) {
        let nodes: Vec<Candidate<'_>> = free.iter().enumerate().map(|(at, gpus)| node(&format!("n{at}"), *gpus, 1)).collect();
        let mut takes: Vec<u32> = free.iter().map(|free| *free / gpus).collect();
        takes.sort_unstable_by_key(|takes| Reverse(*takes));
        let mut left = count;
        let fewest = takes.iter().take_while(|takes| {
            let more = left > 0;
            left = left.saturating_sub(**takes);
            more
        }).count();
        match pack(&nodes, &[role(count, count, gpus)], count) {
            Placement::Gang(gang) => prop_assert_eq!(gang.len(), fewest),
            Placement::Short(_) => prop_assert!(takes.iter().sum::<u32>() < count),
        }
    }
}
