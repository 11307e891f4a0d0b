//! The agent as a real process with real runners. The test plays the coordinator.
#![allow(
    clippy::unwrap_used,
    reason = "in a test, what is not there is a failure"
)]
#![allow(unreachable_pub, reason = "the rig is one crate with its tests")]

mod clocks;
mod disk;
mod fences;
mod lifecycle;
mod logs;
mod obedience;
mod owners;
mod refusals;
mod rig;
mod slow_disk;
mod strays;
mod tokens;
mod torchrun;
mod unkillable;
mod usage;
mod warm;
