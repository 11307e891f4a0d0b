//! Which restarts wait: the restarts of generations that made no progress.

use super::*;
use crate::{run::CheckpointReport, spec::RestartPolicyDocument};

impl Bench {
    /// The job's nodes watch its checkpoints, and say whether one was saved.
    pub(super) fn watches(&mut self, job: &str, saved: bool) {
        let (uid, now) = (self.job(job).uid.clone(), self.now);
        let generation = self.job(job).current.clone().unwrap();
        for member in &generation.members {
            let agent = self.agents.get_mut(&member.node).unwrap();
            let run = agent.runs.get_mut(&generation.run(&uid)).unwrap();
            run.checkpoint = Some(CheckpointReport {
                saved_at: saved.then_some(now),
            });
            let session = agent.session.unwrap();
            let runs = agent.runs.values().cloned().collect();
            self.input(Input::Runs { session, runs });
        }
    }
}

/// Trains up to `step` within ten seconds, then a rank fails. Returns how long the restart waits.
fn trains_and_fails(bench: &mut Bench, step: Option<u64>, lasts: Duration) -> Duration {
    assert_eq!(
        bench.job("digits").phase,
        Phase::Running,
        "{}",
        bench.job("digits").message
    );
    bench.pass(lasts);
    step.into_iter().for_each(|step| bench.step("digits", step));
    bench.rank_exits("digits", 0, Exit::Code(1), Some("ValueError: no"));
    // This is longer than the coalesce window.
    bench.pass(Duration::from_millis(100));
    let wait = bench.job("digits").not_before.map_or(Duration::ZERO, |at| {
        at.since(bench.now) + Duration::from_millis(50)
    });
    bench.pass(wait + SECOND);
    wait
}

fn bench() -> Bench {
    let mut bench = Bench::new(&["a"]);
    let spec = SpecDocument {
        restart_policy: Some(RestartPolicyDocument {
            max_restarts: Some(100),
            window: None,
            max_same_failures: None,
        }),
        ..document(1, 1, 1)
    };
    bench.submit("digits", spec);
    bench
}

#[test]
fn a_generation_that_trained_a_step_further_is_restarted_at_once() {
    let mut bench = bench();
    for generation in 1..=5 {
        assert_eq!(
            trains_and_fails(&mut bench, Some(generation * 200), 10 * SECOND),
            Duration::ZERO,
            "generation {generation}"
        );
    }
}

#[test]
fn repeating_what_was_trained_before_is_no_progress() {
    let mut bench = bench();
    let steps = [100, 80, 90, 100];
    let waits = steps.map(|step| trains_and_fails(&mut bench, Some(step), 10 * SECOND).as_secs());
    assert_eq!(waits, [0, 1, 2, 4], "nothing after step 100");
    assert_eq!(
        trains_and_fails(&mut bench, Some(101), 10 * SECOND),
        Duration::ZERO
    );
    assert_eq!(
        trains_and_fails(&mut bench, Some(101), 10 * SECOND),
        SECOND,
        "it starts afresh"
    );
}

#[test]
fn where_no_step_is_seen_a_healthy_minute_is_progress() {
    let mut bench = bench();
    let lasts = [10, 10, 10, 70, 10].map(Duration::from_secs);
    let waits = lasts.map(|lasts| trains_and_fails(&mut bench, None, lasts).as_secs());
    assert_eq!(waits, [0, 1, 2, 0, 1]);
}

/// Ranks enter the process group `took` after the generation was ordered to start.
fn forms_after(bench: &mut Bench, took: Duration) {
    bench.pass(took);
    let (uid, now) = (bench.job("digits").uid.clone(), bench.now);
    let generation = bench.job("digits").current.clone().unwrap();
    let agent = bench.agents.get_mut(&generation.members[0].node).unwrap();
    let run = agent.runs.get_mut(&generation.run(&uid)).unwrap();
    run.all_joined_at = Some(now);
    let session = agent.session.unwrap();
    let runs = agent.runs.values().cloned().collect();
    bench.input(Input::Runs { session, runs });
}

fn crash_loops(bench: &Bench) -> usize {
    let told = bench.events.iter();
    told.filter(|event| event.reason == "CrashLoop").count()
}

#[test]
fn where_no_step_is_seen_a_world_that_lasts_longer_than_its_start_is_no_failed_start() {
    let mut bench = bench();
    let generations = [
        // It dies sooner after its start than the start took.
        (5, 4, 0),
        (5, 4, 1),
        (5, 4, 2),
        // It lasts.
        (5, 8, 0),
        (5, 8, 0),
        // One failure in a row is no row.
        (5, 4, 1),
    ];
    for (took, lasts, wait) in generations {
        forms_after(&mut bench, Duration::from_secs(took));
        let waits = trains_and_fails(&mut bench, None, Duration::from_secs(lasts));
        assert_eq!(waits.as_secs(), wait, "start {took} s, life {lasts} s");
    }
    // Watched checkpoints that are not saved yet prove nothing: a world may save every hour.
    bench.watches("digits", false);
    forms_after(&mut bench, SECOND);
    assert_eq!(
        trains_and_fails(&mut bench, None, 6 * SECOND),
        Duration::ZERO
    );
}

