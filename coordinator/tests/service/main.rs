//! A real coordinator on a free port, used in the way of its users and agents.
//!
//! Most tests run it inside the test process with a store in a temporary directory. `process` runs
//! the program itself.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod access;
mod after;
mod agent;
mod audit;
mod bad_messages;
mod bundle;
mod cluster;
mod connections;
mod cordons;
mod crowds;
mod dependents;
mod environment;
mod history;
mod job_objects;
mod jobs;
mod kubectl;
mod kubernetes;
mod logs;
mod mail;
mod mail_by_jobs;
mod metrics;
mod nodes;
mod notifications;
mod pod_gpus;
mod process;
mod queues;
mod quotas;
mod raw_logs;
mod reflection;
mod rotation;
mod semantics;
mod server;
mod sessions;
mod shared_trust;
mod shares;
mod signals;
mod stacks;
mod starts;
mod stores;
mod tokens;
mod users;
mod wait;
mod worker_pods;
