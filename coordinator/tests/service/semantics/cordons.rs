//! What cordons rely on: patches of nodes, each with the version of the object, and the admission
//! policy that binds the coordinator.

use muster_core::fleet::{CordonMode, Policy};
use muster_proto::v1;
use serde_json::{Value, json};

use super::World;
use crate::{
    agent::FakeAgent,
    cluster::Cluster,
    server::{Server, within},
};

const PATH: &str = "/api/v1/nodes/n1";
const MERGE: &str = "merge-patch+json";
const STRATEGIC: &str = "strategic-merge-patch+json";

impl World {
    fn cordons(&self) -> muster_coordinator::kubernetes::Settings {
        let configuration = self.settings().configuration;
        muster_coordinator::kubernetes::Settings {
            nodes: true,
            cordon: CordonMode::On,
            tokens: None,
            ..Cluster::asks(configuration)
        }
    }

    async fn node(&self) -> Value {
        match self {
            World::Fake(cluster) => cluster.change(|state| state.node("n1").clone()),
            World::Real(server) => server.get(PATH).await,
        }
    }

    async fn until_node(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        within(async {
            loop {
                let node = self.node().await;
                if wanted(&node) {
                    return node;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    /// A person, or another program, changes the object.
    async fn changed(&self, part: &str, patch: Value) {
        match self {
            World::Fake(cluster) => cluster.change(|state| state.change_node("n1", patch)),
            World::Real(server) => {
                let path = format!("{PATH}{part}");
                server.patch(false, &path, MERGE, &patch).await.unwrap();
            }
        }
    }

    /// What the coordinator itself sends, with its own rights.
    async fn patch(&self, part: &str, content: &str, patch: &Value) -> Result<Value, kube::Error> {
        let path = format!("{PATH}{part}");
        match self {
            World::Real(server) => server.patch(true, &path, content, patch).await,
            World::Fake(cluster) => {
                let client = kube::Client::try_from(cluster.configuration()).unwrap();
                let request = http::Request::patch(path)
                    .header("content-type", format!("application/{content}"));
                let body = serde_json::to_vec(patch).unwrap();
                client.request(request.body(body).unwrap()).await
            }
        }
    }

    async fn events(&self) -> Vec<Value> {
        match self {
            World::Fake(cluster) => cluster.change(|state| state.events.clone()),
            World::Real(server) => {
                let path = "/apis/events.k8s.io/v1/namespaces/default/events";
                let list = server.get(path).await;
                list["items"].as_array().cloned().unwrap_or_default()
            }
        }
    }
}

fn annotation<'a>(node: &'a Value, key: &str) -> &'a Value {
    &node["metadata"]["annotations"][format!("muster.dev/{key}")]
}

fn condition<'a>(node: &'a Value, kind: &str) -> &'a Value {
    let conditions = node["status"]["conditions"].as_array();
    let mut found = conditions.into_iter().flatten();
    found.find(|c| c["type"] == kind).unwrap_or(&Value::Null)
}

pub(super) async fn suite(world: &World) {
    if let World::Fake(cluster) = world {
        cluster.change(|state| state.put("n1", &[]));
    }
    let ready = json!([{ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": "2026-11-23T17:00:36Z", "lastTransitionTime": "2026-11-23T17:00:36Z" }]);
    world
        .changed("/status", json!({ "status": { "conditions": ready } }))
        .await;
    world
        .changed("", json!({ "metadata": { "labels": { "zone": "a" } } }))
        .await;
    Box::pin(patches(world)).await;
    match world {
        World::Real(_) => Box::pin(policy(world)).await,
        World::Fake(_) => eprintln!(
            "the fake has no admission policies: they are asked of a real API server only"
        ),
    }
    Box::pin(cordon(world)).await;
}

/// Versions, ways to an object, and lists with keys.
async fn patches(world: &World) {
    let version = |node: &Value| node["metadata"]["resourceVersion"].clone();
    let old = version(&world.node().await);
    let note = |version: &Value| json!({ "metadata": { "resourceVersion": version, "annotations": { "muster.dev/x": "y" } } });
    world.patch("", MERGE, &note(&old)).await.unwrap();
    match world.patch("", MERGE, &note(&old)).await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 409, "{status:?}"),
        other => panic!("an old version is refused: {other:?}"),
    }
    let ours = json!({ "type": "MusterTest", "status": "True", "lastTransitionTime": "2026-11-23T17:00:36Z" });
    for status in ["True", "False"] {
        let mut condition = ours.clone();
        condition["status"] = json!(status);
        let patch = json!({
            "metadata": { "resourceVersion": version(&world.node().await) },
            "status": { "conditions": [condition] },
            "spec": { "unschedulable": true },
        });
        let node = world.patch("/status", STRATEGIC, &patch).await.unwrap();
        assert_eq!(condition_status(&node, "MusterTest"), json!(status));
        assert_eq!(condition_status(&node, "Ready"), json!("True"));
        assert_eq!(
            node["spec"]["unschedulable"],
            Value::Null,
            "that is the other way's"
        );
    }
    let gone = json!({ "metadata": { "annotations": { "muster.dev/x": null } } });
    let node = world.patch("", MERGE, &gone).await.unwrap();
    assert_eq!(annotation(&node, "x"), &Value::Null);
}

fn condition_status(node: &Value, kind: &str) -> Value {
    condition(node, kind)["status"].clone()
}

/// The coordinator may do what it does, and nothing else, by either way.
async fn policy(world: &World) {
    let label = json!({ "metadata": { "labels": { "muster.dev/managed": "false" } } });
    // A real server hears of its policies a moment later.
    within(async { while world.patch("", MERGE, &label).await.is_ok() {} }).await;
    world
        .changed(
            "",
            json!({ "metadata": { "labels": { "muster.dev/managed": null } } }),
        )
        .await;
    let taint = json!([{ "key": "theirs", "effect": "NoSchedule" }]);
    world
        .changed("", json!({ "spec": { "taints": taint }, "metadata": { "annotations": { "theirs": "x" } } }))
        .await;
    let metadata = |metadata: Value| json!({ "metadata": metadata });
    let status = |status: Value| json!({ "status": status });
    for (part, patch, says) in [
        ("", label.clone(), "no labels"),
        (
            "",
            metadata(json!({ "labels": { "zone": null } })),
            "no labels",
        ),
        ("/status", label, "no labels"),
        (
            "",
            metadata(json!({ "annotations": { "other": "x" } })),
            "no annotations",
        ),
        (
            "",
            metadata(json!({ "annotations": { "theirs": null } })),
            "no annotations",
        ),
        (
            "",
            metadata(json!({ "annotations": { "theirs": "y" } })),
            "no annotations",
        ),
        (
            "/status",
            metadata(json!({ "annotations": { "other": "x" } })),
            "no annotations",
        ),
        (
            "",
            metadata(json!({ "finalizers": ["muster.dev/x"] })),
            "finalizers",
        ),
        ("", json!({ "spec": { "taints": [] } }), "in spec"),
        (
            "",
            json!({ "spec": { "taints": [taint[0], { "key": "muster.dev/x", "effect": "NoExecute" }] } }),
            "in spec",
        ),
        ("", json!({ "spec": { "providerID": "x://y" } }), "in spec"),
        (
            "",
            json!({ "spec": { "podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"] } }),
            "in spec",
        ),
        (
            "/status",
            status(json!({ "conditions": [] })),
            "no conditions",
        ),
        (
            "/status",
            status(json!({ "conditions": [{ "type": "Ready", "status": "False" }] })),
            "no conditions",
        ),
        (
            "/status",
            status(json!({ "capacity": { "nvidia.com/gpu": "8" } })),
            "in status",
        ),
        (
            "/status",
            status(json!({ "addresses": [{ "type": "InternalIP", "address": "10.0.0.9" }] })),
            "in status",
        ),
        (
            "/status",
            status(json!({ "phase": "Running" })),
            "in status",
        ),
    ] {
        match world.patch(part, MERGE, &patch).await {
            Err(kube::Error::Api(status)) => {
                let denied = status.message.contains("denied request");
                assert!(
                    denied && status.message.contains(says),
                    "{patch}: {status:?}"
                );
            }
            other => panic!("{part} {patch}: {other:?}"),
        }
    }
    for (part, patch) in [
        (
            "",
            json!({ "spec": { "unschedulable": true }, "metadata": { "annotations": { "muster.dev/x": "y" } } }),
        ),
        (
            "",
            json!({ "spec": { "unschedulable": false }, "metadata": { "annotations": { "muster.dev/x": null } } }),
        ),
    ] {
        let node = world.patch(part, MERGE, &patch).await.unwrap();
        assert_eq!(node["spec"]["taints"][0]["key"], json!("theirs"));
    }
    // Everybody else is none of its business.
    world
        .changed(
            "",
            json!({ "spec": { "taints": [] }, "metadata": { "annotations": { "theirs": null } } }),
        )
        .await;
}

/// A cordon, its end, and the word of a person.
async fn cordon(world: &World) {
    let (state, settings) = (tempfile::tempdir().unwrap(), Some(world.cordons()));
    let server = Server::start_beside(state, Policy::default(), settings).await;
    let _agent = FakeAgent::start(&server, "n1", &[], true).await;
    let node = world
        .until_node(|node| condition(node, "MusterGPUHealthy").is_object())
        .await;
    assert_eq!(condition_status(&node, "MusterGPUHealthy"), json!("True"));
    assert_eq!(condition_status(&node, "Ready"), json!("True"));
    let is_set = |node: &Value| node["spec"]["unschedulable"] == json!(true);
    let is_noted = |node: &Value| annotation(node, "cordoned-by").is_string();
    for was in [false, true] {
        world
            .changed("", json!({ "spec": { "unschedulable": was } }))
            .await;
        let excluded = |node: &v1::Node| node.excluded.is_empty() != was;
        server.until_node("n1", excluded).await;
        ask(&server, true).await;
        let node = world
            .until_node(|node| is_set(node) && is_noted(node))
            .await;
        assert_eq!(annotation(&node, "cordoned-reason"), &json!("fan"));
        assert_eq!(annotation(&node, "was-unschedulable").is_string(), was);
        ask(&server, false).await;
        let node = world.until_node(|node| !is_noted(node)).await;
        assert_eq!(is_set(&node), was, "it is as it was");
    }
    world
        .changed("", json!({ "spec": { "unschedulable": false } }))
        .await;
    server
        .until_node("n1", |node| node.excluded.is_empty())
        .await;
    ask(&server, true).await;
    world
        .until_node(|node| is_set(node) && is_noted(node))
        .await;
    // As kubectl uncordon does it.
    world
        .changed("", json!({ "spec": { "unschedulable": null } }))
        .await;
    let node = world.until_node(|node| !is_noted(node)).await;
    assert!(!is_set(&node), "{node}");
    let held = |node: &v1::Node| node.conditions.iter().any(|c| c.starts_with("HoldOff"));
    let view = server.until_node("n1", held).await;
    assert_eq!(view.cordon, None);
    assert_eq!(node["metadata"]["labels"]["zone"], json!("a"));
    let told = within(async {
        loop {
            let events = world.events().await;
            let of = |reason: &str| events.iter().filter(|e| e["reason"] == reason).count();
            if of("Uncordoned") == 3 {
                return (of("Cordoned"), events);
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(told.0, 3);
    let event = told.1.iter().find(|e| e["reason"] == "Cordoned").unwrap();
    assert_eq!(event["regarding"]["name"], json!("n1"));
    assert_eq!(
        event["reportingController"],
        json!("muster.dev/coordinator")
    );
}

async fn ask(server: &Server, cordon: bool) {
    let (mut nodes, name) = (server.nodes(), "n1".to_owned());
    if cordon {
        let (reason, by) = ("fan".to_owned(), String::new());
        let request = v1::CordonRequest { name, reason, by };
        nodes.cordon(request).await.unwrap();
    } else {
        nodes.uncordon(v1::UncordonRequest { name }).await.unwrap();
    }
}
