//! The ledger of failures by job and node: which of the two is at fault.
//!
//! One failure alone cannot tell. Later failures do. If a job also fails on other nodes, the job is
//! at fault, and every node it failed on is acquitted. If a job lasts twice as long without this
//! node as it lasted here, it accuses the node. Until one of the two happens the mark is *open*,
//! and an open mark accuses nobody: two faulty jobs on a healthy node stay two faulty jobs. To find
//! out, placement moves a job that has failed here twice to other nodes if there is room
//! (`placement`).
//!
//! Marks are stored with the node, are bounded, and are forgotten after [`Policy::storm_window`].

use std::{collections::BTreeSet, time::Duration};

use crate::{
    fleet::{
        node_record::NodeRecord,
        node_record::{Mark, Standing},
        policy::Policy,
        receipt::Cause,
    },
    id::{JobName, JobUid},
    period,
    time::Timestamp,
};

/// The number of marks kept per node: ten times any threshold.
const MARKS_MAX: usize = 32;

/// A job must last twice as long elsewhere as it lasted here, and at least this long, before that
/// says anything. If failures strike at random after a mean time t, 14 % of jobs survive for 2 t.
/// Therefore a cordon takes two jobs.
const PROVEN: Duration = Duration::from_secs(60);

/// After this many failures of one job here, the job is tried elsewhere. The first failure is
/// mostly chance, as for the back-off.
const SHUN_AFTER: usize = 2;

/// What a failure of this kind says by itself. `None`: it says nothing about any node.
pub(crate) fn at_first(cause: Cause) -> Option<Standing> {
    match cause {
        Cause::NodeLost | Cause::NodeRebooted | Cause::NodeUnhealthy | Cause::StartTimeout => {
            Some(Standing::Node)
        }
        Cause::WorkerFailed | Cause::WorkerKilled | Cause::StartFailed => Some(Standing::Open),
        // These name nobody, or a rank that did not fail, or an operator caused them, or they are no
        // failures.
        Cause::PeersLost
        | Cause::EndedEarly
        | Cause::CollectiveTimeout
        // What stands still by its node's doing is said by `marks`.
        | Cause::Stalled
        | Cause::NodeLeaving
        | Cause::NodeDeleted
        | Cause::Fenced
        | Cause::MixedNodes
        | Cause::FirstStart
        | Cause::NodeJoined
        | Cause::Scaled
        | Cause::RankSlow
        | Cause::Preempted
        | Cause::Suspended
        | Cause::Resumed
        | Cause::StoreAccepted => None,
    }
}

/// Whether the job itself may have caused a failure of this kind. Only such failures tell on which
/// nodes a job fails.
pub(crate) fn may_be_the_jobs(cause: Cause) -> bool {
    at_first(cause) == Some(Standing::Open)
}

pub(crate) fn add(record: &mut NodeRecord, mark: Mark, policy: &Policy, now: Timestamp) {
    record
        .marks
        .retain(|mark| now.since(mark.at) < policy.storm_window);
    record.marks.push(mark);
    let excess = record.marks.len().saturating_sub(MARKS_MAX);
    record.marks.drain(..excess);
}

/// The job has also failed elsewhere, so its failures here say nothing about this node.
pub(crate) fn acquit(record: &mut NodeRecord, job: &JobUid) {
    let theirs = record.marks.iter_mut().filter(|mark| &mark.job == job);
    theirs
        .filter(|mark| matches!(mark.standing, Standing::Open | Standing::Accused))
        .for_each(|m| m.standing = Standing::Acquitted);
}

/// The job has trained for `lasted` without this node. `None`: it has succeeded without this node.
pub(crate) fn accuse(record: &mut NodeRecord, job: &JobUid, lasted: Option<Duration>) {
    for mark in record
        .marks
        .iter_mut()
        .filter(|mark| &mark.job == job && mark.standing == Standing::Open)
    {
        if lasted.is_none_or(|lasted| lasted >= proof(mark)) {
            mark.standing = Standing::Accused;
        }
    }
}

/// How long the job must train elsewhere until the next of its open marks here is decided.
pub(crate) fn next_proof(record: &NodeRecord, job: &JobUid) -> Option<Duration> {
    record
        .marks
        .iter()
        .filter(|mark| &mark.job == job && mark.standing == Standing::Open)
        .map(proof)
        .min()
}

fn proof(mark: &Mark) -> Duration {
    (mark.lasted * 2).max(PROVEN)
}

/// Whether placement should try this job elsewhere.
pub(crate) fn shunned_by(
    record: &NodeRecord,
    job: &JobUid,
    policy: &Policy,
    now: Timestamp,
) -> bool {
    let theirs = |mark: &&Mark| {
        &mark.job == job && matches!(mark.standing, Standing::Open | Standing::Accused)
    };
    record
        .marks
        .iter()
        .filter(theirs)
        .filter(|mark| now.since(mark.at) < policy.storm_window)
        .count()
        >= SHUN_AFTER
}

