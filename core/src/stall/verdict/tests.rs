use std::time::Duration;

use super::*;
use crate::stacks::{Position, Process};

const TORCH: &str = "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py";
const AUTOGRAD: &str = "/venv/lib/python3.12/site-packages/torch/autograd/graph.py";

fn frame(file: &str, line: u32, function: &str) -> Frame {
    Frame {
        file: file.into(),
        line,
        function: function.into(),
    }
}

fn rank(number: u32, frames: &[Frame]) -> RankStack {
    let threads = vec![frames.to_vec()];
    RankStack {
        rank: number,
        node: NodeName::from(format!("n{}", number / 2)),
        threads: threads.into_iter().filter(|all| !all.is_empty()).collect(),
        positions: Vec::new(),
        process: Some(Process {
            pid: 100 + number as i32,
            state: "S".into(),
            ..Process::default()
        }),
        error: None,
    }
}

fn reduces(number: u32) -> RankStack {
    let own = frame("/train/train.py", 88, "<module>");
    rank(number, &[frame(TORCH, 2810, "all_reduce"), own])
}

fn loads(number: u32) -> RankStack {
    let own = frame("/train/train.py", 80, "<module>");
    rank(number, &[frame("/train/data.py", 41, "load_batch"), own])
}

fn in_state(rank: RankStack, state: &str) -> RankStack {
    let process = rank.process.clone().map(|process| Process {
        state: state.into(),
        ..process
    });
    RankStack { process, ..rank }
}

fn at(called: u64, completed: u64) -> Position {
    Position {
        group: "0".into(),
        description: "default_pg".into(),
        called,
        completed,
        call: (called > completed).then(|| "all_reduce".into()),
        waiting: (called > completed).then(|| Duration::from_secs(called)),
        ..Position::default()
    }
}

fn among(rank: RankStack, called: u64, completed: u64) -> RankStack {
    RankStack {
        positions: vec![at(called, completed)],
        ..rank
    }
}

fn judged(first: &[RankStack], second: &[RankStack], busy: &[u32], trained: bool) -> Verdict {
    verdict(Asked {
        first,
        second,
        busy: &busy.iter().copied().collect(),
        ended: &[],
        trained,
        since: Timestamp(1),
        now: Timestamp(9),
    })
}

/// The same ranks twice, of which none uses a processor.
fn stall(ranks: &[RankStack]) -> Stall {
    match judged(ranks, ranks, &[], false) {
        Verdict::Stalls(stall) => *stall,
        Verdict::Moves(why) | Verdict::Unseen(why) => panic!("it moves: {why}"),
    }
}

fn named(stall: &Stall) -> Vec<u32> {
    stall.named.iter().map(|one| one.rank).collect()
}

fn why_it_moves(verdict: Verdict) -> String {
    match verdict {
        Verdict::Moves(why) | Verdict::Unseen(why) => why,
        Verdict::Stalls(stall) => panic!("it stalls: {stall:#?}"),
    }
}

#[test]
fn the_rank_that_is_elsewhere_is_named_with_its_line() {
    let stall = stall(&[reduces(0), loads(1), reduces(2), reduces(3)]);
    assert_eq!((stall.why, named(&stall)), (Why::Elsewhere, vec![1]));
    assert!(stall.sure, "others wait for it");
    assert_eq!(
        stall.sentence(),
        "rank 1 on n0: load_batch at data.py:41; others wait"
    );
    let stacks: Vec<u32> = stall.stacks.iter().map(|stack| stack.rank).collect();
    assert_eq!(stacks, [1, 0], "that of the culprit, and one that waits");
    assert_eq!(stall.places.len(), 2);
    assert_eq!(stall.places[0].ranks, "0, 2-3");
}

