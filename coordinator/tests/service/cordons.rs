//! Cordons on the Node objects of a Kubernetes cluster, and what others do to them.

mod failing;

use std::fs;

use muster_core::fleet::{CordonMode, Policy};
use muster_proto::v1;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    agent::FakeAgent,
    cluster::{Cluster, State},
    process::Running,
    server::{Server, phase, spec},
};

const NODE: &str = "node-a";

/// A cluster with one node, its agent, and a coordinator that writes.
struct Bench {
    cluster: Cluster,
    server: Server,
    _agent: FakeAgent,
}

impl Bench {
    async fn start(cordon: CordonMode) -> Self {
        Self::start_changed(cordon, |_| ()).await
    }

    async fn start_changed(cordon: CordonMode, change: impl FnOnce(&mut State)) -> Self {
        let cluster = Cluster::start().await;
        cluster.change(|state| {
            state.put(NODE, &[]);
            change(state);
        });
        Self::beside(cluster, tempfile::tempdir().unwrap(), cordon).await
    }

    async fn beside(cluster: Cluster, state: TempDir, cordon: CordonMode) -> Self {
        let settings = Some(cluster.cordons(cordon));
        let server = Server::start_beside(state, Policy::default(), settings).await;
        let agent = FakeAgent::start(&server, NODE, &[], true).await;
        Self {
            cluster,
            server,
            _agent: agent,
        }
    }

    async fn cordon(&self, reason: &str) {
        self.cordon_as(NODE, reason).await;
    }

    async fn cordon_node(&self, name: &str) {
        self.cordon_as(name, "fan").await;
    }

    async fn cordon_as(&self, name: &str, reason: &str) {
        let request = v1::CordonRequest {
            name: name.into(),
            reason: reason.into(),
            by: String::new(),
        };
        self.server.nodes().cordon(request).await.unwrap();
    }

    async fn uncordon(&self) {
        let request = v1::UncordonRequest { name: NODE.into() };
        self.server.nodes().uncordon(request).await.unwrap();
    }

    /// Waits until the object is as wanted, and returns it.
    async fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        self.cluster.until(|state| wanted(state.node(NODE))).await;
        self.cluster.change(|state| state.node(NODE).clone())
    }

    async fn told(&self, reason: &str) -> Vec<v1::Event> {
        let request = v1::ListEventsRequest::default();
        let events = self.server.events().list(request).await.unwrap();
        let events = events.into_inner().events.into_iter();
        events.filter(|event| event.reason == reason).collect()
    }
}

fn is_cordoned(object: &Value) -> bool {
    object["spec"]["unschedulable"] == json!(true)
        && object["metadata"]["annotations"]["muster.dev/cordoned-by"].is_string()
}

/// Nothing of a cordon of Muster is left.
fn is_clean(object: &Value) -> bool {
    let annotations = object["metadata"]["annotations"].as_object().unwrap();
    let ours = |key: &String| key.starts_with("muster.dev/");
    object["spec"]["unschedulable"].is_null() && !annotations.keys().any(ours)
}

fn health(object: &Value) -> Option<&Value> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|c| c["type"] == "MusterGPUHealthy")
}

#[tokio::test]
async fn a_cordon_is_written_with_who_and_why_and_taken_back() {
    let bench = Bench::start(CordonMode::On).await;
    let object = bench.until(|object| health(object).is_some()).await;
    let condition = health(&object).unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("True"), &json!("NoFaultKnown"))
    );
    bench.cordon("fan fails").await;
    let object = bench.until(is_cordoned).await;
    let said = &object["metadata"]["annotations"];
    assert_eq!(said["muster.dev/cordoned-reason"], json!("fan fails"));
    assert_eq!(said["muster.dev/was-unschedulable"], Value::Null);
    let at = said["muster.dev/cordoned-at"].as_str().unwrap();
    let view = bench
        .server
        .until_node(NODE, |node| node.cordon.is_some())
        .await;
    let cordon = view.cordon.unwrap();
    assert_eq!(said["muster.dev/cordoned-by"], json!(cordon.by));
    let time = muster_core::time::Timestamp::from_rfc3339(at).unwrap();
    assert_eq!(time.0, cordon.at_unix_us);
    // What others have on the object stays.
    assert_eq!(object["spec"]["podCIDR"], json!("10.0.0.0/24"));
    assert!(said["noise"].is_string());
    assert_eq!(object["status"]["conditions"][0]["type"], json!("Ready"));
    assert_eq!(health(&object), Some(condition), "a fan is no GPU");

    bench.uncordon().await;
    bench.until(is_clean).await;
    let view = bench
        .server
        .until_node(NODE, |node| node.cordon.is_none())
        .await;
    assert_eq!((view.excluded.as_str(), view.conditions.len()), ("", 0));
    bench.cluster.until(|state| state.events.len() == 2).await;
    let events = bench.cluster.change(|state| state.events.clone());
    let reasons: Vec<&Value> = events.iter().map(|event| &event["reason"]).collect();
    assert_eq!(reasons, [&json!("Cordoned"), &json!("Uncordoned")]);
    let event = &events[0];
    assert_eq!(event["regarding"]["uid"], json!("uid-of-node-a"));
    assert!(
        event["note"].as_str().unwrap().ends_with("fan fails"),
        "{event}"
    );
    assert_eq!(
        bench.told("NodeExcluded").await,
        [],
        "our own cordon is no news"
    );
}

