//! What an interpreter of this node says about itself, and what the node has found out about it.

use crate::node_report::trial::Trial;

/// What an interpreter reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// Major and minor version of torch.
    pub torch: (u32, u32),
    /// The whole version of torch, with what its builder added: `2.8.0+cu128`.
    pub build: String,
    /// `sys.implementation.name`. Empty: it did not tell.
    pub implementation: String,
    /// Major and minor version of the language.
    pub python: (u32, u32),
    /// `sys.platform`.
    pub system: String,
    /// What this node has found out about it by itself.
    pub trial: Option<Trial>,
}
