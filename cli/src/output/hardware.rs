//! A node's GPUs, NICs, findings and distances: as tables, and as the matrix of `nvidia-smi topo
//! -m`.

use std::collections::BTreeMap;

use muster_proto::v1::{self, finding::Subject};

use super::words;

pub(crate) const GPU_HEADS: [&str; 9] = [
    "INDEX", "MODEL", "MEMORY", "PCI", "NUMA", "PCIE", "NVLINKS", "HEALTH", "UUID",
];

/// One row for each GPU, and one below it for each of its MIG instances.
pub(crate) fn gpu_rows(node: &v1::Node) -> Vec<Vec<String>> {
    let number = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
    // The PCIe generation falls while a GPU idles, which is normal. Fewer lanes than possible are a
    // loss.
    let of = |now: u32, most: u32| {
        if now < most {
            format!("{now}/{most}")
        } else {
            now.to_string()
        }
    };
    let mut rows = Vec::new();
    for gpu in &node.gpus {
        let pcie = gpu.pcie.as_ref().map_or("-".into(), |p| {
            format!(
                "gen{} x{}",
                of(p.generation, p.generation_max),
                of(p.width, p.width_max)
            )
        });
        let active = gpu.nvlinks.iter().filter(|link| link.active).count();
        let links = if gpu.nvlinks.is_empty() {
            "-".into()
        } else {
            format!("{active}/{}", gpu.nvlinks.len())
        };
        rows.push(vec![
            gpu.index.to_string(),
            gpu.model.clone(),
            words::bytes(gpu.memory_bytes),
            if gpu.pci.is_empty() {
                "-".into()
            } else {
                gpu.pci.clone()
            },
            number(gpu.numa_node),
            pcie,
            links,
            health(node, &gpu.uuid),
            gpu.uuid.clone(),
        ]);
        for part in gpu.mig.iter().flat_map(|mig| &mig.instances) {
            let dash = || "-".to_owned();
            let name = format!("  MIG {}", part.profile);
            rows.push(vec![
                gpu.index.to_string(),
                name,
                words::bytes(part.memory_bytes),
                dash(),
                dash(),
                dash(),
                dash(),
                dash(),
                part.uuid.clone(),
            ]);
        }
    }
    rows
}

/// The worst finding about this GPU. Findings are sorted, the worst first.
fn health(node: &v1::Node, uuid: &str) -> String {
    let of_gpu =
        |finding: &&v1::Finding| matches!(&finding.subject, Some(Subject::Gpu(gpu)) if gpu == uuid);
    let worst = node
        .hardware
        .iter()
        .flat_map(|hardware| &hardware.findings)
        .find(of_gpu);
    worst.map_or("ok".into(), |finding| {
        format!("{} ({})", finding.severity, finding.check)
    })
}

/// Whether the finding keeps work away from its subject.
fn withholds(finding: &&v1::Finding) -> bool {
    matches!(finding.severity.as_str(), "drain" | "fail_now")
}

/// `Ready` or `Ready,Cordoned`; `Excluded` is added if somebody else keeps work away in Kubernetes,
/// `Unhealthy` if a finding that is not about a single GPU does, and `SensesOnly` if its agent takes
/// no work.
pub(crate) fn state(node: &v1::Node) -> String {
    let grave = node
        .hardware
        .iter()
        .flat_map(|hardware| &hardware.findings)
        .filter(withholds);
    let unhealthy = grave
        .filter(|finding| !matches!(finding.subject, Some(Subject::Gpu(_))))
        .count()
        > 0;
    let words = [
        (true, words::node_state(node.state)),
        (node.cordon.is_some(), "Cordoned"),
        (!node.excluded.is_empty(), "Excluded"),
        (unhealthy, "Unhealthy"),
        (node.senses_only, "SensesOnly"),
    ];
    words
        .into_iter()
        .filter_map(|(so, word)| so.then_some(word))
        .collect::<Vec<_>>()
        .join(",")
}

/// `8`, or `7/8` if a finding keeps work away from one GPU.
pub(crate) fn gpus(node: &v1::Node) -> String {
    let findings = || {
        node.hardware
            .iter()
            .flat_map(|hardware| &hardware.findings)
            .filter(withholds)
    };
    let is_out = |gpu: &&v1::Gpu| {
        findings().any(|finding| finding.subject == Some(Subject::Gpu(gpu.uuid.clone())))
    };
    let (all, out) = (node.gpus.len(), node.gpus.iter().filter(is_out).count());
    if out == 0 {
        all.to_string()
    } else {
        format!("{}/{all}", all - out)
    }
}

pub(crate) const FINDING_HEADS: [&str; 6] =
    ["SEVERITY", "ABOUT", "CHECK", "REMEDY", "AGE", "REASON"];

