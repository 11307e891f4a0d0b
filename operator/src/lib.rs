//! What turns Kubernetes objects into requests to the engine, and what the engine has published into objects:
//! jobs, worker pods, queues, Node objects, objects of other systems' kinds.
//!
//! It decides nothing about the fleet. It reads objects, asks `rules` what they want, asks the engine through its
//! handle, and writes what the API server should have. The coordinator wires it, and serves gRPC beside it.
//!
//! | file | owns |
//! |---|---|
//! | `rules` | what objects ask for and what they should show, as plain functions |
//! | `follow` | listing and following all objects of one kind, of which each namespace has a share |
//! | `adopt` | objects of other systems' kinds: they become `MusterJob` objects, and get a status in their words |
//! | `jobs` | `MusterJob` objects: they become jobs, and jobs become their status |
//! | `crd` | the definition of `MusterJob` objects |
//! | `nodes` | the Node objects, listed and followed |
//! | `object` | what is kept of a Node object |
//! | `owner` | whose job an object is that was read |
//! | `marking` | what is written on Node objects: cordons, a condition |
//! | `pods` | worker pods: they are made for jobs, and become nodes; queues of Kueue |
//! | `gang`, `versions` | pods that are scheduled together; the version of a kind that the cluster has |
//! | `desk` | what the loops about jobs, pods and queues tell each other |
//! | `controller`, `work_queue` | the loop of all controllers; what waits in it, what is under way, whose turn it is |
//! | `pace`, `attempts`, `stamp` | so many writes in a time; when to try again; times as text |
//! | `server` | one question and its answer, within seconds or not at all |
//! | `account` | the service account of the agents |
//! | `bundle` | the certificate authorities, in a ConfigMap for the agents |
#![forbid(unsafe_code)]

mod account;
mod adopt;
mod attempts;
mod bundle;
mod controller;
mod crd;
mod desk;
mod follow;
mod gang;
mod jobs;
mod marking;
mod nodes;
mod object;
mod owner;
mod pace;
mod pods;
pub mod rules;
mod server;
mod stamp;
mod versions;
mod work_queue;

pub use account::{Account, BadAccount};
pub use adopt::Adopt;
pub use bundle::Bundle;
pub use crd::{GROUP, JOBS, yaml as definition_yaml};
pub use desk::Desk;
pub use follow::KEPT_MAX;
pub use jobs::Jobs;
pub use marking::Marking;
pub use nodes::Nodes;
pub use owner::Owner;
pub use pods::Pods;
pub use server::{NoServer, Server, Unanswered, cut};
