//! Network devices: ordinary interfaces, and RDMA devices (InfiniBand, RoCE, EFA) with their ports.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    pub interfaces: Vec<Interface>,
    pub rdma: Vec<RdmaDevice>,
    /// Every address from which other nodes may see this one's connections, without loopback and
    /// IPv6 link-local ones. Empty: the agent does not tell.
    pub addresses: Vec<IpAddr>,
}

/// One network interface that has hardware behind it, or that carries traffic between nodes all the
/// same (bond, WireGuard, VLAN).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interface {
    pub name: String,
    pub up: bool,
    /// In Mbit/s. `None`: the link is down, or the driver does not tell.
    pub speed_mbps: Option<u32>,
    pub mtu: u32,
    pub mac: String,
    pub kind: InterfaceKind,
    /// The PCI address of its device. Empty: it has no device of its own.
    pub pci: String,
    pub driver: String,
    pub numa_node: Option<u32>,
    pub ipv4: bool,
    /// Whether it has an IPv6 address that is not link-local.
    pub ipv6: bool,
    /// Whether the default route goes through it. If so, it is the management network.
    pub default_route: bool,
    /// Its addresses that are not link-local, without a prefix length.
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

/// An InfiniBand, RoCE or EFA device.
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
    /// Whether its character device can be opened here. Under SR-IOV sysfs also lists devices that
    /// cannot be opened.
    pub openable: bool,
    /// Whether it is one function of a device that SR-IOV has divided.
    pub virtual_function: bool,
    /// Its position among the devices near a GPU, in the order of their PCI addresses. `None`: it
    /// is not near a GPU.
    pub rail: Option<u32>,
    pub ports: Vec<Port>,
}

/// One port of an RDMA device.
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
    /// The GID index that NCCL would choose by itself for RoCE, for IPv4 and for IPv6.
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
    /// EFA devices report this.
    #[default]
    Unspecified,
}

/// One usable entry of a port's GID table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gid {
    pub index: u32,
    pub address: String,
    /// `IB/RoCE v1` or `RoCE v2`. Empty: the kernel does not tell.
    pub kind: String,
    pub interface: String,
}

impl Gid {
    /// Whether it is an IPv4 address mapped into IPv6.
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

/// The index that NCCL chooses by itself: RoCE v2 before v1, only of the given address family,
/// never link-local, the lowest index first. (After NCCL 2.30, `src/transport/net_ib`.)
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
