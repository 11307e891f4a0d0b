//! Plumbing that both daemons share: how a process starts to log, owns its tasks, keeps time,
//! retries and ends.
//!
//! Nothing here knows what Muster is for, and nothing here imports other crates of Muster.
#![forbid(unsafe_code)]

pub mod backoff;
pub mod chain;
pub mod clock;
pub mod service;
pub mod shutdown;
pub mod tasks;
pub mod telemetry;
pub mod ticker;
pub mod version;
