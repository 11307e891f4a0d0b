//! The rig of the tests: a node of real processes, and the coordinator's end of its session.

mod coordinator;
pub mod node;

pub use coordinator::{Coordinator, Session};
pub use node::{Node, alive, wait_gone};

use std::time::Duration;

/// Everything that is awaited comes within milliseconds. The limit is for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);
