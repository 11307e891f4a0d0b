//! Incident receipts: what one change of a job's world cost, phase by phase, measured.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    id::{Generation, NodeName},
    time::Timestamp,
};

/// Why a generation was opened. The order is that of severity, for "which cause explains this
/// re-form".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Cause {
    FirstStart,
    WorkerFailed,
    WorkerKilled,
    /// Members lost their connections to each other, and every one of them is there.
    PeersLost,
    NodeLost,
    NodeRebooted,
    /// Its own verdict on its hardware: GPUs, links, network.
    NodeUnhealthy,
    /// Its machine will be taken away: moved off it in time.
    NodeLeaving,
    NodeDeleted,
    /// The job's `fenceAfter` had its workers stopped, since nothing was heard of the coordinator.
    Fenced,
    StartFailed,
    StartTimeout,
    /// Members whose software does not go with the others', and the job refuses that.
    MixedNodes,
    NodeJoined,
    Scaled,
    Resumed,
    /// A person has accepted an older copy of the store, and a member had gone on to what that does
    /// not know.
    StoreAccepted,
}

impl Cause {
    /// Something broke; nobody wanted another world.
    pub fn is_failure(self) -> bool {
        use Cause::*;
        match self {
            WorkerFailed | WorkerKilled | PeersLost | NodeLost | NodeRebooted | NodeUnhealthy
            | Fenced | StartFailed | StartTimeout => true,
            FirstStart | NodeLeaving | NodeDeleted | MixedNodes | NodeJoined | Scaled | Resumed
            | StoreAccepted => false,
        }
    }
}

/// Whose account a failure goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Charged {
    Job,
    Node,
    Nobody,
}

/// One re-formation. Points in time are on the coordinator's clock; those not reached, or not
/// measurable, are `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    pub cause: Cause,
    pub message: String,
    pub charged: Charged,
    /// Rank or node that broke first.
    pub culprit: Option<String>,
    /// Ranks and nodes that fell because of it.
    pub collateral: Vec<String>,
    pub from: Option<Generation>,
    pub to: Option<Generation>,
    pub from_nodes: u32,
    pub to_nodes: u32,
    /// When it happened: a rank's exit as its node's kernel saw it; for a silent node, when it was
    /// last heard.
    pub event_at: Timestamp,
    /// The coordinator knew.
    pub detected_at: Timestamp,
    /// The next generation was stored.
    pub decided_at: Option<Timestamp>,
    /// The last member of the old generation that could be asked was proven dead.
    pub stopped_at: Option<Timestamp>,
    /// The last member's first worker process was started.
    pub launched_at: Option<Timestamp>,
    /// All ranks had entered the process group, as the store saw it.
    pub joined_at: Option<Timestamp>,
    /// The first line of output with a step.
    pub first_step_at: Option<Timestamp>,
    pub last_step_before: Option<u64>,
    pub first_step_after: Option<u64>,
    /// Node whose loss or failure it was, if one.
    pub node: Option<NodeName>,
    /// Time in it in which nothing could be done, for want of nodes or in back-off.
    #[serde(default, with = "micros")]
    pub waited: Duration,
}

impl Incident {
    /// Steps trained again because they were later than the last checkpoint.
    pub fn steps_lost(&self) -> Option<u64> {
        Some((self.last_step_before? + 1).saturating_sub(self.first_step_after?))
    }

    /// From the event to the first step of the new world.
    pub fn total(&self) -> Option<Duration> {
        Some(self.first_step_at.or(self.joined_at)?.since(self.event_at))
    }
}

impl Incident {
    /// A receipt with nothing on it yet but when.
    pub(crate) fn at(event_at: Timestamp) -> Self {
        Self {
            cause: Cause::FirstStart,
            message: String::new(),
            charged: Charged::Nobody,
            culprit: None,
            collateral: Vec::new(),
            from: None,
            to: None,
            from_nodes: 0,
            to_nodes: 0,
            event_at,
            detected_at: event_at,
            decided_at: None,
            stopped_at: None,
            launched_at: None,
            joined_at: None,
            first_step_at: None,
            last_step_before: None,
            first_step_after: None,
            node: None,
            waited: Duration::ZERO,
        }
    }
}

/// What all incidents of one cause have cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lost {
    pub incidents: u32,
    #[serde(with = "micros")]
    pub time: Duration,
    /// Not part of `time`.
    #[serde(with = "micros")]
    pub waited: Duration,
}

/// Periods in records are whole milliseconds; sums of many would lose by that.
pub(crate) mod micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        time: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_micros)
    }
}
