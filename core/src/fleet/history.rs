//! What is left of jobs that are over: one small record of each, kept for a year or for so many jobs.
//!
//! A record is made in the turn in which its job ends, and never changes. It is no part of the job, so it
//! survives the job's deletion. It says what the job was, how it ended, and where its time has gone, with the
//! sums of the job's own account ([`time_account`](crate::fleet::time_account)). One thing is decided from it: how a job ended that
//! another is to wait for. One thing is told from it: how long jobs like one that waits or runs took.
//!
//! | file | owns |
//! |---|---|
//! | `record` | the record of one job |
//! | `kept` | which jobs have a record, and which records are dropped |
//! | `wanted` | which records somebody asks for |
//! | `sums` | what many jobs have cost together |

mod kept;
mod record;
mod sums;
mod wanted;

pub(crate) use kept::{Kept, Over};
pub(crate) use record::hash;
pub use record::{CULPRITS_MAX, Culprit, HistoryRecord, NODES_MAX, Sum};
pub use sums::{By, Total, Who, totals};
pub use wanted::Wanted;
