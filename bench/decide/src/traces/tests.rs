//! That a trace is what was asked for, and that it is played as a fleet would: every job ends, no GPU has two jobs, and one seed is one
//! history.

use std::time::Duration;

use super::{
    first_fit,
    play::{self, Played, Sizes, World},
    rng::Rng,
    run_times::RunTimes,
    shape::{OPENB, PHILLY, Shape},
    trace::{Params, Trace},
};

const ALL: [Sizes; 3] = [Sizes::Elastic, Sizes::Yielding, Sizes::Fixed];

/// An hour of a few nodes, more than full, so that jobs wait and others give.
fn trace(shape: &Shape, seed: u64) -> Trace {
    let params = Params {
        nodes: 16,
        load: 1.1,
        elastic: 0.7,
        grows: 0.5,
        length: Duration::from_secs(3_600),
        warm_up: Duration::from_secs(600),
        seed,
    };
    Trace::new(shape, params)
}

fn play(trace: &Trace, sizes: Sizes) -> Played {
    let world = World {
        sizes,
        start_cost: 1.0,
        efficiency: 0.9,
        reserve_after: Duration::from_secs(600),
    };
    play::play(trace, world)
}

fn assert_all_ended(trace: &Trace, played: &Played) {
    for (number, life) in played.books.lives.iter().enumerate() {
        let job = &trace.jobs[number];
        let (Some(began), Some(ended)) = (life.began, life.ended) else {
            panic!("job {number} is lost: {job:?} {life:?}");
        };
        // With all that it may have, each job still needs so long.
        let least = job.work / job.speed(job.max, 1.0);
        let took = ended.since(began).as_secs_f64();
        assert!(job.at <= began && took >= least, "{job:?} {life:?}");
    }
    assert!(played.books.waiting.is_empty());
}

#[test]
fn every_job_ends_and_no_gpu_has_two() {
    for shape in [&PHILLY, &OPENB] {
        for sizes in ALL {
            let trace = trace(shape, 7);
            let played = play(&trace, sizes);
            assert_all_ended(&trace, &played);
            assert_eq!(played.held_twice, Vec::<String>::new());
            let held = played.books.held_seconds / trace.measured();
            assert!(held <= f64::from(trace.gpus()), "{held} GPUs are held");
        }
        let trace = trace(shape, 7);
        assert_all_ended(&trace, &first_fit::play(&trace, 1.0));
    }
}

#[test]
fn elastic_jobs_change_their_size_and_others_do_not() {
    for sizes in ALL {
        let mut resized = 0;
        for seed in 0..6 {
            let trace = trace(&PHILLY, seed);
            let lives = play(&trace, sizes).books.lives;
            for (job, life) in trace.jobs.iter().zip(&lives) {
                let changes = life.worlds - 1;
                assert!(job.is_elastic() || changes == 0, "{sizes:?}: {job:?}");
                resized += changes;
            }
        }
        assert_eq!(resized > 0, sizes != Sizes::Fixed, "{sizes:?}");
    }
}

#[test]
fn one_seed_is_one_history() {
    let (first, second, other) = (trace(&PHILLY, 7), trace(&PHILLY, 7), trace(&PHILLY, 8));
    assert_eq!(first.jobs, second.jobs);
    assert_ne!(first.jobs, other.jobs);
    let (one, again) = (
        play(&first, Sizes::Yielding),
        play(&second, Sizes::Yielding),
    );
    assert_eq!(one.books, again.books);
    assert_eq!(one.turns.len(), again.turns.len());
}

/// The quantiles as they are published, in seconds.
const PHILLY_SAYS: [(f64, f64); 9] = [
    (0.01, 17.0),
    (0.05, 48.0),
    (0.10, 61.0),
    (0.25, 131.0),
    (0.50, 1_186.0),
    (0.75, 3_342.0),
    (0.90, 12_860.0),
    (0.95, 49_969.0),
    (0.99, 287_333.0),
];
const OPENB_SAYS: [(f64, f64); 6] = [
    (0.25, 175.0),
    (0.50, 616.0),
    (0.75, 2_246.0),
    (0.90, 7_764.0),
    (0.95, 18_162.0),
    (0.99, 114_715.0),
];

fn assert_drawn(run_times: RunTimes, says: &[(f64, f64)]) {
    const DRAWS: usize = 100_000;
    let mut rng = Rng::new(3);
    let drawn: Vec<f64> = (0..DRAWS).map(|_| run_times.draw(&mut rng)).collect();
    for (share, seconds) in says {
        // Above the last quantile all are equal to it.
        let below = drawn.iter().filter(|time| **time < *seconds).count();
        let found = below as f64 / DRAWS as f64;
        // Four standard deviations at most.
        assert!(
            (found - share).abs() < 0.0065,
            "{found} below {seconds} s, not {share}"
        );
    }
    let mean = drawn.iter().sum::<f64>() / DRAWS as f64;
    assert!((mean / run_times.mean() - 1.0).abs() < 0.05, "{mean}");
}

#[test]
fn run_times_meet_the_published_quantiles() {
    assert_drawn(PHILLY.sizes[0].run_times, &PHILLY_SAYS);
    assert_drawn(OPENB.sizes[0].run_times, &OPENB_SAYS);
}

/// Of jobs that are met while they run, each has its chance in proportion to its run time. Such a mean is the mean square over the mean.
#[test]
fn jobs_that_are_met_are_the_long_ones() {
    const DRAWS: usize = 100_000;
    let run_times = OPENB.sizes[0].run_times;
    let mut rng = Rng::new(3);
    let drawn: Vec<f64> = (0..DRAWS).map(|_| run_times.draw(&mut rng)).collect();
    let square: f64 = drawn.iter().map(|time| time * time).sum();
    let expected = square / drawn.iter().sum::<f64>();
    let met: f64 = (0..DRAWS).map(|_| run_times.draw_met(&mut rng)).sum();
    let found = met / DRAWS as f64;
    assert!(
        (found / expected - 1.0).abs() < 0.05,
        "{found}, not {expected}"
    );
}

#[test]
fn a_trace_wants_the_load_that_was_asked_for() {
    for shape in [&PHILLY, &OPENB] {
        let (mut rates, mut at_once) = (0.0, 0.0);
        for seed in 0..40 {
            let trace = trace(shape, seed);
            let wanted = f64::from(trace.gpus()) * 1.1;
            let (under_way, later): (Vec<_>, Vec<_>) = trace
                .jobs
                .iter()
                .partition(|job| job.at == super::trace::START);
            let gpus: u32 = under_way.iter().map(|job| job.gpus_wanted()).sum();
            at_once += f64::from(gpus) / wanted;
            let work = shape.mean_work() * later.len() as f64;
            rates += work / 3_600.0 / wanted;
        }
        assert!((rates / 40.0 - 1.0).abs() < 0.1, "{rates}");
        assert!((at_once / 40.0 - 1.05).abs() < 0.1, "{at_once}");
    }
}
