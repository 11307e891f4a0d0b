//! The durable record: jobs, nodes, events, and the term.
//!
//! A store never decides anything. It returns exactly what was committed last, or an error that
//! names the file. It never starts empty where something was stored. Once [`Store::commit`] has
//! returned, its changes survive the death of the process and of the machine.

use std::{error::Error, io, path::PathBuf, sync::Arc};

use muster_core::{
    fleet::{Change, Event, Stored},
    id::{JobUid, NodeName, Term},
    node_report::NodeReport,
};

pub mod memory;
pub mod redb;
#[cfg(test)]
pub(crate) mod tests;
mod witness;

/// The right to decide, which one coordinator has at a time.
pub trait Leadership {
    /// Whether this process still has that right. Asked before each commit, and again before what
    /// was committed is told: an answer promises that the decision stands. A coordinator that has
    /// lost the right says nothing more and ends.
    fn still_holds(&self) -> bool;
}

/// The durable state of the coordinator. Only one process at a time may change it.
pub trait Store: Leadership + Send {
    /// Everything committed so far.
    fn load(&mut self) -> Result<Loaded, StoreError>;

    /// Returns a term higher than any before, and at least `at_least`. It is durable before it is
    /// returned.
    fn next_term(&mut self, at_least: Term) -> Result<Term, StoreError>;

    /// Stores all changes or none, durably. Their order is that of the decisions. An event comes
    /// after the records that it tells of.
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError>;

    /// Stores the reports of these nodes, durably. A report is deleted with its node.
    fn keep_reports(&mut self, reports: &[(NodeName, Arc<NodeReport>)]) -> Result<(), StoreError>;
}

/// What a store holds at start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    pub fleet: Stored,
    /// The events that [`crate::kept`] keeps, oldest first.
    pub events: Vec<Event>,
}

fn deleted(changes: &[Change]) -> impl Iterator<Item = &JobUid> {
    changes.iter().filter_map(|change| {
        if let Change::DeleteJob(uid) = change {
            Some(uid)
        } else {
            None
        }
    })
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("state directory {path} cannot be used")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("state directory {path} is in use by another coordinator{}; two must never share one", pid.as_ref().map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    InUse { path: PathBuf, pid: Option<String> },
    #[error(
        "store file {path} is damaged: {what}. Nothing was changed. Put back a copy of the file; or move it away and start with no \
         jobs, which leaves running workers alone but forgets them"
    )]
    Damaged { path: PathBuf, what: String },
    #[error(
        "store file {path} ends with commit {found}, but commit {known} was acknowledged: it is damaged, or an old copy was put back. \
         Nothing was changed. Put back the newest copy; or, to go on without what is lost, remove {}", witness.display()
    )]
    Behind {
        path: PathBuf,
        found: u64,
        known: u64,
        witness: PathBuf,
    },
    #[error(
        "store file {path} has format {found}, this build reads format {known}: use the build that wrote it"
    )]
    Format {
        path: PathBuf,
        found: u64,
        known: u64,
    },
    #[error("store file {path}: {what} cannot be read by this build")]
    Record {
        path: PathBuf,
        what: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("write to store file {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    #[error(
        "another coordinator decides now; this one says nothing more. What it had committed before stands"
    )]
    Deposed,
}
