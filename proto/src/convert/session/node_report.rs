//! A node's facts.

use std::{collections::BTreeMap, net::IpAddr};

use muster_core::container::RUNTIME_BYTES_MAX;
use muster_core::node_report::{
    NodeReport, WarmPool,
    labels::{LABEL_KEY_MAX, LABEL_VALUE_MAX, LABELS_MAX},
    taint::{Effect, TAINTS_MAX, Taint},
    trial::{DIFFERS_BYTES_MAX, DIFFERS_MAX, TRIALS_MAX, Trial},
};

use super::bounds::{NAME_MAX, SENTENCE_MAX, count, malformed, optional_text, text};
use crate::{
    convert::{
        Malformed,
        hardware::{
            gpu_from_wire, gpu_to_wire, hardware_from_wire, hardware_to_wire, holders_from_wire,
            holders_to_wire, taint_to_wire, trial_to_wire, warm_pool_to_wire,
        },
    },
    v1,
};

/// The largest machines have 16 GPUs; if each is cut into 7 MIG instances, that makes 112.
const GPUS_MAX: usize = 128;

pub fn node_report_to_wire(report: &NodeReport) -> v1::NodeReport {
    v1::NodeReport {
        address: report.address.clone(),
        agent_version: report.agent_version.clone(),
        hostname: report.hostname.clone(),
        kernel: report.kernel.clone(),
        labels: report.labels.clone(),
        slots: report.slots,
        cpus: report.cpus,
        memory_bytes: report.memory_bytes,
        gpus: report.gpus.iter().map(gpu_to_wire).collect(),
        gpu_error: report.gpu_error.clone().unwrap_or_default(),
        hardware: Some(hardware_to_wire(report)),
        warm_pool: report.warm_pool.map(warm_pool_to_wire),
        gpu_holders: holders_to_wire(&report.holders),
        senses_only: report.senses_only,
        run_as_owner: report.run_as_owner,
        container_runtime: report.container_runtime.clone(),
        taints: report.taints.iter().map(taint_to_wire).collect(),
        trials: report.trials.iter().map(trial_to_wire).collect(),
    }
}

/// Reads a node report. The error names the first field that is not well-formed.
pub fn node_report_from_wire(wire: v1::NodeReport) -> Result<NodeReport, Malformed> {
    if let Err(e) = wire.address.parse::<IpAddr>() {
        return Err(malformed(
            "report.address",
            format!("{:?}: {e}", wire.address),
        ));
    }
    count("report.gpus", wire.gpus.len(), GPUS_MAX)?;
    let mut report = NodeReport {
        address: wire.address,
        agent_version: text("report.agent_version", wire.agent_version, NAME_MAX)?,
        hostname: text("report.hostname", wire.hostname, NAME_MAX)?,
        kernel: text("report.kernel", wire.kernel, NAME_MAX)?,
        labels: labels("report.labels", wire.labels)?,
        slots: wire.slots,
        cpus: wire.cpus,
        memory_bytes: wire.memory_bytes,
        gpus: wire
            .gpus
            .into_iter()
            .enumerate()
            .map(|(i, gpu)| gpu_from_wire(i, gpu))
            .collect::<Result<_, _>>()?,
        gpu_error: optional_text("report.gpu_error", wire.gpu_error, SENTENCE_MAX)?,
        warm_pool: wire.warm_pool.map(
            |v1::WarmPool {
                 limit,
                 ready,
                 bytes,
             }| WarmPool {
                limit,
                ready,
                bytes,
            },
        ),
        holders: holders_from_wire("report.gpu_holders", wire.gpu_holders)?,
        senses_only: wire.senses_only,
        run_as_owner: wire.run_as_owner,
        container_runtime: text(
            "report.container_runtime",
            wire.container_runtime,
            RUNTIME_BYTES_MAX,
        )?,
        taints: taints("report.taints", wire.taints)?,
        trials: trials("report.trials", wire.trials)?,
        ..NodeReport::default()
    };
    hardware_from_wire(wire.hardware.unwrap_or_default(), &mut report)?;
    Ok(report)
}

fn taints(field: &str, wire: Vec<v1::Taint>) -> Result<Vec<Taint>, Malformed> {
    count(field, wire.len(), TAINTS_MAX)?;
    let taint = |taint: v1::Taint| {
        let taint = Taint {
            effect: Effect::of(&taint.effect)
                .ok_or_else(|| malformed(field, format!("effect {:.32?}", taint.effect)))?,
            key: text(field, taint.key, LABEL_KEY_MAX)?,
            value: text(field, taint.value, LABEL_VALUE_MAX)?,
        };
        match taint.error() {
            None => Ok(taint),
            Some(why) => Err(malformed(field, why)),
        }
    };
    wire.into_iter().map(taint).collect()
}

fn trials(field: &str, wire: Vec<v1::Trial>) -> Result<Vec<Trial>, Malformed> {
    count(field, wire.len(), TRIALS_MAX)?;
    let trial = |trial: v1::Trial| {
        count(field, trial.differs.len(), DIFFERS_MAX)?;
        let differs = trial.differs.into_iter();
        Ok(Trial {
            program: text(field, trial.program, SENTENCE_MAX)?,
            torch: text(field, trial.torch, NAME_MAX)?,
            python: text(field, trial.python, NAME_MAX)?,
            suite: text(field, trial.suite, NAME_MAX)?,
            at_unix_us: trial.at_unix_us,
            differs: differs
                .map(|words| text(field, words, DIFFERS_BYTES_MAX))
                .collect::<Result<_, _>>()?,
        })
    };
    wire.into_iter().map(trial).collect()
}

/// Checks every label and returns all of them.
pub(super) fn labels(
    field: &str,
    labels: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Malformed> {
    count(field, labels.len(), LABELS_MAX)?;
    for (key, value) in &labels {
        let field = || format!("{field}[{key:.64?}]");
        if key.is_empty() || key.len() > LABEL_KEY_MAX {
            return Err(malformed(
                field(),
                format!(
                    "the key is {} bytes long, must be 1 to {LABEL_KEY_MAX}",
                    key.len()
                ),
            ));
        }
        if value.len() > LABEL_VALUE_MAX {
            return Err(malformed(
                field(),
                format!(
                    "the value is {} bytes long, at most {LABEL_VALUE_MAX} are allowed",
                    value.len()
                ),
            ));
        }
    }
    Ok(labels)
}
