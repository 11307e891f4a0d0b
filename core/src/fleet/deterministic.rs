//! Judges whether a job fails by itself each time it comes to the same place. Then another start costs nodes and
//! changes nothing, however much of the restart budget is left.
//!
//! A failure counts if its class stays with the job (code or data) and it is known where it was raised. It is *the
//! same* as the one before if class, exception, line and step are equal. Progress, another failure that is charged to the job, or one
//! that nobody can place, begins anew. A lost node between them changes nothing.
//!
//! Two things look like this and are not the job's:
//! - Something that is late: a mount, a service. It shows before the first step, and not for long. Without a step
//!   the same failure must have lasted for [`LATE`].
//! - A node that spoils what it reads. So there must have been a second node, if one is free.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    error_class::ErrorClass,
    fleet::job::{JobRecord, SAME_FAILURE_NODES_MAX, SameFailure},
    id::NodeName,
    time::Timestamp,
};

/// What is late comes within this time: Kubernetes gives a mount 2 minutes at a time and tries again, and a service
/// that is started with the job takes minutes to load. It is longer than the first nine pauses of the back-off.
const LATE: Duration = Duration::from_secs(600);

/// A failure that is charged to the job.
#[derive(Clone, Debug)]
pub(crate) struct Failure<'a> {
    pub class: ErrorClass,
    /// The exception and the innermost frame, if both are known.
    pub raised: Option<(&'a str, &'a str)>,
    pub node: Option<&'a NodeName>,
    /// The last step before it.
    pub step: Option<u64>,
}

/// Notes a failure that is charged to the job, and says why it ends the job, if it does. `others`: a node that
/// was not in the generation has room for a member.
pub(crate) fn note(
    record: &mut JobRecord,
    failure: &Failure<'_>,
    others: bool,
    now: Timestamp,
) -> Option<String> {
    let before = record.same_failure.take();
    let first = first_of(failure, now)?;
    let same = before.filter(|before| is_same(before, &first));
    let mut known = same.unwrap_or(SameFailure { times: 0, ..first });
    known.times += 1;
    if known.nodes.len() < SAME_FAILURE_NODES_MAX {
        known.nodes.extend(failure.node.cloned());
    }
    let most = record.spec.restart_policy.max_same_failures;
    let waited = known.step.is_some() || now.since(known.since) >= LATE;
    let elsewhere = known.nodes.len() > 1 || !others;
    let ends = most > 0 && known.times >= most && waited && elsewhere;
    let why = ends.then(|| sentence(&known));
    record.same_failure = Some(known);
    why
}

fn first_of(failure: &Failure<'_>, now: Timestamp) -> Option<SameFailure> {
    let (exception, place) = failure.raised?;
    failure.class.stays_with_the_job().then(|| SameFailure {
        class: failure.class,
        exception: exception.to_owned(),
        place: place.to_owned(),
        step: failure.step,
        since: now,
        times: 1,
        nodes: BTreeSet::new(),
    })
}

fn is_same(one: &SameFailure, other: &SameFailure) -> bool {
    let key = |failure: &SameFailure| (failure.class, failure.step);
    key(one) == key(other) && one.exception == other.exception && one.place == other.place
}