/// Whether a node causes a restart storm: enough failures count against it, and they come from more
/// than one job.
pub(crate) fn storm(record: &NodeRecord, policy: &Policy, now: Timestamp) -> Option<String> {
    let against: Vec<&Mark> = against(record, policy, now).collect();
    let jobs: BTreeSet<&JobUid> = against.iter().map(|mark| &mark.job).collect();
    (against.len() >= policy.storm_failures && jobs.len() >= 2).then(|| {
        let window = period::format(policy.storm_window);
        let own = against.iter().filter(|mark| mark.standing == Standing::Node).count();
        format!(
            "restart storm: {} failures of {} jobs count against it within {window}: {own} its own, {} of jobs that lasted longer elsewhere",
            against.len(),
            jobs.len(),
            against.len() - own
        )
    })
}

fn against<'a>(
    record: &'a NodeRecord,
    policy: &Policy,
    now: Timestamp,
) -> impl Iterator<Item = &'a Mark> + use<'a> {
    let window = policy.storm_window;
    let counts = move |mark: &&Mark| mark.standing.counts() && now.since(mark.at) < window;
    record.marks.iter().filter(counts)
}

/// The jobs whose failures count against the node, each once.
pub(crate) fn accusers(record: &NodeRecord, policy: &Policy, now: Timestamp) -> Vec<JobName> {
    let names: BTreeSet<&JobName> = against(record, policy, now)
        .map(|mark| &mark.name)
        .collect();
    names.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::budget::tests::node;

    fn mark(job: &str, standing: Standing) -> Mark {
        Mark {
            at: Timestamp(1),
            job: job.into(),
            name: JobName {
                namespace: "default".into(),
                name: job.into(),
            },
            cause: Cause::WorkerFailed,
            lasted: Duration::from_secs(50),
            standing,
        }
    }

    fn marked(marks: &[(&str, Standing)]) -> NodeRecord {
        let (policy, mut record) = (Policy::default(), node("a"));
        marks.iter().for_each(|(job, standing)| {
            add(&mut record, mark(job, *standing), &policy, Timestamp(1))
        });
        record
    }

    #[test]
    fn open_marks_accuse_nobody_however_many() {
        let record = marked(&[("one", Standing::Open); 9].map(|m| m));
        assert_eq!(storm(&record, &Policy::default(), Timestamp(1)), None);
        let both: Vec<_> = (0..9)
            .map(|i| (if i % 2 == 0 { "one" } else { "two" }, Standing::Open))
            .collect();
        assert_eq!(
            storm(&marked(&both), &Policy::default(), Timestamp(1)),
            None
        );
    }

    #[test]
    fn two_jobs_that_lasted_elsewhere_make_a_storm_and_one_does_not() {
        let (policy, now) = (Policy::default(), Timestamp(1));
        let mut record = marked(&[
            ("one", Standing::Open),
            ("one", Standing::Open),
            ("two", Standing::Open),
        ]);
        accuse(&mut record, &"one".into(), Some(Duration::from_secs(99)));
        assert_eq!(
            record,
            marked(&[
                ("one", Standing::Open),
                ("one", Standing::Open),
                ("two", Standing::Open)
            ]),
            "not twice as long"
        );
        accuse(&mut record, &"one".into(), Some(Duration::from_secs(100)));
        assert_eq!(storm(&record, &policy, now), None, "one job");
        accuse(&mut record, &"two".into(), None);
        let why = storm(&record, &policy, now).unwrap();
        assert!(why.contains("3 failures of 2 jobs"), "{why}");
        assert_eq!(
            storm(&record, &policy, now + policy.storm_window),
            None,
            "old failures are forgotten"
        );
        acquit(&mut record, &"one".into());
        assert_eq!(
            storm(&record, &policy, now),
            None,
            "it failed elsewhere after all"
        );
    }

    #[test]
    fn what_no_job_does_counts_at_once() {
        let record = marked(&[
            ("one", Standing::Node),
            ("two", Standing::Node),
            ("two", Standing::Node),
        ]);
        assert!(storm(&record, &Policy::default(), Timestamp(1)).is_some());
        let mut record = record;
        acquit(&mut record, &"two".into());
        assert!(
            storm(&record, &Policy::default(), Timestamp(1)).is_some(),
            "no job's failing elsewhere explains a reboot"
        );
    }

    #[test]
    fn a_job_moves_away_after_its_second_failure() {
        let (policy, now) = (Policy::default(), Timestamp(1));
        let shunned =
            |marks: &[(&str, Standing)]| shunned_by(&marked(marks), &"one".into(), &policy, now);
        assert!(!shunned(&[
            ("one", Standing::Open),
            ("two", Standing::Open)
        ]));
        assert!(shunned(&[("one", Standing::Open), ("one", Standing::Open)]));
        assert!(!shunned(&[
            ("one", Standing::Acquitted),
            ("one", Standing::Open)
        ]));
    }

    #[test]
    fn marks_are_bounded() {
        assert_eq!(
            marked(&[("one", Standing::Open); 99].map(|m| m))
                .marks
                .len(),
            MARKS_MAX
        );
    }
}
