//! How a worker group ends: the stop that was asked for, and the proof of its death.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopStatus {
    pub reason: String,
    pub asked_us: u64,
    pub grace_ms: u64,
    /// When everything that was left was killed. None if all ended by themselves.
    #[serde(default)]
    pub killed_us: Option<u64>,
    /// Nobody asked for the stop: the fence was due.
    #[serde(default)]
    pub fenced: bool,
}

/// The proof that nothing of the group lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeathProof {
    pub at_us: u64,
    pub how: ProofKind,
    /// Always 0. It is written so that a reader need not infer it.
    pub survivors: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProofKind {
    /// The group's own cgroup is empty and the runner, a subreaper, has no child left.
    Cgroup,
    /// The runner, a subreaper, has no child left. No cgroup could be made.
    Reaped,
}
