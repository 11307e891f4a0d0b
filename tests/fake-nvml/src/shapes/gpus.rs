//! New GPUs, and their places in a machine.

use std::io;

use crate::{
    hardware::{Ecc, Fabric, Gpu, Hardware, Link, Pcie, Remap},
    pci::{self, Device},
    tree::Tree,
};

pub(super) fn h100(seed: &str, at: usize, address: &str) -> Gpu {
    Gpu {
        name: "NVIDIA H100 80GB HBM3".into(),
        memory: 81_559 << 20,
        compute_capability: (9, 0),
        recovery: Some(0),
        power_limit: 700_000,
        power: 71_000,
        clock: (345, 1_980),
        pcie: Pcie {
            generation: 5,
            generation_max: 5,
            width: 16,
            width_max: 16,
            replays: 0,
        },
        ..gpu(seed, at, address)
    }
}

pub(super) fn a100(seed: &str, at: usize, address: &str) -> Gpu {
    Gpu {
        name: "NVIDIA A100-SXM4-80GB".into(),
        memory: 81_920 << 20,
        compute_capability: (8, 0),
        power_limit: 400_000,
        power: 62_000,
        clock: (210, 1_410),
        pcie: Pcie {
            generation: 4,
            generation_max: 4,
            width: 16,
            width_max: 16,
            replays: 0,
        },
        ..gpu(seed, at, address)
    }
}

pub(super) fn gpu(seed: &str, at: usize, address: &str) -> Gpu {
    Gpu {
        uuid: uuid("GPU", seed, at),
        serial: format!("16514230{:05}", at + 1),
        minor: at as u32,
        module: Some(at as u32 + 1),
        pci: format!("0000{}", address.to_uppercase()),
        memory_used: 4 << 20,
        persistence: true,
        ecc: Some(Ecc::default()),
        remap: Some(Remap::default()),
        temperature: 31,
        ..Gpu::default()
    }
}

/// Equal seeds give equal numbers, like serial numbers.
pub(super) fn uuid(kind: &str, seed: &str, at: usize) -> String {
    let hash = |salt: u64| {
        // FNV-1a. Any function that spreads will do.
        format!("{seed}/{kind}/{at}")
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325 ^ salt, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            })
    };
    let (one, two) = (hash(0), hash(0x9e37_79b9));
    format!(
        "{kind}-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        one >> 32,
        (one >> 16) & 0xffff,
        one & 0xffff,
        two >> 48,
        two & 0xffff_ffff_ffff
    )
}

/// Gives every GPU `each` links, spread evenly over the switches.
pub(super) fn switched(hardware: &mut Hardware, each: usize, switches: &[&str]) {
    let link = |at: usize| Link {
        active: true,
        remote: switches
            .get(at % switches.len().max(1))
            .map(|address| format!("0000{}", address.to_uppercase())),
        to_switch: !switches.is_empty(),
        ..Link::default()
    };
    hardware
        .gpus
        .iter_mut()
        .for_each(|gpu| gpu.links = (0..each).map(link).collect());
}

/// Registers the GPUs with the fabric of this machine, as H100 HGX boards do from R535 on.
pub(super) fn registered(hardware: &mut Hardware) {
    let fabric = Fabric {
        state: 3,
        health: 1,
        ..Fabric::default()
    };
    hardware
        .gpus
        .iter_mut()
        .for_each(|gpu| gpu.fabric = Some(fabric.clone()));
}

pub(super) fn driver(version: &str, cuda: i32, gpus: Vec<Gpu>) -> Hardware {
    let nvml = format!("{}.{version}", cuda / 1_000);
    Hardware {
        driver: version.into(),
        nvml,
        cuda,
        fabric_version: 3,
        gpus,
        ..Hardware::default()
    }
}

/// The GPU in the PCI tree, and its device file.
pub(super) fn put(
    tree: &Tree,
    at: usize,
    path: &str,
    numa: Option<u32>,
    speed: &str,
) -> io::Result<()> {
    let device = Device {
        path,
        vendor: pci::NVIDIA,
        class: pci::GPU,
        driver: "nvidia",
        numa,
        link: (speed, 16),
    };
    device.put(tree)?;
    tree.file(&format!("dev/nvidia{at}"), "")
}
