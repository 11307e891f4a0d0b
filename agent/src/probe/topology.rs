//! The distance matrix of a report, from NVLink and the PCI tree together.

use std::collections::BTreeMap;

use muster_core::node_report::{
    Gpu,
    network::Network,
    topology::{Path, PciPlace, Topology, is_flat, nvlinks, pcie_path},
};

use super::pci::Device;

pub(super) type Devices = BTreeMap<String, Device>;

/// Adds what the PCI tree knows to what NVML says: the NUMA node, and the lanes of the port above.
pub(super) fn seen_from_the_bus(mut gpu: Gpu, devices: &Devices) -> Gpu {
    if let Some(device) = devices.get(&gpu.pci) {
        gpu.numa_node = device.place.numa_node.or(gpu.numa_node);
        if let (Some(pcie), Some(port)) =
            (&mut gpu.pcie, device.port_width.filter(|width| *width > 0))
        {
            // The width is limited by both ends.
            pcie.width_max = pcie.width_max.min(port);
        }
    }
    gpu
}

/// The rows: GPUs, then RDMA devices, then interfaces that belong to no RDMA device.
pub(super) fn matrix(gpus: &[Gpu], network: &Network, devices: &Devices) -> Topology {
    let gpu = |gpu: &Gpu| (gpu.uuid.clone(), gpu.pci.clone());
    let rdma = network
        .rdma
        .iter()
        .map(|device| (device.name.clone(), device.pci.clone()));
    let taken: Vec<&String> = network.rdma.iter().map(|device| &device.pci).collect();
    let plain = network
        .interfaces
        .iter()
        .filter(|i| !i.pci.is_empty() && !taken.contains(&&i.pci));
    let named: Vec<(String, String)> = gpus
        .iter()
        .map(gpu)
        .chain(rdma)
        .chain(plain.map(|i| (i.name.clone(), i.pci.clone())))
        .take(DEVICES_MAX)
        .collect();
    let places: Vec<Option<&PciPlace>> = named
        .iter()
        .map(|(_, pci)| devices.get(pci).map(|device| &device.place))
        .collect();
    let of_gpus: Vec<PciPlace> = gpus
        .iter()
        .filter_map(|gpu| devices.get(&gpu.pci))
        .map(|device| device.place.clone())
        .collect();
    let flat = is_flat(&of_gpus);
    let between = |row: usize, column: usize| {
        if row == column {
            return Path::X;
        }
        if let (Some(one), Some(other)) = (gpus.get(row), gpus.get(column)) {
            let links = nvlinks(one, other);
            if links > 0 {
                return Path::Nv(links);
            }
        }
        match (places[row], places[column]) {
            _ if flat => Path::Unknown,
            (Some(one), Some(other)) => pcie_path(one, other),
            _ => Path::Unknown,
        }
    };
    let paths = (0..named.len())
        .map(|row| {
            (0..named.len())
                .map(|column| between(row, column))
                .collect()
        })
        .collect();
    Topology {
        devices: named.into_iter().map(|(name, _)| name).collect(),
        paths,
        flat,
    }
}

/// The most devices of the matrix. 16 GPUs and as many NICs fit; further virtual functions are left
/// out.
const DEVICES_MAX: usize = 64;

/// A NIC's rail is its position by address among the NICs near a GPU.
pub(super) fn number_rails(network: &mut Network, gpus: &[Gpu], topology: &Topology) {
    let near = |name: &str| {
        gpus.iter()
            .any(|gpu| matches!(topology.between(&gpu.uuid, name), Path::Pix | Path::Pxb))
    };
    let mut compute: Vec<(String, String)> = network
        .rdma
        .iter()
        .filter(|d| near(&d.name))
        .map(|device| (device.pci.clone(), device.name.clone()))
        .collect();
    compute.sort();
    for device in &mut network.rdma {
        device.rail = compute
            .iter()
            .position(|(_, name)| name == &device.name)
            .map(|rail| rail as u32);
    }
}
