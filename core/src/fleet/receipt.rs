//! Incident receipts: the measured cost of one change of a job's generation, phase by phase.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    error_class::ErrorClass,
    id::{Generation, NodeName},
    period::micros,
    run::PhasesReport,
    stall::Stall,
    time::Timestamp,
};

/// Why a generation was opened. The derived order serves as the order of severity when one cause
/// must explain a re-form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Cause {
    FirstStart,
    WorkerFailed,
    WorkerKilled,
    /// A rank ended with 0 while others trained, and those lost it.
    EndedEarly,
    /// Ranks gave up waiting for another one in a collective, or in another exchange between ranks.
    CollectiveTimeout,
    /// Nothing moved any more.
    Stalled,
    /// Members lost their connections to each other, although every node is heard.
    PeersLost,
    NodeLost,
    NodeRebooted,
    /// The node's own verdict on its hardware: GPUs, links, network.
    NodeUnhealthy,
    /// The node's machine will be taken away, or its pod is deleted. The job was moved off it in time,
    /// or what ran there was ended with it.
    NodeLeaving,
    NodeDeleted,
    /// The job's `fenceAfter` stopped its workers, because they heard nothing of the coordinator.
    Fenced,
    StartFailed,
    StartTimeout,
    /// The software of some members does not match the others', and the job refuses that.
    MixedNodes,
    NodeJoined,
    Scaled,
    /// A rank made the others wait, and the job left its node (`onSlowRank: replace`).
    RankSlow,
    /// A job of higher priority needed the room.
    Preempted,
    /// Somebody held the job back for a while.
    Suspended,
    Resumed,
    /// A person has accepted an older copy of the store, and a member had gone on to a generation
    /// that this copy does not know.
    StoreAccepted,
}

impl Cause {
    /// Whether something broke. The other causes are changes of the generation that are no break.
    pub fn is_failure(self) -> bool {
        use Cause::*;
        match self {
            WorkerFailed | WorkerKilled | EndedEarly | CollectiveTimeout | Stalled | PeersLost
            | NodeLost | NodeRebooted | NodeUnhealthy | Fenced | StartFailed | StartTimeout => true,
            FirstStart | NodeLeaving | NodeDeleted | MixedNodes | NodeJoined | Scaled
            | RankSlow | Preempted | Suspended | Resumed | StoreAccepted => false,
        }
    }
}

/// Who is charged with a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Charged {
    Job,
    Node,
    Nobody,
}

/// One re-formation. Points in time are on the coordinator's clock. A point that was not reached,
/// or could not be measured, is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    pub cause: Cause,
    pub message: String,
    /// Of what kind the first error was. `None`: nothing broke, or an older version wrote this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ErrorClass>,
    pub charged: Charged,
    /// The rank or node that broke first.
    pub culprit: Option<String>,
    /// The ranks and nodes that fell because of the culprit.
    pub collateral: Vec<String>,
    /// How many more there were. A thousand names say no more than some.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub collateral_more: u32,
    pub from: Option<Generation>,
    pub to: Option<Generation>,
    pub from_nodes: u32,
    pub to_nodes: u32,
    /// When it happened. For a rank's exit this is the time at which its node's kernel saw it. For
    /// a silent node it is the time at which the node was last heard.
    pub event_at: Timestamp,
    /// When the coordinator knew.
    pub detected_at: Timestamp,
    /// When the next generation was stored.
    pub decided_at: Option<Timestamp>,
    /// When the last member of the old generation that could be asked was proven dead.
    pub stopped_at: Option<Timestamp>,
    /// When the last member had started its first worker process.
    pub launched_at: Option<Timestamp>,
    /// When all ranks had entered the process group, as the TCPStore saw it.
    pub joined_at: Option<Timestamp>,
    /// When the first line of output with a step appeared.
    pub first_step_at: Option<Timestamp>,
    /// What the start of the new generation was spent on, so far as it was seen.
    #[serde(default, skip_serializing_if = "PhasesReport::is_empty")]
    pub seen: PhasesReport,
    pub last_step_before: Option<u64>,
    pub first_step_after: Option<u64>,
    /// The node that was lost or failed, if one was.
    pub node: Option<NodeName>,
    /// The rule of the job that decided what follows, in its words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The ranks that were ordered to start again alone, while the others went on in the same
    /// generation. Empty: all processes were started again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarted_ranks: Vec<u32>,
    /// Nothing of the old generation moved any more before its end. Old incidents have no stacks of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Box<Stall>>,
    /// The part of this incident in which nothing could be done, because nodes were missing or the
    /// job was in back-off.
    #[serde(default, with = "micros")]
    pub waited: Duration,
}

/// How many ranks and nodes a receipt names as collateral. 32 names of about 25 bytes in 100 receipts are
/// 80 KB of a record.
pub(crate) const COLLATERAL_MAX: usize = 32;

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Incident {
    /// Adds these to what fell because of the culprit. The receipt names the first, and counts the
    /// others.
    pub(crate) fn add_collateral(&mut self, fell: impl IntoIterator<Item = String>) {
        let known: BTreeSet<&String> = self.culprit.iter().chain(&self.collateral).collect();
        let fell = fell.into_iter();
        let mut new: Vec<String> = fell.filter(|name| !known.contains(name)).collect();
        let room = COLLATERAL_MAX.saturating_sub(self.collateral.len());
        // Who was counted before may be among them again.
        let more = new.len().saturating_sub(room) as u32;
        self.collateral_more = self.collateral_more.max(more);
        new.truncate(room);
        self.collateral.extend(new);
    }

    /// The node that it is due to. `None`: nobody knows one, or the job itself is at fault.
    pub fn blames(&self) -> Option<&NodeName> {
        self.node.as_ref().filter(|_| self.charged != Charged::Job)
    }

    /// Steps that are trained again because they came after the last checkpoint.
    pub fn steps_lost(&self) -> Option<u64> {
        Some((self.last_step_before? + 1).saturating_sub(self.first_step_after?))
    }
}

impl Incident {
    /// A receipt that knows nothing but the time of its event.
    pub fn at(event_at: Timestamp) -> Self {
        Self {
            cause: Cause::FirstStart,
            message: String::new(),
            class: None,
            charged: Charged::Nobody,
            culprit: None,
            collateral: Vec::new(),
            collateral_more: 0,
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
            seen: PhasesReport::default(),
            last_step_before: None,
            first_step_after: None,
            node: None,
            rule: None,
            restarted_ranks: Vec::new(),
            stall: None,
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
