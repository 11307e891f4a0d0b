//! When a job that has nodes is expected to end, and from what that is known. It is told to people, and nothing is decided
//! by it.
//!
//! Two things say it, and the earlier counts. The job's own `activeDeadlineSeconds` is an upper bound. Jobs like it that
//! succeeded before are a measure: the median of those that took longer than this one has taken so far, of the last 20. So a
//! job that outlives what was usual is expected to end as the longer ones did, and of one that outlives them all nothing is
//! known.
//!
//! What a job took is the time in which it had nodes. A job like it is one of the same namespace and spec (values of
//! variables aside, as the [history](crate::fleet::history) does not keep them). Where none of those has succeeded, it is
//! one of the same namespace and name: the spec may have changed. Names that differ in a number say nothing of each other,
//! since nobody knows whether `train-7` and `train-70` do as much.

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

/// Jobs like one that are looked at, the last ones. They show how long it takes now, and a median needs no more.
const ALIKE_MAX: usize = 20;

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

/// Jobs like it that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// They had the same spec. Otherwise only the same name.
    pub same_spec: bool,
    /// How many took longer than the job has taken so far: from them the end is known.
    pub jobs: u32,
    /// The least and the most that these took.
    pub shortest: Duration,
    pub longest: Duration,
}

/// How long jobs took that are like some which have not ended.
#[derive(Debug, Default)]
pub(crate) struct TimesTaken {
    spec_hashes: BTreeMap<JobUid, String>,
    /// By namespace and hash of the spec.
    same_spec: BTreeMap<(String, String), Vec<Duration>>,
    same_name: BTreeMap<JobName, Vec<Duration>>,
}

impl TimesTaken {
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
        let add = |taken: Option<&mut Vec<Duration>>, ran| match taken {
            Some(taken) if taken.len() < ALIKE_MAX => taken.push(ran),
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
        let of_spec = self.same_spec.get(&key).filter(|taken| !taken.is_empty());
        let taken = of_spec.or_else(|| self.same_name.get(&job.name))?;
        let longer = taken.iter().copied().filter(|taken| *taken > ran);
        let mut longer: Vec<Duration> = longer.collect();
        longer.sort_unstable();
        // Of an even number the later one: a time that was measured, and rather late than early.
        let median = longer.get(longer.len() / 2)?;
        let measured = Measured {
            same_spec: of_spec.is_some(),
            jobs: longer.len() as u32,
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
    times: &TimesTaken,
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
