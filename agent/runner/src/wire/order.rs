//! The messages to a launcher that has imported torch: how it is started ahead, and the one order
//! that it waits for.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The order to a launcher that has imported torch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub lane: Lane,
    /// The interpreter's own options.
    pub options: Vec<String>,
    /// In the parked lane, torchrun's arguments. In fork and direct, the script and its arguments,
    /// or `-m`, the module and its arguments.
    pub argv: Vec<String>,
    /// In fork and direct, what each rank executes if no launcher waits, or if it has failed. An
    /// older agent sends none in fork.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// torchrun's `--rdzv-id`.
    pub run_id: String,
    /// In fork and direct: if an exception ends a rank and its text holds one of these, a lost peer
    /// is the cause. The rank then ends without taking its interpreter apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_lost: Vec<String>,
    /// Variables of a rank that this torch's torchrun does not set, and a newer one does. An older agent
    /// names none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<String>,
    /// In fork and direct: each forked rank can be asked for its stacks. An older agent does not say it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inspect: bool,
    /// And for its collectives: it opens torch's worker server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub collectives: bool,
}

/// How a launcher starts the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    Parked,
    Fork,
    Direct,
}

/// How to start a launcher that stays.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkSpec {
    /// The interpreter.
    pub program: String,
    pub options: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: PathBuf,
    /// Nobody waits for this launcher, so it takes no time from workers while it imports.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// How many ranks a generation has on this node.
    #[serde(default)]
    pub ranks: u32,
}

/// The environment is left out because it holds secrets.
impl std::fmt::Debug for ParkSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParkSpec")
            .field("program", &self.program)
            .field("options", &self.options)
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

/// What a job gives to a launcher of the warm pool that it takes over.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptSpec {
    pub env: BTreeMap<String, String>,
    pub cwd: PathBuf,
}

/// The environment is left out because it holds secrets.
impl std::fmt::Debug for AdoptSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdoptSpec")
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

/// Which standbys the next generation shall have.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandbySpec {
    pub mode: StandbyMode,
    /// What the next ranks will have as environment, as far as it is known.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The pids of the ranks that train now, in the order of their local ranks.
    #[serde(default)]
    pub ranks: Vec<i32>,
}

/// The environment is left out because it holds secrets.
impl std::fmt::Debug for StandbySpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StandbySpec")
            .field("mode", &self.mode)
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

/// What standbys do with their GPU while they wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandbyMode {
    /// There are none.
    Off,
    /// They keep it open, with its memory.
    Open,
    /// They have given its memory back to the driver.
    Parked,
}

/// The content of [`crate::record::STANDBYS`]: in the folder of a launcher, the standbys that wait; in
/// the folder of a run, those that became its ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandbysShown {
    pub mode: StandbyMode,
    #[serde(default)]
    pub ranks: Vec<StandbyShown>,
    /// The local ranks of a run that were standbys.
    #[serde(default)]
    pub used: Vec<u32>,
    /// Why there are none, or why not all were taken.
    #[serde(default)]
    pub why: Option<String>,
}

/// One standby that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandbyShown {
    pub local: u32,
    pub pid: i32,
    /// `opening`, `open`, `parking`, `parked`.
    pub state: String,
}
