//! Labels that come from the Node objects of a Kubernetes cluster. What else they say: `cordons`.

use std::fs;

use muster_coordinator::kubernetes::Settings;
use muster_core::fleet::Policy;
use muster_proto::v1::{
    self, agent_message::Message as FromAgent, coordinator_message::Message as ToAgent,
};

use crate::{
    agent::{FakeAgent, RawSession, hello, say},
    cluster::Cluster,
    process::{Running, program, refused},
    server::{Server, phase, reference, spec, within},
};

const ZONE: &str = "topology.kubernetes.io/zone";

async fn beside(cluster: &Cluster) -> Server {
    Server::start_beside(
        tempfile::tempdir().unwrap(),
        Policy::default(),
        Some(cluster.nodes()),
    )
    .await
}

fn zone(node: &v1::Node) -> Option<&str> {
    node.labels.get(ZONE).map(String::as_str)
}

async fn until_zone(server: &Server, node: &str, wanted: Option<&str>) -> v1::Node {
    server.until_node(node, |node| zone(node) == wanted).await
}

/// Events with these reasons, in order.
async fn told(server: &Server, reasons: &[&str]) -> Vec<v1::Event> {
    let request = v1::ListEventsRequest::default();
    let events = server
        .events()
        .list(request)
        .await
        .unwrap()
        .into_inner()
        .events;
    events
        .into_iter()
        .filter(|event| reasons.contains(&event.reason.as_str()))
        .collect()
}

#[tokio::test]
async fn labels_are_listed_followed_and_kept() {
    let cluster = Cluster::start().await;
    cluster.change(|state| {
        state.put("node-a", &[(ZONE, "x"), ("pool", "big"), ("rack", "r1")]);
        // More than one page. The last name is one that a cloud gives to its machines.
        state.put("node-b", &[(ZONE, "y")]);
        state.put("node-c", &[(ZONE, "y")]);
        state.put("ip-10-0-0-1.example.internal", &[(ZONE, "z")]);
    });
    let server = beside(&cluster).await;
    let mut greeting = hello("node-a");
    greeting.report.as_mut().unwrap().labels = [("rack".to_owned(), "r7".to_owned())].into();
    let mut agent = RawSession::open(&server, say(FromAgent::Hello(greeting)))
        .await
        .unwrap();
    let node = until_zone(&server, "node-a", Some("x")).await;
    assert_eq!(
        (node.labels["rack"].as_str(), node.labels["pool"].as_str()),
        ("r7", "big"),
        "its own label is stronger"
    );
    assert_eq!(node.kubernetes_labels, ["pool", ZONE]);
    let _last = FakeAgent::start(&server, "ip-10-0-0-1.example.internal", &[], true).await;
    until_zone(&server, "ip-10-0-0-1.example.internal", Some("z")).await;

    cluster.change(|state| state.put("node-a", &[(ZONE, "w")]));
    let node = until_zone(&server, "node-a", Some("w")).await;
    assert!(
        !node.labels.contains_key("pool"),
        "a label that was taken away"
    );
    // The agent is told this label, and no label that its workers must not see.
    within(async {
        loop {
            if let ToAgent::Desired(desired) = agent.next().await.unwrap()
                && desired.labels.get(ZONE).is_some_and(|zone| zone == "w")
            {
                assert!(
                    desired
                        .labels
                        .keys()
                        .all(|key| key == ZONE || key == "rack"),
                    "{:?}",
                    desired.labels
                );
                break;
            }
        }
    })
    .await;

    // The label goes with its object, but only after the deletion was heard; the other node's
    // change shows that it was.
    cluster.change(|state| {
        state.delete("node-a");
        state.put("ip-10-0-0-1.example.internal", &[(ZONE, "v")]);
    });
    until_zone(&server, "ip-10-0-0-1.example.internal", Some("v")).await;
    assert_eq!(
        zone(&until_zone(&server, "node-a", Some("w")).await),
        Some("w")
    );
    drop(agent);
    let _again = FakeAgent::start(&server, "node-a", &[], true).await;
    until_zone(&server, "node-a", None).await;
    assert_eq!(
        told(&server, &["NodeLabelsStale", "NodeLabelsFresh"]).await,
        []
    );
}