pub(crate) fn finding_rows(node: &v1::Node, now_us: u64) -> Vec<Vec<String>> {
    let names = names(node);
    let row = |finding: &v1::Finding| {
        let about = match &finding.subject {
            None => "node".to_owned(),
            Some(Subject::Gpu(uuid)) => names
                .get(uuid.as_str())
                .cloned()
                .unwrap_or_else(|| uuid.clone()),
            Some(Subject::Nic(name)) => name.clone(),
        };
        let age = words::age(finding.since_unix_us, now_us);
        vec![
            finding.severity.clone(),
            about,
            finding.check.clone(),
            finding.remedy.clone(),
            age,
            finding.reason.clone(),
        ]
    };
    node.hardware
        .iter()
        .flat_map(|hardware| &hardware.findings)
        .map(row)
        .collect()
}

pub(crate) const NIC_HEADS: [&str; 8] = [
    "NAME",
    "STATE",
    "RATE",
    "LINK",
    "RAIL",
    "NUMA",
    "FIRMWARE",
    "INTERFACES",
];

/// RDMA devices, port by port, then the other interfaces.
pub(crate) fn nic_rows(node: &v1::Node) -> Vec<Vec<String>> {
    let number = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
    let Some(hardware) = &node.hardware else {
        return Vec::new();
    };
    let mut rows = Vec::new();
    for device in &hardware.rdma {
        for port in &device.ports {
            rows.push(vec![
                format!("{}:{}", device.name, port.number),
                port.state.clone(),
                format!("{} Gb/s", port.rate_gbps),
                port.link_layer.clone(),
                number(device.rail),
                number(device.numa_node),
                device.firmware.clone(),
                device.interfaces.join(","),
            ]);
        }
    }
    let taken = |name: &String| {
        hardware
            .rdma
            .iter()
            .any(|device| device.interfaces.contains(name))
    };
    for interface in hardware
        .interfaces
        .iter()
        .filter(|interface| !taken(&interface.name))
    {
        let rate = interface.speed_mbps.map_or("-".into(), |mbps| {
            format!("{} Gb/s", f64::from(mbps) / 1_000.0)
        });
        let state = if interface.up { "up" } else { "down" };
        let name = interface.name.clone();
        rows.push(vec![
            name,
            state.into(),
            rate,
            interface.kind.clone(),
            "-".into(),
            number(interface.numa_node),
            "-".into(),
            "-".into(),
        ]);
    }
    rows
}

/// The name `GPU3` for a UUID.
fn names(node: &v1::Node) -> BTreeMap<&str, String> {
    node.gpus
        .iter()
        .map(|gpu| (gpu.uuid.as_str(), format!("GPU{}", gpu.index)))
        .collect()
}

/// The meaning of the words in the matrix, from near to far.
const LEGEND: [(&str, &str); 8] = [
    ("X", "the device itself"),
    ("NV#", "so many NVLinks"),
    ("PIX", "one PCIe switch at most"),
    ("PXB", "several PCIe switches"),
    ("PHB", "a PCIe host bridge"),
    ("NODE", "PCIe host bridges of one NUMA node"),
    ("SYS", "the link between NUMA nodes"),
    ("?", "not known"),
];

