//! Labels that come from Kubernetes Node objects. Objects and agents come in any order.

use std::sync::Arc;

use super::*;
use crate::{
    node_object::{NodeObject, Raw},
    node_report::labels::Labels,
};

const ZONE: &str = "topology.kubernetes.io/zone";

fn labels(text: &str) -> Labels {
    let labels = text
        .split_whitespace()
        .map(|label| label.split_once('=').unwrap());
    labels
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect::<BTreeMap<_, _>>()
        .into()
}

fn object(text: &str) -> Arc<NodeObject> {
    let labels = labels(text).into();
    Arc::new(NodeObject::read(Raw {
        labels,
        ..Raw::default()
    }))
}

fn listed(bench: &mut Bench, objects: &[(&str, &str)]) {
    let all = objects
        .iter()
        .map(|(name, text)| ((*name).into(), object(text)))
        .collect();
    bench.input(Input::Objects(ObjectNews::Listed(all)));
}

fn applied(bench: &mut Bench, node: &str, text: &str) -> Vec<Effect> {
    bench.input(Input::Objects(ObjectNews::Applied(
        node.into(),
        object(text),
    )))
}

fn view(bench: &Bench, node: &str) -> NodeView {
    bench.fleet.node_view(&node.into()).unwrap()
}

fn zone(bench: &Bench, node: &str) -> Option<String> {
    view(bench, node)
        .report
        .label(&[ZONE])
        .map(|(_, value)| value.to_owned())
}

/// The labels that the node's agent was told last, if it was told anything new.
fn told(bench: &mut Bench, node: &str) -> Option<Labels> {
    bench
        .agents
        .get_mut(&node.into())
        .unwrap()
        .desired
        .take()
        .map(|desired| desired.labels)
}

fn report(bench: &mut Bench, node: &str, own: &str) {
    let labels = labels(own).into();
    let report = NodeReport {
        address: "127.0.0.1".into(),
        slots: 1,
        labels,
        ..NodeReport::default()
    };
    let session = bench.agents[&node.into()].session.unwrap();
    bench.input(Input::Report { session, report });
}

#[test]
fn an_object_is_found_whether_it_or_the_agent_comes_first() {
    let mut bench = Bench::new(&["a"]);
    assert_eq!(told(&mut bench, "a"), None);
    listed(
        &mut bench,
        &[
            ("a", "topology.kubernetes.io/zone=x os=linux"),
            ("b", "topology.kubernetes.io/zone=y"),
        ],
    );
    assert_eq!(
        (zone(&bench, "a").as_deref(), told(&mut bench, "a")),
        (Some("x"), Some(labels("topology.kubernetes.io/zone=x")))
    );
    assert!(
        bench.fleet.node_view(&"b".into()).is_none(),
        "an object makes no node"
    );
    bench.connect("b");
    assert_eq!(zone(&bench, "b").as_deref(), Some("y"));
    bench.connect("b");
    assert_eq!(
        zone(&bench, "b").as_deref(),
        Some("y"),
        "a new session is no new node"
    );
}

#[test]
fn a_change_reaches_users_and_the_agent_and_what_is_no_change_reaches_nobody() {
    let mut bench = Bench::new(&["a"]);
    listed(&mut bench, &[("a", "topology.kubernetes.io/zone=x")]);
    told(&mut bench, "a");
    assert_eq!(
        applied(&mut bench, "a", "topology.kubernetes.io/zone=x"),
        []
    );
    let seen = applied(&mut bench, "a", "topology.kubernetes.io/zone=x pool=big");
    assert!(
        matches!(&seen[..], [Effect::NodeChanged { .. }]),
        "its ranks are not told of a pool: {seen:?}"
    );
    applied(&mut bench, "a", "topology.kubernetes.io/zone=y");
    assert_eq!(
        (zone(&bench, "a").as_deref(), told(&mut bench, "a")),
        (Some("y"), Some(labels("topology.kubernetes.io/zone=y")))
    );
}

