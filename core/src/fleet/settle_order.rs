//! The order in which the jobs of a turn choose nodes. A job that comes first takes what it needs
//! before the next is asked.
//!
//! Every job that is concerned gets its turn: by priority, then by its owner's fair share, then by age. Decides nothing
//! about nodes: `placement` does, for one job at a time, from what `capacity` says is left and `reservations` does not keep.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{
    fleet::{
        fair_share::{Standing, Standings},
        job::JobRecord,
    },
    id::JobUid,
    time::Timestamp,
};

/// The place of a job in the order: the higher priority first, then whose owner has used less, then the older job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    priority: Reverse<i32>,
    standing: Standing,
    created: Timestamp,
    uid: JobUid,
}

impl Rank {
    pub(crate) fn of(job: &JobRecord, standings: &Standings) -> Rank {
        Rank {
            priority: Reverse(job.spec.priority),
            standing: standings.of(job),
            created: job.created,
            uid: job.uid.clone(),
        }
    }
}

/// The jobs of `concerned`, the first to choose first.
pub(crate) fn in_order<'a>(
    jobs: &BTreeMap<JobUid, JobRecord>,
    concerned: impl Iterator<Item = &'a JobUid>,
    standings: &Standings,
) -> Vec<JobUid> {
    let mut in_order: Vec<&JobRecord> = concerned.filter_map(|uid| jobs.get(uid)).collect();
    in_order.sort_by_cached_key(|job| Rank::of(job, standings));
    in_order.into_iter().map(|job| job.uid.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::job::tests::record;

    #[test]
    fn priority_goes_before_age_and_age_before_the_uid() {
        let jobs: BTreeMap<JobUid, JobRecord> =
            [("a", 0, 2), ("b", 0, 1), ("c", 5, 3), ("d", 0, 1)]
                .into_iter()
                .map(|(uid, priority, created)| {
                    let mut job = record();
                    job.uid = uid.into();
                    job.spec.priority = priority;
                    job.created = Timestamp(created);
                    (job.uid.clone(), job)
                })
                .collect();
        let order = in_order(&jobs, jobs.keys(), &Standings::default());
        let order: Vec<&str> = order.iter().map(JobUid::as_str).collect();
        assert_eq!(order, ["c", "b", "d", "a"]);
    }
}
