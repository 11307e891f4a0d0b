//! Which jobs have a record, and which records make room. The records themselves are in the store and on the
//! board; this has of each only what the rules need.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    fleet::{actor::Actor, history::record::HistoryRecord, job::Phase, policy::Policy},
    id::{JobName, JobUid},
    time::Timestamp,
};

/// Jobs by uid and submission. An object's job has the object's uid, and may be submitted again with it.
pub(crate) type Key = (JobUid, Timestamp);

/// A job that is over, as the rules of the history see it.
#[derive(Clone, Debug)]
pub(crate) struct Over {
    pub key: Key,
    pub name: JobName,
    pub phase: Phase,
    pub finished: Timestamp,
    /// The hash of its spec, and how long it had nodes.
    pub spec_hash: String,
    pub ran: Duration,
    pub started: Timestamp,
    /// When it gave the last GPUs back.
    pub held_until: Timestamp,
    pub owner: Option<Actor>,
    /// The queue that it named.
    pub queue: Option<String>,
    /// The time of each GPU that it held. `None`: it had pods, whose GPUs Kubernetes counts.
    pub gpu_time: Option<Duration>,
}

impl Over {
    pub(crate) fn of(left: &HistoryRecord) -> Self {
        Self {
            key: (left.uid.clone(), left.created),
            name: left.name.clone(),
            phase: left.phase,
            finished: left.finished.unwrap_or(left.created),
            spec_hash: left.spec_hash.clone(),
            ran: left.ran(),
            started: left.started.unwrap_or(left.created),
            held_until: { left.held_until }
                .or(left.finished)
                .unwrap_or(left.created),
            owner: left.owner.clone(),
            queue: left.queue.clone(),
            gpu_time: left.image.is_none().then(|| left.life().gpu_time),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// By number.
    records: BTreeMap<u64, Over>,
    keys: BTreeSet<Key>,
    /// The newest record of each name.
    newest: BTreeMap<JobName, u64>,
    last: u64,
}

impl Kept {
    pub(crate) fn loaded<'a>(records: impl IntoIterator<Item = &'a HistoryRecord>) -> Self {
        let mut kept = Self::default();
        for left in records {
            kept.put(left.number, Over::of(left));
        }
        kept
    }

    fn put(&mut self, number: u64, over: Over) {
        self.last = self.last.max(number);
        self.keys.insert(over.key.clone());
        let newest = self.newest.entry(over.name.clone()).or_default();
        *newest = number.max(*newest);
        self.records.insert(number, over);
    }

    /// The number of the record that this job gets. `None`: it has one, or it would have to make room at once.
    pub(crate) fn add(&mut self, over: Over, policy: &Policy, now: Timestamp) -> Option<u64> {
        let is_too_old = over.finished + policy.history_for < now;
        let is_full = self.records.len() >= policy.history_max;
        let is_oldest = || {
            self.records
                .values()
                .all(|one| over.finished < one.finished)
        };
        if self.has(&over.key) || is_too_old || is_full && is_oldest() {
            return None;
        }
        self.put(self.last + 1, over);
        Some(self.last)
    }

    /// Whether this job has a record.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// The jobs that succeeded, the last that ended first.
    pub(crate) fn succeeded(&self) -> impl Iterator<Item = &Over> {
        let newest_first = self.records.values().rev();
        newest_first.filter(|over| over.phase == Phase::Succeeded)
    }

    /// All of them.
    pub(crate) fn over(&self) -> impl Iterator<Item = &Over> {
        self.records.values()
    }

    /// The job that had this name last, of those that are over.
    pub(crate) fn newest_of(&self, name: &JobName) -> Option<&Over> {
        self.records.get(self.newest.get(name)?)
    }

    /// Drops records that are too old or too many. All up to the returned number go. `None`: none does.
    pub(crate) fn drop_surplus(&mut self, policy: &Policy, now: Timestamp) -> Option<u64> {
        let mut dropped = None;
        while let Some((number, oldest)) = self.records.first_key_value() {
            let is_too_old = oldest.finished + policy.history_for < now;
            if !is_too_old && self.records.len() <= policy.history_max {
                break;
            }
            dropped = Some(*number);
            let (_, oldest) = self.records.pop_first().expect("it was just seen");
            self.keys.remove(&oldest.key);
            if self.newest.get(&oldest.name) == dropped.as_ref() {
                self.newest.remove(&oldest.name);
            }
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    fn named(name: &str) -> JobName {
        JobName {
            namespace: "default".into(),
            name: name.into(),
        }
    }

    fn over(name: &str, finished: u64) -> Over {
        Over {
            name: named(name),
            phase: Phase::Succeeded,
            key: (JobUid::from(name), at(0)),
            finished: at(finished),
            spec_hash: String::new(),
            ran: Duration::ZERO,
            started: at(0),
            held_until: at(0),
            owner: None,
            queue: None,
            gpu_time: None,
        }
    }

    fn bounds(most: usize, seconds: u64) -> Policy {
        Policy {
            history_max: most,
            history_for: Duration::from_secs(seconds),
            ..Policy::default()
        }
    }

    #[test]
    fn a_job_gets_one_record() {
        let (mut kept, policy) = (Kept::default(), bounds(9, 1_000));
        assert_eq!(kept.add(over("a", 1), &policy, at(1)), Some(1));
        assert_eq!(kept.add(over("b", 1), &policy, at(1)), Some(2));
        assert_eq!(kept.add(over("a", 1), &policy, at(1)), None);
        let again = Over {
            key: (JobUid::from("a"), at(5)),
            ..over("a", 6)
        };
        assert_eq!(
            kept.add(again, &policy, at(6)),
            Some(3),
            "it was submitted again"
        );
    }

    #[test]
    fn the_oldest_make_room_and_are_not_made_again() {
        let (mut kept, policy) = (Kept::default(), bounds(2, 1_000));
        for (number, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            assert!(
                kept.add(over(name, number as u64), &policy, at(9))
                    .is_some()
            );
        }
        assert_eq!(kept.drop_surplus(&policy, at(9)), Some(2));
        assert_eq!(kept.drop_surplus(&policy, at(9)), None);
        // Job a is still there after a restart, and is over.
        assert_eq!(kept.add(over("a", 0), &policy, at(9)), None);
        assert_eq!(kept.add(over("e", 7), &policy, at(9)), Some(5));
    }

    #[test]
    fn a_record_is_dropped_when_it_is_too_old() {
        let (mut kept, policy) = (Kept::default(), bounds(9, 100));
        kept.add(over("a", 10), &policy, at(10));
        kept.add(over("b", 50), &policy, at(50));
        assert_eq!(kept.drop_surplus(&policy, at(110)), None);
        assert_eq!(kept.drop_surplus(&policy, at(111)), Some(1));
        assert_eq!(
            kept.add(over("a", 10), &policy, at(111)),
            None,
            "it would go at once"
        );
        let none = bounds(0, 100);
        assert_eq!(kept.drop_surplus(&none, at(111)), Some(2));
        assert_eq!(
            kept.add(over("c", 111), &none, at(111)),
            None,
            "the operator wants none"
        );
    }

    #[test]
    fn a_name_means_the_job_that_had_it_last() {
        let (mut kept, policy) = (Kept::default(), bounds(3, 1_000));
        let failed = Over {
            key: (JobUid::from("first"), at(0)),
            phase: Phase::Failed,
            ..over("a", 1)
        };
        kept.add(failed, &policy, at(1));
        assert_eq!(
            kept.newest_of(&named("a")).map(|one| one.phase),
            Some(Phase::Failed)
        );
        kept.add(over("a", 2), &policy, at(2));
        assert_eq!(kept.drop_surplus(&bounds(1, 1_000), at(2)), Some(1));
        let newest = kept.newest_of(&named("a")).unwrap();
        assert_eq!(
            (newest.phase, newest.key.0.as_str()),
            (Phase::Succeeded, "a")
        );
        assert_eq!(kept.drop_surplus(&bounds(0, 1_000), at(2)), Some(2));
        assert!(kept.newest_of(&named("a")).is_none());
    }
}
