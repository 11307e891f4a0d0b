//! PyTorchJob objects that name Muster: what their users do, and what they see. The scheduler and the
//! kubelets are played by the test. A real API server is asked, too; with TEST_ASSET_KUBEFLOW_CRDS, a folder
//! with Kubeflow's definitions (`manifests/base/crds` in kubeflow/training-operator), by their schema.

mod ai_training;
mod kinds;
mod team;
mod trainer;

use std::{env, process::Stdio};

use muster_core::exit::Exit;
use muster_foreign::adopt::adoptable;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

pub(super) use self::team::has_status_subresource;
use self::team::{LOOK, Team};
use super::{World, real};
use crate::{
    agent::Order,
    cluster::Cluster,
    kubectl::{NAMESPACE, condition, holding},
    server::within,
};

#[tokio::test]
async fn objects_are_adopted_from_the_api_server_that_is_not_there() {
    let cluster = Cluster::start().await;
    // Its definition comes later.
    cluster.change(|state| state.not_installed.insert("pytorchjobs"));
    Box::pin(suite(World::Fake(cluster))).await;
}

#[tokio::test]
async fn objects_are_adopted_from_a_real_api_server() {
    match real::Server::start().await {
        Some(server) => Box::pin(suite(World::Real(server))).await,
        None => eprintln!(
            "!!! no kube-apiserver: that objects of a REAL API server are adopted is NOT SHOWN"
        ),
    }
}

fn template(image: &str) -> Value {
    let container = json!({ "name": "pytorch", "image": image, "command": ["python", "train.py"], "workingDir": "/" });
    json!({ "metadata": { "creationTimestamp": null }, "spec": { "containers": [container], "terminationGracePeriodSeconds": 0 } })
}

fn object(name: &str) -> Value {
    let worker =
        json!({ "replicas": 2, "restartPolicy": "OnFailure", "template": template("me/train:1") });
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": { "name": name, "labels": { "muster.dev/adopt": "true" } },
        "spec": {
            "elasticPolicy": { "minReplicas": 1, "maxReplicas": 2 },
            "pytorchReplicaSpecs": { "Worker": worker },
        },
    })
}

async fn suite(world: World) {
    let kind = adoptable("pytorchjobs").unwrap();
    let mut team = Team::start(world, &[kind]).await;
    // The coordinator waits for the definition.
    team.world.install(&kind).await;
    Box::pin(it_runs(&mut team)).await;
    Box::pin(it_is_suspended_and_resumed(&mut team)).await;
    Box::pin(a_change_that_cannot_be_is_told(&team)).await;
    Box::pin(it_succeeds_and_goes(&mut team)).await;
    Box::pin(what_is_refused_says_so(&team)).await;
    Box::pin(names_are_taken_once(&team)).await;
    Box::pin(others_are_left_alone(&team)).await;
    Box::pin(kubeflows_own_sdk_sees_no_change(&mut team)).await;
    Box::pin(a_restart_loses_nothing(&mut team)).await;
}

fn holds(kind: &'static str) -> impl Fn(&Value) -> bool {
    move |object| holding(object).contains(&kind)
}

async fn it_runs(team: &mut Team) {
    let made = team.create(object("digits")).await;
    let created = team.until("digits", holds("Created")).await;
    assert_eq!(holding(&created), ["Created"]);
    assert_eq!(
        condition(&created, "Created")["reason"],
        "PyTorchJobCreated"
    );
    let pods = team.pods("digits", 2).await;
    let job = team.kubectl.get("digits").await.unwrap();
    let owner = &job["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["uid"], &owner["kind"]),
        (&made["metadata"]["uid"], &json!("PyTorchJob"))
    );
    assert_eq!(job["spec"]["args"], json!(["train.py"]));
    for pod in &pods {
        let labels = &pod["metadata"]["labels"];
        assert_eq!(
            labels["training.kubeflow.org/job-name"], "digits",
            "{pod:#}"
        );
        assert_eq!(pod["spec"]["containers"][0]["image"], "me/train:1");
    }
    team.run_all(&pods).await;
    let running = |object: &Value| {
        holds("Running")(object) && object["status"]["replicaStatuses"]["Worker"]["active"] == 2
    };
    let running = team.until("digits", running).await;
    let newest = running["status"]["conditions"]
        .as_array()
        .unwrap()
        .last()
        .unwrap();
    assert_eq!(newest["message"], "PyTorchJob team-a/digits is running.");
    assert_eq!(
        running["status"]["replicaStatuses"]["Worker"]["selector"],
        "training.kubeflow.org/job-name=digits,training.kubeflow.org/operator-name=pytorchjob-controller,training.kubeflow.org/replica-type=worker"
    );
    // Its pods say which member they are.
    let mut look = tokio::time::interval(LOOK);
    let indices = within(async {
        loop {
            look.tick().await;
            let pods = team.pods("digits", 2).await;
            let of = |pod: &Value, name: &str| {
                let labels = &pod["metadata"]["labels"];
                labels[format!("training.kubeflow.org/{name}")].clone()
            };
            let mut all: Vec<Value> = pods
                .iter()
                .map(|pod| {
                    json!([
                        of(pod, "replica-index"),
                        of(pod, "replica-type"),
                        of(pod, "job-role")
                    ])
                })
                .collect();
            all.sort_by_key(ToString::to_string);
            if all.iter().all(|place| place[1] == "worker") {
                return all;
            }
        }
    })
    .await;
    assert_eq!(
        indices,
        [
            json!(["0", "worker", "master"]),
            json!(["1", "worker", null])
        ]
    );
}

