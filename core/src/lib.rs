//! Muster's decisions, and nothing else: pure functions and synchronous machines over plain values.
//!
//! Time, randomness and identifiers come in as arguments; what is to be done goes out as effects.
//! There is no async, clock, environment, file or log in here, so every rule can be tested by
//! moving time by hand, and the world simulation runs the very code that runs in production.
//!
//! - the vocabulary both sides share: [`id`], [`time`], [`period`], [`spec`], [`exit`],
//!   [`node_report`], [`health`], [`run`], [`usage`], [`protocol`];
//! - [`nccl`]: the environment of the ranks, agreed by the coordinator and filled in by each agent;
//! - [`fleet`]: the coordinator's brain, entered through [`fleet::turn`];
//! - [`node`]: the agent's brain, entered through [`node::turn`].
//!
//! `fleet` and `node` never import each other.
#![forbid(unsafe_code)]

pub mod exit;
pub mod fleet;
pub mod health;
pub mod id;
pub mod nccl;
pub mod node;
pub mod node_report;
pub mod period;
pub mod planted;
pub mod protocol;
pub mod run;
pub mod spec;
pub mod time;
pub mod usage;
