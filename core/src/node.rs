//! The agent's decisions: what one node does with its desired state and with the reports of its
//! runners. Pure; the agent executes them.
//!
//! [`Node::turn`] is the only door: one input in, effects out, which the agent executes in order.
//! It compares the desired with the actual state and emits what is missing, so an input that is
//! repeated, late or lost changes nothing in the end. It never starts a group twice. A run that
//! nobody mentions is left alone: silence never kills.

mod digest;
pub mod fitness;
mod group;
pub mod lane;
pub mod lease;
mod ledger;
pub mod pool;
pub mod skew;
pub mod spare;
pub mod torchrun;
mod turn;
mod unsaved;

pub use digest::Digest;
pub use group::{Found, FoundState, GroupPhase, GroupStatus, SeenExit};
pub use ledger::{JOBS_MAX, Ledger, Objection, Seen};
pub use turn::{Alarm, Effect, Input, Node, Turn};
