//! Network devices: ordinary interfaces, and RDMA devices (InfiniBand, RoCE, EFA) with their ports.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    pub interfaces: Vec<Interface>,
    pub rdma: Vec<RdmaDevice>,
}

/// One network interface with hardware behind it, or of a kind that carries traffic between nodes
/// (bond, WireGuard, VLAN).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interface {
    pub name: String,
    pub up: bool,
    /// None where the driver does not say, or the link is down.
    pub speed_mbps: Option<u32>,
    pub mtu: u32,
    pub mac: String,
    pub kind: InterfaceKind,
    /// Its PCI device, if it has one of its own.
    pub pci: String,
    pub driver: String,
    pub numa_node: Option<u32>,
    pub ipv4: bool,
    /// An address beyond link-local.
    pub ipv6: bool,
    /// The default route leaves here: the management network.
    pub default_route: bool,
    /// Its addresses beyond link-local, without prefix length.
    pub addresses: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum InterfaceKind {
    #[default]
    Ethernet,
    /// IP over InfiniBand.
    Infiniband,
    Wireguard,
    Wireless,
    /// Bonds, VLANs and bridges.
    Stacked,
    Other,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RdmaDevice {
    /// `mlx5_0`.
    pub name: String,
    pub pci: String,
    /// `mlx5_core`, `efa`, `bnxt_re`, ...
    pub driver: String,
    pub firmware: String,
    pub board: String,
    pub guid: String,
    pub numa_node: Option<u32>,
    pub interfaces: Vec<String>,
    /// Its character device can be opened here: under SR-IOV sysfs lists devices that cannot.
    pub openable: bool,
    /// A function of a device cut up by SR-IOV.
    pub virtual_function: bool,
    /// Its rank by PCI address among the devices near a GPU. `None`: not near one.
    pub rail: Option<u32>,
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Port {
    pub number: u32,
    /// `ACTIVE`, `INIT`, `DOWN`, ...
    pub state: String,
    /// `LinkUp`, `Polling`, `Disabled`, ...
    pub physical_state: String,
    pub rate_gbps: u32,
    pub link_layer: LinkLayer,
    pub lid: u32,
    pub gids: Vec<Gid>,
    /// The RoCE GID index NCCL would choose by itself, for IPv4 and for IPv6.
    pub roce_v2_index: Option<u32>,
    pub roce_v2_index_ipv6: Option<u32>,
}

impl Port {
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LinkLayer {
    Infiniband,
    Ethernet,
    /// EFA says so.
    #[default]
    Unspecified,
}

/// One usable entry of a port's GID table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gid {
    pub index: u32,
    pub address: String,
    /// `IB/RoCE v1`, `RoCE v2`; empty where the kernel does not tell.
    pub kind: String,
    pub interface: String,
}

impl Gid {
    /// An IPv4 address mapped into IPv6.
    pub fn is_ipv4(&self) -> bool {
        self.address.starts_with("0000:0000:0000:0000:0000:ffff:")
    }

    pub fn is_link_local(&self) -> bool {
        self.address.starts_with("fe80:")
    }

    fn is_roce_v2(&self) -> bool {
        self.kind == "RoCE v2"
    }
}

/// The index NCCL chooses when it is told none: RoCE v2 before v1, of the address family asked for,
/// never link-local, lowest index. (NCCL 2.30, `src/transport/net_ib`, restated.)
pub fn chosen_gid(gids: &[Gid], ipv4: bool) -> Option<u32> {
    let usable = || {
        gids.iter()
            .filter(|gid| gid.is_ipv4() == ipv4 && !gid.is_link_local())
    };
    let best = usable()
        .find(|gid| gid.is_roce_v2())
        .or_else(|| usable().next());
    best.map(|gid| gid.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, address: &str, kind: &str) -> Gid {
        Gid {
            index,
            address: address.into(),
            kind: kind.into(),
            interface: "eth0".into(),
        }
    }

    #[test]
    fn the_gid_index_is_the_one_nccl_takes() {
        let v4 = "0000:0000:0000:0000:0000:ffff:0a00:0001";
        let local = "fe80:0000:0000:0000:0000:0000:0000:0001";
        let v6 = "2001:0db8:0000:0000:0000:0000:0000:0001";
        let table = [
            gid(0, local, "IB/RoCE v1"),
            gid(1, local, "RoCE v2"),
            gid(2, v4, "IB/RoCE v1"),
            gid(3, v4, "RoCE v2"),
            gid(4, v6, "IB/RoCE v1"),
            gid(5, v6, "RoCE v2"),
        ];
        assert_eq!(chosen_gid(&table, true), Some(3));
        assert_eq!(chosen_gid(&table, false), Some(5));
        assert_eq!(
            chosen_gid(&table[..3], true),
            Some(2),
            "version 1 is better than none"
        );
        assert_eq!(
            chosen_gid(&table[..2], true),
            None,
            "link-local is no address for others"
        );
        assert_eq!(chosen_gid(&table[..2], false), None);
    }
}
