//! Jobs that give room to those of higher priority.

use proptest::prelude::*;

use super::{selection::fleet, *};
use crate::spec::Preemption;

const EIGHT: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// So many nodes, each with one GPU.
fn nodes(count: usize) -> Bench {
    let nodes: Vec<(&str, &str, u32)> = EIGHT[..count].iter().map(|name| (*name, "x", 1)).collect();
    fleet(&nodes)
}

fn elastic(min: i64, most: i64, priority: i64) -> SpecDocument {
    SpecDocument {
        gpus_per_node: Some(1),
        priority: Some(priority),
        ..document(min, most, most)
    }
}

fn size(bench: &Bench, job: &str) -> usize {
    let current = bench.job(job).current.as_ref();
    current.map_or(0, |generation| generation.members.len())
}

fn allow_eviction(bench: &mut Bench) {
    bench.fleet.policy.preemption = Preemption::Evict;
}

#[test]
fn an_elastic_job_shrinks_for_a_higher_priority_and_grows_again_after_it() {
    let mut bench = nodes(4);
    bench.submit("low", elastic(1, 4, 0));
    bench.pass(10 * SECOND);
    bench.step("low", 7);
    bench.submit("urgent", elastic(2, 3, 5));
    bench.pass(2 * SECOND);
    assert_eq!((size(&bench, "low"), size(&bench, "urgent")), (2, 2));
    assert_eq!(bench.members("low")[0], "a", "the first stays");
    let low = bench.job("low");
    assert!(low.restarts.is_empty(), "nobody is charged");
    let incident = low
        .incidents
        .iter()
        .find(|one| one.cause == Cause::Preempted);
    assert_eq!(
        incident.unwrap().message,
        "gives up b, c to default/urgent, which has priority 5"
    );
    bench.pass(120 * SECOND);
    assert_eq!(
        bench.job("low").last_generation,
        Generation(2),
        "it takes nothing back"
    );
    cancel(&mut bench, "urgent");
    bench.pass(10 * SECOND);
    assert_eq!(size(&bench, "low"), 4);
}

#[test]
fn nobody_gives_anything_in_vain() {
    let mut bench = nodes(4);
    bench.submit("other", elastic(2, 2, 9));
    bench.submit("low", elastic(1, 2, 0));
    bench.pass(10 * SECOND);
    bench.submit("urgent", elastic(2, 2, 5));
    bench.pass(10 * SECOND);
    assert_eq!(size(&bench, "low"), 2, "one node would not do");
    assert_eq!(bench.job("low").last_generation, Generation(1));
}

#[test]
fn equals_give_nothing_and_nobody_is_evicted_unless_the_operator_allows_it() {
    let mut bench = nodes(2);
    bench.submit("low", elastic(2, 2, 0));
    bench.submit("equal", elastic(1, 1, 0));
    bench.submit("urgent", elastic(2, 2, 5));
    bench.pass(600 * SECOND);
    assert_eq!((size(&bench, "low"), size(&bench, "urgent")), (2, 0));
}

#[test]
fn a_job_that_is_evicted_waits_again_and_pays_nothing() {
    let mut bench = nodes(2);
    allow_eviction(&mut bench);
    bench.submit("low", elastic(2, 2, 0));
    bench.submit("urgent", elastic(1, 1, 5));
    bench.pass(200 * SECOND);
    assert_eq!(size(&bench, "low"), 2, "it has just begun");
    bench.pass(110 * SECOND);
    assert_eq!((size(&bench, "low"), size(&bench, "urgent")), (0, 1));
    let low = bench.job("low");
    assert_eq!((low.phase, low.reason), (Phase::Pending, Reason::Preempted));
    assert!(low.restarts.is_empty() && low.not_before.is_none());
    assert_eq!(low.incidents.last().unwrap().cause, Cause::Preempted);
    let told = bench
        .events
        .iter()
        .filter(|event| event.reason == "Preempted");
    assert_eq!(told.count(), 1);
    // What is stored is enough to go on from.
    let stored = serde_json::to_string(low).unwrap();
    assert_eq!(&serde_json::from_str::<JobRecord>(&stored).unwrap(), low);
    cancel(&mut bench, "urgent");
    assert_eq!(size(&bench, "low"), 2);
}

/// The nodes come free one after the other, and an equal that came later would take the first.
#[test]
fn what_is_freed_for_a_job_is_kept_for_it_at_once() {
    let mut bench = nodes(2);
    allow_eviction(&mut bench);
    bench.submit("low", elastic(2, 2, 0));
    bench.submit("urgent", elastic(2, 2, 5));
    bench.submit("small", elastic(1, 1, 5));
    bench.pass(310 * SECOND);
    assert_eq!((size(&bench, "urgent"), size(&bench, "small")), (2, 0));
    cancel(&mut bench, "urgent");
    assert_eq!(size(&bench, "small"), 1);
}

