use proptest::prelude::*;

use super::*;
use crate::{
    fleet::{placement::Had, registry::Liveness},
    nccl::stack::Stack,
};

const UUIDS: [&str; 8] = ["G0", "G1", "G2", "G3", "G4", "G5", "G6", "G7"];

fn node(name: &str, gpus: usize, slots: u32) -> Candidate<'static> {
    let gpu = |(index, uuid): (usize, &'static &'static str)| FreeGpu {
        index: index as u32,
        uuid,
    };
    Candidate {
        node: name.into(),
        boot_id: "boot",
        liveness: Liveness::Ready,
        connected: true,
        cordoned: false,
        halted: false,
        avoided: None,
        shunned: false,
        slots_free: slots,
        gpus_free: UUIDS.iter().enumerate().take(gpus).map(gpu).collect(),
        gpus_held: Default::default(),
        node_rank: None,
        role: None,
        kind: Kind::default(),
        stack: Stack::default(),
        trained: false,
        had: Vec::new(),
        one_member: false,
    }
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

fn need(min: u32, max: u32, gpus_per_node: u32) -> RoleNeed {
    RoleNeed {
        min,
        max,
        gpus_per_node,
        procs: 1,
    }
}

/// `a: 0 2, b: 1`: the members of each node.
fn shown(placement: Placement) -> String {
    let gang = match placement {
        Placement::Gang(gang) => gang,
        Placement::Short(shortfall) => return shortfall.to_string(),
    };
    let share = |(rank, share): (usize, &Member)| {
        let numbers: Vec<String> = match share.seats.is_empty() {
            true => vec![rank.to_string()],
            false => share.seats.iter().map(|s| s.number.to_string()).collect(),
        };
        format!("{}: {}", share.node, numbers.join(" "))
    };
    let shares: Vec<String> = gang.iter().enumerate().map(share).collect();
    shares.join(", ")
}

#[test]
fn eight_members_with_a_gpu_each_share_a_node() {
    let nodes = [node("a", 4, 1), node("b", 8, 1), node("c", 8, 1)];
    let placed = pack(&nodes, &[need(8, 8, 1)], 8);
    let Placement::Gang(gang) = &placed else {
        panic!("{placed:?}")
    };
    assert_eq!(gang[0].gpus, UUIDS, "all of the node");
    assert_eq!(gang[0].seats[3].gpus, ["G3"], "one for each member");
    assert_eq!(shown(placed), "b: 0 1 2 3 4 5 6 7");
}

#[test]
fn of_nodes_that_hold_equally_much_the_tightest_is_taken() {
    let nodes = [node("a", 8, 1), node("b", 4, 1), node("c", 8, 1)];
    assert_eq!(shown(pack(&nodes, &[need(2, 2, 2)], 2)), "b: 0 1");
    // One member on each node is what older coordinators stored, too.
    let nodes = [node("a", 2, 1), node("b", 2, 1)];
    let placed = pack(&nodes, &[need(2, 2, 2)], 2);
    let Placement::Gang(gang) = &placed else {
        panic!("{placed:?}")
    };
    assert!(gang.iter().all(|share| share.seats.is_empty()));
}

#[test]
fn members_without_gpus_need_a_slot_each() {
    // A chief, two workers with GPUs and two parameter servers.
    let roles = [need(1, 1, 0), need(2, 2, 4), need(2, 2, 0)];
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
    let roles = [need(6, 6, 1)];
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
        shown(pack(&nodes, &[need(1, 1, 3), need(1, 1, 2)], 2)),
        "a: 0, b: 1"
    );
}

#[test]
fn the_elastic_role_takes_what_there_is() {
    let roles = [need(1, 1, 0), need(1, 8, 1)];
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
    assert_eq!(shown(pack(&nodes, &[need(3, 3, 1)], 3)), "b: 0 1, a: 2");
    assert_eq!(
        shown(pack(&nodes, &[need(4, 4, 1)], 4)),
        "3 of at least 4 members available: a has an agent that holds one member of a job only: upgrade it"
    );
}

#[test]
fn a_node_holds_no_more_processes_than_one_runner_can() {
    let roles = [RoleNeed {
        procs: 100,
        ..need(3, 3, 0)
    }];
    let nodes = [node("a", 0, 3), node("b", 0, 3)];
    assert_eq!(shown(pack(&nodes, &roles, 3)), "a: 0 1, b: 2");
}