async fn it_is_suspended_and_resumed(team: &mut Team) {
    let suspend = |held: bool| json!({ "spec": { "runPolicy": { "suspend": held } } });
    team.patch("digits", suspend(true)).await;
    let held = team.until("digits", holds("Suspended")).await;
    assert_eq!(condition(&held, "Running")["status"], "False", "{held:#}");
    team.pods("digits", 0).await;
    team.drop_all().await;
    team.patch("digits", suspend(false)).await;
    let pods = team.pods("digits", 2).await;
    team.run_all(&pods).await;
    let running = |object: &Value| {
        holds("Running")(object) && object["status"]["replicaStatuses"]["Worker"]["active"] == 2
    };
    let running = team.until("digits", running).await;
    assert_eq!(
        condition(&running, "Suspended")["status"],
        "False",
        "{running:#}"
    );
    assert_eq!(
        condition(&running, "Suspended")["reason"],
        "PyTorchJobResumed"
    );
}

async fn a_change_that_cannot_be_is_told(team: &Team) {
    let worker = |template: Value| json!({ "spec": { "pytorchReplicaSpecs": { "Worker": { "template": template } } } });
    team.patch("digits", worker(template("me/train:2"))).await;
    let says = |object: &Value| {
        let all = object["status"]["conditions"].as_array().unwrap();
        let newest = all.last().unwrap()["message"].as_str().unwrap();
        newest.contains("Muster says: the change of spec.template has no effect")
    };
    let object = team.until("digits", says).await;
    assert!(
        holding(&object).contains(&"Running"),
        "it goes on: {object:#}"
    );
    let note = team.until_told(&object, "ChangeRefused").await;
    assert!(note.ends_with("delete it and create it again"), "{note}");
    team.patch("digits", worker(template("me/train:1"))).await;
    team.until("digits", |object| !says(object)).await;
}

async fn it_succeeds_and_goes(team: &mut Team) {
    for agent in team.agents.values() {
        agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    }
    let object = team.until("digits", holds("Succeeded")).await;
    assert_eq!(
        condition(&object, "Running")["status"],
        "False",
        "{object:#}"
    );
    assert!(object["status"]["completionTime"].is_string(), "{object:#}");
    team.until_told(&object, "PyTorchJobSucceeded").await;
    let reasons: Vec<String> = team
        .events(&object)
        .await
        .into_iter()
        .map(|(reason, _)| reason)
        .collect();
    let place = |reason: &str| reasons.iter().position(|is| is == reason);
    let story = [
        "PyTorchJobCreated",
        "PyTorchJobRunning",
        "PyTorchJobSuspended",
        "PyTorchJobSucceeded",
    ]
    .map(place);
    assert!(story.is_sorted() && story[0].is_some(), "{reasons:?}");
    team.delete("digits").await;
    team.kubectl.until_gone("digits").await;
    team.drop_all().await;
}

async fn what_is_refused_says_so(team: &Team) {
    let mut bad = object("bad");
    bad["spec"]["elasticPolicy"]["rdzvBackend"] = json!("carrier-pigeon");
    team.create(bad).await;
    let object = team.until("bad", holds("Failed")).await;
    let failed = condition(&object, "Failed");
    assert_eq!(failed["reason"], "PyTorchJobFailedValidation");
    assert_eq!(
        failed["message"],
        "spec.elasticPolicy.rdzvBackend: is \"carrier-pigeon\", must be c10d, etcd or etcd-v2"
    );
    let note = team.until_told(&object, "PyTorchJobFailedValidation").await;
    assert!(note.contains("carrier-pigeon"), "{note}");
    team.kubectl.get("bad").await.unwrap_err();
    team.delete("bad").await;
}