fn sentence(known: &SameFailure) -> String {
    let SameFailure {
        exception,
        place,
        times,
        nodes,
        ..
    } = known;
    let at = match known.step {
        Some(step) => format!("after step {step}"),
        None => "before any step".into(),
    };
    let on = match nodes.len() {
        0 => String::new(),
        1 => " on one node".into(),
        SAME_FAILURE_NODES_MAX => format!(" on {SAME_FAILURE_NODES_MAX} nodes or more"),
        more => format!(" on {more} nodes"),
    };
    format!(
        "{exception} at {place} {at}, {times} times{on} without progress between: the job itself fails there. \
         Mend it and submit again; with restartPolicy.maxSameFailures: 0 it is restarted as long as maxRestarts allows"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::job::tests::record;

    fn failure<'a>(step: Option<u64>, node: &'a NodeName) -> Failure<'a> {
        Failure {
            class: ErrorClass::Code,
            raised: Some(("ValueError", "/job/train.py:7 in load")),
            node: Some(node),
            step,
        }
    }

    fn at(second: u64) -> Timestamp {
        Timestamp(second * 1_000_000)
    }

    #[test]
    fn the_third_time_ends_the_job_and_says_what_to_do() {
        let (mut job, a, b) = (record(), NodeName::from("a"), NodeName::from("b"));
        let of = |node| failure(Some(100), node);
        assert_eq!(note(&mut job, &of(&a), true, at(1)), None);
        assert_eq!(note(&mut job, &of(&a), true, at(2)), None);
        let why = note(&mut job, &of(&b), true, at(3)).unwrap();
        assert!(
            why.starts_with(
                "ValueError at /job/train.py:7 in load after step 100, 3 times on 2 nodes"
            ),
            "{why}"
        );
        assert!(why.contains("maxSameFailures: 0"), "{why}");
    }

    #[test]
    fn every_part_of_it_must_be_the_same() {
        let a = NodeName::from("a");
        let same = failure(Some(100), &a);
        let others = [
            failure(Some(101), &a),
            failure(None, &a),
            Failure {
                class: ErrorClass::Data,
                ..same.clone()
            },
            Failure {
                raised: Some(("KeyError", "/job/train.py:7 in load")),
                ..same.clone()
            },
            Failure {
                raised: Some(("ValueError", "/job/train.py:8 in load")),
                ..same.clone()
            },
            Failure {
                raised: None,
                ..same.clone()
            },
            Failure {
                class: ErrorClass::Unknown,
                ..same.clone()
            },
        ];
        for other in others {
            let mut job = record();
            for failure in [&same, &same, &other, &same, &same] {
                assert_eq!(note(&mut job, failure, false, at(1)), None, "{other:?}");
            }
            assert!(note(&mut job, &same, false, at(1)).is_some());
        }
    }

    #[test]
    fn what_is_no_fault_of_code_or_data_never_ends_a_job() {
        let a = NodeName::from("a");
        for class in [
            ErrorClass::Unknown,
            ErrorClass::Storage,
            ErrorClass::Network,
            ErrorClass::GpuMemory,
            ErrorClass::HostMemory,
            ErrorClass::GpuHardware,
        ] {
            let mut job = record();
            let of = Failure {
                class,
                ..failure(Some(1), &a)
            };
            for second in 0..10_000 {
                assert_eq!(note(&mut job, &of, false, at(second)), None);
            }
        }
    }

    #[test]
    fn what_is_late_is_waited_for() {
        let (mut job, a) = (record(), NodeName::from("a"));
        let of = failure(None, &a);
        for second in [1, 100, 300, 600] {
            assert_eq!(note(&mut job, &of, false, at(second)), None);
        }
        let why = note(&mut job, &of, false, at(601)).unwrap();
        assert!(
            why.contains("before any step, 5 times on one node"),
            "{why}"
        );
    }

    #[test]
    fn another_node_is_tried_if_there_is_one() {
        let (mut job, a) = (record(), NodeName::from("a"));
        let of = failure(Some(1), &a);
        for second in 0..9 {
            assert_eq!(note(&mut job, &of, true, at(second)), None);
        }
        assert!(note(&mut job, &of, false, at(10)).is_some());
    }

    #[test]
    fn the_job_may_have_another_limit_or_none() {
        let a = NodeName::from("a");
        let mut job = record();
        job.spec.restart_policy.max_same_failures = 0;
        for second in 0..1_000 {
            let why = note(&mut job, &failure(Some(1), &a), false, at(second));
            assert_eq!(why, None);
        }
        let mut job = record();
        job.spec.restart_policy.max_same_failures = 1;
        assert!(note(&mut job, &failure(Some(1), &a), false, at(1)).is_some());
    }
}
