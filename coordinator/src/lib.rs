//! The central daemon: hears the agents, serves the users, keeps the record. `core::fleet` makes
//! every decision.
//!
//! | file | owns |
//! |---|---|
//! | `engine` | the one thread that owns all state: input, turn, commit, effects |
//! | `inbox` | what goes into its queue, and what comes back for a session |
//! | `handle` | the way in which every other task speaks with the engine |
//! | `board` | what the engine has published: jobs, nodes, events |
//! | `lead` | whether this process still has the right to decide |
//! | `store` | the durable record |
//! | `api` | the gRPC services |
//! | `trust` | the certificate authority, tokens, roles |
//! | `audit` | the audit trail |
//! | `commands` | the commands beside the daemon |
//! | `kubernetes` | a Kubernetes cluster: its Node objects, tokens, rights |
//! | `failpoint` | places at which unit tests kill it; nothing in any other build |
//! | `turn_stats` | the size and the cost of one turn, as a value |
//! | `serve` | all of it put together, from start to a graceful end |
#![forbid(unsafe_code)]

pub mod api;
pub mod audit;
pub mod board;
pub mod commands;
pub mod engine;
mod failpoint;
pub mod handle;
pub mod inbox;
pub mod kept;
pub mod kubernetes;
pub mod lead;
pub mod options;
pub mod serve;
pub mod standby;
pub mod store;
pub mod trust;
pub mod turn_stats;
