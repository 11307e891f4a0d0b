//! The way to the engine, for every other task of the coordinator: what it may be asked, and what it has
//! published. The engine itself is the coordinator's.
//!
//! | file | owns |
//! |---|---|
//! | `handle` | the way in which every other task speaks with the engine |
//! | `inbox` | what goes into its queue, and what comes back for a session |
//! | `board` | what the engine has published: jobs, nodes, events |
//! | `kept` | which events are kept |
//! | `lead` | whether this process still has the right to decide |
#![forbid(unsafe_code)]

pub mod board;
pub mod handle;
pub mod inbox;
pub mod kept;
pub mod lead;