fn fleet() -> impl Strategy<Value = Vec<Candidate<'static>>> {
    let one = (0..=8_usize, 0..=4_u32, any::<bool>(), 0..=9_u32);
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

fn roles() -> impl Strategy<Value = Vec<RoleNeed>> {
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
                need(min, max, gpus)
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
            .flat_map(|role| vec![role.gpus_per_node; role.min as usize])
            .filter(|gpus| *gpus > 0)
            .collect();
        let mut sizes = sizes;
        sizes.sort_unstable_by_key(|size| Reverse(*size));
        let mut free: Vec<u32> = nodes.iter().map(|node| node.gpus_free.len() as u32).collect();
        let slots: u32 = nodes.iter().map(|node| node.slots_free).sum();
        let without: u32 = roles.iter().filter(|role| role.gpus_per_node == 0).map(|role| role.min).sum();
        let possible = without <= slots && divides(&sizes, &mut free);
        let least: u32 = roles.iter().map(|role| role.min).sum();
        match pack(&nodes, &roles, wanted) {
            Placement::Short(shortfall) => {
                prop_assert!(!possible || least == 0, "{shortfall} for {roles:?} on {free:?}");
            }
            Placement::Gang(gang) => {
                prop_assert!(possible);
                let members = super::super::super::members::Members::from(gang.clone());
                let most: u32 = roles.iter().map(|role| role.max).sum();
                prop_assert!(members.size() >= least && members.size() <= wanted.clamp(least, most));
                let counts = counts(&roles, members.size());
                prop_assert_eq!(counts.iter().sum::<u32>(), members.size());
                // Every number has one seat, with what its role needs, and no GPU is given twice.
                let mut number = 0;
                for (role, count) in roles.iter().zip(counts) {
                    for _ in 0..count {
                        let holder = members.holder(number).unwrap();
                        let rank = members.rank_of(&holder.node).unwrap();
                        let seats = members.seats(rank);
                        let seat = seats.iter().find(|seat| seat.number == number).unwrap();
                        prop_assert_eq!(seat.gpus.len() as u32, role.gpus_per_node);
                        number += 1;
                    }
                }
                for (rank, share) in (0..).zip(&gang) {
                    let node = nodes.iter().find(|node| node.node == share.node).unwrap();
                    let given: BTreeSet<&String> = share.gpus.iter().collect();
                    prop_assert_eq!(given.len(), share.gpus.len());
                    prop_assert!(share.gpus.len() <= node.gpus_free.len());
                    let seats = members.seats(rank);
                    let slots = seats.iter().filter(|seat| seat.gpus.is_empty()).count();
                    prop_assert!(slots as u32 <= node.slots_free);
                    let of_seats: Vec<&String> = seats.iter().flat_map(|seat| &seat.gpus).collect();
                    prop_assert_eq!(of_seats, share.gpus.iter().collect::<Vec<_>>());
                }
                let first = |share: &Member| share.seats.first().map(|seat| seat.number);
                prop_assert!(gang.windows(2).all(|two| first(&two[0]) <= first(&two[1])));
            }
        }
    }

    /// With members that are all alike the fewest nodes are known: the largest ones.
    #[test]
    fn as_few_nodes_as_hold_it(free in proptest::collection::vec(0..=8_usize, 1..8), count in 1..12_u32, gpus in 1..=3_u32) {
        let nodes: Vec<Candidate<'_>> = free.iter().enumerate().map(|(at, gpus)| node(&format!("n{at}"), *gpus, 1)).collect();
        let mut takes: Vec<u32> = free.iter().map(|free| *free as u32 / gpus).collect();
        takes.sort_unstable_by_key(|takes| Reverse(*takes));
        let mut left = count;
        let fewest = takes.iter().take_while(|takes| {
            let more = left > 0;
            left = left.saturating_sub(**takes);
            more
        }).count();
        match pack(&nodes, &[need(count, count, gpus)], count) {
            Placement::Gang(gang) => prop_assert_eq!(gang.len(), fewest),
            Placement::Short(_) => prop_assert!(takes.iter().sum::<u32>() < count),
        }
    }
}
