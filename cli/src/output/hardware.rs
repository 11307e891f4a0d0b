//! A node's GPUs, NICs, findings and distances, as tables and as the matrix that users of `nvidia-smi topo -m` know.

use std::collections::BTreeMap;

use muster_proto::v1::{self, finding::Subject};

use super::words;

pub(crate) const GPU_HEADS: [&str; 9] = ["INDEX", "MODEL", "MEMORY", "PCI", "NUMA", "PCIE", "NVLINKS", "HEALTH", "UUID"];

/// One row for each GPU, and one below it for each of its MIG instances.
pub(crate) fn gpu_rows(node: &v1::Node) -> Vec<Vec<String>> {
    let number = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
    let mut rows = Vec::new();
    for gpu in &node.gpus {
        let pcie = gpu.pcie.as_ref().map_or("-".into(), |p| format!("gen{} x{}", p.generation, p.width));
        let active = gpu.nvlinks.iter().filter(|link| link.active).count();
        let links = if gpu.nvlinks.is_empty() { "-".into() } else { format!("{active}/{}", gpu.nvlinks.len()) };
        rows.push(vec![
            gpu.index.to_string(),
            gpu.model.clone(),
            words::bytes(gpu.memory_bytes),
            if gpu.pci.is_empty() { "-".into() } else { gpu.pci.clone() },
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

/// The worst finding about this GPU: findings come the worst first.
fn health(node: &v1::Node, uuid: &str) -> String {
    let of_gpu = |finding: &&v1::Finding| matches!(&finding.subject, Some(Subject::Gpu(gpu)) if gpu == uuid);
    let worst = node.hardware.iter().flat_map(|hardware| &hardware.findings).find(of_gpu);
    worst.map_or("ok".into(), |finding| format!("{} ({})", finding.severity, finding.check))
}

pub(crate) const FINDING_HEADS: [&str; 6] = ["SEVERITY", "ABOUT", "CHECK", "REMEDY", "AGE", "REASON"];

pub(crate) fn finding_rows(node: &v1::Node, now_us: u64) -> Vec<Vec<String>> {
    let names = names(node);
    let row = |finding: &v1::Finding| {
        let about = match &finding.subject {
            None => "node".to_owned(),
            Some(Subject::Gpu(uuid)) => names.get(uuid.as_str()).cloned().unwrap_or_else(|| uuid.clone()),
            Some(Subject::Nic(name)) => name.clone(),
        };
        let age = words::age(finding.since_unix_us, now_us);
        vec![finding.severity.clone(), about, finding.check.clone(), finding.remedy.clone(), age, finding.reason.clone()]
    };
    node.hardware.iter().flat_map(|hardware| &hardware.findings).map(row).collect()
}

pub(crate) const NIC_HEADS: [&str; 8] = ["NAME", "STATE", "RATE", "LINK", "RAIL", "NUMA", "FIRMWARE", "INTERFACES"];

/// RDMA devices, port by port, then the other interfaces.
pub(crate) fn nic_rows(node: &v1::Node) -> Vec<Vec<String>> {
    let number = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
    let Some(hardware) = &node.hardware else { return Vec::new() };
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
    let taken = |name: &String| hardware.rdma.iter().any(|device| device.interfaces.contains(name));
    for interface in hardware.interfaces.iter().filter(|interface| !taken(&interface.name)) {
        let rate = interface.speed_mbps.map_or("-".into(), |mbps| format!("{} Gb/s", f64::from(mbps) / 1_000.0));
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

/// `GPU3` for a UUID.
fn names(node: &v1::Node) -> BTreeMap<&str, String> {
    node.gpus.iter().map(|gpu| (gpu.uuid.as_str(), format!("GPU{}", gpu.index))).collect()
}

/// The matrix, with NICs numbered and a legend, in the shape of `nvidia-smi topo -m`.
pub(crate) fn topology(node: &v1::Node) -> String {
    let Some(topology) = node.hardware.as_ref().and_then(|hardware| hardware.topology.as_ref()).filter(|t| !t.devices.is_empty())
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
    let width = short.iter().map(String::len).max().unwrap_or(0).max("NUMA".len()) + 2;
    let cell = |text: &str| format!("{text:<width$}");
    let mut text = cell("");
    short.iter().for_each(|name| text += &cell(name));
    text = text.trim_end().to_owned() + &format!("{}NUMA\n", " ".repeat(2));
    let numa = |device: &str| {
        let hardware = node.hardware.as_ref();
        let of_gpu = node.gpus.iter().find(|gpu| gpu.uuid == device).and_then(|gpu| gpu.numa_node);
        let of_rdma = hardware.and_then(|h| h.rdma.iter().find(|d| d.name == device)).and_then(|d| d.numa_node);
        let of_plain = hardware.and_then(|h| h.interfaces.iter().find(|i| i.name == device)).and_then(|i| i.numa_node);
        of_gpu.or(of_rdma).or(of_plain).map_or("-".into(), |node| node.to_string())
    };
    for ((name, device), row) in short.iter().zip(&topology.devices).zip(&topology.rows) {
        text += &cell(name);
        row.split(' ').for_each(|word| text += &cell(word));
        text = text.trim_end().to_owned() + &format!("  {}\n", numa(device));
    }
    if !nics.is_empty() {
        text += "\nNICs:\n";
        nics.iter().enumerate().for_each(|(i, name)| text += &format!("  NIC{i}: {name}\n"));
    }
    text += "\nX itself, NV# so many NVLinks, PIX one PCIe switch, PXB several, PHB the host bridge, NODE host bridges of one NUMA node, SYS across \
             NUMA nodes, ? not known\n";
    if topology.flat {
        text += "The PCIe tree of this virtual machine says nothing; NCCL needs its vendor's topology file.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_looks_like_the_one_users_know() {
        let gpu = |index: u32| v1::Gpu { uuid: format!("GPU-{index}"), index, numa_node: Some(index), ..v1::Gpu::default() };
        let rows = ["X NV18 PXB", "NV18 X SYS", "PXB SYS X"].map(str::to_owned).to_vec();
        let devices = ["GPU-0", "GPU-1", "mlx5_0"].map(str::to_owned).to_vec();
        let hardware = v1::Hardware { topology: Some(v1::Topology { devices, rows, flat: false }), ..v1::Hardware::default() };
        let node = v1::Node { name: "n".into(), gpus: vec![gpu(0), gpu(1)], hardware: Some(hardware), ..v1::Node::default() };
        let text = topology(&node);
        let head: Vec<&str> = text.lines().take(4).collect();
        assert_eq!(
            head,
            ["      GPU0  GPU1  NIC0  NUMA", "GPU0  X     NV18  PXB  0", "GPU1  NV18  X     SYS  1", "NIC0  PXB   SYS   X  -"]
        );
        assert!(text.contains("  NIC0: mlx5_0\n"));
        assert_eq!(topology(&v1::Node { name: "n".into(), ..v1::Node::default() }), "n reports no GPU and no NIC\n");
    }
}
