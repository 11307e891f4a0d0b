//! The agent as it runs: a real process with real runners, against a coordinator that the test plays.

mod lifecycle;
mod logs;
mod obedience;
mod refusals;
mod rig;
mod torchrun;
