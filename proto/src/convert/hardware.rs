//! A node's hardware and health, between core's types and the wire.

use muster_core::{
    health::{Finding, Health, Subject},
    node_report::{
        NodeReport, WarmPool,
        gpu::Driver,
        host::{Host, NumaNode},
        taint::Taint,
        topology::{Path, Topology},
        trial::Trial,
    },
};

use super::session::{
    RUNS_MAX,
    bounds::{NAME_MAX, SENTENCE_MAX, count, ip_addresses, malformed, required_text, text, texts},
    run_id_from_wire,
};
use crate::{convert::Malformed, v1};

mod gpu;
mod holders;
mod network;

pub(super) use gpu::{gpu_from_wire, gpu_to_wire};
pub(super) use holders::{holders_from_wire, holders_to_wire};

/// Devices in a topology matrix. The agent cuts its matrix at 64 devices (16 GPUs, and NICs with
/// their virtual functions).
const DEVICES_MAX: usize = 64;
/// A row holds a word of at most 5 letters for each device.
const ROW_MAX: usize = DEVICES_MAX * 6;
/// The largest machines have some hundred NUMA nodes, with those of devices and of memory alone.
const NUMA_MAX: usize = 256;
/// A few files for each GPU.
const FILES_MAX: usize = 256;
/// A device has a handful of findings at worst. A wild kernel log can make only as many as the
/// judge keeps error codes; more than this many findings are cut off.
const FINDINGS_MAX: usize = 1_000;

/// Writes an enumeration as words and reads it back. A word that is not known is read as the last
/// argument.
macro_rules! words {
    ($to:ident, $from:ident, $type:ty, $($variant:ident = $word:literal),*; $unknown:ident) => {
        pub(super) fn $to(value: $type) -> String {
            match value { $(<$type>::$variant => $word,)* }.into()
        }

        pub(super) fn $from(word: &str) -> $type {
            match word { $($word => <$type>::$variant,)* _ => <$type>::$unknown }
        }
    };
}
use words;

pub(super) fn warm_pool_to_wire(pool: WarmPool) -> v1::WarmPool {
    v1::WarmPool {
        limit: pool.limit,
        ready: pool.ready,
        bytes: pool.bytes,
    }
}

pub(super) fn taint_to_wire(taint: &Taint) -> v1::Taint {
    v1::Taint {
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: taint.effect.name().to_owned(),
    }
}

pub(super) fn trial_to_wire(trial: &Trial) -> v1::Trial {
    v1::Trial {
        program: trial.program.clone(),
        torch: trial.torch.clone(),
        python: trial.python.clone(),
        suite: trial.suite.clone(),
        at_unix_us: trial.at_unix_us,
        differs: trial.differs.clone(),
    }
}

pub(super) fn hardware_to_wire(report: &NodeReport) -> v1::Hardware {
    v1::Hardware {
        driver: report.driver.as_ref().map(|driver| v1::Driver {
            version: driver.version.clone(),
            cuda: driver.cuda.clone(),
            nvml: driver.nvml.clone(),
        }),
        interfaces: report
            .network
            .interfaces
            .iter()
            .map(network::interface_to_wire)
            .collect(),
        rdma: report
            .network
            .rdma
            .iter()
            .map(network::rdma_to_wire)
            .collect(),
        addresses: network::addresses_to_wire(&report.network.addresses),
        topology: Some(topology_to_wire(&report.topology)),
        host: Some(host_to_wire(&report.host)),
        // The worst come first, so a cut takes the least.
        findings: report
            .health
            .findings
            .iter()
            .take(FINDINGS_MAX)
            .map(finding_to_wire)
            .collect(),
    }
}

