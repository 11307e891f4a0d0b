//! What a job chooses of a few: each with its words, as they are written in a document.

use serde::{Deserialize, Serialize};

/// Whether a generation can make a step without one of its members. DDP, FSDP and Megatron cannot;
/// replicas that average now and then can. Decides whether one proven death makes the whole
/// generation inert (DESIGN R5, ring-break).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Progress {
    #[default]
    Synchronous,
    Independent,
}

impl Progress {
    pub const ALL: [(&str, Progress); 2] = [
        ("synchronous", Progress::Synchronous),
        ("independent", Progress::Independent),
    ];
}

/// What is done about nodes that are known not to go together in one generation
/// ([`crate::nccl::mixture`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeMix {
    /// They are taken, and an event says what differs.
    #[default]
    Warn,
    /// Only nodes that go together are taken; the job waits if they are too few.
    Refuse,
}

impl NodeMix {
    pub const ALL: [(&str, NodeMix); 2] = [("warn", NodeMix::Warn), ("refuse", NodeMix::Refuse)];

    /// As it is written in a document.
    pub fn name(self) -> &'static str {
        match self {
            NodeMix::Warn => "warn",
            NodeMix::Refuse => "refuse",
        }
    }
}

/// How workers are started: the lane, or who chooses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Launch {
    /// torchrun is executed.
    Cold,
    /// torchrun runs in an interpreter that has imported torch already.
    Parked,
    /// Ranks are forked from an interpreter that has imported torch already.
    Fork,
    /// Ranks are started without torchrun: forked where an interpreter waits that has imported
    /// torch, else executed.
    Direct,
    /// The fastest of these that is proven for the node's interpreter ([`crate::node::lane`]).
    #[default]
    Auto,
}

impl Launch {
    pub const ALL: [(&str, Launch); 5] = [
        ("cold", Launch::Cold),
        ("parked", Launch::Parked),
        ("fork", Launch::Fork),
        ("direct", Launch::Direct),
        ("auto", Launch::Auto),
    ];

    /// As it is written in a document.
    pub fn name(self) -> &'static str {
        match self {
            Launch::Cold => "cold",
            Launch::Parked => "parked",
            Launch::Fork => "fork",
            Launch::Direct => "direct",
            Launch::Auto => "auto",
        }
    }
}
