//! The machine's real addresses, even if the probes read a tree that only looks like a machine:
//! workers connect from these.

use std::net::IpAddr;

use sysinfo::Networks;

/// Carries the address of every Kubernetes service and sends from none of them.
const IPVS: &str = "kube-ipvs0";

/// Every address that is not loopback or an IPv6 link-local one, in order. Empty if they cannot be
/// read.
pub(super) fn read() -> Vec<IpAddr> {
    let Ok(networks) = Networks::new_with_refreshed_list() else {
        return Vec::new();
    };
    let of_interfaces = networks
        .iter()
        .filter(|(name, _)| name.to_str() != Some(IPVS))
        .flat_map(|(_, interface)| interface.ip_networks().iter().map(|network| network.addr));
    let mut all: Vec<IpAddr> = of_interfaces
        .filter(|address| is_usable(*address))
        .collect();
    all.sort();
    all.dedup();
    all
}

fn is_usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !(v4.is_loopback() || v4.is_unspecified()),
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local()),
    }
}

#[cfg(test)]
mod tests {
    use super::is_usable;

    #[test]
    fn what_no_other_node_can_see_is_left_out() {
        let usable = |text: &str| is_usable(text.parse().unwrap());
        assert!(usable("10.0.0.7") && usable("169.254.3.4") && usable("fd00::7"));
        assert!(!usable("127.0.0.2") && !usable("::1") && !usable("fe80::1") && !usable("0.0.0.0"));
    }
}
