//! Functions that start processes, find them and look at files in the place where workers live: on
//! the machine, or in the workers' container. Everything here blocks, and nothing here decides.
//!
//! On a machine the agent is in that place itself and calls these functions. In a pod the workers
//! are in another container, and its init process calls them for the agent (see
//! [`pod`](crate::pod)).

mod files;
mod memory;
mod program;
mod saved;
mod sweep;
mod usage;
mod user;

pub use files::{Wanted, find, modified};
pub use memory::memory;
pub(crate) use program::read_to_end;
pub use program::{
    ASK, DIE_TIMEOUT, OUTPUT_MAX, Output, PRINTED_MAX, Program, READY_TIMEOUT, SAID_MAX, Said,
    TAKEN, ask, start, started,
};
pub use saved::saved;
pub use sweep::{Left, RUN_DIR, Remains};
pub use usage::{TreeUsage, usage};
pub use user::{AS, Become, CGROUP};
