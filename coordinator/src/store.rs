//! The durable record: jobs, nodes, events, and the term.
//!
//! A store never decides anything. It returns exactly what was written last, or an error that says
//! what is wrong and what to do. It never starts empty where something was stored. Once
//! [`Store::commit`] has returned, its writes survive the death of the process and of the machine.
//!
//! A store needs no transactions: it compares and sets one record at a time. In which order records
//! are written, and why any first part of a commit can stand alone, is said in one place,
//! `core/src/fleet/write_order.rs`. A store may do more: the one of redb makes all writes of a
//! commit or none.

use std::{error::Error, sync::Arc};

use muster_core::{
    fleet::{
        Change, Event, Stored,
        commit::{RecordKey, Version, Write},
    },
    id::{JobUid, NodeName, Term},
    node_report::NodeReport,
};

pub use muster_handle::lead::Lead;

pub mod kubernetes;
pub mod memory;
pub mod redb;
#[cfg(test)]
pub(crate) mod tests;
mod witness;

/// The right to decide, which one coordinator has at a time.
pub trait Leadership {
    /// The right of this process, to be asked about from every thread, also while the store is at
    /// work.
    fn lead(&self) -> Lead;

    /// Whether this process still has that right. Asked before each commit, and again before what
    /// was committed is told: an answer promises that the decision stands. A coordinator that has
    /// lost the right says nothing more and ends.
    fn still_holds(&self) -> bool {
        self.lead().still_holds()
    }
}

/// The durable state of the coordinator. A process that opens it takes the right to decide. A process
/// that had it before is kept out, or meets conflicts from then on.
pub trait Store: Leadership + Send {
    /// Everything committed so far.
    fn load(&mut self) -> Result<Loaded, StoreError>;

    /// Returns a term higher than any before, and at least `at_least`. It is durable before it is
    /// returned.
    fn next_term(&mut self, at_least: Term) -> Result<Term, StoreError>;

    /// Makes these writes durable, in the order of their groups (`muster_core::fleet::commit::groups`).
    /// Each is made only if the record has the version that the write expects; otherwise this ends with
    /// [`StoreError::Conflict`]. After an error, or if the process dies, any number of groups may have
    /// been made, from the first on, and any part of the next.
    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError>;

    /// Stores the reports of these nodes, now or soon. A report is deleted with its node. Nothing is
    /// decided from a stored report, so it has no version.
    fn keep_reports(&mut self, reports: &[(NodeName, Arc<NodeReport>)]) -> Result<(), StoreError>;
}

/// What a store holds at start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    pub fleet: Stored,
    /// The events that [`crate::kept`] keeps, oldest first.
    pub events: Vec<Event>,
    /// The version of each job, each node and each tombstone.
    pub versions: Vec<(RecordKey, Version)>,
}

fn deleted(writes: &[Write]) -> impl Iterator<Item = &JobUid> {
    writes.iter().filter_map(|write| {
        if let Change::DeleteJob(uid) = &write.change {
            Some(uid)
        } else {
            None
        }
    })
}

/// Refuses a write if somebody else has written the record. `found` is the record's version, if the
/// record exists.
fn compare(write: &Write, found: Option<Version>) -> Result<(), Conflict> {
    if found == write.expects {
        return Ok(());
    }
    Err(Conflict {
        record: write.key(),
        expected: write.expects,
        found,
    })
}

/// A record is not as this coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{record} was written by another: this coordinator knows {}, the store has {}",
    version(*expected), version(*found)
)]
pub struct Conflict {
    pub record: RecordKey,
    pub expected: Option<Version>,
    pub found: Option<Version>,
}

fn version(version: Option<Version>) -> String {
    version.map_or("none".to_owned(), |version| format!("version {version}"))
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The place where the records are kept cannot be used as it is. The source says what is wrong
    /// and what a person can do.
    #[error(transparent)]
    Unusable(Box<dyn Error + Send + Sync>),
    #[error("{store}: {record} cannot be read by this build")]
    Record {
        store: String,
        record: String,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    #[error("write to {store}")]
    Write {
        store: String,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The store takes no record of this job as large as this one. The records before it in the commit were
    /// written. It was not, nor were those after it, nor any event.
    #[error("{store}: the record of job {job} is too large")]
    TooLarge {
        store: String,
        job: JobUid,
        /// That the write would have given it.
        version: Version,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// Somebody else decides too. A coordinator that starts again reads what was written.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The same, where the store does not say what was written.
    #[error("{0} was written by another coordinator; this one says nothing more")]
    Overtaken(String),
    #[error(
        "this coordinator is no longer sure that it may decide: another one does, or soon will. It says nothing more. What it had committed stands"
    )]
    Deposed,
}
