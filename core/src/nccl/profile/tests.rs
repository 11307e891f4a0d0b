use super::*;
use crate::node_report::{
    gpu::{Driver, Fabric, NvLink},
    network::{Interface, Port},
};

/// A healthy node with eight H100 behind NVSwitch and eight InfiniBand adapters.
pub(crate) fn dgx() -> NodeReport {
    let mut report = NodeReport {
        address: "10.0.0.1".into(),
        ..NodeReport::default()
    };
    for i in 0..8_u32 {
        let link = NvLink {
            link: 0,
            active: true,
            peer: NvLinkPeer::Switch(String::new()),
            errors: 0,
        };
        report.gpus.push(Gpu {
            uuid: format!("GPU-{i}"),
            index: i,
            model: "NVIDIA H100 80GB HBM3".into(),
            compute_capability: "9.0".into(),
            numa_node: Some(i / 4),
            nvlinks: vec![link; 18].into(),
            ..Gpu::default()
        });
        let port = Port {
            number: 1,
            state: "ACTIVE".into(),
            link_layer: LinkLayer::Infiniband,
            rate_gbps: 400,
            ..Port::default()
        };
        // Listed backwards, because rails are not in the order of names.
        report.network.rdma.push(RdmaDevice {
            name: format!("mlx5_{}", 7 - i),
            pci: format!("0000:{i:02x}:00.0"),
            driver: "mlx5_core".into(),
            openable: true,
            rail: Some(i),
            ports: vec![port],
            ..RdmaDevice::default()
        });
    }
    let eth = Interface {
        name: "eth0".into(),
        up: true,
        ipv4: true,
        default_route: true,
        addresses: vec!["10.0.0.1".into()],
        ..Interface::default()
    };
    report.network.interfaces = vec![
        eth,
        Interface {
            name: "eth1".into(),
            up: true,
            ipv4: true,
            ..Interface::default()
        },
    ];
    report.driver = Some(Driver {
        version: "570.86".into(),
        cuda: "12.8".into(),
        nvml: "12.570".into(),
    });
    report.host.gpu_device_files = ["nvidiactl", "nvidia-uvm", "nvidia-caps"]
        .map(str::to_owned)
        .into();
    report.host.peermem = true;
    report.host.physical_cores = 112;
    report.host.numa = vec![crate::node_report::host::NumaNode::default(); 2];
    report
}

fn uuids() -> Vec<String> {
    (0..8).map(|i| format!("GPU-{i}")).collect()
}

/// The profile of a gang with one such node for each report.
fn of(reports: &[NodeReport]) -> (Profile, Vec<crate::nccl::mixture::Mismatch>) {
    let nodes: Vec<NodeName> = (1..=reports.len())
        .map(|i| NodeName::from(format!("n{i}")))
        .collect();
    let gpus = uuids();
    let members: Vec<Member<'_>> = nodes
        .iter()
        .zip(reports)
        .map(|(node, report)| Member {
            node,
            report,
            gpus: &gpus,
        })
        .collect();
    (
        decide(&members),
        crate::nccl::mixture::mismatches(&members, true),
    )
}

fn value<'a>(profile: &'a Profile, name: &str) -> Option<(&'a str, &'a str)> {
    profile
        .shared
        .iter()
        .find(|shared| shared.name == name)
        .map(|shared| (shared.value.as_str(), shared.why.as_str()))
}

#[test]
fn equal_and_healthy_nodes_are_left_alone() {
    let (profile, mismatches) = of(&[dgx(), dgx()]);
    assert_eq!(
        (profile.transport, profile.rails),
        (Transport::Infiniband, 8)
    );
    let names: Vec<&str> = profile
        .shared
        .iter()
        .map(|shared| shared.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "NCCL_IGNORE_NET_MISMATCH",
            "TORCH_NCCL_DUMP_ON_TIMEOUT",
            "TORCH_NCCL_TRACE_BUFFER_SIZE"
        ]
    );
    assert!(mismatches.is_empty());
}

