//! What a node says about itself: the one report that all probes are merged into.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A node's facts as its agent sees them. The whole report is sent on change; there are no partial updates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Where other members reach this node: an IP address. The store and `MASTER_ADDR` use it.
    pub address: String,
    /// `version (commit)` of the agent.
    pub agent_version: String,
    pub hostname: String,
    pub kernel: String,
    pub labels: BTreeMap<String, String>,
    /// Worker groups this node takes at a time when they ask for no GPU.
    pub slots: u32,
    pub cpus: u32,
    pub memory_bytes: u64,
    pub gpus: Vec<Gpu>,
    /// Why the GPU list may be short: NVML could not be read. `None` also where there is no driver at all.
    pub gpu_error: Option<String>,
}

/// One GPU as NVML names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    pub uuid: String,
    pub index: u32,
    pub model: String,
    pub memory_bytes: u64,
}
