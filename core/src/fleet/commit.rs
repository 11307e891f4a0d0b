//! The versions of stored records, so that a store without transactions can take a commit.
//!
//! A commit is a list of writes, each of one record. A store makes them in order, and makes a write
//! only if the record still has the version that the coordinator knows. Any other version means
//! that somebody else has written: this coordinator decides on what is no longer true, and must
//! end. It reloads when it starts again.
//!
//! A version says who wrote: the term of a coordinator, and the number of its write. No two writes
//! have the same one, so a record that was deleted and made anew is never taken for the old one.
//! In which order records are written is the business of `write_order`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    fleet::output::Change,
    id::{JobUid, NodeName, Term},
};

/// The name of a stored record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKey {
    Job(JobUid),
    Node(NodeName),
    /// The tombstone of this job.
    Tombstone(JobUid),
    /// What is left of a job, by its number.
    History(u64),
    /// What waits to be sent to people. There is one.
    Outbox,
    Event(u64),
}

/// Who wrote a record last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The term of the coordinator that wrote. Zero: an older build wrote, which knew no versions.
    pub term: Term,
    /// The number of the write within that term.
    pub write: u64,
}

/// One write of one record.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub change: Change,
    /// The version that the record must have. `None`: the record must not exist.
    pub expects: Option<Version>,
    /// The version that the write gives it. A deletion leaves none.
    pub becomes: Version,
}

impl Write {
    pub fn key(&self) -> RecordKey {
        self.change.key()
    }
}

impl Change {
    pub fn key(&self) -> RecordKey {
        match self {
            Change::PutJob(job) => RecordKey::Job(job.uid.clone()),
            Change::DeleteJob(uid) => RecordKey::Job(uid.clone()),
            Change::PutNode(node) => RecordKey::Node(node.name.clone()),
            Change::DeleteNode(name) => RecordKey::Node(name.clone()),
            Change::PutTombstone(tombstone) => RecordKey::Tombstone(tombstone.run.job.clone()),
            Change::DeleteTombstone(job) => RecordKey::Tombstone(job.clone()),
            Change::PutHistory(record) => RecordKey::History(record.number),
            Change::DropHistory(number) => RecordKey::History(*number),
            Change::PutOutbox(_) => RecordKey::Outbox,
            Change::Event(event) => RecordKey::Event(event.sequence),
        }
    }

    /// Whether the record has a version. Others are written once.
    pub fn has_version(&self) -> bool {
        !matches!(
            self,
            Change::PutHistory(_) | Change::DropHistory(_) | Change::Event(_)
        )
    }

    pub fn deletes(&self) -> bool {
        matches!(
            self,
            Change::DeleteJob(_) | Change::DeleteNode(_) | Change::DeleteTombstone(_)
        )
    }
}

/// The writes in groups that must be made one after the other. Within a group the order means nothing
/// (`write_order`), so a store may make its writes at the same time, and any part of them may
/// become durable.
///
/// Nodes that are written one after the other are a group, as long as none is cordoned: a cordon
/// must not be stored before those that end in the same turn. Records of jobs that are over are a group, too. Every
/// other write is a group of its own.
pub fn groups(writes: &[Write]) -> impl Iterator<Item = &[Write]> {
    let mut rest = writes;
    std::iter::from_fn(move || {
        let mut names = BTreeSet::new();
        let is_history = |write: &Write| matches!(write.change, Change::PutHistory(_));
        let of_history = rest.first().is_some_and(is_history);
        let mut joins = |write: &&Write| match &write.change {
            Change::PutHistory(_) => of_history,
            Change::PutNode(node) => {
                !of_history && node.cordon.is_none() && names.insert(node.name.clone())
            }
            _ => false,
        };
        let together = rest.iter().take_while(|write| joins(write)).count().max(1);
        let (group, left) = rest.split_at_checked(together)?;
        rest = left;
        Some(group)
    })
}

/// The versions of all records that one coordinator has loaded or written. Events and what is left of jobs
/// are written once and have none.
#[derive(Clone, Debug)]
pub struct Versions {
    term: Term,
    written: u64,
    known: BTreeMap<RecordKey, Version>,
}

impl Versions {
    /// The versions as loaded, for a coordinator that writes under this term.
    pub fn loaded(term: Term, known: impl IntoIterator<Item = (RecordKey, Version)>) -> Self {
        Self {
            term,
            written: 0,
            known: known.into_iter().collect(),
        }
    }

    /// The writes that make these changes, in the same order. From here on they count as made: a
    /// coordinator whose commit fails ends, and this value with it.
    pub fn writes(&mut self, changes: Vec<Change>) -> Vec<Write> {
        changes
            .into_iter()
            .map(|change| self.write(change))
            .collect()
    }

    /// This write was not made, and will not be.
    pub fn not_made(&mut self, write: &Write) {
        match write.expects {
            Some(version) => self.known.insert(write.key(), version),
            None => self.known.remove(&write.key()),
        };
    }

    fn write(&mut self, change: Change) -> Write {
        self.written += 1;
        let becomes = Version {
            term: self.term,
            write: self.written,
        };
        let expects = match change.key() {
            RecordKey::Event(_) | RecordKey::History(_) => None,
            key if change.deletes() => self.known.remove(&key),
            key => self.known.insert(key, becomes),
        };
        Write {
            change,
            expects,
            becomes,
        }
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordKey::Job(uid) => write!(f, "job {uid}"),
            RecordKey::Node(name) => write!(f, "node {name}"),
            RecordKey::Tombstone(uid) => write!(f, "tombstone of job {uid}"),
            RecordKey::History(number) => write!(f, "history record {number}"),
            RecordKey::Outbox => write!(f, "outbox"),
            RecordKey::Event(number) => write!(f, "event {number}"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::job::tests::record;

    fn put() -> Change {
        Change::PutJob(Box::new(record()))
    }

    #[test]
    fn each_write_expects_what_the_one_before_has_left() {
        let key = RecordKey::Job("uid".into());
        let old = Version {
            term: Term(3),
            write: 9,
        };
        let mut versions = Versions::loaded(Term(4), [(key.clone(), old)]);
        let delete = Change::DeleteJob("uid".into());
        let writes = versions.writes(vec![put(), put(), delete, put()]);
        let expected: Vec<Option<Version>> = writes.iter().map(|write| write.expects).collect();
        let own = |write| {
            Some(Version {
                term: Term(4),
                write,
            })
        };
        assert_eq!(expected, [Some(old), own(1), own(2), None]);
        assert!(writes.iter().all(|write| write.key() == key));
        assert_eq!(
            writes[3].becomes,
            own(4).unwrap(),
            "made anew, it is not the deleted one"
        );
    }
}