#[tokio::test]
async fn without_the_flag_nothing_is_written() {
    let bench = Bench::start(CordonMode::Off).await;
    bench.cordon("fan").await;
    bench
        .cluster
        .change(|state| state.put(NODE, &[("pool", "big")]));
    let has_label = |node: &v1::Node| node.labels.contains_key("pool");
    let node = bench.server.until_node(NODE, has_label).await;
    assert!(node.cordon.is_some());
    assert_eq!(bench.cluster.change(|state| state.patches), 0);
}

#[tokio::test]
async fn a_dry_run_says_what_it_would_do_and_makes_no_node_unschedulable() {
    let bench = Bench::start(CordonMode::DryRun).await;
    bench.cordon("fan").await;
    let would =
        |object: &Value| object["metadata"]["annotations"]["muster.dev/would-cordon"].clone();
    let object = bench.until(|object| would(object).is_string()).await;
    assert!(
        would(&object).as_str().unwrap().ends_with(": fan"),
        "{object}"
    );
    assert!(object["spec"]["unschedulable"].is_null() && !is_cordoned(&object));
    let object = bench.until(|object| health(object).is_some()).await;
    assert!(object["spec"]["unschedulable"].is_null());
    bench.uncordon().await;
    bench.until(is_clean).await;
}

#[tokio::test]
async fn a_person_who_uncordons_with_kubectl_is_right_also_after_a_restart() {
    let bench = Bench::start(CordonMode::On).await;
    bench.cordon("fan").await;
    bench.until(is_cordoned).await;
    // As kubectl does it.
    bench.cluster.change(|state| {
        state.change_node(NODE, json!({ "spec": { "unschedulable": null } }));
    });
    bench.until(is_clean).await;
    let node = bench
        .server
        .until_node(NODE, |node| node.cordon.is_none())
        .await;
    assert!(node.conditions[0].starts_with("HoldOff: somebody uncordoned it"));
    let told = bench.told("NodeUncordoned").await;
    assert!(
        told[0].message.contains("uncordoned in Kubernetes"),
        "{told:?}"
    );

    let Bench {
        cluster, server, ..
    } = bench;
    let settings = Some(cluster.cordons(CordonMode::On));
    let server = Server::start_beside(server.stop().await, Policy::default(), settings).await;
    let agent = FakeAgent::again(&server, NODE, &[]).await;
    let bench = Bench {
        cluster,
        server,
        _agent: agent,
    };
    let held =
        |node: &v1::Node| !node.conditions.is_empty() && node.state() == v1::NodeState::Ready;
    let again = bench.server.until_node(NODE, held).await;
    assert_eq!(again.conditions, node.conditions);
    bench.cordon("a person may").await;
    bench.until(is_cordoned).await;
}

#[tokio::test]
async fn what_a_person_made_unschedulable_is_not_made_schedulable() {
    let bench = Bench::start_changed(CordonMode::On, |state| {
        state.change_node(NODE, json!({ "spec": { "unschedulable": true } }));
    })
    .await;
    let node = bench
        .server
        .until_node(NODE, |node| !node.excluded.is_empty())
        .await;
    assert!(node.excluded.starts_with("unschedulable in Kubernetes"));
    bench.server.submit("waits", spec(1)).await;
    let waits = |job: &v1::Job| {
        job.status
            .as_ref()
            .unwrap()
            .message
            .contains("unschedulable")
    };
    bench.server.until_job("waits", waits).await;
    bench.cordon("fan").await;
    let object = bench.until(is_cordoned).await;
    let was = &object["metadata"]["annotations"]["muster.dev/was-unschedulable"];
    assert_eq!(was, &json!("true"));
    bench.uncordon().await;
    let left =
        |object: &Value| object["metadata"]["annotations"]["muster.dev/cordoned-by"].is_null();
    let object = bench.until(left).await;
    assert_eq!(object["spec"]["unschedulable"], json!(true));
    bench.cluster.change(|state| {
        state.change_node(NODE, json!({ "spec": { "unschedulable": null } }));
    });
    let runs = |job: &v1::Job| phase(job) == v1::JobPhase::Running;
    bench.server.until_job("waits", runs).await;
    bench.until(is_clean).await;
    assert_eq!(bench.told("NodeExcluded").await.len(), 1);
}

