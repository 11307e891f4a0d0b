//! Who may connect to a generation's TCPStore.

use std::{collections::BTreeSet, net::IpAddr};

use super::*;
use crate::{
    node_report::network::Network,
    run::{Assignment, Target},
};

fn of(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The node reports where it is reached, and from where it connects.
fn reports(bench: &mut Bench, node: &str, address: &str, all: &[&str]) {
    let report = NodeReport {
        address: address.into(),
        slots: 1,
        network: Network {
            addresses: of(all),
            ..Network::default()
        },
        ..NodeReport::default()
    };
    let session = bench.agents[&node.into()].session.unwrap();
    bench.input(Input::Report { session, report });
}

/// Nodes that report their addresses and are told of a job of two, without obeying.
fn told(nodes: [(&str, &str, &[&str]); 2]) -> Bench {
    let mut bench = Bench::new(&nodes.map(|(node, ..)| node));
    for (node, address, all) in nodes {
        reports(&mut bench, node, address, all);
        bench.agents.get_mut(&node.into()).unwrap().frozen = true;
    }
    bench.submit("digits", document(2, 2, 2));
    bench
}

fn assignments(bench: &Bench) -> Vec<Assignment> {
    let desired = bench.agents.values().filter_map(|a| a.desired.as_ref());
    let runs = desired.flat_map(|desired| &desired.runs);
    runs.filter_map(|run| match &run.target {
        Target::Ready(assignment) => Some((**assignment).clone()),
        _ => None,
    })
    .collect()
}

#[test]
fn the_host_of_a_store_is_told_every_address_of_every_member() {
    let a: (_, _, &[&str]) = ("a", "10.0.0.1", &["192.168.0.1", "fd00::1"]);
    let b: (_, _, &[&str]) = ("b", "10.0.0.2", &["10.0.0.2", "203.0.113.9"]);
    let mut bench = told([a, b]);
    let all = [
        "10.0.0.1",
        "10.0.0.2",
        "192.168.0.1",
        "203.0.113.9",
        "fd00::1",
    ];
    let assigned = assignments(&bench);
    assert_eq!(assigned.len(), 2);
    for assignment in assigned {
        let told = if assignment.hosts_store {
            of(&all)
        } else {
            Vec::new()
        };
        assert_eq!(assignment.store_clients, told);
    }

    let uid = bench.job("digits").uid.clone();
    assert_eq!(bench.fleet.job_view(&uid).unwrap().store_open, None);

    // A generation keeps the addresses that it began with.
    reports(&mut bench, "a", "10.0.0.77", &["10.0.0.77"]);
    let members = &bench.job("digits").current.as_ref().unwrap().members;
    let kept: BTreeSet<IpAddr> = members.iter().flat_map(|m| m.addresses.clone()).collect();
    assert_eq!(kept.into_iter().collect::<Vec<_>>(), of(&all));
}

#[test]
fn without_the_addresses_of_a_member_anyone_may_connect() {
    let a: (_, _, &[&str]) = ("a", "10.0.0.1", &["10.0.0.1"]);
    let bench = told([a, ("b", "10.0.0.2", &[])]);
    let assigned = assignments(&bench);
    assert_eq!(assigned.len(), 2);
    assert!(assigned.iter().all(|a| a.store_clients.is_empty()));
    let uid = bench.job("digits").uid.clone();
    let open = bench.fleet.job_view(&uid).unwrap().store_open;
    assert_eq!(
        open.unwrap().to_string(),
        "node b does not tell all its addresses"
    );
}
