//! When a job that has nodes is expected to end, and from what that is known. It is told to people, and nothing is decided
//! by it.
//!
//! Two things say it, and the earlier counts. The job's own `activeDeadlineSeconds` is an upper bound. The *runs* of the
//! same job that succeeded before are a measure: the median of those that took longer than this one has taken so far,
//! of the last 20. So a job that outlives what was usual is expected to end as the longer ones did, and of one that
//! outlives them all nothing is known.
//!
//! A run is the time in which a job had nodes. The same job is one of the same namespace and spec (values of variables
//! aside, as the [history](crate::fleet::history) does not keep them). Where no such job has succeeded, it is one of the
//! same namespace and name: the spec may have changed. Names that differ in a number are of different jobs, since nobody
//! knows whether `train-7` and `train-70` do as much.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    fleet::{
        history::{self, Kept},
        job::JobRecord,
        time_account::State,
    },
    id::{JobName, JobUid},
    time::Timestamp,
};

/// The runs of a job that are looked at, the last ones. They show how it runs now, and a median needs no more.
const RUNS_MAX: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedEnd {
    pub at: Timestamp,
    pub basis: Basis,
}

/// From what an end is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The job's own deadline. It ends then at the latest.
    Deadline,
    Measured(Measured),
}

/// Runs of the same job that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Not even the spec was another. Otherwise only the name is the same.
    pub same_spec: bool,
    /// How many took longer than the job has taken so far: from them the end is known.
    pub runs: u32,
    /// The least and the most that these took.
    pub shortest: Duration,
    pub longest: Duration,
}

/// How long jobs took that are the same as some that have not ended.
#[derive(Debug, Default)]
pub(crate) struct RunTimes {
    spec_hashes: BTreeMap<JobUid, String>,
    /// By namespace and hash of the spec.
    same_spec: BTreeMap<(String, String), Vec<Duration>>,
    same_name: BTreeMap<JobName, Vec<Duration>>,
}

impl RunTimes {
    /// What the history has about these jobs.
    pub(crate) fn of<'j>(history: &Kept, jobs: impl Iterator<Item = &'j JobRecord>) -> Self {
        let known: BTreeSet<&String> = history
            .succeeded()
            .map(|over| &over.name.namespace)
            .collect();
        let mut times = Self::default();
        // A hash reads the whole spec, so it is made only where there is something to compare it with.
        for job in jobs.filter(|job| known.contains(&job.name.namespace)) {
            let hash = history::hash(&job.spec);
            let namespace = job.name.namespace.clone();
            times
                .same_spec
                .insert((namespace, hash.clone()), Vec::new());
            times.same_name.insert(job.name.clone(), Vec::new());
            times.spec_hashes.insert(job.uid.clone(), hash);
        }
        let add = |runs: Option<&mut Vec<Duration>>, ran| match runs {
            Some(runs) if runs.len() < RUNS_MAX => runs.push(ran),
            _ => {}
        };
        for over in history.succeeded() {
            let key = (over.name.namespace.clone(), over.spec_hash.clone());
            add(times.same_spec.get_mut(&key), over.ran);
            add(times.same_name.get_mut(&over.name), over.ran);
        }
        times
    }

    /// How much longer this job is expected to have nodes, if it has had them for so long.
    fn left(&self, job: &JobRecord, ran: Duration) -> Option<(Duration, Measured)> {
        let hash = self.spec_hashes.get(&job.uid)?;
        let key = (job.name.namespace.clone(), hash.clone());
        let of_spec = self.same_spec.get(&key).filter(|runs| !runs.is_empty());
        let runs = of_spec.or_else(|| self.same_name.get(&job.name))?;
        let mut longer: Vec<Duration> = runs.iter().copied().filter(|run| *run > ran).collect();
        longer.sort_unstable();
        // Of an even number the later one: a time that was measured, and rather late than early.
        let median = longer.get(longer.len() / 2)?;
        let measured = Measured {
            same_spec: of_spec.is_some(),
            runs: longer.len() as u32,
            shortest: *longer.first()?,
            longest: *longer.last()?,
        };
        Some((*median - ran, measured))
    }
}

/// For how long the job has had nodes.
pub(crate) fn ran(job: &JobRecord, now: Timestamp) -> Duration {
    let Some(account) = &job.time else {
        let started = job.first_started;
        return started.map_or(Duration::ZERO, |at| now.since(at));
    };
    let all = account.until(now, None).into_iter();
    let with_nodes = all.filter(|spent| {
        // As `HistoryRecord::ran` counts.
        !matches!(spent.state, State::Queued | State::Waiting { .. })
    });
    with_nodes.map(|spent| spent.time).sum()
}

/// When a job that has nodes now, and has had them for so long, is expected to end. `None`: nobody knows.
pub(crate) fn expected_end(
    job: &JobRecord,
    ran: Duration,
    times: &RunTimes,
    now: Timestamp,
) -> Option<ExpectedEnd> {
    let deadline = job.active_deadline().map(|at| ExpectedEnd {
        at: at.max(now),
        basis: Basis::Deadline,
    });
    let measured = times.left(job, ran).map(|(left, measured)| ExpectedEnd {
        at: now + left,
        basis: Basis::Measured(measured),
    });
    deadline
        .into_iter()
        .chain(measured)
        .min_by_key(|end| end.at)
}

#[cfg(test)]
mod tests;
