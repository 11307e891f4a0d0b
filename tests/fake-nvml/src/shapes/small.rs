//! Small machines: one or two GPUs, or none.

use std::io;

use super::{
    gpus::{self, gpu, h100, uuid},
    host::{Host, driver_files},
};
use crate::{
    hardware::{Gpu, Hardware, Link, Mig, MigInstance, Pcie},
    network::Interface,
    pci::{self, Device},
    tree::Tree,
};

const BOX: Host<'static> = Host {
    name: "box",
    kernel: "6.8.0-45-generic",
    cpu: "AMD EPYC 9334 32-Core Processor",
    sockets: 1,
    cores: 32,
    threads: 2,
    memory_gib: 384,
    numa: 1,
    memlock: "unlimited",
    shm: "",
    vendor: "Supermicro",
    product: "AS-2015HS-TNR",
    default_route: "eno1",
};

fn ethernet(tree: &Tree) -> io::Result<()> {
    let device = Device {
        path: "pci0000:e0/0000:e0:05.1/0000:e5:00.0",
        vendor: "0x14e4",
        class: pci::ETHERNET,
        driver: "bnxt_en",
        numa: Some(0),
        link: ("16.0 GT/s PCIe", 8),
    };
    device.put(tree)?;
    Interface {
        name: "eno1",
        speed: Some(25_000),
        mtu: 1_500,
        kind: 1,
        number: 0,
        up: true,
    }
    .put(tree, Some(&device), "")?;
    Interface {
        name: "lo",
        speed: None,
        mtu: 65_536,
        kind: 772,
        number: 1,
        up: true,
    }
    .put(tree, None, "")
}

pub(super) fn mig(tree: &Tree, seed: &str) -> io::Result<Hardware> {
    BOX.put(tree)?;
    driver_files(tree)?;
    ethernet(tree)?;
    let mut all = Vec::new();
    for (at, bus) in ["21", "a1"].iter().enumerate() {
        let root = &format!("{}0", &bus[..1]);
        gpus::put(
            tree,
            at,
            &format!("pci0000:{root}/0000:{root}:01.1/0000:{bus}:00.0"),
            Some(0),
            "32.0 GT/s PCIe",
        )?;
        all.push(Gpu {
            name: "NVIDIA H100 PCIe".into(),
            module: None,
            mig: Some(Mig::default()),
            ..h100(seed, at, &format!("0000:{bus}:00.0"))
        });
    }
    let part = |at: usize, profile: &str, memory: u64, instance: u32| MigInstance {
        uuid: uuid("MIG", seed, at),
        name: format!("NVIDIA H100 PCIe MIG {profile}"),
        memory: memory << 20,
        gpu_instance: instance,
        compute_instance: 0,
    };
    let instances = vec![
        part(0, "3g.40gb", 40_448, 1),
        part(1, "2g.20gb", 19_968, 3),
        part(2, "1g.10gb", 9_856, 9),
        part(3, "1g.10gb", 9_856, 10),
    ];
    all[0].mig = Some(Mig {
        current: true,
        pending: true,
        instances,
    });
    Ok(gpus::driver("570.86.15", 12_080, all))
}

pub(super) fn old_driver(tree: &Tree, seed: &str) -> io::Result<Hardware> {
    Host {
        kernel: "4.15.0-213-generic",
        cpu: "Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz",
        cores: 20,
        memory_gib: 512,
        product: "DGX-1",
        vendor: "NVIDIA",
        ..BOX
    }
    .put(tree)?;
    driver_files(tree)?;
    ethernet(tree)?;
    let addresses = ["0000:06:00.0", "0000:07:00.0"];
    let mut all = Vec::new();
    for (at, address) in addresses.iter().enumerate() {
        let path = format!(
            "pci0000:00/0000:00:02.0/0000:04:00.0/0000:05:{:02x}.0/{address}",
            at * 4
        );
        gpus::put(tree, at, &path, Some(0), "8.0 GT/s PCIe")?;
        let peer = Link {
            active: true,
            remote: Some(format!("0000{}", addresses[1 - at].to_uppercase())),
            ..Link::default()
        };
        let mut links = vec![peer.clone(), peer];
        links.extend(vec![Link::default(); 4]);
        all.push(Gpu {
            name: "Tesla V100-SXM2-32GB".into(),
            memory: 32_510 << 20,
            compute_capability: (7, 0),
            recovery: None,
            module: None,
            remap: None,
            retired: Some((0, false)),
            links,
            persistence: false,
            pcie: Pcie {
                generation: 3,
                generation_max: 3,
                width: 16,
                width_max: 16,
                replays: 0,
            },
            ..gpu(seed, at, address)
        });
    }
    let mut hardware = gpus::driver("470.57.02", 11_040, all);
    hardware.fabric_version = 0;
    Ok(hardware)
}

pub(super) fn laptop(tree: &Tree, _seed: &str) -> io::Result<Hardware> {
    Host {
        name: "laptop",
        kernel: "6.11.0-9-generic",
        cpu: "AMD Ryzen 7 7840U w/ Radeon 780M Graphics",
        cores: 8,
        memory_gib: 32,
        numa: 1,
        memlock: "8388608",
        vendor: "Framework",
        product: "Laptop 13",
        default_route: "wlp1s0",
        ..BOX
    }
    .put(tree)?;
    let display = Device {
        path: "pci0000:00/0000:00:08.1/0000:c1:00.0",
        vendor: "0x1002",
        class: pci::DISPLAY,
        driver: "amdgpu",
        numa: None,
        link: ("16.0 GT/s PCIe", 16),
    };
    display.put(tree)?;
    let wireless = Device {
        path: "pci0000:00/0000:00:02.2/0000:01:00.0",
        vendor: "0x14c3",
        class: "0x028000",
        driver: "mt7921e",
        numa: None,
        link: ("5.0 GT/s PCIe", 1),
    };
    wireless.put(tree)?;
    Interface {
        name: "wlp1s0",
        speed: None,
        mtu: 1_500,
        kind: 1,
        number: 0,
        up: true,
    }
    .put(tree, Some(&wireless), "DEVTYPE=wlan")?;
    Interface {
        name: "wg0",
        speed: None,
        mtu: 1_420,
        kind: 65_534,
        number: 1,
        up: true,
    }
    .put(tree, None, "DEVTYPE=wireguard")?;
    Interface {
        name: "lo",
        speed: None,
        mtu: 65_536,
        kind: 772,
        number: 2,
        up: true,
    }
    .put(tree, None, "")?;
    tree.file(
        "proc/net/if_inet6",
        "20010db8000000000000000000000002 03 40 00 00   wlp1s0\nfe800000000000000000000000000001 04 40 20 80      wg0",
    )?;
    Ok(Hardware::default())
}
