//! Whole machines by name. Their known addresses, names and numbers are real. The rest is
//! plausible.

use std::{io, path::Path};

use crate::{hardware::Hardware, tree::Tree};

pub(crate) use rack::{CHANNEL, cluster};

mod cloud;
mod gpus;
mod host;
mod rack;
mod servers;
mod small;

/// One kind of machine.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub about: &'static str,
    /// Whether it has an NVIDIA driver.
    pub driver: bool,
    /// The symbols that its library lacks.
    pub missing: &'static [&'static str],
    build: fn(&Tree, &str) -> io::Result<Hardware>,
}

impl Shape {
    pub(crate) fn build(&self, root: &Path, seed: &str) -> io::Result<Hardware> {
        (self.build)(&Tree::new(root), seed)
    }
}

/// The symbols that a driver of 2021 lacks.
const OLD: [&str; 8] = [
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetModuleId",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetRemappedRows",
];

const SHAPES: [Shape; 10] = [
    Shape {
        name: "8xh100",
        about: "DGX H100: 8 GPUs, 4 NVSwitches, 8 compute and 4 storage ports",
        driver: true,
        missing: &[],
        build: servers::dgx_h100,
    },
    Shape {
        name: "8xa100",
        about: "HGX A100: 8 GPUs, 6 NVSwitches, 8 InfiniBand HDR NICs",
        driver: true,
        missing: &[],
        build: servers::hgx_a100,
    },
    Shape {
        name: "hgx-roce",
        about: "HGX H100 with 8 RoCE NICs and a bond for management",
        driver: true,
        missing: &[],
        build: servers::hgx_roce,
    },
    Shape {
        name: "nvl72",
        about: "a compute tray of a GB200 NVL72: 4 GPUs of 72 in one NVLink domain, 4 InfiniBand NICs, 2 BlueField cards",
        driver: true,
        missing: &[],
        build: rack::nvl72,
    },
    Shape {
        name: "4xl40s",
        about: "4 PCIe cards, one RoCE NIC, no NVLink",
        driver: true,
        missing: &[],
        build: servers::l40s,
    },
    Shape {
        name: "mig",
        about: "2 H100, the first cut into MIG instances",
        driver: true,
        missing: &[],
        build: small::mig,
    },
    Shape {
        name: "cloud",
        about: "a virtual machine with 8 H100 in a flat PCIe tree",
        driver: true,
        missing: &[],
        build: cloud::flat,
    },
    Shape {
        name: "efa",
        about: "a virtual machine with 8 A100 and 4 EFA devices",
        driver: true,
        missing: &[],
        build: cloud::efa,
    },
    Shape {
        name: "old-driver",
        about: "2 V100 with NVLink between them and a driver of 2021",
        driver: true,
        missing: &OLD,
        build: small::old_driver,
    },
    Shape {
        name: "laptop",
        about: "no NVIDIA driver, wireless and WireGuard",
        driver: false,
        missing: &[],
        build: small::laptop,
    },
];

pub fn all() -> &'static [Shape] {
    &SHAPES
}

pub fn named(name: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|shape| shape.name == name)
}

pub fn names() -> Vec<&'static str> {
    SHAPES.iter().map(|shape| shape.name).collect()
}
