//! NICs, from sysfs: interfaces and RDMA devices, as they are. Formats to know: `state` reads `4:
//! ACTIVE`, `rate` reads `400 Gb/sec (4X NDR)`, `speed` fails or is -1 if there is none, and GID
//! attributes fail for entries that a container may not see.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

use muster_core::node_report::network::{
    Gid, Interface, InterfaceKind, LinkLayer, Network, Port, RdmaDevice, chosen_gid,
};

use super::roots::Roots;

/// How many GIDs of a port are listed. The tables have 128 or 256 places, and a few are used.
const GIDS_MAX: usize = 32;
const ZERO_GID: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

pub(super) fn read(roots: &Roots) -> Network {
    Network {
        interfaces: interfaces(roots),
        rdma: rdma(roots),
        addresses: Vec::new(),
    }
}

/// Texts that are cheap to read and change when something came, went, or got another address. If
/// they change, everything is read again.
pub(super) fn signature(roots: &Roots) -> Vec<String> {
    let names =
        ["sys/class/net", "sys/class/infiniband"].map(|folder| roots.names(folder).join(" "));
    let texts =
        ["proc/net/route", "proc/net/if_inet6"].map(|file| roots.text(file).unwrap_or_default());
    names.into_iter().chain(texts).collect()
}

/// Reads the facts of known devices that change by themselves.
pub(super) fn renew(roots: &Roots, network: &mut Network) {
    for interface in &mut network.interfaces {
        interface.up = roots
            .text(&format!("sys/class/net/{}/operstate", interface.name))
            .is_some_and(|state| is_up(&state));
    }
    for device in &mut network.rdma {
        for port in &mut device.ports {
            let folder = format!("sys/class/infiniband/{}/ports/{}", device.name, port.number);
            (port.state, port.physical_state, port.rate_gbps) = states(roots, &folder);
        }
    }
}

fn interfaces(roots: &Roots) -> Vec<Interface> {
    let routes = roots.text("proc/net/route").unwrap_or_default();
    let routed: BTreeSet<&str> = routes
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let default = |name: &str| {
        let is_default = |line: &str| {
            let mut words = line.split_whitespace();
            words.next() == Some(name) && words.next() == Some("00000000")
        };
        routes.lines().skip(1).any(is_default)
    };
    let addresses = roots.text("proc/net/if_inet6").unwrap_or_default();
    let global6: BTreeSet<&str> = addresses
        .lines()
        .filter(|line| !line.starts_with("fe80"))
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    let local = local_ipv4(&roots.text("proc/net/fib_trie").unwrap_or_default());
    let names = roots.names("sys/class/net");
    let all = names.iter().filter_map(|name| {
        let kind = kind(roots, name)?;
        let folder = format!("sys/class/net/{name}");
        let text = |file: &str| roots.text(&format!("{folder}/{file}")).unwrap_or_default();
        let pci = roots
            .target(&format!("{folder}/device"))
            .filter(|device| device.contains(':'))
            .unwrap_or_default();
        Some(Interface {
            up: is_up(&text("operstate")),
            speed_mbps: roots
                .number::<i64>(&format!("{folder}/speed"))
                .and_then(|speed| u32::try_from(speed).ok())
                .filter(|speed| *speed > 0),
            mtu: roots.number(&format!("{folder}/mtu")).unwrap_or(0),
            mac: text("address"),
            kind,
            driver: roots
                .target(&format!("{folder}/device/driver"))
                .unwrap_or_default(),
            numa_node: roots.number(&format!("{folder}/device/numa_node")),
            ipv4: routed.contains(name.as_str()),
            ipv6: global6.contains(name.as_str()),
            default_route: default(name),
            addresses: ipv4_of(name, &routes, &local)
                .into_iter()
                .chain(ipv6_of(name, &addresses))
                .collect(),
            pci,
            name: name.clone(),
        })
    });
    all.collect()
}

/// What this interface, of any kind, lacks for use between nodes. An IPv4 address is recognised by
/// the route that comes with it.
pub(super) fn wanting(roots: &Roots, name: &str) -> Option<&'static str> {
    let Some(state) = roots.text(&format!("sys/class/net/{name}/operstate")) else {
        return Some("is not there");
    };
    if !is_up(&state) {
        return Some("is down");
    }
    let routes = roots.text("proc/net/route").unwrap_or_default();
    let routed = routes
        .lines()
        .skip(1)
        .any(|line| line.split_whitespace().next() == Some(name));
    let addresses = roots.text("proc/net/if_inet6").unwrap_or_default();
    (!routed && ipv6_of(name, &addresses).is_empty()).then_some("has no address")
}

/// Tunnels have no link of their own and report "unknown".
fn is_up(operstate: &str) -> bool {
    matches!(operstate, "up" | "unknown")
}

