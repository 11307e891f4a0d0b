//! Jobs in which each rank works for some time and then comes to a call that nobody leaves before all have come.

use super::*;
use crate::slow::Clock;

/// Nobody is late.
const NONE: [u32; 0] = [];
const MS: u64 = 1_000;
/// What the call itself takes.
const CALL: u64 = MS;

/// The looks of some ranks in one group, after `steps` steps. `work`: what a rank does before it comes, in microseconds, in this
/// step.
fn looks(ranks: u32, steps: u64, work: impl Fn(u32, u64) -> u64) -> Vec<(u32, NodeName, Arrivals)> {
    let mut marks = vec![Vec::new(); ranks as usize];
    let mut begun = 1_000_000_000;
    for step in 0..steps {
        let came: Vec<u64> = (0..ranks).map(|rank| begun + work(rank, step)).collect();
        for (marks, at) in marks.iter_mut().zip(&came) {
            marks.push((step, *at));
        }
        begun = came.iter().max().unwrap() + CALL;
    }
    let round = Duration::from_micros((begun - 1_000_000_000) / steps);
    let of = |(rank, marks): (usize, Vec<(u64, u64)>)| {
        let own = InGroup {
            group: "0".into(),
            calls: 1,
            round,
            marks: marks.into_iter().rev().take(6).rev().collect(),
            ..InGroup::default()
        };
        let arrivals = Arrivals {
            look: 1,
            groups: vec![own],
            clock: None,
        };
        (rank as u32, NodeName::from("n1"), arrivals)
    };
    marks.into_iter().enumerate().map(of).collect()
}

fn judged(looks: &[(u32, NodeName, Arrivals)], step: Option<Duration>) -> Vec<Late> {
    let came: Vec<Came<'_>> = { looks.iter() }
        .map(|(rank, node, arrivals)| Came {
            rank: *rank,
            node,
            arrivals,
        })
        .collect();
    late(&came, step)
}

fn named(looks: &[(u32, NodeName, Arrivals)]) -> Vec<u32> {
    judged(looks, None).iter().map(|late| late.rank).collect()
}

/// Some disorder, always the same.
fn noise(rank: u32, step: u64, most: u64) -> u64 {
    let mixed = (u64::from(rank) * 31 + step * 7 + 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) % most.max(1)
}

fn moved(looks: &mut [(u32, NodeName, Arrivals)], rank: usize, node: &str, clock: Option<Clock>) {
    looks[rank].1 = NodeName::from(node);
    looks[rank].2.clock = clock;
}

#[test]
fn a_rank_that_needs_30_ms_more_is_named_with_what_it_costs() {
    let work = |rank, step| 50 * MS + noise(rank, step, 3 * MS) + u64::from(rank == 3) * 30 * MS;
    let found = judged(&looks(8, 100, work), None);
    let [late] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(late.rank, 3);
    let wait = late.wait.as_micros() as u64;
    assert!((25 * MS..=30 * MS).contains(&wait), "{late:?}");
    assert!((150..=165).contains(&late.times_percent()), "{late:?}");
    // Of two ranks the other one waits.
    let of_two = |rank, step| work(rank + 2, step);
    assert_eq!(named(&looks(2, 100, of_two)), [1]);
    // Ten steps of a hundred are not enough to be 1.3 times as long.
    let little = |rank, step| work(0, step) + u64::from(rank == 3) * 12 * MS;
    assert_eq!(named(&looks(8, 100, little)), NONE);
}

#[test]
fn even_and_uneven_jobs_have_no_slow_rank() {
    assert_eq!(named(&looks(8, 100, |_, _| 50 * MS)), NONE);
    let noisy = |rank, step| 50 * MS + noise(rank, step, 10 * MS);
    assert_eq!(named(&looks(8, 100, noisy)), NONE);
    // Batches of very different length, to each rank another one.
    for ranks in [2, 3, 8] {
        for steps in 90..110 {
            let uneven = |rank, step| 20 * MS + noise(rank, step, 100 * MS);
            let found = named(&looks(ranks, steps, uneven));
            assert!(found.len() < 2, "{ranks} ranks, {steps} steps: {found:?}");
        }
    }
    let all = |_, _| 500 * MS;
    assert_eq!(named(&looks(8, 100, all)), NONE, "all are slow");
}

#[test]
fn a_lateness_that_goes_from_rank_to_rank_is_data() {
    for hands in 2..8 {
        let work = |rank, step| 50 * MS + u64::from(step % hands == u64::from(rank)) * 60 * MS;
        assert_eq!(named(&looks(8, 100, work)), NONE, "{hands}");
    }
}

#[test]
fn one_slow_step_a_checkpoint_and_an_evaluation_are_not_slow() {
    for odd in 94..100 {
        let one = |rank, step| 50 * MS + u64::from(rank == 3 && step == odd) * 900 * MS;
        assert_eq!(named(&looks(8, 100, one)), NONE);
        let saves = |rank, step| 50 * MS + u64::from(rank == 0 && step == odd) * 20_000 * MS;
        assert_eq!(named(&looks(4, 100, saves)), NONE);
    }
    // Rank 0 evaluates after every fourth step.
    let evaluates = |rank, step| 50 * MS + u64::from(rank == 0 && step % 4 == 0) * 300 * MS;
    assert_eq!(named(&looks(4, 100, evaluates)), NONE);
    let evaluates = |rank, step| 50 * MS + u64::from(rank == 0 && step % 4 == 3) * 300 * MS;
    assert_eq!(named(&looks(4, 100, evaluates)), NONE);
}