#[tokio::test]
async fn a_change_of_somebody_else_between_reading_and_writing_is_not_lost() {
    let bench = Bench::start_changed(CordonMode::On, |state| {
        let taint = json!([{ "key": "node.kubernetes.io/unreachable", "effect": "NoSchedule" }]);
        let other = json!({ "spec": { "taints": taint }, "metadata": { "annotations": { "theirs": "yes" } } });
        state.after_get.push((NODE.to_owned(), other));
    })
    .await;
    bench.until(|object| health(object).is_some()).await;
    bench.cluster.change(|state| {
        let other = json!({ "metadata": { "annotations": { "more": "yes" } } });
        state.after_get.push((NODE.to_owned(), other));
    });
    bench.cordon("fan").await;
    let object = bench.until(is_cordoned).await;
    let annotations = &object["metadata"]["annotations"];
    assert_eq!(
        (&annotations["theirs"], &annotations["more"]),
        (&json!("yes"), &json!("yes"))
    );
    assert_eq!(
        object["spec"]["taints"][0]["key"],
        json!("node.kubernetes.io/unreachable")
    );
}

#[tokio::test]
async fn a_write_that_comes_too_late_is_made_again_before_anything_else() {
    let cluster = Cluster::start().await;
    cluster.change(|state| {
        state.put(NODE, &[]);
        state.put("node-b", &[]);
    });
    let bench = Bench::beside(cluster, tempfile::tempdir().unwrap(), CordonMode::On).await;
    let _other = FakeAgent::start(&bench.server, "node-b", &[], true).await;
    let both = |state: &State| [NODE, "node-b"].map(|name| health(state.node(name)).is_some());
    bench.cluster.until(|state| both(state) == [true; 2]).await;
    bench.cluster.change(|state| {
        let nothing = json!({ "status": { "conditions": [] } });
        for name in [NODE, "node-b"] {
            state.change_node(name, nothing.clone());
        }
        let other = json!({ "metadata": { "annotations": { "theirs": "yes" } } });
        state.after_get.push((NODE.to_owned(), other));
    });
    bench.cluster.until(|state| both(state) != [false; 2]).await;
    let both = bench.cluster.change(|state| both(state));
    assert!(both[0], "the first one did not wait for the second");
}

#[tokio::test]
async fn a_person_who_cordons_between_reading_and_writing_was_first() {
    let bench = Bench::start(CordonMode::On).await;
    bench.until(|object| health(object).is_some()).await;
    bench.cluster.change(|state| {
        let cordon = json!({ "spec": { "unschedulable": true } });
        state.after_get.push((NODE.to_owned(), cordon));
    });
    bench.cordon("fan").await;
    let object = bench.until(is_cordoned).await;
    let was = &object["metadata"]["annotations"]["muster.dev/was-unschedulable"];
    assert_eq!(was, &json!("true"));
}

