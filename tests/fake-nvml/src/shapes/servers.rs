//! Servers with two sockets.

use std::io;

use super::{
    gpus::{self, a100, h100, registered, switched},
    host::{Host, driver_files, fabric_manager},
};
use crate::{
    hardware::{Gpu, Hardware, Pcie},
    network::{Interface, Rdma},
    pci::{self, Device},
    tree::Tree,
};

const GEN5: &str = "32.0 GT/s PCIe";
const GEN4: &str = "16.0 GT/s PCIe";

/// The GPU and compute NIC of each PCIe switch: the buses of the root, the NIC and the GPU.
const H100_PAIRS: [(&str, &str, &str); 8] = [
    ("15", "18", "1b"),
    ("3d", "40", "43"),
    ("4c", "4f", "52"),
    ("5b", "5e", "61"),
    ("97", "9a", "9d"),
    ("bd", "c0", "c3"),
    ("cb", "ce", "d1"),
    ("d9", "dc", "df"),
];

fn bus(hex: &str, more: u32) -> String {
    format!(
        "{:02x}",
        u32::from_str_radix(hex, 16).expect("the tables hold hex") + more
    )
}

/// The paths below one switch: the NIC is at its first port, and the GPU is behind a second switch
/// at its second port.
fn paths(root: &str, nic: &str, gpu: &str) -> (String, String) {
    let (port, upstream) = (format!("pci0000:{root}/0000:{root}:01.0"), bus(root, 1));
    let down = bus(root, 2);
    let switch = format!("{port}/0000:{upstream}:00.0");
    (
        format!("{switch}/0000:{down}:00.0/0000:{nic}:00.0"),
        format!(
            "{switch}/0000:{down}:02.0/0000:{}:00.0/0000:{}:00.0/0000:{gpu}:00.0",
            bus(nic, 1),
            bus(nic, 2)
        ),
    )
}

fn board(tree: &Tree, seed: &str) -> io::Result<Vec<Gpu>> {
    let mut all = Vec::new();
    for (at, (root, nic, gpu)) in H100_PAIRS.iter().enumerate() {
        gpus::put(
            tree,
            at,
            &paths(root, nic, gpu).1,
            Some(at as u32 / 4),
            GEN5,
        )?;
        all.push(h100(seed, at, &format!("0000:{gpu}:00.0")));
    }
    Ok(all)
}

const SWITCHES: [&str; 4] = [
    "0000:05:00.0",
    "0000:06:00.0",
    "0000:07:00.0",
    "0000:08:00.0",
];

fn switches(tree: &Tree) -> io::Result<()> {
    for (at, address) in SWITCHES.iter().enumerate() {
        let path = format!("pci0000:00/0000:00:0{}.0/{address}", at + 1);
        Device {
            path: &path,
            vendor: pci::NVIDIA,
            class: pci::SWITCH,
            driver: "nvidia-nvswitch",
            numa: Some(0),
            link: (GEN4, 2),
        }
        .put(tree)?;
    }
    fabric_manager(tree)
}

fn xeon<'a>(name: &'a str, route: &'a str) -> Host<'a> {
    Host {
        name,
        kernel: "5.15.0-1042-nvidia",
        cpu: "Intel(R) Xeon(R) Platinum 8480C",
        sockets: 2,
        cores: 56,
        threads: 2,
        memory_gib: 2_048,
        numa: 2,
        memlock: "unlimited",
        shm: "",
        vendor: "NVIDIA",
        product: "DGXH100",
        default_route: route,
    }
}

fn board_with_switches(tree: &Tree, seed: &str) -> io::Result<Hardware> {
    driver_files(tree)?;
    switches(tree)?;
    tree.file("sys/module/nvidia_peermem/version", "570.86.15")?;
    let mut hardware = gpus::driver("570.86.15", 12_080, board(tree, seed)?);
    switched(&mut hardware, 18, &SWITCHES);
    registered(&mut hardware);
    Ok(hardware)
}

