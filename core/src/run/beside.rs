//! What a node has seen beside the ranks of a run: worlds that they have started themselves, processes
//! that they have left behind, a pattern that is not searched for, a runner that did not obey. What
//! follows from it is decided in `fleet`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::period::serde_period;

/// What a node has seen of the world that the ranks of a run form, and of worlds beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorldReport {
    /// How many torchruns and ranks have announced themselves to the generation's TCPStore. It is
    /// counted up to one more than there are nodes. `None`: another node serves it, or nobody counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub announced: Option<u32>,
    /// The first world that a rank of this node has started itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nested: Option<NestedWorld>,
}

impl WorldReport {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Ranks below a rank, which meet somewhere else than at the generation's TCPStore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NestedWorld {
    /// The global rank below which they are.
    pub rank: u32,
    /// One of them.
    pub pid: u32,
    /// The launcher that has started them, as `torchrun`. Empty: none that is known.
    pub launcher: String,
    pub world_size: u32,
}

/// A process that ranks have left behind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leftover {
    pub pid: u32,
    /// Its program, with its script if it has one. Its other words may be secrets.
    pub program: String,
    /// It had not ended when its grace was over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub killed: bool,
}

/// Why a job's `stepPattern` is not searched for in the output of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StepPatternFault {
    /// The job was accepted before there was a bound, and its pattern is above it.
    TooLarge,
    /// It took too long on many lines.
    TooSlow,
}

/// A runner that has not done what it was ordered to, long after the time for it was over. The node
/// kills it then, with everything below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Disobedience {
    /// The time that the order gave to the ranks.
    #[serde(with = "serde_period")]
    pub grace: Duration,
    /// How long after that time it was killed.
    #[serde(with = "serde_period")]
    pub late: Duration,
    /// It answered when it was asked, and ended nothing. Otherwise it did not even answer.
    pub answered: bool,
}
