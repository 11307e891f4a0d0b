//! AITrainingJob objects of both groups: their phases, the history that their conditions are, and the labels of
//! their pods. The definition of the open ancestor has no status subresource; that of CCE is not public, and
//! has one here.
//!
//! Source of the words: elasticdeeplearning/trainingjob-operator, `pkg/controller/status.go` and `pod.go`.

use muster_core::exit::Exit;
use muster_foreign::adopt::{Adoptable, adoptable};
use serde_json::{Value, json};

use super::team::{LOOK, Team};
use crate::{
    agent::Order,
    cluster::Cluster,
    kubectl::in_phase,
    semantics::{World, real},
    server::within,
};

#[tokio::test]
async fn ai_training_jobs_are_adopted_from_the_api_server_that_is_not_there() {
    let world = World::Fake(Cluster::start().await);
    Box::pin(these(world, &["aitrainingjobs"])).await;
}

#[tokio::test]
async fn a_kind_without_a_status_subresource_is_adopted_from_the_api_server_that_is_not_there() {
    let world = World::Fake(Cluster::start().await);
    Box::pin(these(world, &["aitrainingjobs.elasticdeeplearning.ai"])).await;
}

#[tokio::test]
async fn ai_training_jobs_are_adopted_from_a_real_api_server() {
    let both = ["aitrainingjobs", "aitrainingjobs.elasticdeeplearning.ai"];
    match real::Server::start().await {
        Some(server) => Box::pin(these(World::Real(server), &both)).await,
        None => eprintln!(
            "!!! no kube-apiserver: that AITrainingJobs are adopted from a REAL API server is NOT SHOWN"
        ),
    }
}

async fn these(world: World, words: &[&str]) {
    let kinds = words.iter().map(|word| adoptable(word).unwrap());
    let kinds: Vec<Adoptable> = kinds.collect();
    for kind in &kinds {
        world.install(kind).await;
    }
    let mut team = Team::start(world, &kinds).await;
    for kind in kinds {
        team.kind = kind;
        it_runs_and_restarts(&mut team).await;
        it_succeeds_and_goes(&mut team).await;
        it_runs_out_of_restarts(&mut team).await;
        what_is_refused_says_so(&team).await;
        another_operators_status_is_left_alone(&team).await;
    }
}

/// They find each other by the variables of their role.
const TRAINERS: usize = 2;

/// `limit`: the restarts that it may have.
fn object(kind: &Adoptable, name: &str, trainers: usize, limit: u32) -> Value {
    let container = json!({ "name": "aitj-0", "image": "me/train:1", "command": ["python", "train.py"], "workingDir": "/" });
    let pod = json!({ "containers": [container], "terminationGracePeriodSeconds": 0 });
    let trainer = json!({
        "replicas": trainers, "restartPolicy": "ExitCode", "restartLimit": limit, "restartScope": "All",
        "template": { "spec": pod },
    });
    json!({
        "apiVersion": format!("{}/{}", kind.group, kind.version), "kind": kind.kind,
        "metadata": { "name": name, "labels": { "muster.dev/adopt": "true" } },
        "spec": {
            "cleanPodPolicy": "All", "frameworkType": "paddle", "restartingExitCode": "137,128",
            "replicaSpecs": { "trainer": trainer },
        },
    })
}

/// The phases that the job was in, and how many of its conditions are true.
fn history(object: &Value) -> (Vec<&str>, usize) {
    let conditions = object["status"]["conditions"].as_array().unwrap();
    let phases = conditions.iter().map(|one| one["type"].as_str().unwrap());
    let holding = conditions.iter().filter(|one| one["status"] == "True");
    (phases.collect(), holding.count())
}

async fn exits(team: &Team, code: i32) {
    for agent in team.agents.values() {
        let order = Order::Exit(Exit::Code(code));
        agent.orders.send(order).await.unwrap();
    }
}

async fn runs(team: &mut Team, name: &str, trainers: usize) -> Value {
    let pods = team.pods(name, trainers).await;
    team.run_all(&pods).await;
    let active = |object: &Value| {
        let trainer = &object["status"]["replicaStatuses"]["trainer"];
        in_phase("Running")(object) && trainer["active"] == trainers
    };
    team.until(name, active).await
}

