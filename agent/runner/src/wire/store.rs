//! The TCPStore that a runner serves: where it listens, and its state.

use serde::{Deserialize, Serialize};

/// Where the store listens, as `ip:port`; port 0 lets the kernel choose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreSpec {
    pub bind: String,
    /// The generation's `--rdzv-id`, which is part of the keys of torchrun's exit barrier.
    #[serde(default)]
    pub run_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStatus {
    pub addr: String,
    pub clients: usize,
    pub joined_ranks: Vec<u32>,
    pub missing_ranks: Vec<u32>,
    #[serde(default)]
    pub all_joined_us: Option<u64>,
    /// How many connections the store has refused, for any reason.
    #[serde(default)]
    pub refused: u64,
    /// Why it refused the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_why: Option<String>,
}
