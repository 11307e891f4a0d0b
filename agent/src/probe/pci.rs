//! PCI devices, from sysfs: where the GPUs and NICs are attached, and how many GPUs there should
//! be.

use muster_core::node_report::topology::PciPlace;

use super::roots::Roots;

const NVIDIA: &str = "0x10de";

/// One PCI device that the report speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) place: PciPlace,
    pub(super) is_nvidia_gpu: bool,
    pub(super) driver: String,
    /// Lanes of the port above the device.
    pub(super) port_width: Option<u32>,
}

/// NVIDIA's GPUs that its driver holds. GPUs without this driver, or given to a virtual machine,
/// are not missing.
pub(super) fn gpus(roots: &Roots) -> Vec<String> {
    let addresses = roots.names("sys/bus/pci/devices");
    addresses
        .into_iter()
        .filter(|address| {
            device(roots, address).is_some_and(|d| d.is_nvidia_gpu && d.driver == "nvidia")
        })
        .collect()
}

pub(super) fn device(roots: &Roots, address: &str) -> Option<Device> {
    let folder = format!("sys/bus/pci/devices/{address}");
    let class = roots.text(&format!("{folder}/class"))?;
    // The class of a 3D controller or a display.
    let is_gpu = class.starts_with("0x0302") || class.starts_with("0x0300");
    let resolved = roots.resolved(&folder)?;
    let numa_node = roots.number(&format!("{folder}/numa_node"));
    let port = resolved
        .rsplit_once('/')
        .map(|(above, _)| std::path::Path::new(above).join("max_link_width"));
    let port_width = port.and_then(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
    Some(Device {
        place: PciPlace::parse(&resolved, numa_node)?,
        is_nvidia_gpu: is_gpu && roots.text(&format!("{folder}/vendor")).as_deref() == Some(NVIDIA),
        driver: roots
            .target(&format!("{folder}/driver"))
            .unwrap_or_default(),
        port_width,
    })
}