#[tokio::test]
async fn a_cordon_during_an_outage_is_written_afterwards_and_only_the_last_wish_counts() {
    let bench = Bench::start(CordonMode::On).await;
    bench.until(|object| health(object).is_some()).await;
    bench.cluster.change(|state| state.down = true);
    for round in 0..3 {
        bench.cordon(&format!("round {round}")).await;
        bench.uncordon().await;
    }
    bench.cordon("the last").await;
    let stale = |node: &v1::Node| node.conditions.iter().any(|c| c.starts_with("MarksStale"));
    bench.server.until_node(NODE, stale).await;
    let before = bench.cluster.change(|state| {
        state.down = false;
        state.patches
    });
    let object = bench.until(is_cordoned).await;
    let reason = &object["metadata"]["annotations"]["muster.dev/cordoned-reason"];
    assert_eq!(reason, &json!("the last"));
    assert_eq!(bench.cluster.change(|state| state.patches), before + 1);
    bench
        .server
        .until_node(NODE, |node| node.conditions.is_empty())
        .await;
    assert_eq!(
        bench.told("NodeMarksStale").await.len(),
        1,
        "however often it was tried"
    );
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_found_done() {
    let bench = Bench::start(CordonMode::On).await;
    bench.until(|object| health(object).is_some()).await;
    bench.cordon("fan").await;
    bench.until(is_cordoned).await;
    // The write takes place, and its answer ends in the middle.
    let before = bench.cluster.change(|state| {
        state.cut_patches = true;
        state.patches
    });
    bench.uncordon().await;
    bench.cluster.until(|state| state.patches > before).await;
    bench.cluster.change(|state| state.cut_patches = false);
    bench.until(is_clean).await;
    bench.cordon("again").await;
    bench.until(is_cordoned).await;
}

#[tokio::test]
async fn a_persons_cordon_stays_on_an_object_that_muster_must_leave_alone() {
    let bench = Bench::start(CordonMode::On).await;
    bench.cordon("fan").await;
    bench.until(is_cordoned).await;
    bench
        .cluster
        .change(|state| state.put(NODE, &[("muster.dev/managed", "false")]));
    let uncordon = json!({ "spec": { "unschedulable": null } });
    bench
        .cluster
        .change(|state| state.change_node(NODE, uncordon));
    bench
        .server
        .until_node(NODE, |node| node.cordon.is_none())
        .await;
    let cordon = json!({ "spec": { "unschedulable": true } });
    bench
        .cluster
        .change(|state| state.change_node(NODE, cordon));
    bench
        .server
        .until_node(NODE, |node| !node.excluded.is_empty())
        .await;
    bench.cluster.change(|state| state.put(NODE, &[]));
    let note = |object: &Value| object["metadata"]["annotations"]["muster.dev/cordoned-by"].clone();
    let object = bench.until(|object| note(object).is_null()).await;
    assert_eq!(object["spec"]["unschedulable"], json!(true));
}

#[tokio::test]
async fn objects_that_others_look_after_are_left_alone_and_it_is_said() {
    let bench = Bench::start_changed(CordonMode::On, |state| {
        state.put(NODE, &[("muster.dev/managed", "false")]);
    })
    .await;
    bench.cordon("fan").await;
    let alone = |node: &v1::Node| node.conditions.iter().any(|c| c.starts_with("LeftAlone"));
    let node = bench.server.until_node(NODE, alone).await;
    assert!(node.cordon.is_some(), "for Muster's jobs it counts");
    assert_eq!(bench.cluster.change(|state| state.patches), 0);
    bench.cluster.change(|state| state.put(NODE, &[]));
    bench.until(is_cordoned).await;
}

#[tokio::test]
async fn a_process_that_is_killed_between_commit_and_write_writes_when_it_is_back() {
    let (cluster, directory) = (Cluster::start().await, tempfile::tempdir().unwrap());
    cluster.change(|state| state.put(NODE, &[]));
    let kubeconfig = directory.path().join("kubeconfig");
    fs::write(&kubeconfig, cluster.kubeconfig()).unwrap();
    let start = || {
        Running::start_with(directory.path(), |command| {
            command.args(["--kubernetes-cordon", "on"]);
            command.env("KUBECONFIG", &kubeconfig);
        })
    };
    let process = start().await;
    let server = Server::elsewhere(&process.endpoint).await;
    let agent = FakeAgent::start(&server, NODE, &[], true).await;
    cluster
        .until(|state| health(state.node(NODE)).is_some())
        .await;
    cluster.change(|state| assert!(state.forbidden.insert("patch nodes")));
    let request = v1::CordonRequest {
        name: NODE.into(),
        reason: "fan".into(),
        by: String::new(),
    };
    server.nodes().cordon(request).await.unwrap();
    drop((process, agent));
    cluster.change(|state| state.forbidden.clear());
    assert!(!cluster.change(|state| is_cordoned(state.node(NODE))));
    let process = start().await;
    cluster.until(|state| is_cordoned(state.node(NODE))).await;
    let server = Server::elsewhere(&process.endpoint).await;
    let _agent = FakeAgent::again(&server, NODE, &[]).await;
    let request = v1::UncordonRequest { name: NODE.into() };
    server.nodes().uncordon(request).await.unwrap();
    cluster.until(|state| is_clean(state.node(NODE))).await;
}
