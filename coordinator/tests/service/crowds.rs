//! Somebody fills a namespace with objects, and only that namespace feels it.

use http::Method;
use muster_coordinator::kubernetes::Settings;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, State},
    kubectl::{Kubectl, NAMESPACE, condition, in_phase},
    worker_pods::{World, job, runs_on},
};

/// So many objects of a kind are kept in these tests.
const KEPT: usize = 40;
/// The namespace that is filled, by its own users.
const FULL: &str = "team-b";
const FILLERS: usize = 100;

/// The metadata of an object that a job would have, of a job that there is not.
fn forged(number: usize) -> Value {
    let uid = "0b4e-4711";
    json!({
        "name": format!("filler-{number:03}"), "namespace": FULL, "uid": format!("f-{number}"),
        "labels": { "muster.dev/job-uid": uid },
        "ownerReferences": [{ "apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "name": "no",
            "uid": uid, "controller": true }],
    })
}

fn fill_with_pods(state: &mut State) {
    for number in 0..FILLERS {
        let pod = json!({ "metadata": forged(number), "spec": { "containers": [] }, "status": { "phase": "Pending" } });
        state.add_pod(FULL, &format!("filler-{number:03}"), pod);
    }
}

async fn world(settings: impl Fn(&Cluster) -> Settings, fill: impl FnOnce(&mut State)) -> World {
    let cluster = Cluster::start().await;
    cluster.change(fill);
    let mut settings = settings(&cluster);
    settings.kept_max = KEPT;
    World::with(cluster, settings).await
}

fn pods_of(state: &State, namespace: &str) -> Vec<String> {
    let all = state.pods.keys().filter(|(of, _)| of == namespace);
    let names = all.map(|(_, name)| name.clone());
    names.filter(|name| !name.starts_with("filler")).collect()
}

fn in_full(name: &str) -> String {
    Kubectl::path(name).replace(NAMESPACE, FULL)
}

async fn submit_in_full(world: &World, name: &str, spec: Value) {
    let object = json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": { "name": name }, "spec": spec,
    });
    let path = in_full("");
    let made = world.kubectl.ask(Method::POST, &path, Some(&object));
    made.await.unwrap();
}

/// The reasons of the Events that the namespace's users see.
fn told(state: &State) -> Vec<&str> {
    let all = state.events.iter();
    let own = all.filter(|event| event["metadata"]["namespace"] == FULL);
    own.filter_map(|event| event["reason"].as_str()).collect()
}

#[tokio::test]
async fn a_namespace_full_of_pods_takes_them_from_no_other() {
    let mut world = world(Cluster::pods, fill_with_pods).await;
    // Others have their pods, and their jobs run.
    world.kubectl.apply("digits", job()).await.unwrap();
    world
        .cluster
        .until(|state| pods_of(state, NAMESPACE).len() == 2)
        .await;
    let pods = world.cluster.change(|state| pods_of(state, NAMESPACE));
    world.runs(&pods[0], "gpu-1").await;
    world.runs(&pods[1], "gpu-2").await;
    world.until(runs_on("2/2")).await;
    // In that namespace nobody knows which pods a job has, so it gets none, and is told.
    submit_in_full(&world, "digits", job()).await;
    world
        .cluster
        .until(|state| told(state).contains(&"NamespaceCrowded"))
        .await;
    let at = (FULL.to_owned(), "digits".to_owned());
    world
        .cluster
        .until(|state| {
            let waits = condition(&state.jobs[&at], "BelowMinimum");
            waits["reason"] == "NamespaceCrowded"
        })
        .await;
    assert_eq!(world.cluster.change(|state| pods_of(state, FULL)), [""; 0]);
    // Its users tidy up.
    world.cluster.change(|state| {
        for number in 0..FILLERS {
            state.drop_pod(FULL, &format!("filler-{number:03}"));
        }
        state.forget();
    });
    world
        .cluster
        .until(|state| pods_of(state, FULL).len() == 2)
        .await;
    assert!(in_phase("Running")(
        &world.kubectl.get("digits").await.unwrap()
    ));
}

/// The coordinator follows already, and the namespace is filled then.
#[tokio::test]
async fn a_namespace_that_fills_up_takes_no_pods_from_others() {
    let mut world = world(Cluster::pods, |_| {}).await;
    world.kubectl.apply("digits", job()).await.unwrap();
    world
        .cluster
        .until(|state| pods_of(state, NAMESPACE).len() == 2)
        .await;
    let pods = world.cluster.change(|state| pods_of(state, NAMESPACE));
    world.runs(&pods[0], "gpu-1").await;
    world.runs(&pods[1], "gpu-2").await;
    world.until(runs_on("2/2")).await;
    world.cluster.change(fill_with_pods);
    submit_in_full(&world, "digits", job()).await;
    world
        .cluster
        .until(|state| told(state).contains(&"NamespaceCrowded"))
        .await;
    // A pod of the other namespace is still missed, and made anew.
    world.goes(&pods[1]);
    world
        .cluster
        .until(|state| pods_of(state, NAMESPACE).len() == 2)
        .await;
    world.until(in_phase("Running")).await;
}

#[tokio::test]
async fn a_namespace_full_of_network_policies_takes_them_from_no_other() {
    let world = world(Cluster::pods, |state| {
        for number in 0..FILLERS {
            let object = json!({ "metadata": forged(number), "spec": {} });
            state.put_object("networkpolicies", object);
        }
    })
    .await;
    let mut spec = job();
    spec["networkPolicy"] = json!("Job");
    world.kubectl.apply("digits", spec.clone()).await.unwrap();
    world
        .cluster
        .until(|state| pods_of(state, NAMESPACE).len() == 2)
        .await;
    submit_in_full(&world, "digits", spec).await;
    let at = (FULL.to_owned(), "digits".to_owned());
    world
        .cluster
        .until(|state| {
            let accepted = condition(&state.jobs[&at], "Accepted");
            accepted["message"]
                .to_string()
                .contains("its share of what this coordinator keeps")
        })
        .await;
    // A job that asks for none goes on there, too.
    let made = |state: &State, job: &str| {
        let all = pods_of(state, FULL);
        all.iter().filter(|pod| pod.starts_with(job)).count()
    };
    submit_in_full(&world, "plain", job()).await;
    world
        .cluster
        .until(|state| made(state, "plain-") == 2)
        .await;
    assert_eq!(world.cluster.change(|state| made(state, "digits-")), 0);
}
