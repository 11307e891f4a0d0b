//! Room that is kept for a job that waits, against every order in which other jobs may end.

use proptest::prelude::*;

use super::{node, placed, spread};
use crate::fleet::placement::{Candidate, Demand, Placement};

/// Jobs that run: what each holds of every node.
type Running = Vec<Vec<u32>>;

#[derive(Clone, Debug)]
struct Fleet {
    gpus: Vec<u32>,
    running: Running,
}

impl Fleet {
    /// The nodes when only these jobs still run, and the backfill holds so much of each.
    fn nodes(&self, runs: impl Fn(usize) -> bool, backfill: &[u32]) -> Vec<Candidate<'static>> {
        let of = |(at, gpus): (usize, &u32)| {
            let running = self.running.iter().enumerate();
            let held: u32 = running
                .filter(|(job, _)| runs(*job))
                .map(|(_, held)| held[at])
                .sum();
            let taken = held + backfill.get(at).copied().unwrap_or_default();
            Candidate {
                gpus_free: gpus - taken,
                gpus_all: *gpus,
                slots_free: 0,
                ..node(&format!("n{at}"), None)
            }
        };
        self.gpus.iter().enumerate().map(of).collect()
    }
}

/// Up to four nodes with up to eight GPUs, and up to four jobs that hold some of them.
fn fleet() -> impl Strategy<Value = Fleet> {
    let nodes = prop::collection::vec(0..=8_u32, 1..5);
    (
        nodes,
        prop::collection::vec(prop::collection::vec(0..=4_u32, 4), 0..5),
    )
        .prop_map(|(gpus, wishes)| {
            let mut left = gpus.clone();
            let running = wishes.into_iter().map(|wish| {
                let held = left.iter_mut().zip(wish).map(|(left, wish)| {
                    let held = wish.min(*left);
                    *left -= held;
                    held
                });
                held.collect()
            });
            let running = running.collect();
            Fleet { gpus, running }
        })
}

fn demand() -> impl Strategy<Value = Demand> {
    (1..=4_u32, 0..3_u32, 1..=4_u32, any::<bool>()).prop_map(|(min, more, gpus, packs)| Demand {
        per_node: if packs { u32::MAX } else { 1 },
        ..spread(min, min + more, gpus)
    })
}

fn starts(nodes: &[Candidate<'_>], demand: &Demand) -> bool {
    matches!(placed(nodes, demand), Placement::Gang(_))
}

/// What a job that comes later takes of each node.
fn backfill(fleet: &Fleet, head: &Demand, small: &Demand) -> Option<Vec<u32>> {
    let empty = fleet.nodes(|_| false, &[]);
    if !starts(&empty, head) {
        return None;
    }
    let mut now = fleet.nodes(|_| true, &[]);
    for (node, empty) in now.iter_mut().zip(&empty) {
        let keeps = empty.keeps(head).unwrap_or_default();
        node.gpus_free -= keeps.gpus.of(node.gpus_free);
    }
    let Placement::Gang(gang) = placed(&now, small) else {
        return None;
    };
    let mut taken = vec![0; now.len()];
    for share in gang {
        let at = now.iter().position(|node| node.node == share.node).unwrap();
        taken[at] += share.members.iter().map(|member| member.gpus).sum::<u32>();
    }
    Some(taken)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Whichever jobs end, and in whichever order: if the job that waits could start without the backfill, it can start
    /// with it.
    #[test]
    fn a_backfill_delays_nobody(fleet in fleet(), head in demand(), small in demand()) {
        if starts(&fleet.nodes(|_| true, &[]), &head) {
            return Ok(());
        }
        if let Some(taken) = backfill(&fleet, &head, &small) {
            for ended in 0..1_usize << fleet.running.len() {
                let runs = |job: usize| ended & (1 << job) == 0;
                let (alone, beside) = (fleet.nodes(runs, &[]), fleet.nodes(runs, &taken));
                prop_assert!(
                    !starts(&alone, &head) || starts(&beside, &head),
                    "{head:?} is delayed by {taken:?} when {ended:b} have ended"
                );
            }
        }
    }
}

/// The rule is no refusal of everything: what the job that waits has no use for is given away.
#[test]
fn what_is_of_no_use_is_not_kept() {
    let fleet = Fleet {
        gpus: vec![8, 8, 2],
        running: vec![vec![8, 0, 0]],
    };
    // It needs two nodes with four GPUs each. It can have four of the second node, and none of the third.
    let head = spread(2, 2, 4);
    assert_eq!(
        backfill(&fleet, &head, &spread(1, 1, 4)),
        Some(vec![0, 4, 0])
    );
    assert_eq!(
        backfill(&fleet, &head, &spread(1, 1, 2)),
        Some(vec![0, 0, 2])
    );
    assert_eq!(backfill(&fleet, &head, &spread(1, 1, 5)), None);
}