#[tokio::test]
async fn a_server_that_has_forgotten_is_listed_anew() {
    let cluster = Cluster::start().await;
    cluster.change(|state| {
        state.put("node-a", &[(ZONE, "0")]);
        state.put("node-b", &[(ZONE, "0")]);
    });
    let server = beside(&cluster).await;
    let _agents = [
        FakeAgent::start(&server, "node-a", &[], true).await,
        FakeAgent::start(&server, "node-b", &[], true).await,
    ];
    until_zone(&server, "node-b", Some("0")).await;
    cluster.until(|state| state.watches == 1).await;
    for (round, gone_as_status) in [(1, false), (2, true)] {
        let now = round.to_string();
        cluster.change(|state| {
            state.gone_as_status = gone_as_status;
            state.put("node-a", &[(ZONE, &now)]);
            state.delete("node-b");
            state.put("node-b", &[(ZONE, &now)]);
            state.forget();
        });
        until_zone(&server, "node-a", Some(&now)).await;
        until_zone(&server, "node-b", Some(&now)).await;
        cluster.until(|state| state.lists == round + 1).await;
    }
    // A watch that merely ended goes on from its last version.
    cluster.change(|state| {
        state.cut();
        state.put("node-a", &[(ZONE, "3")]);
    });
    until_zone(&server, "node-a", Some("3")).await;
    cluster.until(|state| state.lists == 3).await;
    assert_eq!(
        told(&server, &["NodeLabelsStale"]).await,
        [],
        "all of this is everyday life"
    );
}

#[tokio::test]
async fn a_missing_right_is_named_once_and_nothing_stops() {
    for verb in ["list", "watch"] {
        let cluster = Cluster::start().await;
        cluster.change(|state| {
            state.put("node-a", &[(ZONE, "x")]);
            state.forbidden.insert(verb);
        });
        let server = beside(&cluster).await;
        let _agent = FakeAgent::start(&server, "node-a", &[], true).await;
        let node = server
            .until_node("node-a", |node| !node.conditions.is_empty())
            .await;
        let why = format!(
            "the coordinator may not {verb} nodes (nodes is forbidden: User \"muster\" cannot {verb} resource \"nodes\" in API group \"\" at \
             the cluster scope): its user needs a ClusterRole with apiGroups [\"\"], resources [nodes], verbs [get, list, watch]"
        );
        let condition = format!(
            "LabelsStale: its labels may be old, Kubernetes Node objects cannot be read: {why}"
        );
        assert_eq!(node.conditions, [condition]);
        server.submit("works-on", spec(1)).await;
        server
            .until_job("works-on", |job| phase(job) == v1::JobPhase::Running)
            .await;

        cluster.change(|state| state.forbidden.clear());
        let node = server
            .until_node("node-a", |node| {
                zone(node) == Some("x") && node.conditions.is_empty()
            })
            .await;
        assert_eq!(node.state(), v1::NodeState::Ready);
        let events = told(&server, &["NodeLabelsStale", "NodeLabelsFresh"]).await;
        let reasons: Vec<&str> = events.iter().map(|event| event.reason.as_str()).collect();
        assert_eq!(reasons, ["NodeLabelsStale", "NodeLabelsFresh"]);
        assert!(
            events[0].severity() == v1::EventSeverity::Warning && events[0].message.contains(&why),
            "{}",
            events[0].message
        );
    }
}

