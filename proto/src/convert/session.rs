//! The agent session: hello and reports up, welcome and desired state down.
//!
//! Core's reports carry points in time on the sender's clock; the wire carries ages. So everything with a time in it takes `now`: the
//! sender's on the way out, the receiver's on the way in. Whatever comes from the wire is bounded here, once, for both ends.

use std::{collections::BTreeMap, time::Duration};

use muster_core::{
    fleet::Hello,
    id::{Generation, JobUid, NodeEpoch, NodeName, Term, node_name_error},
    protocol::Speaks,
    time::Timestamp,
};

use super::Malformed;
use crate::v1;

pub(super) mod bounds;
mod desired;
mod node_report;
mod run_report;
#[cfg(test)]
mod tests;

pub use desired::{desired_from_wire, desired_to_wire};
pub use node_report::{node_report_from_wire, node_report_to_wire};
pub use run_report::{RUNS_MAX, runs_from_wire, runs_to_wire};

use bounds::{NAME_MAX, count, malformed, required_text, text};

pub fn hello_to_wire(hello: &Hello, now: Timestamp) -> v1::Hello {
    v1::Hello {
        protocol: hello.speaks.newest,
        protocol_oldest: hello.speaks.oldest,
        node: hello.node.to_string(),
        boot_id: hello.boot_id.clone(),
        incarnation: hello.incarnation,
        term_seen: hello.term_seen.0,
        epoch_seen: hello.epoch_seen.0,
        generations_seen: hello.generations_seen.iter().map(|(job, generation)| (job.to_string(), generation.0)).collect(),
        report: Some(node_report_to_wire(&hello.report)),
        runs: Some(runs_to_wire(&hello.runs, now)),
    }
}

/// What an agent says it speaks. To be looked at before anything else of its hello: what the rest means depends on it.
pub fn speaks_from_wire(wire: &v1::Hello) -> Result<Speaks, Malformed> {
    let newest = wire.protocol;
    let oldest = if wire.protocol_oldest == 0 { newest } else { wire.protocol_oldest };
    if newest == 0 {
        return Err(malformed("hello.protocol", "is 0, the first version is 1"));
    }
    if oldest > newest {
        return Err(malformed("hello.protocol_oldest", format!("is {oldest}, and the newest is {newest}")));
    }
    Ok(Speaks { oldest, newest })
}

/// A hello of a version this build speaks.
pub fn hello_from_wire(wire: v1::Hello, now: Timestamp) -> Result<Hello, Malformed> {
    let speaks = speaks_from_wire(&wire)?;
    if let Some(message) = node_name_error(&wire.node) {
        return Err(malformed("hello.node", message));
    }
    if wire.boot_id.is_empty() {
        return Err(malformed("hello.boot_id", "is empty"));
    }
    Ok(Hello {
        node: NodeName::from(wire.node),
        boot_id: text("hello.boot_id", wire.boot_id, NAME_MAX)?,
        incarnation: wire.incarnation,
        speaks,
        term_seen: Term(wire.term_seen),
        epoch_seen: NodeEpoch(wire.epoch_seen),
        generations_seen: generations_from_wire(wire.generations_seen)?,
        report: node_report_from_wire(wire.report.ok_or_else(|| malformed("hello.report", "is missing"))?)?,
        runs: runs_from_wire(wire.runs.ok_or_else(|| malformed("hello.runs", "is missing"))?, now)?,
    })
}

/// Jobs a hello may name: as many as an agent's ledger remembers, which is 1,000 (`core/src/node/ledger.rs`).
const GENERATIONS_MAX: usize = 1_000;

fn generations_from_wire(wire: BTreeMap<String, u64>) -> Result<BTreeMap<JobUid, Generation>, Malformed> {
    count("hello.generations_seen", wire.len(), GENERATIONS_MAX)?;
    let uid = |uid| required_text("hello.generations_seen", uid, NAME_MAX).map(JobUid::from);
    wire.into_iter().map(|(job, generation)| Ok((uid(job)?, Generation(generation)))).collect()
}

/// The coordinator's answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub term: Term,
    pub epoch: NodeEpoch,
    /// How often the agent shall speak.
    pub heartbeat: Duration,
    /// The version of the protocol both use from here on.
    pub protocol: u32,
}

pub fn welcome_to_wire(welcome: &Welcome) -> v1::Welcome {
    v1::Welcome {
        term: welcome.term.0,
        epoch: welcome.epoch.0,
        heartbeat_interval_ms: u64::try_from(welcome.heartbeat.as_millis()).unwrap_or(u64::MAX),
        protocol: welcome.protocol,
    }
}

/// Heartbeats an agent accepts to send: a hundred a second is a flood, one a minute is as good as silence.
const HEARTBEAT: std::ops::RangeInclusive<u64> = 10..=60_000;

pub fn welcome_from_wire(wire: v1::Welcome) -> Result<Welcome, Malformed> {
    if !HEARTBEAT.contains(&wire.heartbeat_interval_ms) {
        let (low, high) = (HEARTBEAT.start(), HEARTBEAT.end());
        let message = format!("is {}, must be between {low} and {high}", wire.heartbeat_interval_ms);
        return Err(malformed("welcome.heartbeat_interval_ms", message));
    }
    // Version 1 did not say so.
    let protocol = wire.protocol.max(1);
    let Speaks { oldest, newest } = Speaks::OURS;
    if !(oldest..=newest).contains(&protocol) {
        return Err(malformed("welcome.protocol", format!("is {protocol}, this agent speaks {}", Speaks::OURS)));
    }
    Ok(Welcome {
        term: Term(wire.term),
        epoch: NodeEpoch(wire.epoch),
        heartbeat: Duration::from_millis(wire.heartbeat_interval_ms),
        protocol,
    })
}
