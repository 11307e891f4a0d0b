//! What a launcher that has imported torch is told: how it is started ahead, and the one order it
//! waits for.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a launcher that has imported torch is told to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub lane: Lane,
    /// The interpreter's own options.
    pub options: Vec<String>,
    /// Parked: torchrun's arguments. Fork and direct: the script and its arguments, or `-m`, the
    /// module and its arguments.
    pub argv: Vec<String>,
    /// Direct: what each rank executes where no launcher waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// torchrun's `--rdzv-id`.
    pub run_id: String,
    /// Fork and direct: a rank that an exception ends whose text holds one of these fell because a
    /// peer was lost. It ends without taking its interpreter apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_lost: Vec<String>,
}

/// How a launcher starts the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    Parked,
    Fork,
    Direct,
}

/// How a launcher is started that stays.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkSpec {
    /// The interpreter.
    pub program: String,
    pub options: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: PathBuf,
    /// Nobody waits for it: it takes no time from workers while it imports.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// Ranks of a generation on this node.
    #[serde(default)]
    pub ranks: u32,
}

/// Leaves the environment out: it holds secrets.
impl std::fmt::Debug for ParkSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParkSpec")
            .field("program", &self.program)
            .field("options", &self.options)
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

/// The job that takes over a launcher of the warm pool gives it these.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptSpec {
    pub env: BTreeMap<String, String>,
    pub cwd: PathBuf,
}

/// Leaves the environment out: it holds secrets.
impl std::fmt::Debug for AdoptSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdoptSpec")
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}
