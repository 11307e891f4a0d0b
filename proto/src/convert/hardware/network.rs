//! Network interfaces and RDMA devices, between core's types and the wire.

use std::net::IpAddr;

use muster_core::node_report::network::{
    Gid, Interface, InterfaceKind, LinkLayer, Network, Port, RdmaDevice,
};

use super::{NAME_MAX, count, ip_addresses, required_text, text, texts, words};
use crate::{convert::Malformed, v1};

/// Bound of the interfaces, and of the RDMA devices. The largest machines have 32 EFA devices, and
/// virtual functions may be a hundred.
const DEVICES_MAX: usize = 512;
/// Ports of a device. Devices in use have at most two.
const PORTS_MAX: usize = 8;
/// The agent lists at most this many entries of a port's table.
const GIDS_MAX: usize = 32;
/// Addresses of an interface, and of a whole machine. Real ones have a handful.
const ADDRESSES_MAX: usize = 256;

words!(kind_to_wire, kind_from_wire, InterfaceKind, Ethernet = "ethernet", Infiniband = "infiniband", Wireguard = "wireguard", Wireless = "wireless", Stacked = "stacked", Other = "other"; Other);
words!(layer_to_wire, layer_from_wire, LinkLayer, Infiniband = "infiniband", Ethernet = "ethernet", Unspecified = "unspecified"; Unspecified);

pub(super) fn interface_to_wire(interface: &Interface) -> v1::Interface {
    v1::Interface {
        name: interface.name.clone(),
        up: interface.up,
        speed_mbps: interface.speed_mbps,
        mtu: interface.mtu,
        mac: interface.mac.clone(),
        kind: kind_to_wire(interface.kind),
        pci: interface.pci.clone(),
        driver: interface.driver.clone(),
        numa_node: interface.numa_node,
        ipv4: interface.ipv4,
        ipv6: interface.ipv6,
        default_route: interface.default_route,
        addresses: interface
            .addresses
            .iter()
            .take(ADDRESSES_MAX)
            .cloned()
            .collect(),
    }
}

pub(super) fn addresses_to_wire(addresses: &[IpAddr]) -> Vec<String> {
    let some = addresses.iter().take(ADDRESSES_MAX);
    some.map(IpAddr::to_string).collect()
}

pub(super) fn rdma_to_wire(device: &RdmaDevice) -> v1::RdmaDevice {
    v1::RdmaDevice {
        name: device.name.clone(),
        pci: device.pci.clone(),
        driver: device.driver.clone(),
        firmware: device.firmware.clone(),
        board: device.board.clone(),
        guid: device.guid.clone(),
        numa_node: device.numa_node,
        interfaces: device.interfaces.clone(),
        openable: device.openable,
        virtual_function: device.virtual_function,
        rail: device.rail,
        ports: device.ports.iter().map(port_to_wire).collect(),
    }
}

fn port_to_wire(port: &Port) -> v1::Port {
    let gid = |gid: &Gid| v1::Gid {
        index: gid.index,
        address: gid.address.clone(),
        kind: gid.kind.clone(),
        interface: gid.interface.clone(),
    };
    v1::Port {
        number: port.number,
        state: port.state.clone(),
        physical_state: port.physical_state.clone(),
        rate_gbps: port.rate_gbps,
        link_layer: layer_to_wire(port.link_layer),
        lid: port.lid,
        gids: port.gids.iter().map(gid).collect(),
        roce_v2_index: port.roce_v2_index,
        roce_v2_index_ipv6: port.roce_v2_index_ipv6,
    }
}

pub(super) fn network_from_wire(
    interfaces: Vec<v1::Interface>,
    rdma: Vec<v1::RdmaDevice>,
    addresses: Vec<String>,
) -> Result<Network, Malformed> {
    count("report.hardware.interfaces", interfaces.len(), DEVICES_MAX)?;
    count("report.hardware.rdma", rdma.len(), DEVICES_MAX)?;
    Ok(Network {
        interfaces: interfaces
            .into_iter()
            .enumerate()
            .map(|(i, wire)| interface_from_wire(i, wire))
            .collect::<Result<_, _>>()?,
        rdma: rdma
            .into_iter()
            .enumerate()
            .map(|(i, wire)| rdma_from_wire(i, wire))
            .collect::<Result<_, _>>()?,
        addresses: ip_addresses("report.hardware.addresses", addresses, ADDRESSES_MAX)?,
    })
}

fn interface_from_wire(i: usize, wire: v1::Interface) -> Result<Interface, Malformed> {
    let field = |name: &str| format!("report.hardware.interfaces[{i}].{name}");
    let name = |at: &str, value| text(&field(at), value, NAME_MAX);
    Ok(Interface {
        name: required_text(&field("name"), wire.name, NAME_MAX)?,
        up: wire.up,
        speed_mbps: wire.speed_mbps,
        mtu: wire.mtu,
        mac: name("mac", wire.mac)?,
        kind: kind_from_wire(&wire.kind),
        pci: name("pci", wire.pci)?,
        driver: name("driver", wire.driver)?,
        numa_node: wire.numa_node,
        ipv4: wire.ipv4,
        ipv6: wire.ipv6,
        default_route: wire.default_route,
        addresses: texts(&field("addresses"), wire.addresses, ADDRESSES_MAX, NAME_MAX)?,
    })
}

fn rdma_from_wire(i: usize, wire: v1::RdmaDevice) -> Result<RdmaDevice, Malformed> {
    let field = |name: &str| format!("report.hardware.rdma[{i}].{name}");
    let name = |at: &str, value| text(&field(at), value, NAME_MAX);
    count(&field("ports"), wire.ports.len(), PORTS_MAX)?;
    Ok(RdmaDevice {
        name: required_text(&field("name"), wire.name, NAME_MAX)?,
        pci: name("pci", wire.pci)?,
        driver: name("driver", wire.driver)?,
        firmware: name("firmware", wire.firmware)?,
        board: name("board", wire.board)?,
        guid: name("guid", wire.guid)?,
        numa_node: wire.numa_node,
        interfaces: texts(&field("interfaces"), wire.interfaces, PORTS_MAX, NAME_MAX)?,
        openable: wire.openable,
        virtual_function: wire.virtual_function,
        rail: wire.rail,
        ports: wire
            .ports
            .into_iter()
            .map(|port| port_from_wire(&field("ports"), port))
            .collect::<Result<_, _>>()?,
    })
}

fn port_from_wire(field: &str, wire: v1::Port) -> Result<Port, Malformed> {
    let name = |at: &str, value| text(&format!("{field}.{at}"), value, NAME_MAX);
    count(&format!("{field}.gids"), wire.gids.len(), GIDS_MAX)?;
    let gid = |gid: v1::Gid| {
        Ok(Gid {
            index: gid.index,
            address: name("gids.address", gid.address)?,
            kind: name("gids.kind", gid.kind)?,
            interface: name("gids.interface", gid.interface)?,
        })
    };
    Ok(Port {
        number: wire.number,
        state: name("state", wire.state)?,
        physical_state: name("physical_state", wire.physical_state)?,
        rate_gbps: wire.rate_gbps,
        link_layer: layer_from_wire(&wire.link_layer),
        lid: wire.lid,
        gids: wire.gids.into_iter().map(gid).collect::<Result<_, _>>()?,
        roce_v2_index: wire.roce_v2_index,
        roce_v2_index_ipv6: wire.roce_v2_index_ipv6,
    })
}
