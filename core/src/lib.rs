//! Muster's decisions and nothing else: pure functions and synchronous machines over plain values.
//!
//! Time, randomness and identifiers come in as arguments; actions go out as effects. This crate has
//! no async, clock, environment, file or log. So every rule can be tested with a clock that the
//! test moves by hand, and the world simulation runs the same code as production.
//!
//! - the words that both sides share: [`id`], [`time`], [`period`], [`spec`], [`exit`], [`error_class`],
//!   [`node_report`], [`node_object`], [`container`], [`health`], [`run`], [`stacks`], [`stall`], [`slow`], [`layout`], [`usage`], [`protocol`], [`hello`];
//! - [`check`]: what small jobs say of the nodes that they ran on, for the command line;
//! - [`nccl`]: the environment of the ranks, which the coordinator decides and each agent
//!   completes;
//! - [`fleet`]: the coordinator's decisions, entered through [`fleet::turn`];
//! - [`node`]: the agent's decisions, entered through [`node::turn`].
//!
//! `fleet` and `node` never import each other.
#![forbid(unsafe_code)]

pub mod check;
pub mod container;
pub mod error_class;
pub mod exit;
pub mod fleet;
pub mod health;
pub mod hello;
pub mod id;
pub mod layout;
pub mod nccl;
pub mod node;
pub mod node_object;
pub mod node_report;
pub mod period;
pub mod protocol;
pub mod run;
pub mod signal;
pub mod slow;
pub mod spec;
pub mod stacks;
pub mod stall;
pub mod time;
pub mod usage;