#[test]
fn two_slow_ranks_are_named_together() {
    let work = |rank, step| {
        let slow = rank == 2 || rank == 5;
        50 * MS + noise(rank, step, 3 * MS) + u64::from(slow) * 40 * MS
    };
    assert_eq!(named(&looks(8, 100, work)), [2, 5]);
    // Four of eight, as on a slow node of two.
    let half = |rank, _| 50 * MS + u64::from(rank >= 4) * 40 * MS;
    assert_eq!(named(&looks(8, 100, half)), [4, 5, 6, 7]);
    // Most are slow, so one is quick, which costs nobody anything.
    let most = |rank, _| 50 * MS + u64::from(rank != 0) * 40 * MS;
    assert_eq!(named(&looks(8, 100, most)), NONE);
}

#[test]
fn stages_of_a_pipeline_differ_by_nature() {
    let work = |rank, _| 50 * MS + u64::from(3 - rank) * 60 * MS;
    let mut stages = looks(4, 100, work);
    assert_eq!(
        named(&stages),
        [0, 1],
        "as long as nobody says that it is one"
    );
    for (_, _, arrivals) in &mut stages {
        arrivals.groups[0].sends = true;
    }
    assert_eq!(named(&stages), NONE);
    // The stages send in a group of their own.
    for (_, _, arrivals) in &mut stages {
        let mut pipeline = arrivals.groups[0].clone();
        arrivals.groups[0].sends = false;
        (pipeline.group, pipeline.marks) = ("pipe".into(), Vec::new());
        arrivals.groups.push(pipeline);
    }
    assert_eq!(named(&stages), NONE);
    // Two pipelines of two: ranks 0 and 1 are the first stages, and 1 is slow among them.
    let work = |rank, _| 50 * MS + u64::from(rank == 1) * 40 * MS;
    let mut two = looks(2, 100, work);
    for (rank, _, arrivals) in &mut two {
        let mut pipeline = arrivals.groups[0].clone();
        (pipeline.group, pipeline.sends) = (format!("pipe {rank}"), true);
        arrivals.groups.push(pipeline);
    }
    assert_eq!(named(&two), [1]);
}

#[test]
fn between_nodes_it_takes_a_known_clock() {
    let ahead = |ahead_us, error_us| Some(Clock { ahead_us, error_us });
    // The clock of one node is 30 ms ahead, and all are equal.
    let mut apart = looks(2, 100, |rank, _| 50 * MS + u64::from(rank == 1) * 30 * MS);
    moved(&mut apart, 0, "n0", None);
    assert_eq!(named(&apart), NONE, "nobody knows the clocks");
    moved(&mut apart, 0, "n0", ahead(0, 100));
    moved(&mut apart, 1, "n1", ahead(30_000, 100));
    assert_eq!(named(&apart), NONE);
    moved(&mut apart, 1, "n1", ahead(0, 100));
    let found = judged(&apart, None);
    assert_eq!((found.len(), found[0].rank), (1, 1));
    assert_eq!(found[0].wait, Duration::from_micros(29_800));
    // The doubt is larger than what it is about.
    moved(&mut apart, 1, "n1", ahead(0, 20_000));
    assert_eq!(named(&apart), NONE);
}

#[test]
fn a_step_is_as_long_as_its_output_says() {
    let slow = looks(2, 100, |rank, _| 50 * MS + u64::from(rank == 1) * 30 * MS);
    assert_eq!(judged(&slow, None).len(), 1);
    // Each step has four of these calls.
    assert!(judged(&slow, Some(Duration::from_millis(320))).is_empty());
    let found = judged(&slow, Some(Duration::from_millis(100)));
    assert_eq!(found[0].step, Duration::from_millis(100));
}

#[test]
fn who_runs_ahead_of_a_gpu_does_not_wait() {
    let mut slow = looks(2, 100, |rank, _| 50 * MS + u64::from(rank == 1) * 30 * MS);
    let inside = |slow: &mut Vec<(u32, NodeName, Arrivals)>, ms: [u64; 2]| {
        for (rank, ms) in ms.into_iter().enumerate() {
            slow[rank].2.groups[0].inside = Some(Duration::from_millis(ms));
        }
    };
    inside(&mut slow, [31, 1]);
    assert_eq!(named(&slow), [1]);
    // The GPU of rank 1 works for 200 ms more when its call comes.
    inside(&mut slow, [230, 200]);
    assert_eq!(named(&slow), NONE);
    // They are ahead of it by more than a step.
    let mut far = looks(2, 100, |_, _| 50 * MS);
    for mark in &mut far[1].2.groups[0].marks {
        mark.1 += 70 * MS;
    }
    assert_eq!(named(&far), NONE);
}

#[test]
fn looks_that_have_nothing_in_common_say_nothing() {
    let mut slow = looks(2, 100, |rank, _| 50 * MS + u64::from(rank == 1) * 30 * MS);
    slow[0].2.groups[0].marks.truncate(2);
    assert_eq!(named(&slow), NONE);
    slow[0].2.groups[0].marks.clear();
    assert_eq!(named(&slow), NONE);
    slow[0].2.groups[0].group = "another".into();
    assert_eq!(named(&slow), NONE);
    assert_eq!(named(&[]), NONE);
}