pub(super) fn dgx_h100(tree: &Tree, seed: &str) -> io::Result<Hardware> {
    xeon("dgx-h100", "eno3").put(tree)?;
    let hardware = board_with_switches(tree, seed)?;
    // The driver numbers them by address. Storage cards have ports of their own, and two functions.
    let storage = [
        ("29", "0", 0),
        ("29", "1", 0),
        ("aa", "0", 1),
        ("aa", "1", 1),
    ];
    let mut nics: Vec<(String, u32, bool)> = H100_PAIRS
        .iter()
        .enumerate()
        .map(|(at, (root, nic, gpu))| (paths(root, nic, gpu).0, at as u32 / 4, true))
        .collect();
    nics.extend(storage.iter().map(|(bus, function, numa)| {
        let root = if *numa == 0 { "26" } else { "a7" };
        (
            format!("pci0000:{root}/0000:{root}:01.0/0000:{bus}:00.{function}"),
            *numa,
            false,
        )
    }));
    nics.sort_by(|a, b| a.0.rsplit('/').next().cmp(&b.0.rsplit('/').next()));
    for (number, (path, numa, compute)) in nics.iter().enumerate() {
        let link = if *compute { (GEN5, 16) } else { (GEN4, 16) };
        let class = if *compute {
            pci::INFINIBAND
        } else {
            pci::ETHERNET
        };
        let device = Device {
            path,
            vendor: pci::MELLANOX,
            class,
            driver: "mlx5_core",
            numa: Some(*numa),
            link,
        };
        device.put(tree)?;
        let number = number as u32;
        let (name, interface) = (
            format!("mlx5_{number}"),
            if *compute {
                format!("ibp{number}")
            } else {
                format!("enp{number}")
            },
        );
        let gids = if *compute {
            vec![(
                format!("fe80:0000:0000:0000:a088:c203:0000:{:04x}", 0x1a00 + number),
                "IB/RoCE v1",
                "",
            )]
        } else {
            roce_gids(number, &interface)
        };
        let gids: Vec<(String, &str, &str)> = gids
            .iter()
            .map(|(address, kind, name)| (address.clone(), *kind, *name))
            .collect();
        let rate = if *compute {
            "400 Gb/sec (4X NDR)"
        } else {
            "200 Gb/sec (4X HDR)"
        };
        let link_layer = if *compute { "InfiniBand" } else { "Ethernet" };
        let lid = if *compute { 0x40 + number } else { 0 };
        Rdma {
            name: &name,
            number,
            firmware: "28.39.2048",
            board: "MT_0000000838",
            rate,
            link_layer,
            lid,
            gids: &gids,
        }
        .put(tree, &device)?;
        let (speed, mtu, kind) = if *compute {
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
    management(tree, "eno3", 40)?;
    Ok(hardware)
}

/// The table of a RoCE port: link-local and IPv4 addresses, each in both versions, and an empty
/// entry.
fn roce_gids(number: u32, interface: &str) -> Vec<(String, &'static str, &str)> {
    let local = format!("fe80:0000:0000:0000:ba3f:d2ff:fe00:{number:04x}");
    let ipv4 = format!("0000:0000:0000:0000:0000:ffff:0a00:{:04x}", 0x100 + number);
    vec![
        (local.clone(), "IB/RoCE v1", interface),
        (local, "RoCE v2", interface),
        (ipv4.clone(), "IB/RoCE v1", interface),
        (ipv4, "RoCE v2", interface),
        (
            "fe80:0000:0000:0000:0000:0000:0000:0009".into(),
            "",
            interface,
        ),
    ]
}

fn management(tree: &Tree, name: &str, number: u32) -> io::Result<()> {
    let device = Device {
        path: "pci0000:00/0000:00:1c.0/0000:0b:00.0",
        vendor: "0x8086",
        class: pci::ETHERNET,
        driver: "ixgbe",
        numa: Some(0),
        link: ("8.0 GT/s PCIe", 4),
    };
    device.put(tree)?;
    Interface {
        name,
        speed: Some(10_000),
        mtu: 1_500,
        kind: 1,
        number,
        up: true,
    }
    .put(tree, Some(&device), "")?;
    Interface {
        name: "docker0",
        speed: None,
        mtu: 1_500,
        kind: 1,
        number: number + 1,
        up: false,
    }
    .put(tree, None, "DEVTYPE=bridge")?;
    Interface {
        name: "lo",
        speed: None,
        mtu: 65_536,
        kind: 772,
        number: number + 2,
        up: true,
    }
    .put(tree, None, "")
}

pub(super) fn hgx_roce(tree: &Tree, seed: &str) -> io::Result<Hardware> {
    Host {
        vendor: "Supermicro",
        product: "SYS-821GE-TNHR",
        ..xeon("hgx-roce", "bond0")
    }
    .put(tree)?;
    let hardware = board_with_switches(tree, seed)?;
    for (at, (root, nic, gpu)) in H100_PAIRS.iter().enumerate() {
        let (path, number) = (paths(root, nic, gpu).0, at as u32);
        let device = Device {
            path: &path,
            vendor: pci::MELLANOX,
            class: pci::ETHERNET,
            driver: "mlx5_core",
            numa: Some(number / 4),
            link: (GEN5, 16),
        };
        device.put(tree)?;
        let (name, interface) = (format!("mlx5_{number}"), format!("rdma{number}"));
        let rdma = Rdma {
            name: &name,
            number,
            firmware: "28.41.1000",
            board: "MT_0000001070",
            rate: "400 Gb/sec (4X NDR)",
            link_layer: "Ethernet",
            lid: 0,
            gids: &roce_gids(number, &interface),
        };
        rdma.put(tree, &device)?;
        Interface {
            name: &interface,
            speed: Some(400_000),
            mtu: 9_000,
            kind: 1,
            number,
            up: true,
        }
        .put(tree, Some(&device), "")?;
    }
    management(tree, "eno1", 40)?;
    Interface {
        name: "bond0",
        speed: Some(20_000),
        mtu: 1_500,
        kind: 1,
        number: 50,
        up: true,
    }
    .put(tree, None, "DEVTYPE=bond")?;
    Ok(hardware)
}

pub(super) fn hgx_a100(tree: &Tree, seed: &str) -> io::Result<Hardware> {
    let host = Host {
        kernel: "5.4.0-144-generic",
        cpu: "AMD EPYC 7742 64-Core Processor",
        cores: 64,
        memory_gib: 1_024,
        numa: 8,
        vendor: "NVIDIA",
        product: "DGXA100 920-23687-2530-000",
        ..xeon("hgx-a100", "enp226s0")
    };
    host.put(tree)?;
    driver_files(tree)?;
    fabric_manager(tree)?;
    // Two GPUs and two NICs are below each pair of switches.
    const GROUPS: [(&str, u32, [&str; 2], [&str; 2]); 4] = [
        ("00", 3, ["07", "0f"], ["0c", "12"]),
        ("40", 1, ["47", "4e"], ["4b", "54"]),
        ("80", 7, ["87", "90"], ["8d", "94"]),
        ("b0", 5, ["b7", "bd"], ["ba", "cc"]),
    ];
    let mut all = Vec::new();
    let mut number = 0;
    for (root, numa, gpus_at, nics_at) in GROUPS {
        let switch = format!("pci0000:{root}/0000:{root}:01.1/0000:{}:00.0", bus(root, 1));
        let down = bus(root, 2);
        for half in 0..2 {
            let (gpu, nic) = (gpus_at[half], nics_at[half]);
            let path = format!("{switch}/0000:{down}:{:02x}.0/0000:{gpu}:00.0", half * 2);
            gpus::put(tree, all.len(), &path, Some(numa), GEN4)?;
            all.push(a100(seed, all.len(), &format!("0000:{gpu}:00.0")));
            let path = format!(
                "{switch}/0000:{down}:{:02x}.0/0000:{nic}:00.0",
                half * 2 + 1
            );
            let device = Device {
                path: &path,
                vendor: pci::MELLANOX,
                class: pci::INFINIBAND,
                driver: "mlx5_core",
                numa: Some(numa),
                link: (GEN4, 16),
            };
            device.put(tree)?;
            let (name, interface) = (format!("mlx5_{number}"), format!("ib{number}"));
            let gids = [(
                format!("fe80:0000:0000:0000:0c42:a103:0000:{number:04x}"),
                "IB/RoCE v1",
                "",
            )];
            Rdma {
                name: &name,
                number,
                firmware: "20.32.1010",
                board: "MT_0000000223",
                rate: "200 Gb/sec (4X HDR)",
                link_layer: "InfiniBand",
                lid: 10 + number,
                gids: &gids,
            }
            .put(tree, &device)?;
            Interface {
                name: &interface,
                speed: Some(200_000),
                mtu: 4_092,
                kind: 32,
                number,
                up: true,
            }
            .put(tree, Some(&device), "")?;
            number += 1;
        }
    }
    let mut hardware = gpus::driver("535.183.01", 12_020, all);
    const SIX: [&str; 6] = [
        "0000:c4:00.0",
        "0000:c5:00.0",
        "0000:c6:00.0",
        "0000:c7:00.0",
        "0000:c8:00.0",
        "0000:c9:00.0",
    ];
    switched(&mut hardware, 12, &SIX);
    // NVML reports the fabric from Hopper on.
    hardware.fabric_version = 0;
    management(tree, "enp226s0", 40)?;
    Ok(hardware)
}

pub(super) fn l40s(tree: &Tree, seed: &str) -> io::Result<Hardware> {
    let host = Host {
        kernel: "6.8.0-45-generic",
        cpu: "AMD EPYC 9354 32-Core Processor",
        cores: 32,
        memory_gib: 768,
        numa: 2,
        memlock: "8388608",
        shm: ",size=67108864",
        vendor: "Dell Inc.",
        product: "PowerEdge R7625",
        ..xeon("l40s", "ens1f0np0")
    };
    host.put(tree)?;
    driver_files(tree)?;
    let mut all = Vec::new();
    for (at, (root, gpu)) in [("00", "01"), ("40", "41"), ("80", "81"), ("c0", "c1")]
        .into_iter()
        .enumerate()
    {
        gpus::put(
            tree,
            at,
            &format!("pci0000:{root}/0000:{root}:01.1/0000:{gpu}:00.0"),
            Some(at as u32 / 2),
            GEN4,
        )?;
        let pcie = Pcie {
            generation: 1,
            generation_max: 4,
            width: 16,
            width_max: 16,
            replays: 0,
        };
        all.push(Gpu {
            name: "NVIDIA L40S".into(),
            memory: 46_068 << 20,
            compute_capability: (8, 9),
            recovery: Some(0),
            module: None,
            power_limit: 350_000,
            power: 34_000,
            clock: (210, 2_520),
            pcie,
            ..gpus::gpu(seed, at, &format!("0000:{gpu}:00.0"))
        });
    }
    let device = Device {
        path: "pci0000:40/0000:40:03.1/0000:45:00.0",
        vendor: pci::MELLANOX,
        class: pci::ETHERNET,
        driver: "mlx5_core",
        numa: Some(0),
        link: (GEN4, 16),
    };
    device.put(tree)?;
    Rdma {
        name: "rocep69s0",
        number: 0,
        firmware: "26.36.1010",
        board: "MT_0000000359",
        rate: "100 Gb/sec (4X EDR)",
        link_layer: "Ethernet",
        lid: 0,
        gids: &roce_gids(0, "ens1f0np0"),
    }
    .put(tree, &device)?;
    Interface {
        name: "ens1f0np0",
        speed: Some(100_000),
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
        number: 9,
        up: true,
    }
    .put(tree, None, "")?;
    Ok(gpus::driver("570.86.15", 12_080, all))
}
