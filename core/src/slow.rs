//! Ranks that make the others wait: which ones come late to the collectives of their group, call after call, and what
//! that costs each step.
//!
//! Runners look every ten seconds, all at the same time, at when their ranks came to some calls that all choose alike
//! ([`Arrivals`]). [`rule::late`] says for one look who was late by how much, and [`Watch`] whether that lasts. A rank is
//! *slow* if its lateness has made each step at least 1.3 times as long for a minute.
//!
//! People are told. [`Left`] says which nodes a job leaves for it, if the job asks for that.

mod clock;
mod kept;
mod left;
mod rule;
mod watch;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use clock::Offset;
pub use kept::{Slow, SlowRank};
pub use left::Left;
pub use rule::{Came, Late, late};
pub use watch::{News, Watch};

/// What one look has found out about one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Arrivals {
    /// Which look this was: Unix time by ten seconds. Nodes look at the same time, so looks of one number belong together.
    pub look: u64,
    /// Of each process group in which calls repeat.
    pub groups: Vec<InGroup>,
    /// How far the clock of its node is from the coordinator's. `None`: nobody has measured it.
    pub clock: Option<Clock>,
}

/// When a rank came to the calls of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InGroup {
    pub group: String,
    /// After so many calls they repeat: a round. As a rule this is a step.
    pub calls: u64,
    pub round: Duration,
    /// Sequence numbers of calls, and when the rank made them, in microseconds of its node's Unix time.
    pub marks: Vec<(u64, u64)>,
    /// How long a call takes, as a rule, from here until the process knows that it has completed. `None`: the backend
    /// does not say, as gloo.
    pub inside: Option<Duration>,
    /// Ranks also send to each other in it, as the stages of a pipeline do.
    pub sends: bool,
}

/// The clock of a node beside that of its coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Clock {
    /// Microseconds by which the node is ahead.
    pub ahead_us: i64,
    /// By how much that may be wrong: half of a round trip.
    pub error_us: u64,
}