#[test]
fn the_node_s_own_labels_come_first_and_come_and_go_without_its_object_s() {
    let mut bench = Bench::new(&["a"]);
    listed(
        &mut bench,
        &[("a", "topology.kubernetes.io/zone=x pool=big")],
    );
    report(&mut bench, "a", "topology.kubernetes.io/zone=mine");
    assert_eq!(zone(&bench, "a").as_deref(), Some("mine"));
    assert_eq!(
        view(&bench, "a").report.label(&["pool"]),
        Some(("pool", "big"))
    );
    report(&mut bench, "a", "");
    assert_eq!(zone(&bench, "a").as_deref(), Some("x"));
}

#[test]
fn a_node_without_its_object_keeps_its_labels_until_it_reports_anew() {
    let mut bench = Bench::new(&["a", "b"]);
    listed(
        &mut bench,
        &[
            ("a", "topology.kubernetes.io/zone=x"),
            ("b", "topology.kubernetes.io/zone=x"),
        ],
    );
    bench.input(Input::Objects(ObjectNews::Deleted("a".into())));
    // The object of b vanished while the coordinator did not look.
    listed(&mut bench, &[]);
    for node in ["a", "b"] {
        told(&mut bench, node);
        assert_eq!(zone(&bench, node).as_deref(), Some("x"));
        report(&mut bench, node, "");
        assert_eq!(
            (zone(&bench, node), told(&mut bench, node)),
            (None, Some(Labels::default()))
        );
    }
}

#[test]
fn a_coordinator_that_starts_knows_the_labels_it_stored_until_it_has_read_the_objects() {
    let stored = |bench: &Bench| Stored {
        nodes: bench.stored_nodes.values().cloned().collect(),
        reports: vec![("a".into(), NodeReport::clone(&view(bench, "a").report))],
        ..Stored::default()
    };
    let mut bench = Bench::new(&["a"]);
    listed(&mut bench, &[("a", "topology.kubernetes.io/zone=x")]);
    let (before, reads) = (stored(&bench), |reads_objects| Policy {
        reads_objects,
        ..Policy::default()
    });

    bench.fleet = Fleet::new(reads(true), Term(2), before.clone(), bench.now);
    bench.connect("a");
    assert_eq!(
        zone(&bench, "a").as_deref(),
        Some("x"),
        "nobody has read anything yet"
    );
    listed(&mut bench, &[]);
    report(&mut bench, "a", "");
    assert_eq!(zone(&bench, "a"), None, "now it is known to be gone");

    bench.fleet = Fleet::new(reads(false), Term(3), before, bench.now);
    assert_eq!(zone(&bench, "a"), None, "nobody will ever read them again");
}

#[test]
fn objects_that_cannot_be_read_are_one_event_and_a_condition_until_they_can() {
    let mut bench = Bench::new(&["a"]);
    listed(&mut bench, &[("a", "topology.kubernetes.io/zone=x")]);
    let events = bench.events.len();
    let effects = bench.input(Input::Objects(ObjectNews::Unreadable(
        "connection refused".into(),
    )));
    assert!(
        matches!(&effects[..], [Effect::NodeChanged { .. }]),
        "{effects:?}"
    );
    let condition = "LabelsStale: its labels may be old, Kubernetes Node objects cannot be read: connection refused";
    assert_eq!(view(&bench, "a").conditions, [condition]);
    assert_eq!(zone(&bench, "a").as_deref(), Some("x"));
    bench.input(Input::Objects(ObjectNews::Followed));
    bench.input(Input::Objects(ObjectNews::Followed));
    assert_eq!(view(&bench, "a").conditions, [""; 0]);
    let told: Vec<_> = bench.events[events..]
        .iter()
        .map(|event| (event.reason.as_str(), event.warning))
        .collect();
    assert_eq!(
        told,
        [("NodeLabelsStale", true), ("NodeLabelsFresh", false)]
    );
}
