//! What people were told of a job's world.

use serde::{Deserialize, Serialize};

/// What people were told of a job's world. Each is told once in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ToldOfWorld {
    /// A rank has started a world of its own.
    pub nested: bool,
    /// No rank had come to the TCPStore, and no step was seen.
    pub unmet: bool,
    /// No rank had come to the TCPStore, and the job made steps.
    pub apart: bool,
}

impl ToldOfWorld {
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