/// Every IPv4 address of this machine except loopback. The kernel lists them without their
/// interface.
fn local_ipv4(fib: &str) -> Vec<Ipv4Addr> {
    let mut addresses = Vec::new();
    let mut last = None;
    for line in fib.lines() {
        if let Some(address) = line.trim().strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line.contains("/32 host LOCAL")
            && let Some(address) =
                last.filter(|address| !address.is_loopback() && !addresses.contains(address))
        {
            addresses.push(address);
        }
    }
    addresses
}

/// The addresses in a network that this interface leads to directly.
fn ipv4_of(name: &str, routes: &str, local: &[Ipv4Addr]) -> Vec<String> {
    let networks: Vec<(u32, u32)> = routes
        .lines()
        .skip(1)
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let hex = |at: usize| {
                u32::from_str_radix(words.get(at)?, 16)
                    .ok()
                    .map(u32::swap_bytes)
            };
            let direct = words.first() == Some(&name) && hex(2) == Some(0);
            direct
                .then(|| hex(1).zip(hex(7)))
                .flatten()
                .filter(|(_, mask)| *mask != 0)
        })
        .collect();
    let within = |address: &&Ipv4Addr| {
        networks
            .iter()
            .any(|(network, mask)| u32::from(**address) & mask == *network)
    };
    local
        .iter()
        .filter(within)
        .map(Ipv4Addr::to_string)
        .collect()
}

/// Reads `20010db8...0002 03 40 00 00 eth0`: address, index, prefix length, scope, flags, name.
fn ipv6_of(name: &str, addresses: &str) -> Vec<String> {
    let own = addresses
        .lines()
        .filter(|line| line.split_whitespace().last() == Some(name) && !line.starts_with("fe80"));
    let address = |line: &str| {
        u128::from_str_radix(line.split_whitespace().next()?, 16)
            .ok()
            .map(|bits| Ipv6Addr::from(bits).to_string())
    };
    own.filter_map(address).collect()
}

/// None: the interface does not connect nodes, such as loopback, or a bridge or tunnel of a
/// container engine.
fn kind(roots: &Roots, name: &str) -> Option<InterfaceKind> {
    const NONE: [&str; 11] = [
        "lo",
        "docker",
        "veth",
        "cni",
        "cali",
        "flannel",
        "virbr",
        "tailscale",
        "cilium",
        "lxc",
        "kube-ipvs",
    ];
    if NONE.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    let folder = format!("sys/class/net/{name}");
    let uevent = roots.text(&format!("{folder}/uevent")).unwrap_or_default();
    let word = uevent
        .lines()
        .find_map(|line| line.strip_prefix("DEVTYPE="))
        .unwrap_or_default();
    let has_device = roots.exists(&format!("{folder}/device"));
    const ARPHRD_INFINIBAND: u32 = 32;
    match word {
        "wireguard" => Some(InterfaceKind::Wireguard),
        "wlan" => Some(InterfaceKind::Wireless),
        "bond" | "vlan" | "bridge" => Some(InterfaceKind::Stacked),
        _ if roots.number(&format!("{folder}/type")) == Some(ARPHRD_INFINIBAND) => {
            Some(InterfaceKind::Infiniband)
        }
        _ if has_device => Some(InterfaceKind::Ethernet),
        // A container's interface is one end of a pair and has no device.
        _ if name.starts_with("eth") => Some(InterfaceKind::Other),
        _ => None,
    }
}

fn rdma(roots: &Roots) -> Vec<RdmaDevice> {
    let folder = "sys/class/infiniband";
    let mut names = roots.names(folder);
    // Sorts mlx5_10 after mlx5_9.
    names.sort_by_key(|name| {
        (
            name.trim_end_matches(|c: char| c.is_ascii_digit())
                .to_owned(),
            name.len(),
            name.clone(),
        )
    });
    names
        .iter()
        .map(|name| device(roots, &format!("{folder}/{name}"), name))
        .collect()
}

fn device(roots: &Roots, folder: &str, name: &str) -> RdmaDevice {
    let text = |file: &str| roots.text(&format!("{folder}/{file}")).unwrap_or_default();
    let ports = roots.names(&format!("{folder}/ports"));
    RdmaDevice {
        name: name.to_owned(),
        pci: roots
            .target(&format!("{folder}/device"))
            .unwrap_or_default(),
        driver: roots
            .target(&format!("{folder}/device/driver"))
            .unwrap_or_default(),
        firmware: text("fw_ver"),
        board: text("board_id"),
        guid: text("node_guid"),
        numa_node: roots.number(&format!("{folder}/device/numa_node")),
        interfaces: roots.names(&format!("{folder}/device/net")),
        openable: openable(roots, name),
        virtual_function: roots.exists(&format!("{folder}/device/physfn")),
        rail: None,
        ports: ports
            .iter()
            .filter_map(|port| {
                port.parse()
                    .ok()
                    .map(|number| self::port(roots, folder, number))
            })
            .collect(),
    }
}

