use super::*;
use crate::fleet::{
    history::{HistoryRecord, Over},
    job::{Phase, tests::record},
    policy::Policy,
    time_account::TimeAccount,
};

fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000)
}

const SECOND: Duration = Duration::from_secs(1);

/// A job that waited for 5 s, and had nodes since then.
fn running(name: &str, epochs: &str) -> JobRecord {
    let mut job = record();
    job.uid = name.into();
    job.name.name = name.into();
    job.spec.args.push(epochs.into());
    let mut account = TimeAccount::begun(at(0));
    account.enter(at(5), State::Training, 1);
    job.time = Some(account);
    job
}

/// Jobs that ended one after the other, and how long each had nodes.
fn history(ends: &[(&str, &str, Phase, u64)]) -> Kept {
    let mut kept = Kept::default();
    for (number, (name, epochs, phase, seconds)) in (0..).zip(ends) {
        let mut job = running(name, epochs);
        job.uid = format!("over-{number}").as_str().into();
        let account = job.time.as_ref().unwrap();
        let spent = account.until(at(5 + seconds), None);
        let left = HistoryRecord {
            phase: *phase,
            finished: Some(at(1_000 + number)),
            ..HistoryRecord::of(&job, &spent)
        };
        let over = Over::of(&left);
        assert!(kept.add(over, &Policy::default(), at(2_000)).is_some());
    }
    kept
}

/// When the job is expected to end, in seconds, and from how many jobs of the same spec or name.
fn end(job: &JobRecord, kept: &Kept, now: u64) -> Option<(u64, Option<(bool, u32)>)> {
    let times = TimesTaken::of(kept, [job].into_iter());
    let end = expected_end(job, ran(job, at(now)), &times, at(now))?;
    let alike = match end.basis {
        Basis::Deadline => None,
        Basis::Measured(measured) => Some((measured.same_spec, measured.jobs)),
    };
    Some((end.at.0 / 1_000_000, alike))
}

use Phase::{Failed, Succeeded};

#[test]
fn the_median_of_the_same_spec_counts_from_when_it_got_nodes() {
    let kept = history(&[
        ("other", "7", Succeeded, 100),
        ("other", "7", Succeeded, 300),
        ("train", "7", Succeeded, 200),
        ("train", "7", Failed, 10),
        ("train", "8", Succeeded, 999),
    ]);
    let job = running("train", "7");
    assert_eq!(end(&job, &kept, 50), Some((205, Some((true, 3)))));
    let measured = TimesTaken::of(&kept, [&job].into_iter()).left(&job, 45 * SECOND);
    let (left, measured) = measured.unwrap();
    assert_eq!(left, 155 * SECOND);
    assert_eq!(
        (measured.shortest, measured.longest),
        (100 * SECOND, 300 * SECOND)
    );
    // A job that waits gets it from the moment on in which it gets nodes.
    let times = TimesTaken::of(&kept, [&job].into_iter());
    let starts = expected_end(&job, Duration::ZERO, &times, at(1_000)).unwrap();
    assert_eq!(starts.at, at(1_200));
}

#[test]
fn a_job_that_outlives_the_median_is_expected_to_end_as_the_longer_ones() {
    let kept = history(&[
        ("train", "7", Succeeded, 100),
        ("train", "7", Succeeded, 200),
        ("train", "7", Succeeded, 300),
    ]);
    let job = running("train", "7");
    assert_eq!(end(&job, &kept, 104), Some((205, Some((true, 3)))));
    assert_eq!(end(&job, &kept, 105), Some((305, Some((true, 2)))));
    assert_eq!(end(&job, &kept, 205), Some((305, Some((true, 1)))));
    assert_eq!(end(&job, &kept, 305), None, "it has outlived them all");
}

#[test]
fn another_spec_of_the_same_name_counts_where_the_spec_is_new() {
    let kept = history(&[
        ("train", "7", Succeeded, 100),
        ("train-1", "9", Succeeded, 50),
    ]);
    let job = running("train", "8");
    assert_eq!(end(&job, &kept, 5), Some((105, Some((false, 1)))));
    assert_eq!(end(&running("train-2", "8"), &kept, 5), None);
    let mut elsewhere = running("train", "7");
    elsewhere.name.namespace = "other".into();
    assert_eq!(end(&elsewhere, &kept, 5), None);
}

#[test]
fn the_earlier_of_deadline_and_measure_counts() {
    let kept = history(&[("train", "7", Succeeded, 100)]);
    let mut job = running("train", "7");
    job.created = at(0);
    job.spec.lifetime.active_deadline_seconds = Some(60);
    assert_eq!(end(&job, &kept, 5), Some((60, None)));
    job.spec.lifetime.active_deadline_seconds = Some(600);
    // The spec is another, and the name is the same.
    assert_eq!(end(&job, &kept, 5), Some((105, Some((false, 1)))));
    assert_eq!(end(&job, &Kept::default(), 5), Some((600, None)));
    assert_eq!(end(&job, &kept, 700), Some((700, None)), "it is overdue");
}

#[test]
fn only_the_last_ones_count() {
    let mut ends = vec![("train", "7", Succeeded, 900); 30];
    ends.extend(vec![("train", "7", Succeeded, 100); ALIKE_MAX]);
    let job = running("train", "7");
    assert_eq!(
        end(&job, &history(&ends), 5),
        Some((105, Some((true, ALIKE_MAX as u32))))
    );
}

#[test]
fn what_a_record_counts_is_what_the_job_counted() {
    let mut job = running("train", "7");
    let account = job.time.as_mut().unwrap();
    let wait = crate::fleet::time_account::Wait::BelowMinimum;
    account.enter(at(30), State::Waiting { wait }, 0);
    account.enter(at(50), State::Training, 1);
    assert_eq!(ran(&job, at(70)), 45 * SECOND);
    assert_eq!(job.left(at(70), None).ran(), 45 * SECOND);
    job.time = None;
    job.first_started = Some(at(10));
    assert_eq!(ran(&job, at(70)), 60 * SECOND);
    let mut left = job.left(at(70), None);
    left.finished = Some(at(70));
    assert_eq!(left.ran(), 60 * SECOND);
}