#[test]
fn one_node_without_rdma_takes_all_to_sockets() {
    let mut poor = dgx();
    poor.network
        .rdma
        .iter_mut()
        .for_each(|device| device.ports[0].state = "DOWN".into());
    let (profile, _) = of(&[dgx(), poor.clone()]);
    assert_eq!((profile.transport, profile.rails), (Transport::Socket, 0));
    let why = "not all nodes have the same RDMA: n2 has socket, and a job must use one transport";
    assert_eq!(value(&profile, "NCCL_IB_DISABLE"), Some(("1", why)));
    let (profile, _) = of(&[poor.clone(), poor]);
    assert_eq!(
        value(&profile, "NCCL_IB_DISABLE"),
        None,
        "where nobody has any there is nothing to switch off"
    );
    let mut roce = dgx();
    roce.network
        .rdma
        .iter_mut()
        .for_each(|device| device.ports[0].link_layer = LinkLayer::Ethernet);
    assert_eq!(
        of(&[roce.clone(), roce.clone()]).0.transport,
        Transport::Roce
    );
    assert!(
        value(&of(&[dgx(), roce]).0, "NCCL_IB_DISABLE").is_some(),
        "InfiniBand and RoCE do not talk to each other"
    );
}

#[test]
fn rails_are_as_many_as_the_poorest_node_has() {
    let mut seven = dgx();
    seven.network.rdma[2].openable = false;
    let (profile, _) = of(&[dgx(), seven]);
    assert_eq!(
        (profile.transport, profile.rails),
        (Transport::Infiniband, 7)
    );
}

#[test]
fn gpudirect_addresses_multicast_and_old_drivers() {
    let (mut bare, mut six, mut caps, mut old) = (dgx(), dgx(), dgx(), dgx());
    bare.host.peermem = false;
    assert_eq!(
        value(&of(&[dgx(), bare.clone()]).0, "NCCL_NET_GDR_LEVEL")
            .unwrap()
            .0,
        "LOC"
    );
    assert_eq!(
        value(&of(&[bare.clone(), bare]).0, "NCCL_NET_GDR_LEVEL"),
        None,
        "dmabuf may do it, and all are alike"
    );
    six.network
        .interfaces
        .iter_mut()
        .for_each(|interface| (interface.ipv4, interface.ipv6) = (false, true));
    assert_eq!(
        value(&of(&[dgx(), six]).0, "NCCL_SOCKET_FAMILY").unwrap(),
        ("AF_INET6", "no IPv4 address on n2")
    );
    caps.host.gpu_device_files.pop();
    assert_eq!(
        value(&of(&[dgx(), caps]).0, "NCCL_NVLS_ENABLE").unwrap().0,
        "0"
    );
    old.driver.as_mut().unwrap().cuda = "11.8".into();
    let (profile, mismatches) = of(&[dgx(), old]);
    assert_eq!(value(&profile, "NCCL_CUMEM_ENABLE").unwrap().0, "0");
    assert_eq!(
        mismatches[0].to_string(),
        "what the driver can run differs: CUDA 11 on n2, CUDA 12 on n1; one torch build needs one CUDA major on all nodes (driver 525 or \
         later for 12, 580 for 13)"
    );
}

#[test]
fn multi_node_nvlink_needs_its_channel() {
    let mut rack = dgx();
    let fabric = Fabric {
        state: FabricState::Completed,
        cluster: "7c5e".into(),
        clique: 1,
        ..Fabric::default()
    };
    rack.gpus
        .iter_mut()
        .for_each(|gpu| gpu.fabric = Some(fabric.clone()));
    let mut closed = rack.clone();
    rack.host.imex_channels = vec!["channel0".into()];
    assert_eq!(
        value(&of(&[rack.clone(), rack.clone()]).0, "NCCL_MNNVL_ENABLE"),
        None,
        "left to NCCL"
    );
    closed.host.imex_channels.clear();
    assert_eq!(
        value(&of(&[rack, closed.clone()]).0, "NCCL_MNNVL_ENABLE")
            .unwrap()
            .0,
        "0"
    );
    assert_eq!(
        value(&of(&[closed]).0, "NCCL_MNNVL_ENABLE"),
        None,
        "one node needs no other's memory"
    );
}

