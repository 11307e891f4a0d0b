//! What a job's record remembers of its last start, if that failed.

use serde::{Deserialize, Serialize};

/// A start that failed in a way that does not change by itself, as a missing script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedStart {
    /// Why, without the name of the node.
    pub symptom: String,
    /// How many nodes said so.
    pub nodes: u32,
    /// How many starts in a row failed so.
    pub times: u32,
}
