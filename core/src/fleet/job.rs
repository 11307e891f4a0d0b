//! A job's durable record: all that must survive a coordinator that dies at any moment.
//!
//! Phases: `Pending -> Forming -> Running -> Succeeded`, with `Running -> Recovering -> Running` for every broken or outgrown
//! generation, `Recovering -> Pending` when fewer than the minimum are left, `* -> Stopping -> Cancelled` on request, and `* -> Failed`
//! when the restart budget is spent. Succeeded, Failed and Cancelled are for ever.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    fleet::receipt::{Cause, Incident},
    id::{Generation, JobName, JobUid, NodeName},
    spec::JobSpec,
    time::Timestamp,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    Pending,
    Forming,
    Running,
    Recovering,
    Stopping,
    Succeeded,
    Failed,
    Cancelled,
}

impl Phase {
    pub fn is_over(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed | Phase::Cancelled)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRecord {
    pub uid: JobUid,
    pub name: JobName,
    pub spec: JobSpec,
    /// The submission's idempotency key; empty if the client gave none.
    pub request_id: String,
    pub created: Timestamp,
    /// Nodes wanted now: `spec.replicas` until somebody scales.
    pub replicas: u32,
    pub phase: Phase,
    /// CamelCase reason of the phase, and a sentence with the numbers.
    pub reason: String,
    pub message: String,
    /// The generation being formed or running.
    pub current: Option<GenerationRecord>,
    /// Generations replaced by newer ones of which some member is not yet proven dead.
    pub retiring: Vec<GenerationRecord>,
    /// The last generation number given out.
    pub last_generation: Generation,
    /// Failures charged to the job within its window, newest last.
    pub restarts: Vec<Timestamp>,
    /// All generations after the first that a failure caused.
    pub restart_count: u32,
    /// Failures in a row without a healthy stretch between, for the back-off.
    pub failures_in_row: u32,
    /// Not to be started again before this.
    pub not_before: Option<Timestamp>,
    /// Newest last, bounded by `INCIDENTS_MAX`.
    pub incidents: Vec<Incident>,
    pub incidents_dropped: u32,
    pub finished: Option<Timestamp>,
}

/// Receipts kept with a job. 100 of about 400 bytes stay far below a record of 64 KiB.
pub const INCIDENTS_MAX: usize = 100;

/// One sealed membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GenerationRecord {
    pub number: Generation,
    pub cause: Cause,
    /// In node rank order.
    pub members: Vec<Member>,
    pub proc_per_node: u32,
    pub store_host: NodeName,
    /// Rendezvous id with the generation's number in it; unique for ever.
    pub rendezvous: String,
    pub opened: Timestamp,
    /// Members may be told to train: everybody was ready and the generation before is inert.
    pub started: bool,
    /// A member broke or the world is outgrown; never trains again.
    pub stopping: Option<Stopping>,
    /// Members proven dead.
    pub dead: BTreeSet<NodeName>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    pub node: NodeName,
    /// The node's boot at sealing: another boot proves everything of this one dead.
    pub boot_id: String,
    pub gpus: Vec<String>,
}

/// How a generation is being ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stopping {
    pub reason: String,
    /// Time to save a checkpoint. Zero for a broken synchronous generation: its survivors cannot make a step any more.
    #[serde(with = "crate::period::serde_period")]
    pub grace: std::time::Duration,
}

impl GenerationRecord {
    pub fn world_size(&self) -> u32 {
        self.members.len() as u32 * self.proc_per_node
    }

    pub fn has(&self, node: &NodeName) -> bool {
        self.members.iter().any(|member| &member.node == node)
    }

    pub fn all_dead(&self) -> bool {
        self.members.iter().all(|member| self.dead.contains(&member.node))
    }
}