#[test]
fn a_job_that_trained_silently_is_not_said_to_be_unable_to_start() {
    for trains_first in [false, true] {
        let mut bench = bench();
        if trains_first {
            forms_after(&mut bench, SECOND);
            trains_and_fails(&mut bench, None, 10 * SECOND);
        }
        for _ in 0..3 {
            trains_and_fails(&mut bench, None, SECOND);
        }
        assert_eq!(crash_loops(&bench), usize::from(!trains_first));
        assert_eq!(bench.job("digits").has_trained, trains_first);
    }
}

/// A start that takes no time is no licence to start again and again.
#[test]
fn a_world_that_falls_at_once_waits_and_its_budget_ends_it_whatever_it_has_lasted() {
    let mut bench = bench();
    let waits = [100, 100, 100].map(|millis| {
        forms_after(&mut bench, Duration::ZERO);
        trains_and_fails(&mut bench, None, Duration::from_millis(millis)).as_secs()
    });
    assert_eq!(waits, [0, 1, 2]);
    for _ in 3..100 {
        forms_after(&mut bench, Duration::ZERO);
        trains_and_fails(&mut bench, None, 3 * SECOND);
    }
    let last = bench.job("digits").phase;
    assert_eq!(last, Phase::Running, "the budget is not spent");
    bench.rank_exits("digits", 0, Exit::Code(1), Some("ValueError: no"));
    bench.pass(SECOND);
    let job = bench.job("digits");
    assert_eq!(
        (job.phase, job.reason),
        (Phase::Failed, Reason::RestartBudgetSpent)
    );
}

#[test]
fn where_checkpoints_are_watched_a_saved_one_is_progress_and_time_is_not() {
    let mut bench = bench();
    let generations = [
        (10, false),
        (10, false),
        (70, false),
        (10, true),
        (10, false),
    ];
    let waits = generations.map(|(lasts, saved)| {
        bench.watches("digits", saved);
        trains_and_fails(&mut bench, None, Duration::from_secs(lasts)).as_secs()
    });
    assert_eq!(waits, [0, 1, 2, 0, 1]);
    bench.watches("digits", true);
    assert_eq!(
        bench
            .fleet
            .job_view(&bench.job("digits").uid)
            .unwrap()
            .saved_at,
        Some(bench.now)
    );
}

#[test]
fn steps_say_more_than_checkpoints() {
    let mut bench = bench();
    let waits = [100, 100, 100].map(|step| {
        bench.watches("digits", true);
        trains_and_fails(&mut bench, Some(step), 10 * SECOND).as_secs()
    });
    assert_eq!(waits, [0, 1, 2], "it saves again what it had saved before");
}

#[test]
fn failures_that_the_budget_has_forgotten_do_not_count() {
    let mut bench = bench();
    let window = bench.job("digits").spec.restart_policy.window;
    for _ in 0..3 {
        trains_and_fails(&mut bench, Some(100), SECOND);
    }
    assert_eq!(
        trains_and_fails(&mut bench, Some(100), window + SECOND),
        Duration::ZERO,
        "steps that begin anew with each epoch"
    );
}

#[test]
fn a_failure_of_somebody_else_after_training_starts_the_row_afresh() {
    let mut bench = bench();
    trains_and_fails(&mut bench, Some(100), SECOND);
    trains_and_fails(&mut bench, Some(100), SECOND);
    bench.step("digits", 200);
    bench.cut("a");
    bench.agents.get_mut(&"a".into()).unwrap().boot = 1;
    bench.connect("a");
    bench.pass(SECOND);
    assert_eq!(
        bench.job("digits").incidents.last().unwrap().charged,
        Charged::Node
    );
    assert_eq!(
        trains_and_fails(&mut bench, Some(200), SECOND),
        Duration::ZERO
    );
}

/// A job that goes back to a checkpoint repeats steps: these bring it no further.
#[test]
fn steps_that_are_trained_again_are_no_progress() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.submit("digits", document(2, 2, 2));
    let charged: Vec<Charged> = [65, 60, 65, 60, 65]
        .into_iter()
        .map(|step| {
            bench.pass(SECOND);
            bench.step("digits", step);
            bench.rank_exits("digits", 0, Exit::Code(1), PEER);
            bench.rank_exits("digits", 1, Exit::Code(1), PEER);
            bench.pass(SECOND);
            bench.job("digits").incidents.last().unwrap().charged
        })
        .collect();
    assert_eq!(charged[..3], [Charged::Nobody; 3]);
    assert_eq!(charged[3..], [Charged::Job; 2]);
}