async fn it_runs_and_restarts(team: &mut Team) {
    let made = team.create(object(&team.kind, "digits", TRAINERS, 3)).await;
    let pending = team.until("digits", in_phase("Pending")).await;
    let first = &pending["status"]["conditions"][0];
    assert_eq!(
        (&first["reason"], &first["message"]),
        (
            &json!("TrainingJobPending"),
            &json!("all pods are waiting for scheduling")
        )
    );
    assert_eq!(pending["status"]["startTime"], first["lastTransitionTime"]);
    let job = team.kubectl.get("digits").await.unwrap();
    let owner = &job["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], made["metadata"]["uid"]);
    let running = runs(team, "digits", TRAINERS).await;
    let (phases, holding) = history(&running);
    let places = ["Pending", "Running"].map(|phase| phases.iter().position(|is| *is == phase));
    assert_eq!(
        (places, holding),
        ([Some(0), Some(phases.len() - 1)], 1),
        "{running:#}"
    );
    let newest = &running["status"]["conditions"][phases.len() - 1];
    assert_eq!(newest["message"], "all pods are running");
    assert_eq!(running["status"]["RestartCount"]["trainer"], 0);
    it_has_its_labels(team).await;
    exits(team, 137).await;
    let again = |object: &Value| {
        in_phase("Running")(object) && object["status"]["RestartCount"]["trainer"] == 1
    };
    let again = team.until("digits", again).await;
    let (phases_then, holding) = history(&again);
    let gone_on: Vec<&str> = phases
        .into_iter()
        .chain(["Restarting", "Running"])
        .collect();
    assert_eq!((phases_then, holding), (gone_on, 1), "{again:#}");
}

async fn it_has_its_labels(team: &Team) {
    let mut look = tokio::time::interval(LOOK);
    let group = team.kind.group;
    within(async {
        loop {
            look.tick().await;
            let pods = team.pods("digits", TRAINERS).await;
            let labels = &pods[0]["metadata"]["labels"];
            assert_eq!(labels["GroupName"], group, "{labels:#}");
            assert_eq!(labels["TrainingJobName"], "digits");
            if labels["TrainingJobReplicaIndex"] == "0" {
                assert_eq!(labels["TrainingJobReplicaName"], "trainer");
                assert_eq!(labels["PodRole"], "trainer");
                return;
            }
        }
    })
    .await;
}

async fn it_succeeds_and_goes(team: &mut Team) {
    exits(team, 0).await;
    let object = team.until("digits", in_phase("Succeed")).await;
    let newest = object["status"]["conditions"].as_array().unwrap().last();
    let newest = newest.unwrap();
    assert_eq!(newest["reason"], "TrainingJobSucceed");
    assert_eq!(newest["message"], "job digits completed");
    assert_eq!(
        object["status"]["replicaStatuses"]["trainer"]["succeeded"],
        TRAINERS
    );
    assert!(object["status"]["endTime"].is_string(), "{object:#}");
    team.until_told(&object, "TrainingJobSucceed").await;
    let reasons: Vec<String> = team
        .events(&object)
        .await
        .into_iter()
        .map(|(reason, _)| reason)
        .collect();
    assert!(
        reasons.contains(&"TrainingJobRestarting".to_owned())
            || reasons.contains(&"TrainingJobRunning".to_owned()),
        "{reasons:?}"
    );
    team.delete("digits").await;
    team.kubectl.until_gone("digits").await;
    team.drop_all().await;
}

async fn it_runs_out_of_restarts(team: &mut Team) {
    team.create(object(&team.kind, "fails", 1, 3)).await;
    runs(team, "fails", 1).await;
    exits(team, 3).await;
    let object = team.until("fails", in_phase("Failed")).await;
    let (phases, holding) = history(&object);
    assert_eq!((phases.last(), holding), (Some(&"Failed"), 1), "{object:#}");
    assert!(
        !phases.contains(&"Restarting"),
        "3 is no code to restart: {phases:?}"
    );
    let newest = &object["status"]["conditions"][phases.len() - 1];
    assert_eq!(newest["reason"], "TrainingJobFailed");
    let message = newest["message"].as_str().unwrap();
    assert!(message.contains("exit code 3"), "{message}");
    assert_eq!(object["status"]["replicaStatuses"]["trainer"]["failed"], 1);
    team.until_told(&object, "TrainingJobFailed").await;
    team.delete("fails").await;
    team.kubectl.until_gone("fails").await;
    team.drop_all().await;
}

/// Horovod needs a launcher.
async fn what_is_refused_says_so(team: &Team) {
    let mut many = object(&team.kind, "many", 4, 3);
    many["spec"]["frameworkType"] = json!("horovod");
    team.create(many).await;
    let object = team.until("many", in_phase("Failed")).await;
    let (phases, _) = history(&object);
    let newest = &object["status"]["conditions"][phases.len() - 1];
    assert_eq!(newest["reason"], "TrainingJobFailedValidation");
    let message = newest["message"].as_str().unwrap();
    assert!(
        message.starts_with("spec.replicaSpecs: has no role launcher"),
        "{message}"
    );
    team.kubectl.get("many").await.unwrap_err();
    team.delete("many").await;
}

/// The kind has no `managedBy`: its operator is known by what it writes.
async fn another_operators_status_is_left_alone(team: &Team) {
    let World::Real(_) = &team.world else { return };
    let mut other = object(&team.kind, "other", 1, 3);
    other["metadata"]["labels"] = json!({});
    team.create(other).await;
    let status =
        json!({ "status": { "phase": "Pending", "conditions": [], "replicaStatuses": {} } });
    let part = if team.kind.group.starts_with("kongming") {
        "other/status"
    } else {
        "other"
    };
    team.patch(part, status).await;
    team.patch(
        "other",
        json!({ "metadata": { "labels": { "muster.dev/adopt": "true" } } }),
    )
    .await;
    let object = team.get("other").await;
    let note = team.until_told(&object, "OtherOperator").await;
    assert!(note.contains("has written its status"), "{note}");
    team.kubectl.get("other").await.unwrap_err();
    team.delete("other").await;
}
