//! TrainJob objects, whose pods are in a runtime that the cluster has: who may manage them, when the runtime is read,
//! and what is written. With TEST_ASSET_KUBEFLOW_CRDS, a folder that also has `manifests/base/crds` of
//! kubeflow/trainer, by their definitions.
//!
//! Source of the words: kubeflow/trainer 2.3, `pkg/controller/trainjob_controller.go`.

use muster_core::exit::Exit;
use muster_foreign::adopt::adoptable;
use serde_json::{Value, json};

use super::team::{LOOK, Team};
use crate::{
    agent::Order,
    cluster::Cluster,
    kubectl::{NAMESPACE, condition, holding},
    semantics::{Method, World, real},
    server::within,
};

const API: &str = "/apis/trainer.kubeflow.org/v1alpha1";
const LEFT_ALONE: &str = "kueue.x-k8s.io/multikueue";

#[tokio::test]
async fn train_jobs_are_adopted_from_the_api_server_that_is_not_there() {
    let world = World::Fake(Cluster::start().await);
    Box::pin(suite(world)).await;
}

#[tokio::test]
async fn train_jobs_are_adopted_from_a_real_api_server() {
    match real::Server::start().await {
        Some(server) => Box::pin(suite(World::Real(server))).await,
        None => eprintln!(
            "!!! no kube-apiserver: that TrainJobs are adopted from a REAL API server is NOT SHOWN"
        ),
    }
}

async fn suite(world: World) {
    let kind = adoptable("trainjobs").unwrap();
    world.install(&kind).await;
    let mut team = Team::start(world, &[kind]).await;
    Box::pin(it_waits_for_its_runtime_and_runs(&mut team)).await;
    Box::pin(its_runtime_is_read_once(&mut team)).await;
    Box::pin(it_is_suspended_and_resumed(&mut team)).await;
    Box::pin(it_is_complete_and_goes(&mut team)).await;
    Box::pin(it_fails(&mut team)).await;
    Box::pin(it_may_begin_suspended(&mut team)).await;
    Box::pin(what_is_refused_says_so(&team)).await;
    Box::pin(trainers_own_are_left_alone(&team)).await;
}

/// `limit`: how often its pods start again.
async fn make_runtime(team: &Team, kind: &str, name: &str, limit: u32) {
    let plural = format!("{}s", kind.to_lowercase());
    let path = match kind {
        "TrainingRuntime" => format!("{API}/namespaces/{NAMESPACE}/{plural}"),
        _ => format!("{API}/{plural}"),
    };
    let container = json!({ "name": "node", "image": "me/torch:1", "workingDir": "/", "env": [{ "name": "MODE", "value": "slow" }] });
    let pod = json!({ "containers": [container], "nodeSelector": { "pool": "gpu" }, "terminationGracePeriodSeconds": 0 });
    let node = json!({ "name": "node", "template": {
        "metadata": { "labels": { "trainer.kubeflow.org/trainjob-ancestor-step": "trainer" } },
        "spec": { "backoffLimit": limit, "template": { "spec": pod } },
    } });
    let object = json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": kind, "metadata": { "name": name },
        "spec": {
            "mlPolicy": { "numNodes": 1, "torch": {} },
            "template": { "spec": { "replicatedJobs": [node] } },
        },
    });
    // Its definition is served a moment after it is made.
    let mut look = tokio::time::interval(LOOK);
    within(async {
        loop {
            look.tick().await;
            let made = team.kubectl.ask(Method::POST, &path, Some(&object));
            if made.await.is_ok() {
                return;
            }
        }
    })
    .await;
}

fn object(name: &str, runtime: &str) -> Value {
    json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "metadata": { "name": name, "labels": { "muster.dev/adopt": "true" } },
        "spec": {
            "managedBy": LEFT_ALONE,
            "runtimeRef": { "name": runtime },
            "trainer": {
                "numNodes": 2, "command": ["torchrun", "train.py"],
                "env": [{ "name": "MODE", "value": "fast" }],
            },
        },
    })
}

/// How its Job is: ready, succeeded, failed, active, suspended.
fn job(object: &Value) -> Option<[u64; 5]> {
    let job = &object["status"]["jobsStatus"][0];
    let number = |field: &str| job[field].as_u64();
    let all = ["ready", "succeeded", "failed", "active", "suspended"].map(number);
    let all: Option<Vec<u64>> = all.into_iter().collect();
    assert!(all.is_none() || job["name"] == "node", "{job:#}");
    all?.try_into().ok()
}

async fn runs(team: &mut Team, name: &str) -> Value {
    let pods = team.pods(name, 2).await;
    team.run_all(&pods).await;
    let ready = |object: &Value| job(object) == Some([1, 0, 0, 1, 0]);
    team.until(name, ready).await
}

async fn exits(team: &Team, code: i32) {
    for agent in team.agents.values() {
        let order = Order::Exit(Exit::Code(code));
        agent.orders.send(order).await.unwrap();
    }
}