#[test]
fn torchs_numbers_name_whoever_has_come_least_far() {
    // Both stand in the same line: a collective that NCCL has not begun yet is waited for later.
    let own = |n| rank(n, &[frame("/train/train.py", 90, "<module>")]);
    let ranks = [
        among(own(0), 8, 7),
        among(own(1), 7, 7),
        among(own(2), 8, 7),
    ];
    let stall = stall(&ranks);
    assert_eq!((stall.why, named(&stall)), (Why::Elsewhere, vec![1]));
    let collective = stall.collective.as_deref();
    assert_eq!(collective, Some("all_reduce 8 of group 0 (default_pg)"));
}

#[test]
fn a_rank_that_waits_in_another_group_is_no_culprit() {
    let mut between = among(reduces(1), 7, 7);
    between.positions.push(Position {
        group: "1".into(),
        ..at(4, 3)
    });
    let mut behind = among(loads(2), 7, 7);
    behind.positions.push(Position {
        group: "1".into(),
        ..at(3, 3)
    });
    let stall = stall(&[among(reduces(0), 8, 7), between, behind]);
    assert_eq!(named(&stall), [2]);
}

#[test]
fn what_the_kernel_says_goes_first() {
    let stopped = in_state(rank(2, &[]), "T");
    let found = stall(&[reduces(0), loads(1), stopped]);
    assert_eq!((found.why, named(&found)), (Why::Stopped, vec![2]));
    assert!(found.why.is_the_nodes());
    let device = in_state(rank(1, &[]), "D");
    let found = stall(&[reduces(0), device.clone(), reduces(2)]);
    assert_eq!((found.why, named(&found)), (Why::Device, vec![1]));
    // It was in the kernel for a moment only.
    let first = [reduces(0), reduces(1), reduces(2)];
    let second = [reduces(0), in_state(reduces(1), "D"), reduces(2)];
    let Verdict::Stalls(found) = judged(&first, &second, &[], false) else {
        panic!("nobody moves")
    };
    assert_eq!(found.why, Why::AllWait);
}

#[test]
fn what_a_person_holds_is_nobodys_fault() {
    let all = [in_state(reduces(0), "T"), in_state(reduces(1), "T")];
    let found = stall(&all);
    assert_eq!((found.why, found.sure), (Why::Held, false));
    let found = stall(&[reduces(0), in_state(loads(1), "t")]);
    assert_eq!(found.why, Why::Held, "it is in a debugger");
}

#[test]
fn all_that_wait_for_each_other_look_at_the_network() {
    let found = stall(&[reduces(0), reduces(1), reduces(2)]);
    assert_eq!((found.why, named(&found)), (Why::AllWait, vec![]));
    assert!(found.sentence().contains("all_reduce at train.py:88"));
    let own = frame("/train/train.py", 95, "<module>");
    let other = rank(2, &[frame(TORCH, 2_700, "broadcast"), own]);
    let found = stall(&[reduces(0), reduces(1), other]);
    assert_eq!((found.why, named(&found)), (Why::Mismatch, vec![2]));
    assert!(found.sentence().contains("broadcast at train.py:95"));
}

#[test]
fn a_rank_that_has_ended_is_named() {
    let ranks = [reduces(0), reduces(2)];
    let asked = Asked {
        first: &ranks,
        second: &ranks,
        busy: &BTreeSet::new(),
        ended: &[(1, NodeName::from("n0"))],
        trained: false,
        since: Timestamp(1),
        now: Timestamp(9),
    };
    let Verdict::Stalls(found) = verdict(asked) else {
        panic!("nobody moves")
    };
    assert_eq!(found.sentence(), "rank 1 on n0: has ended; others wait");
}

#[test]
fn a_rank_that_works_is_progress_and_one_that_spins_is_not() {
    let ranks = [reduces(0), loads(1)];
    let why = why_it_moves(judged(&ranks, &ranks, &[1], true));
    assert_eq!(
        why,
        "rank 1 works: it uses a processor outside any collective"
    );
    // Rank 0 spins in its collective.
    let verdict = judged(&ranks, &ranks, &[0], true);
    assert!(matches!(verdict, Verdict::Stalls(_)));
    // Its next collective is at another line.
    let mut later = reduces(0);
    later.threads[0][1].line = 91;
    let why = why_it_moves(judged(&ranks, &[later, loads(1)], &[0], true));
    assert_eq!(why, "rank 0 has left the call in which it waited");
    // It is in the same line, and some steps further.
    let first = [among(reduces(0), 8, 7), among(loads(1), 7, 7)];
    let second = [among(reduces(0), 9, 8), among(loads(1), 8, 8)];
    let why = why_it_moves(judged(&first, &second, &[], true));
    assert_eq!(why, "rank 0 has gone on to another collective");
}

