//! What is left out, so that a turn on a large fleet is quick, changes no decision. In tests each placement is also made with all
//! nodes, and each answer that an equal ask was given is asked for again: `debug_assert_eq` in `candidates` and `open` compares
//! them. So these tests need fleets in which both happen, and count how often.

use super::{selection::fleet, *};
use crate::fleet::{equal_asks::ANSWERED, gang::LEFT_OUT};

/// Numbers that look random, and are the same every time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

const NODES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn any_job(draw: &mut Draw) -> SpecDocument {
    let size = 1 + draw.below(4) as i64;
    let selector = [("pool".to_owned(), draw.of(&["x", "y"]).to_string())];
    SpecDocument {
        gpus_per_node: Some(*draw.of(&[1, 1, 2, 4, 4, 0])),
        priority: Some(*draw.of(&[0, 0, 0, 1])),
        node_selector: match draw.below(4) {
            0 => selector.into(),
            _ => Default::default(),
        },
        ..document(1 + draw.below(size as u64) as i64, size, size)
    }
}

fn any_change(bench: &mut Bench, draw: &mut Draw, number: usize) {
    let node: NodeName = (*draw.of(&NODES)).into();
    match draw.below(10) {
        0..5 => {
            let job = any_job(draw);
            // Whoever waits seldom waits alone.
            for twin in 0..1 + draw.below(3) {
                bench.submit(&format!("job-{number}-{twin}"), job.clone());
            }
        }
        5 => drop(bench.request(Request::Cordon {
            node,
            reason: "test".into(),
        })),
        6 => drop(bench.request(Request::Uncordon { node })),
        7..9 => {
            let alive = bench.fleet.jobs.values().filter(|job| !job.is_over());
            let names: Vec<JobName> = alive.map(|job| job.name.clone()).collect();
            if !names.is_empty() {
                let name = draw.of(&names).clone();
                bench.request(Request::Cancel { name });
            }
        }
        _ => bench.pass(Duration::from_millis(500)),
    }
}

#[test]
fn what_is_left_out_changes_no_decision() {
    for seed in (1..=12).map(|seed| (seed << 40) | 0x9E37_79B9) {
        let mut draw = Draw(seed);
        let gpus: Vec<(&str, &str, u32)> = NODES
            .iter()
            .map(|name| (*name, *draw.of(&["x", "y"]), *draw.of(&[0, 1, 2, 4, 8])))
            .collect();
        let mut bench = fleet(&gpus);
        bench.fleet.policy.reserve_after = 2 * SECOND;
        for number in 0..60 {
            any_change(&mut bench, &mut draw, number);
        }
        bench.pass(3 * SECOND);
        // A fixed point: all are looked at anew, and once more, and the second look finds what the first has left.
        let mut look = || {
            bench.fleet.fresh = true;
            bench.input(Input::Tick);
            bench.stored_jobs.clone()
        };
        let (before, after) = (look(), look());
        let differs = |uid: &&JobUid| after.get(*uid) != before.get(*uid);
        let changed: Vec<&JobUid> = after.keys().filter(differs).collect();
        assert!(changed.is_empty(), "seed {seed}: {changed:?}");
    }
    let often = (LEFT_OUT.get(), ANSWERED.get());
    assert!(often.0 > 100 && often.1 > 100, "{often:?}");
}

/// Ten that ask for the same are placed once, and all are told what the first is.
#[test]
fn those_that_ask_for_the_same_lack_the_same() {
    let mut bench = fleet(&[("a", "x", 4), ("b", "x", 2)]);
    let four = SpecDocument {
        gpus_per_node: Some(4),
        ..document(2, 2, 2)
    };
    for number in 0..10 {
        bench.submit(&format!("job-{number}"), four.clone());
    }
    let message = "1 of at least 2 nodes available: b 2 of 4 GPUs free";
    for number in 0..10 {
        assert_eq!(bench.job(&format!("job-{number}")).message, message);
    }
}