#[tokio::test]
async fn a_coordinator_without_an_api_server_goes_on_with_the_labels_it_has() {
    let cluster = Cluster::start().await;
    cluster.change(|state| state.put("node-a", &[(ZONE, "x")]));
    let server = beside(&cluster).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    until_zone(&server, "node-a", Some("x")).await;
    cluster.change(|state| state.down = true);
    let node = server
        .until_node("node-a", |node| !node.conditions.is_empty())
        .await;
    assert_eq!(zone(&node), Some("x"));
    // Reports are stored at the engine's tick, four times a second.
    let later = |now: &v1::Node| now.last_heard_unix_us > node.last_heard_unix_us + 1_000_000;
    within(async {
        let get = || v1::GetNodeRequest {
            name: "node-a".into(),
        };
        while !later(
            &server
                .nodes()
                .get(get())
                .await
                .unwrap()
                .into_inner()
                .node
                .unwrap(),
        ) {}
    })
    .await;
    drop(agent);
    let state = server.stop().await;

    // The coordinator starts again while the API server is still away. The stored labels count, for
    // users and for the ranks.
    let server = Server::start_beside(state, Policy::default(), Some(cluster.nodes())).await;
    let _agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let stale =
        |node: &v1::Node| node.state() == v1::NodeState::Ready && !node.conditions.is_empty();
    assert_eq!(zone(&server.until_node("node-a", stale).await), Some("x"));
    cluster.change(|state| {
        state.down = false;
        state.put("node-a", &[(ZONE, "y")]);
    });
    let node = until_zone(&server, "node-a", Some("y")).await;
    assert_eq!(
        server
            .until_node("node-a", |node| node.conditions.is_empty())
            .await
            .name,
        node.name
    );
    assert_eq!(
        told(&server, &["NodeLabelsStale"]).await.len(),
        2,
        "one for each time it was noticed, however often it was tried"
    );
}

#[tokio::test]
async fn a_process_finds_its_kubeconfig_and_ranks_are_told_the_zone() {
    let (cluster, directory) = (Cluster::start().await, tempfile::tempdir().unwrap());
    cluster.change(|state| state.put("node-a", &[(ZONE, "eu-1a")]));
    let kubeconfig = directory.path().join("kubeconfig");
    fs::write(&kubeconfig, cluster.kubeconfig()).unwrap();
    let process = Running::start_with(directory.path(), |command| {
        command
            .arg("--kubernetes-nodes")
            .env("KUBECONFIG", &kubeconfig);
    })
    .await;
    let server = Server::elsewhere(&process.endpoint).await;
    let _agent = FakeAgent::start(&server, "node-a", &[], true).await;
    until_zone(&server, "node-a", Some("eu-1a")).await;
    server.submit("told", spec(1)).await;
    server
        .until_job("told", |job| phase(job) == v1::JobPhase::Running)
        .await;
    let request = v1::EnvironmentRequest {
        r#ref: Some(reference("told")),
    };
    let variables = server
        .jobs()
        .environment(request)
        .await
        .unwrap()
        .into_inner()
        .variables;
    let zone = variables
        .iter()
        .find(|variable| variable.name == "NODE_ZONE")
        .unwrap();
    assert_eq!(
        (zone.value.as_deref(), zone.why.as_str()),
        (Some("eu-1a"), "label topology.kubernetes.io/zone")
    );
}

/// Over TLS, because a TLS client needs a provider of cryptography.
#[tokio::test]
async fn a_server_that_hangs_up_is_an_outage() {
    let cluster = Cluster::start().await;
    cluster.change(|state| state.down = true);
    let configuration = kube::Config::new(format!("https://{}", cluster.address).parse().unwrap());
    let server = Server::start_beside(
        tempfile::tempdir().unwrap(),
        Policy::default(),
        Some(Settings {
            configuration,
            ..cluster.nodes()
        }),
    )
    .await;
    let _agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let node = server
        .until_node("node-a", |node| !node.conditions.is_empty())
        .await;
    assert!(
        node.conditions[0].contains("cannot be read: list nodes: "),
        "{:?}",
        node.conditions
    );
}

#[test]
fn without_a_cluster_the_flag_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = program(&directory.path().join("state"));
    command
        .arg("--kubernetes-nodes")
        .env("KUBECONFIG", directory.path().join("none"))
        .env("HOME", directory.path());
    command
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env_remove("KUBERNETES_SERVICE_PORT");
    let text = refused(command);
    assert!(
        text.starts_with("muster-coordinator: --kubernetes-...: find the API server: "),
        "{text}"
    );
}
