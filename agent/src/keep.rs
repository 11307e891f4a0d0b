//! Which runs that are over keep their directories, which hold their logs. The rule only; `run_dir`
//! does it.
//!
//! A job keeps its newest runs and the first that failed, however many jobs there are. All of them
//! together keep at most so many bytes. What goes first then: runs of jobs of which nothing goes on
//! here, the oldest first, and of those the ones that are not their job's newest. A run that goes on
//! is never removed, and counts nothing. The run that ended last stays, whatever it takes.

use std::{collections::BTreeSet, time::SystemTime};

use muster_core::{id::JobUid, run::RunId};

/// How many ended generations of a job keep their logs, the newest first. Users ask for the last
/// two; two more allow a closer look. The first failed generation is kept as well, because it shows
/// what started a series of failures. With logs of at most 2 x 64 MiB per rank, a job of 8 ranks
/// per node holds at most 5 GiB.
pub(crate) const KEPT_PER_JOB: usize = 4;
/// How many directories of ended runs a node has. Each is looked at when a run ends, and 10,000 take
/// some 50 ms. A run without output takes about 40 KiB, so that all of them take 400 MiB.
pub(crate) const KEPT_IN_ALL: usize = 10_000;

/// A run that is over, as it lies on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) run: RunId,
    /// What its directory takes on disk.
    pub(crate) bytes: u64,
    /// When its end was acknowledged. `None`: the file system does not tell.
    pub(crate) at: Option<SystemTime>,
    /// Its logs were removed to make room, and only the note of that is left.
    pub(crate) is_emptied: bool,
}

/// What becomes of a run that is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its directory goes: whoever asks is told that the job has newer ones.
    Remove(RunId),
    /// Its logs go, and a note of that stays.
    Empty(RunId),
}

