//! One of several members of a job that one runner holds.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

/// One of several members on a node: what its ranks execute. The environment is complete.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberSpec {
    /// Its number in the generation.
    pub number: u32,
    /// Global rank of its first rank.
    pub first_rank: u32,
    pub ranks: u32,
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// As in [`StartSpec`](super::StartSpec).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_files: BTreeMap<String, String>,
    pub cwd: PathBuf,
    /// As in [`StartSpec`](super::StartSpec).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restartable: bool,
}

/// The environment is left out because it holds secrets.
impl std::fmt::Debug for MemberSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemberSpec")
            .field("number", &self.number)
            .field("first_rank", &self.first_rank)
            .field("ranks", &self.ranks)
            .field("command", &self.command)
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}