/// Fills in the parts of the report that describe hardware. A field that the agent did not send
/// stays at its default.
pub(super) fn hardware_from_wire(
    wire: v1::Hardware,
    report: &mut NodeReport,
) -> Result<(), Malformed> {
    let name = |field: &str, value| text(&format!("report.hardware.{field}"), value, NAME_MAX);
    report.driver = match wire.driver {
        None => None,
        Some(driver) => Some(Driver {
            version: name("driver.version", driver.version)?,
            cuda: name("driver.cuda", driver.cuda)?,
            nvml: name("driver.nvml", driver.nvml)?,
        }),
    };
    report.network = network::network_from_wire(wire.interfaces, wire.rdma, wire.addresses)?;
    report.topology = topology_from_wire(wire.topology.unwrap_or_default())?;
    report.host = host_from_wire(wire.host.unwrap_or_default())?;
    count(
        "report.hardware.findings",
        wire.findings.len(),
        FINDINGS_MAX,
    )?;
    let findings = wire
        .findings
        .into_iter()
        .enumerate()
        .map(|(i, finding)| finding_from_wire(i, finding));
    report.health = Health {
        findings: findings.collect::<Result<_, _>>()?,
    };
    Ok(())
}

fn topology_to_wire(topology: &Topology) -> v1::Topology {
    let row = |row: &Vec<Path>| {
        row.iter()
            .map(Path::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    v1::Topology {
        devices: topology.devices.clone(),
        rows: topology.paths.iter().map(row).collect(),
        flat: topology.flat,
    }
}

fn topology_from_wire(wire: v1::Topology) -> Result<Topology, Malformed> {
    let field = "report.hardware.topology";
    let devices = texts(
        &format!("{field}.devices"),
        wire.devices,
        DEVICES_MAX,
        NAME_MAX,
    )?;
    let rows = texts(&format!("{field}.rows"), wire.rows, DEVICES_MAX, ROW_MAX)?;
    let mut paths = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let words: Result<Vec<Path>, _> = row.split_whitespace().map(str::parse).collect();
        paths.push(words.map_err(|e| malformed(format!("{field}.rows[{i}]"), e.to_string()))?);
    }
    if paths.len() != devices.len() || paths.iter().any(|row| row.len() != devices.len()) {
        return Err(malformed(
            field,
            format!("is not a square of {} devices", devices.len()),
        ));
    }
    Ok(Topology {
        devices,
        paths,
        flat: wire.flat,
    })
}

fn host_to_wire(host: &Host) -> v1::Host {
    v1::Host {
        boot_id: host.boot_id.clone(),
        cpu_model: host.cpu_model.clone(),
        sockets: host.sockets,
        physical_cores: host.physical_cores,
        numa: host
            .numa
            .iter()
            .map(|node| v1::NumaNode {
                id: node.id,
                cpus: node.cpus.clone(),
                memory_bytes: node.memory_bytes,
            })
            .collect(),
        shm_bytes: host.shm_bytes,
        memlock_bytes: host.memlock_bytes,
        open_files: host.open_files,
        peermem: host.peermem,
        gpu_device_files: host
            .gpu_device_files
            .iter()
            .take(FILES_MAX)
            .cloned()
            .collect(),
        imex_channels: host.imex_channels.iter().take(FILES_MAX).cloned().collect(),
        topology_file: host.topology_file.clone().unwrap_or_default(),
        virtual_machine: host.virtual_machine,
        nccl_conf: host.nccl_conf.iter().take(FILES_MAX).cloned().collect(),
    }
}

fn host_from_wire(wire: v1::Host) -> Result<Host, Malformed> {
    let field = |name: &str| format!("report.hardware.host.{name}");
    count(&field("numa"), wire.numa.len(), NUMA_MAX)?;
    let numa = wire.numa.into_iter().map(|node| {
        let cpus = text(&field("numa.cpus"), node.cpus, SENTENCE_MAX)?;
        Ok(NumaNode {
            id: node.id,
            cpus,
            memory_bytes: node.memory_bytes,
        })
    });
    Ok(Host {
        boot_id: text(&field("boot_id"), wire.boot_id, NAME_MAX)?,
        cpu_model: text(&field("cpu_model"), wire.cpu_model, NAME_MAX)?,
        sockets: wire.sockets,
        physical_cores: wire.physical_cores,
        numa: numa.collect::<Result<_, _>>()?,
        shm_bytes: wire.shm_bytes,
        memlock_bytes: wire.memlock_bytes,
        open_files: wire.open_files,
        peermem: wire.peermem,
        gpu_device_files: texts(
            &field("gpu_device_files"),
            wire.gpu_device_files,
            FILES_MAX,
            NAME_MAX,
        )?,
        imex_channels: texts(
            &field("imex_channels"),
            wire.imex_channels,
            FILES_MAX,
            NAME_MAX,
        )?,
        topology_file: Some(text(
            &field("topology_file"),
            wire.topology_file,
            SENTENCE_MAX,
        )?)
        .filter(|path| !path.is_empty()),
        virtual_machine: wire.virtual_machine,
        nccl_conf: texts(&field("nccl_conf"), wire.nccl_conf, FILES_MAX, NAME_MAX)?,
    })
}

pub(super) fn finding_to_wire(finding: &Finding) -> v1::Finding {
    v1::Finding {
        check: finding.check.clone(),
        subject: match &finding.subject {
            Subject::Node => None,
            Subject::Gpu(uuid) => Some(v1::finding::Subject::Gpu(uuid.clone())),
            Subject::Nic(name) => Some(v1::finding::Subject::Nic(name.clone())),
        },
        severity: finding.severity.to_string(),
        remedy: finding.remedy.to_string(),
        reason: finding.reason.clone(),
        since_unix_us: finding.since_unix_us,
        runs: finding
            .runs
            .iter()
            // A finding with more is still true of these.
            .take(RUNS_MAX)
            .map(|run| v1::FindingRun {
                job_uid: run.job.to_string(),
                generation: run.generation.0,
            })
            .collect(),
    }
}

fn finding_from_wire(i: usize, wire: v1::Finding) -> Result<Finding, Malformed> {
    let field = |name: &str| format!("report.hardware.findings[{i}].{name}");
    count(&field("runs"), wire.runs.len(), RUNS_MAX)?;
    Ok(Finding {
        check: required_text(&field("check"), wire.check, NAME_MAX)?,
        subject: match wire.subject {
            None => Subject::Node,
            Some(v1::finding::Subject::Gpu(uuid)) => {
                Subject::Gpu(required_text(&field("gpu"), uuid, NAME_MAX)?)
            }
            Some(v1::finding::Subject::Nic(name)) => {
                Subject::Nic(required_text(&field("nic"), name, NAME_MAX)?)
            }
        },
        // Do not guess a verdict: it decides whether the node may train.
        severity: wire
            .severity
            .parse()
            .map_err(|e: muster_core::health::NoSuchWord| {
                malformed(field("severity"), e.to_string())
            })?,
        remedy: wire
            .remedy
            .parse()
            .map_err(|e: muster_core::health::NoSuchWord| {
                malformed(field("remedy"), e.to_string())
            })?,
        reason: text(&field("reason"), wire.reason, SENTENCE_MAX)?,
        since_unix_us: wire.since_unix_us,
        runs: wire
            .runs
            .into_iter()
            .enumerate()
            .map(|(i, run)| {
                run_id_from_wire(&field(&format!("runs[{i}]")), run.job_uid, run.generation)
            })
            .collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use muster_core::{
        health::{Remedy, Severity},
        id::Generation,
        run::RunId,
    };

    use super::*;

    fn about(runs: usize) -> Finding {
        let run = |number| RunId {
            job: "job-a".into(),
            generation: Generation(number as u64),
        };
        Finding {
            check: "worker-unkillable".into(),
            subject: Subject::Node,
            severity: Severity::Drain,
            remedy: Remedy::NodeReboot,
            reason: "it lives".into(),
            since_unix_us: 7,
            runs: (1..=runs).map(run).collect(),
        }
    }

    #[test]
    fn a_finding_keeps_the_runs_that_it_is_about() {
        for runs in [0, 2, RUNS_MAX] {
            let finding = about(runs);
            assert_eq!(finding_from_wire(0, finding_to_wire(&finding)), Ok(finding));
        }
        let many = finding_from_wire(0, finding_to_wire(&about(RUNS_MAX + 1)));
        assert_eq!(many, Ok(about(RUNS_MAX)), "no message is refused for it");

        let mut wire = finding_to_wire(&about(1));
        wire.runs[0].job_uid = "../job".into();
        let refused = finding_from_wire(3, wire).unwrap_err().to_string();
        assert!(
            refused.contains("report.hardware.findings[3].runs[0].job_uid"),
            "{refused}"
        );
    }
}