#[test]
fn backward_waits_where_all_reduces_are_torchs_own() {
    let own = frame("/train/train.py", 60, "<module>");
    let waits = |n| {
        rank(
            n,
            &[frame(AUTOGRAD, 829, "_engine_run_backward"), own.clone()],
        )
    };
    let found = stall(&[waits(0), loads(1), waits(2)]);
    assert_eq!(named(&found), [1]);
    // A function of the job's own that is called from a hook in the middle of backward is no wait.
    let hook = frame("/train/hooks.py", 7, "hook");
    let backward = frame(AUTOGRAD, 829, "_engine_run_backward");
    let hooked = rank(1, &[hook, backward, own.clone()]);
    let found = stall(&[waits(0), hooked, waits(2)]);
    assert_eq!(named(&found), [1]);
}

#[test]
fn where_nobody_is_seen_to_wait_most_must_stand_still() {
    let here = |n| rank(n, &[frame("/train/train.py", 90, "<module>")]);
    let found = stall(&[here(0), here(1), loads(2)]);
    assert_eq!((found.why, named(&found)), (Why::Apart, vec![2]));
    assert!(!found.sure, "it may sleep on purpose");
    let found = stall(&[here(0), loads(1)]);
    assert_eq!((found.why, named(&found)), (Why::Unclear, vec![]));
    let there = |n| rank(n, &[frame("/train/train.py", 91, "<module>")]);
    let first = [here(0), here(1), loads(2)];
    let second = [here(0), here(1), there(2)];
    assert!(matches!(
        judged(&first, &second, &[], true),
        Verdict::Stalls(_)
    ));
    let second = [there(0), there(1), loads(2)];
    assert_eq!(
        why_it_moves(judged(&first, &second, &[], true)),
        "ranks are not where they were"
    );
    // One rank alone.
    let found = stall(&[loads(0)]);
    assert_eq!((found.why, named(&found)), (Why::Apart, vec![0]));
}

#[test]
fn ranks_that_cannot_be_asked_are_named_if_all_others_wait() {
    let found = stall(&[reduces(0), rank(1, &[]), reduces(2)]);
    assert_eq!((found.why, named(&found)), (Why::Silent, vec![1]));
    let found = stall(&[reduces(0), rank(1, &[])]);
    assert_eq!(found.why, Why::Unclear);
    // None can be asked, as in the lane cold.
    let found = stall(&[rank(0, &[]), rank(1, &[])]);
    assert_eq!((found.why, found.sure), (Why::Unclear, false));
    // A node has not answered.
    let gone = RankStack {
        process: None,
        ..rank(1, &[])
    };
    let ranks = [reduces(0), gone];
    assert_eq!(
        why_it_moves(judged(&ranks, &ranks, &[], true)),
        "rank 1 has not answered"
    );
}

#[test]
fn a_stall_of_ten_thousand_ranks_is_small() {
    let deep = vec![
        frame(
            &format!("/{}/train.py", "x".repeat(900)),
            7,
            &"f".repeat(900)
        );
        100
    ];
    let mut ranks: Vec<RankStack> = (0..10_000)
        .map(|n| {
            let mut frames = deep.clone();
            frames[0].line = n;
            rank(n, &frames)
        })
        .collect();
    ranks.extend((10_000..30_000).map(reduces));
    let found = stall(&ranks);
    assert_eq!((found.named.len(), found.named_more), (NAMED_MAX, 9_992));
    let bytes = serde_json::to_vec(&found).expect("it is data").len();
    assert!(bytes < 20_000, "{bytes}");
}
