//! What the start of the ranks was spent on, as their runner has seen it. For display to users: a rank
//! can write what it likes into its own part.

use serde::{Deserialize, Serialize};

/// The slowest rank of a node counts. Whatever was not seen of all of them is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhasesStatus {
    /// When the last rank's script began. Only a forked rank says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_us: Option<u64>,
    /// When the last rank was first seen with a GPU open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_us: Option<u64>,
    /// What the node's first rank has imported itself before its first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imports: Option<ImportsStatus>,
    /// What NCCL says of its own initialization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl: Option<NcclStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportsStatus {
    pub us: u64,
    /// The packages that cost most, the dearest first.
    #[serde(default)]
    pub by: Vec<ImportStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportStatus {
    pub name: String,
    pub us: u64,
    /// Why it was not imported ahead. Empty: not known.
    #[serde(default)]
    pub why: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcclStatus {
    pub us: u64,
    /// The parts of that time, by NCCL's own words, the longest first.
    #[serde(default)]
    pub parts: Vec<(String, u64)>,
}
