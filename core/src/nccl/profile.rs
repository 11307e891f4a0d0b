//! Decides, from the weakest member, everything on which all ranks of a generation must agree. A
//! profile never names a node's own devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};

use crate::{
    id::NodeName,
    node_report::{
        Gpu, NodeReport,
        gpu::{FabricState, NvLinkPeer},
        network::{LinkLayer, RdmaDevice},
    },
};

/// What NCCL uses between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Transport {
    #[default]
    Socket,
    Infiniband,
    Roce,
    /// AWS's adapters, with their own plugin.
    Efa,
}

impl Transport {
    pub const ALL: [(&str, Transport); 4] = [
        ("socket", Self::Socket),
        ("infiniband", Self::Infiniband),
        ("roce", Self::Roce),
        ("efa", Self::Efa),
    ];
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = Self::ALL
            .iter()
            .find(|(_, transport)| transport == self)
            .expect("all are listed");
        f.write_str(name)
    }
}

/// A variable that every rank gets with the same value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    pub name: String,
    pub value: String,
    /// For the reader of `muster explain --env`.
    pub why: String,
}

/// The decisions for one generation. The default is that of a job without GPUs, whose ranks have
/// nothing to agree on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    pub transport: Transport,
    /// How many RDMA devices every node uses.
    pub rails: u32,
    /// Sorted by name.
    pub shared: Vec<Shared>,
}

impl Profile {
    /// 16 hexadecimal digits over everything that must agree, without the reasons. An agent of
    /// another version may understand a profile in another way than its coordinator. It then
    /// computes another hash, and refuses. The hash guards against mistakes only, so FNV-1a is
    /// enough.
    pub fn hash(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut text = |text: &str| {
            for byte in text.bytes().chain([0]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        text(&self.transport.to_string());
        text(&self.rails.to_string());
        for shared in &self.shared {
            text(&shared.name);
            text(&shared.value);
        }
        format!("{hash:016x}")
    }
}

/// A node of a generation to be: its report, and the GPUs that it gives.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    pub node: &'a NodeName,
    pub report: &'a NodeReport,
    pub gpus: &'a [String],
}

impl<'a> Member<'a> {
    pub(super) fn given(self) -> impl Iterator<Item = &'a Gpu> {
        self.gpus
            .iter()
            .filter_map(move |uuid| self.report.gpu_of(uuid))
    }
}

/// The RDMA devices that NCCL must use on a node, in the order of their rails. They are near a GPU
/// (or, if no places are known, not behind the management interface), can be opened, and have a
/// port that is up.
pub fn compute_devices(report: &NodeReport) -> Vec<&RdmaDevice> {
    let management: BTreeSet<&str> = report
        .network
        .interfaces
        .iter()
        .filter(|interface| interface.default_route)
        .map(|interface| interface.name.as_str())
        .collect();
    let usable =
        |device: &&RdmaDevice| device.openable && device.ports.iter().any(|port| port.is_active());
    let mut devices: Vec<&RdmaDevice> = report.network.rdma.iter().filter(usable).collect();
    if devices.iter().any(|device| device.rail.is_some()) {
        devices.retain(|device| device.rail.is_some());
    } else {
        devices.retain(|device| {
            !device
                .interfaces
                .iter()
                .any(|name| management.contains(name.as_str()))
        });
        // If there are both kinds, InfiniBand is the compute network, and the Ethernet ports beside
        // it lead to storage (on GB200, those of its BlueField cards).
        let infiniband = |device: &&RdmaDevice| {
            device
                .ports
                .iter()
                .any(|port| port.link_layer == LinkLayer::Infiniband)
        };
        if devices.iter().any(infiniband) {
            devices.retain(infiniband);
        }
    }
    devices.sort_by_key(|device| (device.rail, device.pci.clone(), device.name.clone()));
    devices
}

/// The best transport that a node can use by itself.
fn transport_of(report: &NodeReport) -> Transport {
    let devices = compute_devices(report);
    let layer = |device: &&RdmaDevice| {
        device
            .ports
            .iter()
            .find(|port| port.is_active())
            .map(|port| port.link_layer)
    };
    match devices.first() {
        None => Transport::Socket,
        Some(device) if device.driver == "efa" => Transport::Efa,
        Some(first) if devices.iter().all(|device| layer(device) == layer(first)) => {
            match layer(first) {
                Some(LinkLayer::Infiniband) => Transport::Infiniband,
                Some(LinkLayer::Ethernet) => Transport::Roce,
                _ => Transport::Socket,
            }
        }
        Some(_) => Transport::Socket,
    }
}

