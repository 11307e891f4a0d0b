//! The node's daemon. It tells the coordinator the node's state, obeys the desired state through
//! runners, and owns nothing that a worker needs. Workers and their runners go on whatever happens
//! to this process.
//!
//! | file | owns |
//! |---|---|
//! | `config` | flags, checked |
//! | `lock`, `ledger_file` | one agent per state directory; its ledger |
//! | `probe` | the node's facts |
//! | `proof` | what the node shows to a coordinator that speaks TLS |
//! | `join`, `renewal` | getting this node's certificate, and renewing it |
//! | `leave` | taking the agent's service away |
//! | `session` | the one connection to the coordinator |
//! | `state_disk` | the threads that write what the agent must not forget |
//! | `supervisor` | the node's brain (`core::node`) and its effects |
//! | `containers` | the container of each job that runs in an image |
//! | `preflight`, `prepare` | the steps from an accepted run to its runner |
//! | `prove`, `trial_process`, `trials` | the compatibility suite's short half, run here for an interpreter that nobody has proven; its outcomes |
//! | `checkpoints` | the files that a job saves, watched |
//! | `step_formats` | the operator's formats of steps, checked |
//! | `hold`, `host` | a run described to its runner; where runners are started, found and swept up after |
//! | `runner_link`, `translate`, `last_words` | one runner: orders in, status out |
//! | `run_dir` | where runs lie on disk, and how long they are kept |
//! | `logs` | rank logs, read for users |
//! | `simulated` | a session without a node behind it, for benchmarks |
#![deny(unsafe_code)]

mod accounts;
mod atomic_file;
mod boot;
mod caches;
mod checkpoints;
pub mod config;
mod containers;
pub mod daemon;
mod hold;
mod host;
pub mod in_session;
pub mod join;
mod keep;
mod last_words;
mod launchers;
pub mod leave;
mod ledger_file;
mod lock;
mod logs;
mod preflight;
mod prepare;
pub mod probe;
mod proof;
pub mod prove;
mod renewal;
mod reserve;
mod run_dir;
mod runner_link;
mod session;
mod signals;
pub mod simulated;
mod stacks;
mod state_disk;
mod step_formats;
mod supervisor;
mod translate;
mod trial_process;
mod trials;
