//! The agent session: hello and reports up, welcome and desired state down.
//!
//! Core's reports carry points in time on the sender's clock; the wire carries ages. So every
//! conversion of a time takes `now`: the sender's clock on the way out, the receiver's on the way
//! in. Everything that comes from the wire is bounded here, once, for both ends.

use std::{collections::BTreeMap, time::Duration};

use muster_core::{
    hello::Hello,
    id::{JobUid, NodeEpoch, NodeName, Term, node_name_error},
    node,
    protocol::Speaks,
    run::Obeyed,
    time::Timestamp,
};

use super::Malformed;
use crate::v1;

mod arrivals;
pub(super) mod bounds;
mod desired;
mod launchers;
mod members;
mod node_report;
pub(in crate::convert) mod phases;
mod run_report;
#[cfg(test)]
mod tests;

pub use desired::{desired_from_wire, desired_to_wire};
pub use launchers::{launchers_from_wire, launchers_to_wire};
pub use node_report::{node_report_from_wire, node_report_to_wire};
pub(super) use run_report::run_id_from_wire;
pub use run_report::{RUNS_MAX, runs_from_wire, runs_to_wire};

use bounds::{NAME_MAX, count, malformed, numbered, text};

pub fn hello_to_wire(hello: &Hello, now: Timestamp) -> v1::Hello {
    v1::Hello {
        protocol: hello.speaks.newest,
        protocol_oldest: hello.speaks.oldest,
        node: hello.node.to_string(),
        boot_id: hello.boot_id.clone(),
        uptime_us: hello.uptime.map_or(0, |uptime| {
            u64::try_from(uptime.as_micros()).unwrap_or(u64::MAX)
        }),
        incarnation: hello.incarnation,
        term_seen: hello.term_seen.0,
        epoch_seen: hello.epoch_seen.0,
        jobs_seen: hello
            .jobs_seen
            .iter()
            .map(|(job, obeyed)| (job.to_string(), obeyed_to_wire(*obeyed)))
            .collect(),
        report: Some(node_report_to_wire(&hello.report)),
        runs: Some(runs_to_wire(&hello.runs, None, now)),
    }
}

/// The versions that an agent speaks. Read this before the rest of the hello, because the meaning
/// of the rest depends on the version.
pub fn speaks_from_wire(wire: &v1::Hello) -> Result<Speaks, Malformed> {
    let newest = wire.protocol;
    let oldest = if wire.protocol_oldest == 0 {
        newest
    } else {
        wire.protocol_oldest
    };
    if newest == 0 {
        return Err(malformed("hello.protocol", "is 0, the first version is 1"));
    }
    if oldest > newest {
        return Err(malformed(
            "hello.protocol_oldest",
            format!("is {oldest}, and the newest is {newest}"),
        ));
    }
    Ok(Speaks { oldest, newest })
}

/// Reads a hello of a version that this build speaks.
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
        uptime: Some(wire.uptime_us)
            .filter(|us| *us > 0)
            .map(Duration::from_micros),
        incarnation: wire.incarnation,
        speaks,
        term_seen: Term(numbered("hello.term_seen", wire.term_seen)?),
        epoch_seen: NodeEpoch(numbered("hello.epoch_seen", wire.epoch_seen)?),
        jobs_seen: jobs_seen_from_wire(wire.jobs_seen)?,
        report: node_report_from_wire(
            wire.report
                .ok_or_else(|| malformed("hello.report", "is missing"))?,
        )?,
        runs: runs_from_wire(
            wire.runs
                .ok_or_else(|| malformed("hello.runs", "is missing"))?,
            now,
        )?,
    })
}

fn obeyed_to_wire(obeyed: Obeyed) -> v1::Obeyed {
    v1::Obeyed {
        generation: obeyed.generation.0,
        over: obeyed.over,
    }
}

/// Bounded by the number of jobs that an agent's ledger remembers.
fn jobs_seen_from_wire(
    wire: BTreeMap<String, v1::Obeyed>,
) -> Result<BTreeMap<JobUid, Obeyed>, Malformed> {
    count("hello.jobs_seen", wire.len(), node::JOBS_MAX)?;
    let seen = |(job, obeyed): (String, v1::Obeyed)| {
        let run = run_id_from_wire("hello.jobs_seen", job, obeyed.generation)?;
        Ok((
            run.job,
            Obeyed {
                generation: run.generation,
                over: obeyed.over,
            },
        ))
    };
    wire.into_iter().map(seen).collect()
}

/// The coordinator's answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub term: Term,
    pub epoch: NodeEpoch,
    /// How often the agent must send a heartbeat.
    pub heartbeat: Duration,
    /// The version of the protocol that both ends use from now on.
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

/// Intervals in milliseconds that an agent accepts: a hundred heartbeats a second are a flood, and
/// one a minute is as good as silence.
const HEARTBEAT: std::ops::RangeInclusive<u64> = 10..=60_000;

pub fn welcome_from_wire(wire: v1::Welcome) -> Result<Welcome, Malformed> {
    if !HEARTBEAT.contains(&wire.heartbeat_interval_ms) {
        let (low, high) = (HEARTBEAT.start(), HEARTBEAT.end());
        let message = format!(
            "is {}, must be between {low} and {high}",
            wire.heartbeat_interval_ms
        );
        return Err(malformed("welcome.heartbeat_interval_ms", message));
    }
    // Version 1 did not send it.
    let protocol = wire.protocol.max(1);
    let Speaks { oldest, newest } = Speaks::OURS;
    if !(oldest..=newest).contains(&protocol) {
        return Err(malformed(
            "welcome.protocol",
            format!("is {protocol}, this agent speaks {}", Speaks::OURS),
        ));
    }
    Ok(Welcome {
        term: Term(wire.term),
        epoch: NodeEpoch(wire.epoch),
        heartbeat: Duration::from_millis(wire.heartbeat_interval_ms),
        protocol,
    })
}