#[test]
fn a_job_says_itself_what_may_be_done_to_it() {
    let mut bench = nodes(4);
    allow_eviction(&mut bench);
    bench.fleet.policy.evict_after = Duration::ZERO;
    let protected = |word: &str| SpecDocument {
        preemption: Some(word.into()),
        ..elastic(1, 2, 0)
    };
    bench.submit("never", protected("never"));
    bench.submit("shrink", protected("shrink"));
    bench.pass(10 * SECOND);
    bench.submit("urgent", elastic(2, 2, 5));
    bench.pass(10 * SECOND);
    assert_eq!(size(&bench, "urgent"), 0, "two cannot be had");
    assert_eq!((size(&bench, "never"), size(&bench, "shrink")), (2, 2));
    bench.submit("modest", elastic(1, 1, 6));
    bench.pass(10 * SECOND);
    assert_eq!((size(&bench, "never"), size(&bench, "shrink")), (2, 1));
    assert_eq!(size(&bench, "modest"), 1);
}

/// Whoever submits a job chooses its priority.
#[test]
fn another_namespace_gets_nothing_unless_the_operator_says_so() {
    let mut bench = nodes(2);
    bench.submit("low", elastic(1, 2, 0));
    bench.pass(10 * SECOND);
    bench.submit("stranger/first", elastic(1, 1, 1000));
    bench.pass(60 * SECOND);
    assert_eq!((size(&bench, "low"), size(&bench, "first")), (2, 0));
    bench.fleet.policy.preempt_other_namespaces = true;
    bench.submit("stranger/second", elastic(1, 1, 1001));
    bench.pass(10 * SECOND);
    assert_eq!((size(&bench, "low"), size(&bench, "second")), (1, 1));
}

#[test]
fn the_lowest_priority_gives_first_and_then_the_youngest() {
    let mut bench = nodes(6);
    bench.submit("old", elastic(1, 2, 1));
    bench.pass(SECOND);
    bench.submit("young", elastic(1, 2, 1));
    bench.pass(SECOND);
    bench.submit("lowest", elastic(1, 2, 0));
    bench.pass(10 * SECOND);
    let sizes = |bench: &Bench| ["old", "young", "lowest"].map(|job| size(bench, job));
    bench.submit("first", elastic(1, 1, 5));
    bench.pass(2 * SECOND);
    assert_eq!(sizes(&bench), [2, 2, 1]);
    bench.submit("second", elastic(1, 1, 5));
    bench.pass(2 * SECOND);
    assert_eq!(sizes(&bench), [2, 1, 1]);
    bench.submit("third", elastic(1, 1, 5));
    bench.pass(2 * SECOND);
    assert_eq!(sizes(&bench), [1, 1, 1]);
}

#[test]
fn a_job_that_could_not_go_on_without_its_node_is_passed_over() {
    let mut bench = nodes(4);
    bench.submit("old", elastic(1, 2, 0));
    bench.pass(SECOND);
    bench.submit("young", elastic(1, 2, 0));
    bench.pass(10 * SECOND);
    // It trains on there, and no new generation of it would begin there.
    let stays = bench.members("young")[0].into();
    bench.request(Request::Cordon {
        node: stays,
        reason: "fan".into(),
    });
    bench.submit("urgent", elastic(1, 1, 5));
    bench.pass(2 * SECOND);
    let sizes = ["old", "young", "urgent"].map(|job| size(&bench, job));
    assert_eq!(sizes, [1, 2, 1]);
    bench.submit("second", elastic(1, 1, 5));
    bench.pass(100 * SECOND);
    assert_eq!(size(&bench, "young"), 2);
    let waits = &bench.job("second").message;
    assert!(!waits.contains("makes room"), "nobody does: {waits}");
}

#[test]
fn what_is_freed_for_one_is_not_given_to_another() {
    let mut bench = nodes(3);
    bench.submit("low", elastic(1, 3, 0));
    bench.pass(10 * SECOND);
    let agents = bench.agents.values_mut();
    agents.for_each(|agent| agent.frozen = true);
    bench.submit("urgent", elastic(2, 2, 5));
    bench.submit("small", elastic(1, 1, 4));
    assert_eq!((size(&bench, "low"), size(&bench, "urgent")), (1, 0));
    let urgent = bench.job("urgent");
    assert!(
        urgent.message.contains("makes room for it"),
        "{}",
        urgent.message
    );
    bench
        .agents
        .values_mut()
        .for_each(|agent| agent.frozen = false);
    bench.pass(3 * SECOND);
    assert_eq!((size(&bench, "urgent"), size(&bench, "small")), (2, 0));
    assert_eq!(
        bench.job("low").last_generation,
        Generation(2),
        "it gave once"
    );
}

