//! When a job that waits will start, as far as that can be said, and from what it is known. `foresee` finds it.
//!
//! It is an estimate: it holds if jobs end when they are [expected](crate::fleet::expected_end) to, no new one comes, and nothing fails. Where
//! it would be a guess there is none, and a reason instead.

use crate::{
    fleet::{expected_end::ExpectedEnd, held_back::HeldBack},
    id::JobName,
    time::Timestamp,
};

/// Jobs that an answer names. Beyond that it counts them.
pub const NAMED_MAX: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    Expected(StartEstimate),
    Unknown(NoEstimate),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartEstimate {
    pub at: Timestamp,
    /// The jobs for whose nodes it waits, and when each ends: those that end last, the last first. Empty: it waits only for its time.
    pub after: Vec<Before>,
    /// How many more there are.
    pub more: u32,
}

/// A job that ends before another starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    pub job: JobName,
    pub end: ExpectedEnd,
}

/// Why there is no estimate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoEstimate {
    /// It does not start as long as these jobs run, and nobody knows when they end. Some of them may still wait themselves.
    UnknownEnds {
        jobs: Vec<JobName>,
        more: u32,
    },
    /// It would not start if no other job were there.
    Never,
    HeldBack(HeldBack),
    /// Its own deadline comes first.
    TooLate {
        deadline: Timestamp,
    },
    /// So many others come before it that it was not looked for.
    TooFarBack,
    /// So many jobs end before it starts that the search was given up.
    TooManyEnds,
}

impl Start {
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Start::Expected(estimate) => Some(estimate.at),
            Start::Unknown(_) => None,
        }
    }
}
