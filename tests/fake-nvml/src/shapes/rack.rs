//! Machines that are parts of a larger one: their NVLink domain extends beyond them.

use std::io;

use super::{
    gpus::{self, gpu, switched},
    host::{Host, driver_files},
};
use crate::{
    hardware::{Fabric, Gpu, Hardware, Pcie},
    network::{Interface, Rdma},
    pci::{self, Device},
    tree::Tree,
};

/// The device file that gives access to the memory of the other trays.
pub(crate) const CHANNEL: &str = "dev/nvidia-caps-imex-channels/channel0";
const GEN5: &str = "32.0 GT/s PCIe";
/// The PCI domains of its GPUs. Two GPUs are below each Grace, each in a domain of its own.
const GPUS: [&str; 4] = ["0008", "0009", "0018", "0019"];
/// PCI domain, NUMA node and interface of the compute NICs. The BlueField cards, which have two
/// ports, follow.
const COMPUTE: [(&str, u32, &str); 4] = [
    ("0000", 0, "ibp3s0"),
    ("0002", 0, "ibP2p3s0"),
    ("0010", 1, "ibP16p3s0"),
    ("0012", 1, "ibP18p3s0"),
];
const STORAGE: [(&str, u32, &str); 2] = [("0006", 0, "enP6p3s0f"), ("0016", 1, "enP22p3s0f")];
/// The NUMA nodes of the GPUs' memory. They have no processors.
const MEMORY: [u32; 4] = [2, 10, 18, 26];
const MEMORY_MIB: u64 = 189_471;

/// The NVLink domain of a rack.
pub(crate) fn cluster(rack: u8) -> [u8; 16] {
    [
        0x9c, 0x6a, 0x51, 0x2e, 0x17, 0x4d, 0x4b, 0x0e, 0xa3, 0x58, 0x6d, 0x20, 0x7f, 0xc1, 0x04,
        rack,
    ]
}

pub(super) fn nvl72(tree: &Tree, seed: &str) -> io::Result<Hardware> {
    let host = Host {
        name: "tray",
        kernel: "6.8.0-1028-nvidia-64k",
        // Grace.
        cpu: "",
        sockets: 2,
        cores: 72,
        threads: 1,
        memory_gib: 960,
        numa: 2,
        memlock: "unlimited",
        shm: "",
        vendor: "NVIDIA",
        product: "GB200 NVL",
        default_route: "enP5p9s0",
    };
    host.put(tree)?;
    driver_files(tree)?;
    tree.file(CHANNEL, "")?;
    tree.file("sys/module/nvidia_peermem/version", "570.124.06")?;
    let mut all = Vec::new();
    for (at, domain) in GPUS.iter().enumerate() {
        let address = format!("{domain}:01:00.0");
        gpus::put(
            tree,
            at,
            &format!("pci{domain}:00/{domain}:00:00.0/{address}"),
            Some(at as u32 / 2),
            GEN5,
        )?;
        all.push(gb200(seed, at, &address));
        let folder = format!("sys/devices/system/node/node{}", MEMORY[at]);
        tree.file(&format!("{folder}/cpulist"), "")?;
        tree.file(
            &format!("{folder}/meminfo"),
            &format!(
                "Node {} MemTotal:       {} kB",
                MEMORY[at],
                MEMORY_MIB << 10
            ),
        )?;
    }
    let mut hardware = gpus::driver("570.124.06", 12_080, all);
    // The switches, and their fabric manager, are in trays of their own.
    switched(&mut hardware, 18, &[]);
    hardware
        .gpus
        .iter_mut()
        .flat_map(|gpu| &mut gpu.links)
        .for_each(|link| link.to_switch = true);
    let fabric = Fabric {
        state: 3,
        clique: 32_766,
        cluster: cluster(1),
        health: 1,
        ..Fabric::default()
    };
    hardware
        .gpus
        .iter_mut()
        .for_each(|gpu| gpu.fabric = Some(fabric.clone()));
    nics(tree)?;
    Ok(hardware)
}

fn gb200(seed: &str, at: usize, address: &str) -> Gpu {
    Gpu {
        name: "NVIDIA GB200".into(),
        numa: Some(MEMORY[at]),
        memory: MEMORY_MIB << 20,
        compute_capability: (10, 0),
        recovery: Some(0),
        power_limit: 1_200_000,
        power: 138_000,
        clock: (120, 2_062),
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

fn nics(tree: &Tree) -> io::Result<()> {
    let storage = STORAGE.iter().flat_map(|(domain, numa, name)| {
        [0, 1].map(|function| {
            (
                *domain,
                *numa,
                format!("{name}{function}np{function}"),
                function,
                false,
            )
        })
    });
    let compute = COMPUTE
        .iter()
        .map(|(domain, numa, name)| (*domain, *numa, (*name).to_owned(), 0, true));
    let mut all: Vec<_> = compute.chain(storage).collect();
    // The driver numbers them by address.
    all.sort_by_key(|(domain, .., function, _)| (*domain, *function));
    for (number, (domain, numa, interface, function, infiniband)) in (0..).zip(all) {
        let path = format!("pci{domain}:00/{domain}:00:00.0/{domain}:03:00.{function}");
        let class = if infiniband {
            pci::INFINIBAND
        } else {
            pci::ETHERNET
        };
        let device = Device {
            path: &path,
            vendor: pci::MELLANOX,
            class,
            driver: "mlx5_core",
            numa: Some(numa),
            link: (GEN5, 16),
        };
        device.put(tree)?;
        let guid = format!("fe80:0000:0000:0000:5000:e603:0000:{:04x}", 0x2b00 + number);
        let gids = if infiniband {
            [(guid, "IB/RoCE v1", "")]
        } else {
            [(guid, "RoCE v2", interface.as_str())]
        };
        Rdma {
            name: &format!("mlx5_{number}"),
            number,
            firmware: if infiniband {
                "28.44.1036"
            } else {
                "32.44.1036"
            },
            board: if infiniband {
                "NVD0000000054"
            } else {
                "NVD0000000020"
            },
            rate: if infiniband {
                "400 Gb/sec (4X NDR)"
            } else {
                "200 Gb/sec (2X NDR)"
            },
            link_layer: if infiniband { "InfiniBand" } else { "Ethernet" },
            lid: if infiniband { 0x90 + number } else { 0 },
            gids: &gids,
        }
        .put(tree, &device)?;
        let (speed, mtu, kind) = if infiniband {
            (400_000, 4_092, 32)
        } else {
            (200_000, 1_500, 1)
        };
        Interface {
            name: &interface,
            speed: Some(speed),
            mtu,
            kind,
            number,
            up: true,
        }
        .put(tree, Some(&device), "")?;
    }
    let device = Device {
        path: "pci0005:00/0005:00:00.0/0005:09:00.0",
        vendor: "0x8086",
        class: pci::ETHERNET,
        driver: "igb",
        numa: Some(0),
        link: ("5.0 GT/s PCIe", 1),
    };
    device.put(tree)?;
    Interface {
        name: "enP5p9s0",
        speed: Some(1_000),
        mtu: 1_500,
        kind: 1,
        number: 40,
        up: true,
    }
    .put(tree, Some(&device), "")?;
    Interface {
        name: "lo",
        speed: None,
        mtu: 65_536,
        kind: 772,
        number: 41,
        up: true,
    }
    .put(tree, None, "")
}