async fn it_waits_for_its_runtime_and_runs(team: &mut Team) {
    let made = team.create(object("digits", "torch")).await;
    let note = team.until_told(&made, "NotYet").await;
    assert_eq!(
        note,
        "there is no ClusterTrainingRuntime torch; the job begins when it is there"
    );
    team.kubectl.get("digits").await.unwrap_err();
    assert!(team.get("digits").await["status"].is_null());
    make_runtime(team, "ClusterTrainingRuntime", "torch", 3).await;
    let pods = team.pods("digits", 2).await;
    let container = &pods[0]["spec"]["containers"][0];
    assert_eq!(container["image"], "me/torch:1");
    assert_eq!(pods[0]["spec"]["nodeSelector"]["pool"], "gpu");
    let env = container["env"].as_array().unwrap();
    let mode = env.iter().find(|one| one["name"] == "MODE").unwrap();
    assert_eq!(mode["value"], "fast", "the job's word wins");
    let spec = team.kubectl.get("digits").await.unwrap()["spec"].clone();
    assert_eq!(spec["restartPolicy"]["maxRestarts"], 3);
    assert_eq!(spec["args"], json!(["train.py"]));
    let running = runs(team, "digits").await;
    assert!(running["status"]["conditions"].is_null(), "{running:#}");
    it_has_its_labels(team).await;
}

async fn it_has_its_labels(team: &Team) {
    let mut look = tokio::time::interval(LOOK);
    within(async {
        loop {
            look.tick().await;
            let pods = team.pods("digits", 2).await;
            let labels = |name: &str| -> Vec<Value> {
                let all = pods.iter();
                let mut all: Vec<Value> = all
                    .map(|pod| pod["metadata"]["labels"][name].clone())
                    .collect();
                all.sort_by_key(ToString::to_string);
                all
            };
            assert_eq!(labels("jobset.sigs.k8s.io/jobset-name"), ["digits"; 2]);
            if labels("batch.kubernetes.io/job-completion-index") == ["0", "1"] {
                assert_eq!(labels("jobset.sigs.k8s.io/replicatedjob-name"), ["node"; 2]);
                return;
            }
        }
    })
    .await;
}

/// The runtime goes, and the coordinator is another one. The job has what it began with.
async fn its_runtime_is_read_once(team: &mut Team) {
    let kinds = [team.kind];
    let before = team.kubectl.get("digits").await.unwrap();
    team.drop_all().await;
    team.restart(&kinds, async |team: &Team| {
        let path = format!("{API}/clustertrainingruntimes/torch");
        let gone = team.kubectl.ask(Method::DELETE, &path, None);
        gone.await.unwrap();
    })
    .await;
    // Lost pods are made anew, as the runtime says.
    let pods = team.pods("digits", 2).await;
    assert_eq!(pods[0]["spec"]["nodeSelector"]["pool"], "gpu");
    let after = team.kubectl.get("digits").await.unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["spec"], before["spec"]);
    runs(team, "digits").await;
    make_runtime(team, "ClusterTrainingRuntime", "torch", 0).await;
}

async fn it_is_suspended_and_resumed(team: &mut Team) {
    let suspend = |held: bool| json!({ "spec": { "suspend": held } });
    // While nobody knows whether its workers have stopped, a queue must not give their nodes to others.
    let lost: Vec<String> = std::mem::take(&mut team.agents).into_keys().collect();
    team.patch("digits", suspend(true)).await;
    let stops = |object: &Value| job(object) == Some([0, 0, 0, 1, 1]);
    team.until("digits", stops).await;
    for pod in lost {
        team.world.drop_pod(&pod).await;
    }
    let held = |object: &Value| job(object) == Some([0, 0, 0, 0, 1]);
    let held = team.until("digits", held).await;
    let says = condition(&held, "Suspended");
    assert_eq!(
        (&says["status"], &says["reason"], &says["message"]),
        (
            &json!("True"),
            &json!("Suspended"),
            &json!("TrainJob is suspended")
        )
    );
    team.pods("digits", 0).await;
    team.drop_all().await;
    team.patch("digits", suspend(false)).await;
    let running = runs(team, "digits").await;
    let says = condition(&running, "Suspended");
    assert_eq!(
        (&says["status"], &says["reason"]),
        (&json!("False"), &json!("Resumed"))
    );
}

async fn it_is_complete_and_goes(team: &mut Team) {
    exits(team, 0).await;
    let over = |object: &Value| holding(object) == ["Complete"];
    let object = team.until("digits", over).await;
    let says = condition(&object, "Complete");
    assert_eq!(
        (&says["reason"], &says["message"]),
        (
            &json!("AllJobsCompleted"),
            &json!("jobset completed successfully")
        )
    );
    assert_eq!(job(&object), Some([0, 1, 0, 0, 0]), "{object:#}");
    team.until_told(&object, "AllJobsCompleted").await;
    team.delete("digits").await;
    team.kubectl.until_gone("digits").await;
    team.drop_all().await;
}

