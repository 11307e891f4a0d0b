//! The central daemon: hears the agents, serves the users, keeps the record. `core::fleet` makes
//! every decision. Every other task reaches the engine through `muster-handle`, as `muster-operator` does, which
//! turns Kubernetes objects into requests.
//!
//! | file | owns |
//! |---|---|
//! | `engine` | the one thread that owns all state: input, turn, commit, effects |
//! | `store` | the durable record |
//! | `api` | the gRPC services |
//! | `trust` | the certificate authority, tokens, roles |
//! | `audit` | the audit trail |
//! | `commands` | the commands beside the daemon |
//! | `kubernetes` | what a Kubernetes cluster says of callers, and the label of the pod that leads |
//! | `failpoint` | places at which unit tests kill it; nothing in any other build |
//! | `turn_stats` | the size and the cost of one turn, as a value |
//! | `metrics` | the page that a Prometheus scrapes |
//! | `queues` | the operator's file of queues |
//! | `notify` | telling people: the receivers, and sending them what waits |
//! | `serve` | all of it put together, from start to a graceful end |
#![forbid(unsafe_code)]

pub mod api;
pub mod audit;
pub mod commands;
pub mod engine;
mod failpoint;
pub mod kubernetes;
pub mod metrics;
pub mod notify;
pub mod options;
pub mod queues;
pub mod serve;
pub mod standby;
pub mod store;
pub mod trust;
pub mod turn_stats;