/// A job as the oracle sees it: all nodes are alike, and each member takes one.
#[derive(Clone, Copy, Debug)]
struct Wish {
    min: i64,
    more: i64,
    priority: i64,
}

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let wish = (1..4_i64, 0..3_i64, 0..4_i64);
    let wish = wish.prop_map(|(min, more, priority)| Wish {
        min,
        more,
        priority,
    });
    prop::collection::vec(wish, 1..7)
}

/// All that is stored of jobs but the sentences. Those of jobs that wait may speak of who waited when they were asked.
fn decided(bench: &Bench) -> Vec<JobRecord> {
    let silent = |job: &JobRecord| JobRecord {
        message: String::new(),
        ..job.clone()
    };
    bench.stored_jobs.values().map(silent).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever is submitted: no job waits that could have what it needs from lower priorities, none is evicted where
    /// shrinking was enough, and a turn without news decides nothing.
    #[test]
    fn a_higher_priority_gets_what_lower_ones_can_do_without(wishes in wishes(), count in 2..7_usize, evicts in any::<bool>()) {
        let mut bench = nodes(count);
        if evicts {
            allow_eviction(&mut bench);
        }
        bench.fleet.policy.evict_after = Duration::ZERO;
        let name = |at: usize| format!("job-{at}");
        let wishes = &wishes[..];
        for (at, wish) in wishes.iter().enumerate() {
            let before: Vec<i64> = (0..at).map(|other| size(&bench, &name(other)) as i64).collect();
            let free = count as i64 - before.iter().sum::<i64>();
            bench.submit(&name(at), elastic(wish.min, wish.min + wish.more, wish.priority));
            bench.pass(7 * SECOND);
            let now: Vec<i64> = (0..=at).map(|other| size(&bench, &name(other)) as i64).collect();
            let lower = |than: i64| (0..=at).filter(move |other| wishes[*other].priority < than);
            let spare: i64 = lower(wish.priority).filter(|other| *other < at && before[*other] > 0)
                .map(|other| before[other] - wishes[other].min).sum();
            let evicted = (0..at).any(|other| before[other] > 0 && now[other] == 0);
            prop_assert!(!evicted || evicts && free + spare < wish.min, "{before:?} {now:?}");
            let free = count as i64 - now.iter().sum::<i64>();
            for waits in (0..=at).filter(|at| now[*at] == 0) {
                let held = lower(wishes[waits].priority).filter(|other| now[*other] > 0);
                let could = held.map(|other| match evicts {
                    true => now[other],
                    false => now[other] - wishes[other].min,
                });
                let could = free + could.sum::<i64>();
                // A higher priority may wait for the same room.
                let first = (0..=at).filter(|at| now[*at] == 0).all(|other| {
                    wishes[other].priority <= wishes[waits].priority
                });
                prop_assert!(!first || could < wishes[waits].min, "job-{waits} waits: {now:?}");
            }
            let stored = decided(&bench);
            bench.fleet.fresh = true;
            bench.input(Input::Tick);
            prop_assert_eq!(stored, decided(&bench));
        }
    }
}

/// A member says more of another job than the store knows, while it stops. Then nothing is decided about its job before a
/// person has come, and what that job holds is not on its way.
#[test]
fn what_a_job_that_nothing_is_decided_about_has_stopped_is_not_waited_for() {
    let mut bench = nodes(3);
    allow_eviction(&mut bench);
    bench.submit("low", elastic(2, 2, 0));
    bench.submit("middle", elastic(1, 1, 1));
    bench.pass(310 * SECOND);
    let middle = bench.job("middle").uid.clone();
    for node in ["a", "b"] {
        bench.agents.get_mut(&node.into()).unwrap().frozen = true;
    }
    bench.submit("urgent", elastic(1, 1, 2));
    assert_eq!(bench.job("low").reason, Reason::Preempted);
    super::word::claims(&mut bench, "b", &middle, 6);
    for _ in 0..10 {
        bench.pass(SECOND);
        let session = bench.agents[&"a".into()].session.unwrap();
        bench.input(Input::Heartbeat { session });
    }
    assert_eq!(bench.job("low").reason, Reason::StoreBehind);
    let urgent = bench.job("urgent");
    assert_eq!(
        (size(&bench, "urgent"), size(&bench, "middle")),
        (1, 0),
        "{}",
        urgent.message
    );
}