/// By now the runtime allows no restart.
async fn it_fails(team: &mut Team) {
    team.create(object("fails", "torch")).await;
    runs(team, "fails").await;
    exits(team, 3).await;
    let failed = |object: &Value| holding(object) == ["Failed"];
    let object = team.until("fails", failed).await;
    let says = condition(&object, "Failed");
    assert_eq!(says["reason"], "FailedJobs");
    assert_eq!(
        says["message"],
        "jobset failed due to one or more job failures (first failed job: fails-node-0)"
    );
    assert_eq!(job(&object), Some([0, 0, 1, 0, 0]), "{object:#}");
    team.delete("fails").await;
    team.kubectl.until_gone("fails").await;
    team.drop_all().await;
}

/// A patch of the pods, as a queue writes it.
fn patched(pool: &str) -> Value {
    let pod = json!({ "spec": { "nodeSelector": { "pool": pool } } });
    let node = json!({ "name": "node", "template": { "spec": { "template": pod } } });
    let spec = json!({ "template": { "spec": { "replicatedJobs": [node] } } });
    json!({ "manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": spec })
}

/// Its namespace has the runtime, and a queue chooses its nodes.
async fn it_may_begin_suspended(team: &mut Team) {
    let mut held = object("held", "own");
    held["spec"]["runtimeRef"]["kind"] = json!("TrainingRuntime");
    held["spec"]["suspend"] = json!(true);
    team.create(held).await;
    team.until("held", |object| holding(object) == ["Suspended"])
        .await;
    team.kubectl.get("held").await.unwrap_err();
    make_runtime(team, "TrainingRuntime", "own", 0).await;
    let admitted = json!({ "spec": { "suspend": false, "runtimePatches": [patched("spot")] } });
    team.patch("held", admitted).await;
    let pods = team.pods("held", 2).await;
    assert_eq!(pods[0]["spec"]["nodeSelector"]["pool"], "spot");
    let running = runs(team, "held").await;
    let says = condition(&running, "Suspended");
    assert_eq!(
        (&says["status"], &says["reason"]),
        (&json!("False"), &json!("Resumed"))
    );
    let other = json!({ "spec": { "runtimePatches": [patched("other")] } });
    team.patch("held", other).await;
    let note = team.until_told(&running, "ChangeRefused").await;
    assert!(
        note.contains("spec.runtimePatches: have no effect on a job that was started"),
        "{note}"
    );
    team.pods("held", 2).await;
    // The queue takes its quota back: it suspends the job, and takes its patches away, in one watch gap.
    let evicted = json!({ "spec": { "suspend": true, "runtimePatches": null } });
    team.patch("held", evicted).await;
    team.until("held", |object| holding(object) == ["Suspended"])
        .await;
    team.pods("held", 0).await;
    team.drop_all().await;
    // It is admitted to other nodes, and keeps those with which it began.
    let elsewhere = json!({ "spec": { "suspend": false, "runtimePatches": [patched("other")] } });
    team.patch("held", elsewhere).await;
    let pods = team.pods("held", 2).await;
    assert_eq!(pods[0]["spec"]["nodeSelector"]["pool"], "spot");
    team.delete("held").await;
    team.kubectl.until_gone("held").await;
    team.drop_all().await;
}

async fn what_is_refused_says_so(team: &Team) {
    let mut bad = object("bad", "torch");
    bad["spec"]["initializer"] = json!({ "dataset": { "storageUri": "hf://me/data" } });
    team.create(bad).await;
    let failed = |object: &Value| holding(object) == ["Failed"];
    let object = team.until("bad", failed).await;
    let says = condition(&object, "Failed");
    assert_eq!(says["reason"], "TrainJobFailedValidation");
    let message = says["message"].as_str().unwrap();
    assert!(
        message.starts_with("spec.initializer: downloads before the training"),
        "{message}"
    );
    team.kubectl.get("bad").await.unwrap_err();
    team.delete("bad").await;
}

async fn trainers_own_are_left_alone(team: &Team) {
    let trainer = "trainer.kubeflow.org/trainjob-controller";
    let mut both = object("both", "torch");
    both["spec"]["managedBy"] = json!(trainer);
    if matches!(team.world, World::Real(_)) {
        // The definition says so itself.
        both["spec"].as_object_mut().unwrap().remove("managedBy");
    }
    let both = team.create(both).await;
    assert_eq!(both["spec"]["managedBy"], trainer);
    let note = team.until_told(&both, "TwoManagers").await;
    assert!(
        note.contains("make it with managedBy: \"kueue.x-k8s.io/multikueue\""),
        "{note}"
    );
    team.kubectl.get("both").await.unwrap_err();
    assert!(team.get("both").await["status"].is_null());
    team.delete("both").await;
    if matches!(team.world, World::Real(_)) {
        let mut ours = object("ours", "torch");
        ours["spec"]["managedBy"] = json!("muster.dev/coordinator");
        let path = format!("{API}/namespaces/{NAMESPACE}/trainjobs");
        let refused = team.kubectl.ask(Method::POST, &path, Some(&ours)).await;
        let why = format!("{:?}", refused.unwrap_err());
        assert!(why.contains("ManagedBy must be"), "{why}");
    }
}