/// The matrix in the form of `nvidia-smi topo -m`, with numbered NICs and a legend.
pub(crate) fn topology(node: &v1::Node) -> String {
    let Some((hardware, topology)) = node
        .hardware
        .as_ref()
        .and_then(|hardware| Some((hardware, hardware.topology.as_ref()?)))
        .filter(|(_, t)| !t.devices.is_empty())
    else {
        return format!("{} reports no GPU and no NIC\n", node.name);
    };
    let gpus = names(node);
    let mut nics = Vec::new();
    let short: Vec<String> = topology
        .devices
        .iter()
        .map(|device| {
            gpus.get(device.as_str()).cloned().unwrap_or_else(|| {
                nics.push(device.clone());
                format!("NIC{}", nics.len() - 1)
            })
        })
        .collect();
    let numa = |device: &str| {
        let of_gpu = node
            .gpus
            .iter()
            .find(|gpu| gpu.uuid == device)
            .and_then(|gpu| gpu.numa_node);
        let of_rdma = hardware
            .rdma
            .iter()
            .find(|d| d.name == device)
            .and_then(|d| d.numa_node);
        let of_plain = hardware
            .interfaces
            .iter()
            .find(|i| i.name == device)
            .and_then(|i| i.numa_node);
        of_gpu.or(of_rdma).or(of_plain)
    };
    let cpus = |node: u32| {
        hardware
            .host
            .as_ref()?
            .numa
            .iter()
            .find(|n| n.id == node)
            .map(|n| n.cpus.clone())
    };
    let heads = short
        .iter()
        .map(String::as_str)
        .chain(["CPU AFFINITY", "NUMA"]);
    let mut rows = vec![
        std::iter::once("")
            .chain(heads)
            .map(str::to_owned)
            .collect::<Vec<_>>(),
    ];
    for ((name, device), paths) in short.iter().zip(&topology.devices).zip(&topology.rows) {
        let place = numa(device);
        let affinity = [place.and_then(cpus), place.map(|node| node.to_string())]
            .map(|cell| cell.unwrap_or_else(|| "-".into()));
        rows.push(
            std::iter::once(name.clone())
                .chain(paths.split(' ').map(str::to_owned))
                .chain(affinity)
                .collect(),
        );
    }
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}  "));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    let mut text: String = rows.iter().map(line).collect();
    if !nics.is_empty() {
        text += "\nNICs:\n";
        nics.iter()
            .enumerate()
            .for_each(|(i, name)| text += &format!("  NIC{i}: {name}\n"));
    }
    let occurs = |word: &str| {
        topology
            .rows
            .iter()
            .flat_map(|row| row.split(' '))
            .any(|path| path == word || word == "NV#" && path.starts_with("NV"))
    };
    text += "\nLegend:\n";
    LEGEND
        .iter()
        .filter(|(word, _)| occurs(word))
        .for_each(|(word, meaning)| text += &format!("  {word:<5} {meaning}\n"));
    if topology.flat {
        text += "\nThe PCIe tree of this virtual machine says nothing; NCCL needs its vendor's topology file.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_what_is_kept_from_work() {
        let finding = |severity: &str, subject| v1::Finding {
            severity: severity.into(),
            subject,
            ..v1::Finding::default()
        };
        let gpu = |uuid: &str| v1::Gpu {
            uuid: uuid.into(),
            ..v1::Gpu::default()
        };
        let (warned, out) = (
            finding("warn", None),
            finding("fail_now", Some(Subject::Gpu("b".into()))),
        );
        let hardware = |findings| {
            Some(v1::Hardware {
                findings,
                ..v1::Hardware::default()
            })
        };
        let ready = v1::NodeState::Ready.into();
        let gpus_of = vec![gpu("a"), gpu("b")];
        let mut node = v1::Node {
            state: ready,
            gpus: gpus_of,
            hardware: hardware(vec![warned, out.clone()]),
            ..v1::Node::default()
        };
        assert_eq!((state(&node), gpus(&node)), ("Ready".into(), "1/2".into()));
        node.hardware = hardware(vec![finding("drain", Some(Subject::Nic("mlx5_0".into())))]);
        assert_eq!(
            (state(&node), gpus(&node)),
            ("Ready,Unhealthy".into(), "2".into())
        );
    }

    #[test]
    fn the_matrix_looks_like_the_one_users_know() {
        let gpu = |index: u32| v1::Gpu {
            uuid: format!("GPU-{index}"),
            index,
            numa_node: Some(index),
            ..v1::Gpu::default()
        };
        let rows = ["X NV18 PXB", "NV18 X SYS", "PXB SYS X"]
            .map(str::to_owned)
            .to_vec();
        let devices = ["GPU-0", "GPU-1", "mlx5_0"].map(str::to_owned).to_vec();
        let host = v1::Host {
            numa: vec![v1::NumaNode {
                id: 0,
                cpus: "0-3".into(),
                memory_bytes: 1,
            }],
            ..v1::Host::default()
        };
        let topology_of_it = Some(v1::Topology {
            devices,
            rows,
            flat: false,
        });
        let hardware = v1::Hardware {
            topology: topology_of_it,
            host: Some(host),
            ..v1::Hardware::default()
        };
        let node = v1::Node {
            name: "n".into(),
            gpus: vec![gpu(0), gpu(1)],
            hardware: Some(hardware),
            ..v1::Node::default()
        };
        let text = topology(&node);
        let head: Vec<&str> = text.lines().take(4).collect();
        assert_eq!(
            head,
            [
                "      GPU0  GPU1  NIC0  CPU AFFINITY  NUMA",
                "GPU0  X     NV18  PXB   0-3           0",
                "GPU1  NV18  X     SYS   -             1",
                "NIC0  PXB   SYS   X     -             -"
            ]
        );
        assert!(text.contains("\nNICs:\n  NIC0: mlx5_0\n"));
        assert!(text.ends_with("\nLegend:\n  X     the device itself\n  NV#   so many NVLinks\n  PXB   several PCIe switches\n  SYS   the link between NUMA nodes\n"));
        assert_eq!(
            topology(&v1::Node {
                name: "n".into(),
                ..v1::Node::default()
            }),
            "n reports no GPU and no NIC\n"
        );
    }
}