async fn names_are_taken_once(team: &Team) {
    let spec = json!({ "replicas": 1, "args": ["other.py"], "workingDir": "/", "suspend": true });
    team.kubectl.apply("taken", spec).await.unwrap();
    let made = team.create(object("taken")).await;
    let note = team.until_told(&made, "NotYet").await;
    assert!(
        note.starts_with("there is a MusterJob taken already; "),
        "{note}"
    );
    let job = team.kubectl.get("taken").await.unwrap();
    assert_eq!(job["spec"]["args"], json!(["other.py"]), "it is left alone");
    team.kubectl.delete("taken").await;
    let mut look = tokio::time::interval(LOOK);
    within(async {
        loop {
            look.tick().await;
            if let Ok(job) = team.kubectl.get("taken").await
                && job["spec"]["args"] == json!(["train.py"])
            {
                return;
            }
        }
    })
    .await;
    team.delete("taken").await;
    team.kubectl.until_gone("taken").await;
}

async fn others_are_left_alone(team: &Team) {
    let mut other = object("other");
    other["metadata"]["labels"] = json!({});
    team.create(other).await;
    let mut both = object("both");
    both["spec"]["runPolicy"] = json!({ "managedBy": "kubeflow.org/training-operator" });
    let both = team.create(both).await;
    let note = team.until_told(&both, "TwoManagers").await;
    assert!(
        note.contains("managedBy is \"kubeflow.org/training-operator\""),
        "{note}"
    );
    for name in ["other", "both"] {
        assert!(team.get(name).await["status"].is_null(), "{name}");
        team.kubectl.get(name).await.unwrap_err();
        team.delete(name).await;
    }
    let mut named = object("named");
    named["metadata"]["labels"] = json!({});
    named["spec"]["runPolicy"] = json!({ "managedBy": "muster.dev/coordinator" });
    team.create(named).await;
    team.until("named", holds("Created")).await;
    team.delete("named").await;
}

/// TEST_ASSET_KUBEFLOW_SDK names an interpreter that has `kubeflow-training`.
async fn kubeflows_own_sdk_sees_no_change(team: &mut Team) {
    let World::Real(server) = &team.world else {
        return;
    };
    let Some(python) = env::var_os("TEST_ASSET_KUBEFLOW_SDK") else {
        eprintln!(
            "!!! no interpreter with kubeflow-training (TEST_ASSET_KUBEFLOW_SDK): that Kubeflow's own SDK works is NOT SHOWN"
        );
        return;
    };
    let (address, token) = server.address_for_users();
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/service/semantics/adoption.py"
    );
    let mut user = Command::new(python)
        .args([script, &address, &token, NAMESPACE])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut said = BufReader::new(user.stdout.take().unwrap()).lines();
    let mut says = async |wanted: &str| {
        let line = within(said.next_line()).await.unwrap();
        let line = line.unwrap_or_else(|| panic!("the SDK ended before it said {wanted}"));
        assert!(line.contains(wanted), "{line}");
    };
    says("Created").await;
    let pods = team.pods("sdk", 2).await;
    team.run_all(&pods).await;
    says("Running").await;
    says("first").await;
    for agent in team.agents.values() {
        agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    }
    says("Succeeded").await;
    says("deleted").await;
    assert!(within(user.wait()).await.unwrap().success());
    team.kubectl.until_gone("sdk").await;
    team.drop_all().await;
}

/// While nobody looks, one object goes and another comes. A third one has its job already.
async fn a_restart_loses_nothing(team: &mut Team) {
    for name in ["goes", "stays"] {
        team.create(object(name)).await;
        team.until(name, holds("Created")).await;
    }
    let stays = team.kubectl.until("stays", |_| true).await;
    team.kubectl.until("goes", |_| true).await;
    let kinds = [team.kind];
    team.restart(&kinds, async |team: &Team| {
        team.delete("goes").await;
        team.create(object("comes")).await;
        team.kubectl.get("goes").await.unwrap();
    })
    .await;
    team.kubectl.until_gone("goes").await;
    team.until("comes", holds("Created")).await;
    team.pods("comes", 2).await;
    let pods = team.pods("stays", 2).await;
    let same = team.kubectl.get("stays").await.unwrap();
    assert_eq!(same["metadata"]["uid"], stays["metadata"]["uid"]);
    team.run_all(&pods).await;
    team.until("stays", holds("Running")).await;
}