/// The profile of a generation whose members with GPUs are these. A worker pod's GPUs are not listed
/// in its member.
pub fn decide(members: &[Member<'_>]) -> Profile {
    let (transport, poorer) = transport(members);
    let mut shared = Values::default();
    shared.always();
    if let Some(why) = poorer {
        shared.set("NCCL_IB_DISABLE", "1", why);
    }
    let rails = match transport {
        Transport::Infiniband | Transport::Roce => {
            shared.direct_rdma(members);
            let devices = |member: &Member<'_>| compute_devices(member.report).len();
            members.iter().map(devices).min().unwrap_or_default() as u32
        }
        Transport::Efa => {
            let why = "all nodes have EFA; the rest is its plugin's to choose";
            shared.set("FI_PROVIDER", "efa", why.into());
            0
        }
        Transport::Socket => 0,
    };
    shared.addresses(members, transport);
    shared.nvlink(members);
    let old = |member: &Member<'_>| cuda_of(member.report).is_some_and(|cuda| cuda < (12, 0));
    if let Some(old) = names(members, old) {
        let why = format!("the driver knows CUDA below 12.0 on {old}");
        shared.set("NCCL_CUMEM_ENABLE", "0", why);
    }
    Profile {
        transport,
        rails,
        shared: shared.into_list(),
    }
}

/// The transport that all members can use. The text: why it is not the best that some have.
fn transport(members: &[Member<'_>]) -> (Transport, Option<String>) {
    let mut each = members
        .iter()
        .map(|member| (transport_of(member.report), member.node));
    let first = each.clone().next().expect("there is a member").0;
    if each.all(|(transport, _)| transport == first) {
        return (first, None);
    }
    let each = members
        .iter()
        .map(|member| (transport_of(member.report), member.node));
    // Of several that are equally poor, the first is named.
    let (poor, node) = each
        .min_by_key(|(transport, _)| *transport)
        .expect("there is a member");
    let why = format!(
        "not all nodes have the same RDMA: {node} has {poor}, and a job must use one transport"
    );
    (Transport::Socket, Some(why))
}

/// The nodes of the members of which this holds, for people. `None`: it holds of none.
fn names(members: &[Member<'_>], wanted: impl Fn(&Member<'_>) -> bool) -> Option<String> {
    let mut nodes = { members.iter() }
        .filter(|m| wanted(m))
        .map(|m| m.node)
        .peekable();
    nodes.peek()?;
    Some(listing(nodes))
}

/// Variables by name, each with its value and the reason for it.
#[derive(Default)]
struct Values(BTreeMap<&'static str, (String, String)>);

impl Values {
    fn set(&mut self, name: &'static str, value: &str, why: String) {
        self.0.insert(name, (value.to_owned(), why));
    }

    /// What does not depend on the members.
    fn always(&mut self) {
        // By default NCCL 2.30 starts with unequal numbers of network devices, and hangs.
        self.set(
            "NCCL_IGNORE_NET_MISMATCH",
            "0",
            "unequal numbers of network devices shall be an error, not a hang".into(),
        );
        // When a collective has timed out, the recorder tells which rank was missing. 2,000 entries
        // take a few hundred KiB (torch's own example).
        self.set(
            "TORCH_NCCL_TRACE_BUFFER_SIZE",
            "2000",
            "flight recorder: who was missing when a collective timed out".into(),
        );
        self.set(
            "TORCH_NCCL_DUMP_ON_TIMEOUT",
            "1",
            "flight recorder: written down when a collective times out".into(),
        );
    }

    /// GPUDirect RDMA is used by all members or by none.
    fn direct_rdma(&mut self, members: &[Member<'_>]) {
        let direct = |member: &Member<'_>| member.report.host.peermem;
        if members.iter().any(direct)
            && let Some(without) = names(members, |member| !direct(member))
        {
            let why = format!("no GPUDirect RDMA (nvidia-peermem) on {without}");
            self.set("NCCL_NET_GDR_LEVEL", "LOC", why);
        }
    }

    fn addresses(&mut self, members: &[Member<'_>], transport: Transport) {
        let Some(without) = names(members, |member| only_ipv6(member.report)) else {
            return;
        };
        let why = format!("no IPv4 address on {without}");
        if transport == Transport::Roce {
            self.set("NCCL_IB_ADDR_FAMILY", "AF_INET6", why.clone());
        }
        self.set("NCCL_SOCKET_FAMILY", "AF_INET6", why);
    }

    fn nvlink(&mut self, members: &[Member<'_>]) {
        if let Some(without) = names(members, |member| lacks_nvls(*member)) {
            let why = format!(
                "NVLink SHARP needs a registered fabric and /dev/nvidia-caps, missing on {without}"
            );
            self.set("NCCL_NVLS_ENABLE", "0", why);
        }
        if let Some(why) = no_multi_node_nvlink(members) {
            self.set("NCCL_MNNVL_ENABLE", "0", why);
        }
    }

    fn into_list(self) -> Vec<Shared> {
        let shared = self.0.into_iter().map(|(name, (value, why))| Shared {
            name: name.to_owned(),
            value,
            why,
        });
        shared.collect()
    }
}

/// Why NCCL must not use NVLink between nodes although some members are made for it. In all other
/// cases NCCL decides: it uses NVLink within each clique and the network between cliques, and does
/// without NVLink if one rank is in no clique (`ncclMnnvlCheck`). Forced on (`1`), it would fail in
/// that case.
fn no_multi_node_nvlink(members: &[Member<'_>]) -> Option<String> {
    let mut cliques: BTreeMap<(&str, u32), BTreeSet<&NodeName>> = BTreeMap::new();
    for member in members {
        let fabrics = member
            .given()
            .filter_map(|gpu| gpu.fabric.as_ref())
            .filter(|fabric| !fabric.cluster.is_empty());
        for fabric in fabrics {
            cliques
                .entry((&fabric.cluster, fabric.clique))
                .or_default()
                .insert(member.node);
        }
    }
    if cliques.is_empty() || members.len() < 2 {
        return None;
    }
    let closed = members
        .iter()
        .filter(|member| member.report.host.imex_channels.is_empty())
        .map(|member| member.node);
    let closed: Vec<&NodeName> = closed
        .filter(|node| cliques.values().any(|nodes| nodes.contains(node)))
        .collect();
    if !closed.is_empty() {
        return Some(format!(
            "multi-node NVLink without an IMEX channel on {}",
            listing(closed.into_iter())
        ));
    }
    // If each node is alone in its clique, it has no other node to reach. NCCL would still ask for
    // memory that other nodes can map, which a node may refuse.
    let alone = cliques.values().all(|nodes| nodes.len() == 1);
    alone.then(|| "no two nodes are in the same clique of an NVLink domain".to_owned())
}

/// `n1, n2 and 3 more`, because people read the reasons.
fn listing<'a>(nodes: impl Iterator<Item = &'a NodeName>) -> String {
    let names: Vec<&str> = nodes.map(|node| node.as_str()).collect();
    match names.len() {
        0..=3 => names.join(", "),
        more => format!("{} and {} more", names[..2].join(", "), more - 2),
    }
}

/// The newest CUDA of the driver, as major and minor.
pub(super) fn cuda_of(report: &NodeReport) -> Option<(u32, u32)> {
    let (major, minor) = report.driver.as_ref()?.cuda.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn only_ipv6(report: &NodeReport) -> bool {
    let up = || {
        report
            .network
            .interfaces
            .iter()
            .filter(|interface| interface.up)
    };
    up().any(|interface| interface.ipv6) && !up().any(|interface| interface.ipv4)
}

/// Whether NCCL would fail with multicast on this member. NCCL tries multicast by itself on Hopper
/// or newer behind NVSwitch; it fails if the fabric or its device files are not in order.
fn lacks_nvls(member: Member<'_>) -> bool {
    let multicasts = |gpu: &Gpu| {
        let major = gpu
            .compute_capability
            .split('.')
            .next()
            .and_then(|major| major.parse::<u32>().ok());
        major >= Some(9)
            && gpu
                .nvlinks
                .iter()
                .any(|link| link.active && matches!(link.peer, NvLinkPeer::Switch(_)))
    };
    let unregistered = |gpu: &Gpu| {
        let state = gpu
            .fabric
            .as_ref()
            .map_or(FabricState::NotSupported, |fabric| fabric.state);
        matches!(state, FabricState::NotStarted | FabricState::InProgress)
    };
    let no_files = !member
        .report
        .host
        .gpu_device_files
        .iter()
        .any(|file| file == "nvidia-caps");
    member
        .given()
        .any(|gpu| multicasts(gpu) && (unregistered(gpu) || no_files))
}

#[cfg(test)]
pub(crate) mod tests;
