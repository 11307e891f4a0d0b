//! The readings by which a NIC's health is judged: port states and counters.

use std::collections::BTreeMap;

use muster_core::{
    health::{Reading, Subject, Value},
    node_report::network::{InterfaceKind, LinkLayer, Network, Port, RdmaDevice},
};

use super::roots::Roots;

/// A counter of a port: its file, and the checks that judge it.
type Counter = (&'static str, &'static [&'static str], &'static str);
const COUNTERS: [Counter; 10] = [
    ("counters/link_downed", &["port-flaps"], "link went down"),
    (
        "counters/excessive_buffer_overrun_errors",
        &["port-buffer-overruns"],
        "buffer overruns",
    ),
    (
        "counters/local_link_integrity_errors",
        &["port-integrity-errors"],
        "link integrity errors",
    ),
    (
        "hw_counters/rnr_nak_retry_err",
        &["port-retries-exhausted"],
        "retries exhausted, the receiver was not ready",
    ),
    (
        "counters/symbol_error",
        &["port-symbol-errors", "port-symbol-burst"],
        "symbol errors",
    ),
    (
        "counters/link_error_recovery",
        &["port-link-recoveries"],
        "link recovered from errors",
    ),
    (
        "counters/port_rcv_errors",
        &["port-receive-errors"],
        "receive errors",
    ),
    (
        "counters/port_xmit_discards",
        &["port-discards"],
        "packets discarded before they were sent",
    ),
    (
        "hw_counters/local_ack_timeout_err",
        &["port-ack-timeouts"],
        "acknowledgements that did not come in time",
    ),
    (
        "hw_counters/roce_slow_restart",
        &["port-slow-restarts"],
        "slow restarts after congestion",
    ),
];

/// Ports that this agent has ever seen ACTIVE. A port that was never used is unused, not down.
pub(super) type Used = BTreeMap<(String, u32), u32>;

fn reading(
    device: &RdmaDevice,
    port: &Port,
    check: &'static str,
    value: Value,
    words: &str,
) -> Reading {
    Reading {
        check,
        subject: Subject::Nic(device.name.clone()),
        value,
        words: format!("{} port {}: {words}", device.name, port.number),
        runs: Vec::new(),
    }
}

/// The states of all ports.
pub(super) fn states(network: &Network, used: &mut Used) -> Vec<Reading> {
    let mut all = Vec::new();
    for device in &network.rdma {
        for port in &device.ports {
            let known = used.get(&(device.name.clone(), port.number)).copied();
            let best = known
                .unwrap_or(0)
                .max(if port.is_active() { port.rate_gbps } else { 0 });
            if port.is_active() {
                used.insert((device.name.clone(), port.number), best);
            }
            let linked = port.physical_state == "LinkUp" || port.physical_state.is_empty();
            // EFA always says ACTIVE. Its interface would show the truth, but EFA has none.
            let honest = port.link_layer != LinkLayer::Unspecified;
            let down =
                honest && (known.is_some() || port.is_active()) && !(port.is_active() && linked);
            let expected = best.max(siblings_rate(network, device));
            let low = honest && port.is_active() && port.rate_gbps < expected;
            let state = format!("{}, {}", port.state, port.physical_state);
            all.push(reading(
                device,
                port,
                "port-down",
                Value::Flag(down),
                &state,
            ));
            let rates = format!("{} of {expected} Gb/s", port.rate_gbps);
            all.push(reading(
                device,
                port,
                "port-rate-low",
                Value::Flag(low),
                &rates,
            ));
        }
    }
    all
}

/// The counters of all ports and interfaces.
pub(super) fn counters(roots: &Roots, network: &Network) -> Vec<Reading> {
    let mut all = Vec::new();
    for device in &network.rdma {
        for port in &device.ports {
            for (file, checks, words) in COUNTERS {
                let path = format!(
                    "sys/class/infiniband/{}/ports/{}/{file}",
                    device.name, port.number
                );
                if let Some(value) = roots.number(&path) {
                    all.extend(
                        checks.iter().map(|check| {
                            reading(device, port, check, Value::Counter(value), words)
                        }),
                    );
                }
            }
        }
    }
    for device in network.rdma.iter().filter(|device| device.driver == "efa") {
        // Since Linux 5.14 the counter belongs to the device, and before that to its port.
        let places = ["", "ports/1/"].map(|place| {
            format!(
                "sys/class/infiniband/{}/{place}hw_counters/no_completion_cmds",
                device.name
            )
        });
        if let Some(value) = places.iter().find_map(|file| roots.number::<u64>(file)) {
            all.push(Reading {
                check: "efa-unanswered",
                subject: Subject::Nic(device.name.clone()),
                value: Value::Counter(value),
                words: format!("{}: commands without completion", device.name),
                runs: Vec::new(),
            });
        }
    }
    for interface in network
        .interfaces
        .iter()
        .filter(|i| matches!(i.kind, InterfaceKind::Ethernet | InterfaceKind::Infiniband))
    {
        if let Some(changes) =
            roots.number::<u64>(&format!("sys/class/net/{}/carrier_changes", interface.name))
        {
            // Going down and coming up are two changes.
            all.push(Reading {
                check: "interface-flaps",
                subject: Subject::Nic(interface.name.clone()),
                value: Value::Counter(changes / 2),
                words: format!("{} lost its carrier", interface.name),
                runs: Vec::new(),
            });
        }
    }
    all
}

/// The rate of NICs with the same board and driver, if most of them agree on one.
fn siblings_rate(network: &Network, device: &RdmaDevice) -> u32 {
    let alike = |other: &&RdmaDevice| {
        other.board == device.board
            && other.driver == device.driver
            && other.name != device.name
            && !other.board.is_empty()
    };
    let layer = device.ports.first().map(|port| port.link_layer);
    let rates: Vec<u32> = network
        .rdma
        .iter()
        .filter(alike)
        .flat_map(|other| &other.ports)
        .filter(|port| port.is_active() && Some(port.link_layer) == layer)
        .map(|port| port.rate_gbps)
        .collect();
    let best = rates.iter().copied().max().unwrap_or(0);
    if rates.iter().filter(|rate| **rate == best).count() * 2 > rates.len() {
        best
    } else {
        0
    }
}