#[test]
fn multi_node_nvlink_is_for_nodes_of_one_clique() {
    let tray = |cluster: &str, clique| {
        let mut tray = dgx();
        let fabric = Fabric {
            state: FabricState::Completed,
            cluster: cluster.into(),
            clique,
            ..Fabric::default()
        };
        tray.gpus
            .iter_mut()
            .for_each(|gpu| gpu.fabric = Some(fabric.clone()));
        tray.host.imex_channels = vec!["channel0".into()];
        tray
    };
    let told = |trays: &[NodeReport]| {
        value(&of(trays).0, "NCCL_MNNVL_ENABLE")
            .map(|(value, why)| (value.to_owned(), why.to_owned()))
    };
    let off = Some((
        "0".to_owned(),
        "no two nodes are in the same clique of an NVLink domain".to_owned(),
    ));
    assert_eq!(told(&[tray("7c5e", 1), tray("7c5e", 1)]), None);
    assert_eq!(
        told(&[tray("7c5e", 1), tray("7c5e", 2)]),
        off,
        "two parts of one rack"
    );
    assert_eq!(
        told(&[tray("7c5e", 1), tray("8d6f", 1)]),
        off,
        "two racks that number alike"
    );
    assert_eq!(
        told(&[tray("7c5e", 1), tray("7c5e", 1), tray("8d6f", 1)]),
        None,
        "NCCL uses it within each clique"
    );
    assert_eq!(told(&[tray("7c5e", 1)]), None);
    assert_eq!(told(&[dgx(), dgx()]), None, "not made for it");
}

#[test]
fn ethernet_beside_infiniband_is_not_the_compute_fabric() {
    let mut tray = dgx();
    tray.network
        .rdma
        .iter_mut()
        .for_each(|device| device.rail = None);
    for device in &mut tray.network.rdma[..2] {
        device.ports[0].link_layer = LinkLayer::Ethernet;
    }
    let (profile, _) = of(&[tray.clone(), tray]);
    assert_eq!(
        (profile.transport, profile.rails),
        (Transport::Infiniband, 6)
    );
}

#[test]
fn unequal_models_are_named() {
    let mut other = dgx();
    other
        .gpus
        .iter_mut()
        .for_each(|gpu| gpu.model = "NVIDIA A100-SXM4-80GB".into());
    let (_, mismatches) = of(&[dgx(), other.clone(), other]);
    let text = mismatches[0].to_string();
    assert!(
        text.starts_with("the GPU model differs: NVIDIA A100-SXM4-80GB on n2 and 1 more, NVIDIA H100 80GB HBM3 on n1; "),
        "{text}"
    );
}

#[test]
fn the_hash_is_of_values_not_of_reasons() {
    let (profile, _) = of(&[dgx(), dgx()]);
    let mut reworded = profile.clone();
    reworded.shared[0].why.push('!');
    assert_eq!(profile.hash(), reworded.hash());
    for change in [
        |p: &mut Profile| p.shared[0].value.push('1'),
        |p: &mut Profile| p.transport = Transport::Socket,
        |p: &mut Profile| p.rails = 7,
        |p: &mut Profile| drop(p.shared.pop()),
    ] {
        let mut other = profile.clone();
        change(&mut other);
        assert_ne!(profile.hash(), other.hash());
    }
    assert_eq!(
        Profile::default().hash(),
        "f3da59462432cc74",
        "stable over versions: agents compare it"
    );
}

#[test]
fn devices_in_the_order_of_their_rails() {
    let mut report = dgx();
    let names = |report: &NodeReport| {
        compute_devices(report)
            .iter()
            .map(|d| d.name.clone())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        names(&report),
        "mlx5_7 mlx5_6 mlx5_5 mlx5_4 mlx5_3 mlx5_2 mlx5_1 mlx5_0"
    );
    report.network.rdma[0].rail = None;
    assert!(!names(&report).contains("mlx5_7"), "storage, not compute");
    report
        .network
        .rdma
        .iter_mut()
        .for_each(|device| device.rail = None);
    report.network.rdma[1].interfaces = vec!["eth0".into()];
    assert_eq!(
        compute_devices(&report).len(),
        7,
        "the management adapter is left out where places are unknown"
    );
}