/// What to do so that the runs in `ended` take at most `limit` bytes. `live` are the jobs of which a
/// run goes on here.
pub(crate) fn beyond(
    mut ended: Vec<Ended>,
    live: &BTreeSet<JobUid>,
    limit: u64,
    has_failed: impl Fn(&RunId) -> bool,
) -> Vec<Fate> {
    ended.sort_by(|a, b| a.run.cmp(&b.run));
    let (mut kept, mut fates) = (Vec::new(), Vec::new());
    for of_job in ended.chunk_by(|a, b| a.run.job == b.run.job) {
        let (old, new) = of_job.split_at(of_job.len().saturating_sub(KEPT_PER_JOB));
        let first_failed = old.iter().find(|ended| has_failed(&ended.run));
        for ended in old.iter().filter(|ended| Some(*ended) != first_failed) {
            fates.push(Fate::Remove(ended.run.clone()));
        }
        let newest = new.last();
        for ended in first_failed.into_iter().chain(new) {
            let order = (
                live.contains(&ended.run.job),
                Some(ended) == newest,
                ended.at,
            );
            kept.push((order, ended));
        }
    }
    kept.sort_by_key(|(order, _)| *order);
    // A damaged note can tell any number.
    let mut bytes = { kept.iter() }.fold(0, |sum: u64, (_, ended)| sum.saturating_add(ended.bytes));
    let surplus = kept.len().saturating_sub(KEPT_IN_ALL);
    // Nobody has read the log of the run that has just ended.
    let last = kept.iter().map(|(_, ended)| ended.at).max().flatten();
    for (at, (_, ended)) in kept.iter().enumerate() {
        if at < surplus {
            fates.push(Fate::Remove(ended.run.clone()));
            bytes = bytes.saturating_sub(ended.bytes);
        } else if bytes > limit && !ended.is_emptied && ended.at != last {
            fates.push(Fate::Empty(ended.run.clone()));
            bytes = bytes.saturating_sub(ended.bytes);
        }
    }
    fates
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use muster_core::id::Generation;

    use super::*;

    const NO_LIMIT: u64 = u64::MAX;

    fn run(job: &str, generation: u64) -> RunId {
        RunId {
            job: JobUid::from(job),
            generation: Generation(generation),
        }
    }

    /// A run of 10 bytes that ended `at`.
    fn ended(job: &str, generation: u64, at: u64) -> Ended {
        Ended {
            run: run(job, generation),
            bytes: 10,
            at: Some(UNIX_EPOCH + Duration::from_secs(at)),
            is_emptied: false,
        }
    }

    fn go(ended: &[Ended], live: &[&str], limit: u64) -> Vec<String> {
        let live = live.iter().map(|job| JobUid::from(*job)).collect();
        let fates = beyond(ended.to_vec(), &live, limit, |_| false);
        fates
            .iter()
            .map(|fate| match fate {
                Fate::Remove(run) => format!("remove {run}"),
                Fate::Empty(run) => format!("empty {run}"),
            })
            .collect()
    }

    #[test]
    fn many_short_jobs_take_nothing_from_each_other() {
        let jobs: Vec<Ended> = (0..2_000).map(|n| ended(&format!("j{n}"), 1, n)).collect();
        assert_eq!(go(&jobs, &[], NO_LIMIT), Vec::<String>::new());
        assert_eq!(go(&jobs, &[], 20_000), Vec::<String>::new());
        assert_eq!(go(&jobs, &[], 19_999), ["empty j0-g1"]);
    }

    #[test]
    fn a_job_keeps_its_newest_runs_and_the_first_that_failed() {
        let runs: Vec<Ended> = (1..=9).map(|n| ended("a", n, n)).collect();
        let fates = beyond(runs, &BTreeSet::new(), NO_LIMIT, |run| {
            run.generation.0 >= 2
        });
        let gone: Vec<Fate> = [1, 3, 4, 5].map(|n| Fate::Remove(run("a", n))).into();
        assert_eq!(fates, gone);
    }

    #[test]
    fn what_goes_first_is_of_jobs_that_are_over_and_the_oldest() {
        let runs = [
            ended("live", 1, 1),
            ended("live", 2, 2),
            ended("over", 1, 3),
            ended("over", 2, 6),
            ended("older", 1, 5),
        ];
        let order = [
            "empty over-g1",
            "empty older-g1",
            "empty live-g1",
            "empty live-g2",
        ];
        for gone in 0..=order.len() {
            let limit = 10 * (runs.len() - gone) as u64;
            assert_eq!(go(&runs, &["live"], limit), order[..gone], "{limit}");
        }
        assert_eq!(go(&runs, &["live"], 0), order, "what ended last stays");
    }

    #[test]
    fn a_run_without_logs_is_not_emptied_again_and_makes_no_room() {
        let mut empty = ended("a", 1, 1);
        empty.is_emptied = true;
        empty.bytes = 4;
        let runs = [empty, ended("b", 1, 2), ended("c", 1, 3)];
        assert_eq!(go(&runs, &[], 23), ["empty b-g1"]);
        assert_eq!(go(&runs, &[], 24), Vec::<String>::new());
    }

    #[test]
    fn the_largest_number_is_added_up_like_any_other() {
        let mut huge = ended("a", 1, 1);
        huge.bytes = u64::MAX;
        let runs = [huge.clone(), ended("b", 1, 2), ended("c", 1, 3)];
        assert_eq!(go(&runs, &[], 20), ["empty a-g1"]);
        let twice = [
            huge.clone(),
            Ended {
                run: run("b", 1),
                ..huge
            },
            ended("c", 1, 3),
        ];
        assert_eq!(go(&twice, &[], 20), ["empty a-g1"]);
    }

    #[test]
    fn directories_have_a_bound_of_their_own() {
        let jobs: Vec<Ended> = (0..KEPT_IN_ALL as u64 + 2)
            .map(|n| ended(&format!("j{n:05}"), 1, n))
            .collect();
        assert_eq!(
            go(&jobs, &[], NO_LIMIT),
            ["remove j00000-g1", "remove j00001-g1"]
        );
    }
}
