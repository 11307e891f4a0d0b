//! Virtual machines, whose PCIe trees show nothing.

use std::io;

use super::{
    gpus::{self, a100, h100, switched},
    host::{Host, driver_files},
};
use crate::{
    hardware::Hardware,
    network::{Interface, Rdma},
    pci::{self, Device},
    tree::Tree,
};

const GUEST: Host<'static> = Host {
    name: "vm",
    kernel: "6.5.0-1020-gcp",
    cpu: "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
    sockets: 2,
    cores: 52,
    threads: 2,
    memory_gib: 1_872,
    numa: 0,
    memlock: "67108864",
    shm: "",
    vendor: "Google",
    product: "Google Compute Engine",
    default_route: "eth0",
};

pub(super) fn flat(tree: &Tree, seed: &str) -> io::Result<Hardware> {
    GUEST.put(tree)?;
    driver_files(tree)?;
    let mut all = Vec::new();
    for at in 0..8 {
        let address = format!("0000:00:{:02x}.0", 4 + at);
        gpus::put(tree, at, &format!("pci0000:00/{address}"), None, "Unknown")?;
        all.push(h100(seed, at, &address));
    }
    let mut hardware = gpus::driver("550.90.07", 12_040, all);
    // The switches belong to the host.
    switched(&mut hardware, 18, &[]);
    hardware
        .gpus
        .iter_mut()
        .flat_map(|gpu| &mut gpu.links)
        .for_each(|link| link.to_switch = true);
    for number in 0..5 {
        let path = format!("pci0000:00/0000:00:{:02x}.0", 0x14 + number);
        let device = Device {
            path: &path,
            vendor: "0x1ae0",
            class: pci::ETHERNET,
            driver: "gvnic",
            numa: None,
            link: ("Unknown", 0),
        };
        device.put(tree)?;
        let name = format!("eth{number}");
        Interface {
            name: &name,
            speed: Some(200_000),
            mtu: 8_244,
            kind: 1,
            number,
            up: true,
        }
        .put(tree, Some(&device), "")?;
    }
    tree.file(
        "var/run/nvidia-topologyd/virtualTopology.xml",
        "<system version=\"1\"/>",
    )?;
    Ok(hardware)
}

pub(super) fn efa(tree: &Tree, seed: &str) -> io::Result<Hardware> {
    Host {
        name: "ip-10-0-0-1",
        kernel: "6.1.102-111.187.amzn2023.x86_64",
        cpu: "Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz",
        cores: 24,
        memory_gib: 1_152,
        numa: 2,
        memlock: "unlimited",
        vendor: "Amazon EC2",
        product: "p4d.24xlarge",
        ..GUEST
    }
    .put(tree)?;
    driver_files(tree)?;
    let mut all = Vec::new();
    for at in 0..8 {
        let address = format!("0000:{:02x}:1c.0", 0x10 + (at / 2) * 0x10 + (at % 2));
        let root = &address[5..7];
        gpus::put(
            tree,
            at,
            &format!("pci0000:{root}/{address}"),
            Some(at as u32 / 4),
            "Unknown",
        )?;
        all.push(a100(seed, at, &address));
    }
    let mut hardware = gpus::driver("535.183.01", 12_020, all);
    hardware.fabric_version = 0;
    switched(&mut hardware, 12, &[]);
    hardware
        .gpus
        .iter_mut()
        .flat_map(|gpu| &mut gpu.links)
        .for_each(|link| link.to_switch = true);
    for number in 0..4 {
        let bus = format!("{:02x}", 0x10 + number * 0x10);
        let path = format!("pci0000:{bus}/0000:{bus}:1b.0");
        let device = Device {
            path: &path,
            vendor: pci::AMAZON,
            class: pci::ETHERNET,
            driver: "efa",
            numa: Some(number / 2),
            link: ("Unknown", 0),
        };
        device.put(tree)?;
        let name = format!("rdmap{}s27", 16 + number * 16);
        let gids = [(
            format!("fe80:0000:0000:0000:0cff:e3ff:fe0f:{number:04x}"),
            "",
            "",
        )];
        Rdma {
            name: &name,
            number,
            firmware: "0.0.0.0",
            board: "",
            rate: "100 Gb/sec (4X EDR)",
            link_layer: "Unspecified",
            lid: 0,
            gids: &gids,
        }
        .put(tree, &device)?;
    }
    let device = Device {
        path: "pci0000:00/0000:00:05.0",
        vendor: pci::AMAZON,
        class: pci::ETHERNET,
        driver: "ena",
        numa: None,
        link: ("Unknown", 0),
    };
    device.put(tree)?;
    Interface {
        name: "eth0",
        speed: None,
        mtu: 9_001,
        kind: 1,
        number: 9,
        up: true,
    }
    .put(tree, Some(&device), "")?;
    Ok(hardware)
}