/// Whether the device can be opened, which needs a character device here. sysfs also shows devices
/// of other containers.
fn openable(roots: &Roots, name: &str) -> bool {
    let verbs = "sys/class/infiniband_verbs";
    let mine = roots
        .names(verbs)
        .into_iter()
        .find(|verb| roots.text(&format!("{verbs}/{verb}/ibdev")).as_deref() == Some(name));
    mine.is_some_and(|verb| roots.exists(&format!("dev/infiniband/{verb}")))
}

fn port(roots: &Roots, device: &str, number: u32) -> Port {
    let folder = format!("{device}/ports/{number}");
    let text = |file: &str| roots.text(&format!("{folder}/{file}")).unwrap_or_default();
    let gids = gids(roots, &folder);
    let link_layer = match text("link_layer").as_str() {
        "InfiniBand" => LinkLayer::Infiniband,
        "Ethernet" => LinkLayer::Ethernet,
        _ => LinkLayer::Unspecified,
    };
    let (state, physical_state, rate_gbps) = states(roots, &folder);
    let chosen = |ipv4: bool| chosen_gid(&gids, ipv4).filter(|_| link_layer == LinkLayer::Ethernet);
    Port {
        number,
        state,
        physical_state,
        rate_gbps,
        link_layer,
        lid: u32::from_str_radix(text("lid").trim_start_matches("0x"), 16).unwrap_or(0),
        roce_v2_index: chosen(true),
        roce_v2_index_ipv6: chosen(false),
        gids,
    }
}

/// State, physical state and rate of a port.
fn states(roots: &Roots, folder: &str) -> (String, String, u32) {
    let text = |file: &str| roots.text(&format!("{folder}/{file}")).unwrap_or_default();
    (
        after_number(&text("state")),
        after_number(&text("phys_state")),
        rate(&text("rate")),
    )
}

/// Reads `4: ACTIVE`.
fn after_number(text: &str) -> String {
    text.split_once(':')
        .map_or(text, |(_, word)| word)
        .trim()
        .to_owned()
}

/// Reads `2.5 Gb/sec (1X SDR)` as 2.
fn rate(text: &str) -> u32 {
    let number = text.split_whitespace().next().unwrap_or_default();
    number
        .split('.')
        .next()
        .and_then(|whole| whole.parse().ok())
        .unwrap_or(0)
}

fn gids(roots: &Roots, port: &str) -> Vec<Gid> {
    let mut places: Vec<u32> = roots
        .names(&format!("{port}/gids"))
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    places.sort_unstable();
    let read = |index: u32| {
        let address = roots
            .text(&format!("{port}/gids/{index}"))
            .filter(|address| address != ZERO_GID)?;
        let attribute = |name: &str| {
            roots
                .text(&format!("{port}/gid_attrs/{name}/{index}"))
                .unwrap_or_default()
        };
        Some(Gid {
            index,
            address,
            kind: attribute("types"),
            interface: attribute("ndevs"),
        })
    };
    places.into_iter().filter_map(read).take(GIDS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_given_to_their_interfaces() {
        let fib = "Main:\n  |-- 10.0.0.0\n     /16 link UNICAST\nLocal:\n  |-- 10.0.3.7\n     /32 host LOCAL\n  |-- 127.0.0.1\n     /32 host LOCAL\n";
        let local = local_ipv4(fib);
        let routes = "Iface Destination Gateway Flags RefCnt Use Metric Mask\n\
                      eth0 00000000 0100000A 0003 0 0 100 00000000 0 0 0\neth0 0000000A 00000000 0001 0 0 100 0000FFFF 0 0 0\n\
                      eth1 0000A8C0 00000000 0001 0 0 100 0000FFFF 0 0 0";
        assert_eq!(ipv4_of("eth0", routes, &local), ["10.0.3.7"]);
        assert!(ipv4_of("eth1", routes, &local).is_empty());
        let v6 = "20010db8000000000000000000000002 03 40 00 00   eth0\nfe800000000000000000000000000001 03 40 20 80 eth0";
        assert_eq!(ipv6_of("eth0", v6), ["2001:db8::2"]);
    }

    #[test]
    fn the_kernel_s_words_are_read() {
        assert_eq!(after_number("4: ACTIVE"), "ACTIVE");
        assert_eq!(after_number("5: LinkUp"), "LinkUp");
        assert_eq!(after_number(""), "");
        assert_eq!(rate("400 Gb/sec (4X NDR)"), 400);
        assert_eq!(rate("2.5 Gb/sec (1X SDR)"), 2);
        assert_eq!(rate(""), 0);
    }
}
