//! What the tests stand on: a node of real processes, and the coordinator's end of its session.

mod coordinator;
pub mod node;

pub use coordinator::{Coordinator, Session};
pub use node::{Node, alive, wait_gone};

use std::time::Duration;

/// Whatever is awaited comes within milliseconds; this is for a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(180);
