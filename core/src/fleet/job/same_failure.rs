//! What a job's record remembers of failures that look alike, and of generations that brought it no further.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{error_class::ErrorClass, id::NodeName, time::Timestamp};

/// Failures in a row that are the same: of one class, by one exception from one line, at one step. The job has
/// made no progress between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SameFailure {
    pub class: ErrorClass,
    /// The qualified type of the exception.
    pub exception: String,
    /// `FILE:LINE in FUNCTION`, of the innermost frame.
    pub place: String,
    /// The last step before it. `None`: its generation has shown none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// When the first of them was seen.
    pub since: Timestamp,
    pub times: u32,
    /// The nodes of the ranks that have failed, at most [`SAME_FAILURE_NODES_MAX`].
    pub nodes: BTreeSet<NodeName>,
}

/// That there was a second node is all that a rule asks. A few more are for people.
pub(crate) const SAME_FAILURE_NODES_MAX: usize = 8;

/// Generations in a row whose ranks were started, and that moved neither a step nor a checkpoint beyond the best.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InVain {
    pub generations: u32,
    /// People were told.
    pub told: bool,
}

impl InVain {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
