//! Jobs in the queues of Kueue. Its part is played by the test, which admits Workloads and evicts them.

use muster_core::exit::Exit;
use serde_json::{Value, json};

use crate::{
    agent::Order,
    cluster::{Cluster, State},
    kubectl::{NAMESPACE, condition, holding, in_phase},
    worker_pods::{World, job, runs_on},
};

const WORKLOADS: &str = "workloads";

/// A cluster with these versions of Kueue, and a coordinator that speaks with it.
async fn start(versions: &[&'static str]) -> World {
    let cluster = Cluster::start().await;
    cluster.change(|state| {
        state.kueue = versions.to_vec();
        let toleration = json!({ "key": "spot", "operator": "Exists" });
        let spec = json!({ "nodeLabels": { "pool": "spot" }, "tolerations": [toleration] });
        state.put_global("resourceflavors", "spot", spec);
    });
    let settings = cluster.queues();
    World::with(cluster, settings).await
}

fn is(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-24T10:00:00Z" })
}

/// Kueue changes the status of the only Workload: these conditions are so.
fn say(state: &mut State, news: &[Value], admission: Value) {
    let workload = state.only(WORKLOADS).expect("there is one Workload");
    let mut conditions = workload["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    for new in news {
        conditions.retain(|old| old["type"] != new["type"]);
        conditions.push(new.clone());
    }
    let status = json!({ "conditions": conditions, "admission": admission });
    state.change_only(WORKLOADS, Some(json!({ "status": status })));
}

fn admit(state: &mut State) {
    let workload = state.only(WORKLOADS).expect("there is one Workload");
    let asked = workload["spec"]["podSets"][0]["count"].as_u64().unwrap();
    // Kueue never counts these, even if they are left from an earlier admission.
    let reclaimable = workload["status"]["reclaimablePods"][0]["count"].as_u64();
    let count = asked - reclaimable.unwrap_or_default();
    let assignment =
        json!({ "name": "main", "count": count, "flavors": { "cpu": "spot", "memory": "spot" } });
    let admission = json!({ "clusterQueue": "all", "podSetAssignments": [assignment] });
    let news = [
        is("QuotaReserved", "True", "QuotaReserved", ""),
        is("Admitted", "True", "Admitted", ""),
        is("Evicted", "False", "QuotaReserved", ""),
    ];
    say(state, &news, admission);
}

fn evict(state: &mut State) {
    let workload = state.only(WORKLOADS).expect("there is one Workload");
    let news = [is(
        "Evicted",
        "True",
        "Preempted",
        "Preempted to accommodate a workload (UID: w-2, JobUID: j-2) due to prioritization in the ClusterQueue",
    )];
    say(state, &news, workload["status"]["admission"].clone());
}

fn workload(state: &State) -> Value {
    state.only(WORKLOADS).unwrap_or_default()
}

/// The status and the reason of a condition of the only Workload.
fn of(state: &State, kind: &str) -> (String, String) {
    let workload = workload(state);
    let one = condition(&workload, kind);
    let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

fn has(kind: &'static str, status: &'static str, reason: &'static str) -> impl Fn(&State) -> bool {
    move |state| of(state, kind) == (status.to_owned(), reason.to_owned())
}

fn says(text: &'static str) -> impl Fn(&Value) -> bool {
    move |object| {
        let message = object["status"]["message"].as_str().unwrap_or_default();
        message.contains(text)
    }
}

async fn trains(world: &mut World) {
    for pod in world.pods(2).await {
        world.runs(&pod, "gpu-1").await;
    }
    world.until(runs_on("2/2")).await;
}

#[tokio::test]
async fn a_job_waits_is_admitted_and_evicted_waits_again_and_finishes() {
    let mut world = start(&["v1beta1", "v1beta2"]).await;
    let applied = world.kubectl.queue("digits", "gpus", job()).await;
    world
        .cluster
        .until(|state| state.only(WORKLOADS).is_some())
        .await;
    let asks = world.cluster.change(|state| workload(state));
    assert_eq!(asks["apiVersion"], "kueue.x-k8s.io/v1beta2");
    assert_eq!(
        asks["metadata"]["ownerReferences"][0]["uid"],
        applied["metadata"]["uid"]
    );
    let pods = &asks["spec"]["podSets"][0];
    assert_eq!(
        (&asks["spec"]["queueName"], &pods["count"]),
        (&json!("gpus"), &json!(2))
    );
    // What the agents need counts too.
    let names = |list: &str| -> Vec<Value> {
        let all = pods["template"]["spec"][list].as_array().unwrap().iter();
        all.map(|one| one["name"].clone()).collect()
    };
    assert_eq!(names("initContainers"), ["muster-install", "muster-agent"]);
    assert_eq!(names("containers"), ["train"]);

    world.cluster.change(|state| {
        say(
            state,
            &[is(
                "QuotaReserved",
                "False",
                "WaitingForQuota",
                "8 GPUs are missing",
            )],
            Value::Null,
        );
    });
    let waits = world
        .until(says("gpus of Kueue: WaitingForQuota: 8 GPUs are missing"))
        .await;
    assert_eq!(waits["status"]["reason"], "QueuedInKueue");
    assert_eq!(holding(&waits), ["Accepted", "Queued"]);
    world.pods(0).await;

    world.cluster.change(admit);
    let made = world.pods(2).await;
    world.cluster.change(|state| {
        let pod = &state.pods[&(NAMESPACE.to_owned(), made[0].clone())];
        assert_eq!(pod["spec"]["nodeSelector"]["pool"], "spot");
        let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
        assert!(tolerations.contains(&json!({ "key": "spot", "operator": "Exists" })));
    });
    trains(&mut world).await;
    world
        .cluster
        .until(has("PodsReady", "True", "Started"))
        .await;

    // It stops, and its quota is its own until its pods are gone.
    world.cluster.change(evict);
    world.pods(0).await;
    let stops = world
        .until(says("Preempted to accommodate a workload (UID: w-2"))
        .await;
    assert_eq!(stops["status"]["phase"], "Pending");
    world
        .cluster
        .until(has("PodsReady", "False", "WaitForStart"))
        .await;
    world.goes(&made[0]);
    world.cluster.change(|state| {
        assert!(!workload(state)["status"]["admission"].is_null());
    });
    world.goes(&made[1]);
    world
        .cluster
        .until(has("QuotaReserved", "False", "Pending"))
        .await;
    world.cluster.change(|state| {
        assert!(workload(state)["status"]["admission"].is_null());
        assert_eq!(of(state, "Admitted").0, "False");
        assert_eq!(of(state, "Requeued"), ("True".into(), "Preempted".into()));
    });

    world.cluster.change(admit);
    trains(&mut world).await;
    for agent in world.agents.values() {
        agent.orders.send(Order::Exit(Exit::Code(0))).await.unwrap();
    }
    world.until(in_phase("Succeeded")).await;
    world
        .cluster
        .until(has("Finished", "True", "Succeeded"))
        .await;
    let told = |reason: &'static str| {
        move |state: &State| state.events.iter().any(|event| event["reason"] == reason)
    };
    world.cluster.until(told("QueuedInKueue")).await;
    world.cluster.until(told("AdmittedByKueue")).await;
}

#[tokio::test]
async fn a_job_has_as_many_nodes_as_were_admitted_and_gives_back_what_it_does_not_need() {
    let mut world = start(&["v1beta1"]).await;
    let mut spec = job();
    spec["maxReplicas"] = json!(3);
    world.kubectl.queue("digits", "gpus", spec).await;
    world
        .cluster
        .until(|state| state.only(WORKLOADS).is_some())
        .await;
    world.cluster.change(|state| {
        assert_eq!(workload(state)["apiVersion"], "kueue.x-k8s.io/v1beta1");
        admit(state);
    });
    trains(&mut world).await;
    world.kubectl.scale("digits", 3).await.unwrap();
    let capped = |object: &Value| {
        let message = condition(object, "Queued")["message"]
            .as_str()
            .unwrap_or_default();
        message.starts_with("Kueue has admitted 2 nodes, and spec.replicas is 3")
    };
    let object = world.until(capped).await;
    assert_eq!(object["status"]["nodes"], "2/2");
    world.pods(2).await;
    world.kubectl.scale("digits", 1).await.unwrap();
    world.until(runs_on("1/1")).await;
    let gone = world.pods(1).await;
    let names: Vec<String> = world
        .agents
        .keys()
        .filter(|name| !gone.contains(name))
        .cloned()
        .collect();
    for name in names {
        world.goes(&name);
    }
    let reclaimed = |state: &State| {
        workload(state)["status"]["reclaimablePods"] == json!([{ "name": "main", "count": 1 }])
    };
    world.cluster.until(reclaimed).await;
    // What was given back does not come again by itself.
    world.kubectl.scale("digits", 2).await.unwrap();
    let capped = |object: &Value| {
        let message = condition(object, "Queued")["message"]
            .as_str()
            .unwrap_or_default();
        message.starts_with("Kueue has admitted 1 nodes, and spec.replicas is 2")
    };
    world.until(capped).await;
    // After an eviction it asks for all.
    world.cluster.change(evict);
    world.pods(0).await;
    world.goes(&gone[0]);
    let anew = |state: &State| {
        let workload = workload(state);
        workload["spec"]["podSets"][0]["count"] == 2
            && workload["status"]["reclaimablePods"].is_null()
            && workload["status"]["admission"].is_null()
    };
    world.cluster.until(anew).await;
    world.cluster.change(admit);
    trains(&mut world).await;
    let made = world.pods(2).await;
    // A suspended job leaves the queue, and asks for all when it comes back.
    let suspend = |suspended: bool| json!({ "spec": { "suspend": suspended } });
    world
        .kubectl
        .patch("digits", "", suspend(true))
        .await
        .unwrap();
    world.pods(0).await;
    for pod in &made {
        world.goes(pod);
    }
    world
        .cluster
        .until(|state| state.all_of(WORKLOADS).is_empty())
        .await;
    let object = world.kubectl.get("digits").await.unwrap();
    assert!(!holding(&object).contains(&"Queued"), "{object:#}");
    world
        .kubectl
        .patch("digits", "", suspend(false))
        .await
        .unwrap();
    let anew = |state: &State| workload(state)["spec"]["podSets"][0]["count"] == 2;
    world.cluster.until(anew).await;
    world.pods(0).await;
    // What it asks for follows the job while it waits.
    let patch = json!({ "metadata": { "labels": { "kueue.x-k8s.io/queue-name": "others" } }, "spec": { "replicas": 3 } });
    world.kubectl.patch("digits", "", patch).await.unwrap();
    let changed = |state: &State| {
        let spec = workload(state)["spec"].clone();
        spec["queueName"] == "others" && spec["podSets"][0]["count"] == 3
    };
    world.cluster.until(changed).await;
    // Without a queue it begins.
    let patch = json!({ "metadata": { "labels": null } });
    world.kubectl.patch("digits", "", patch).await.unwrap();
    world
        .cluster
        .until(|state| state.all_of(WORKLOADS).is_empty())
        .await;
    world.pods(3).await;
}

#[tokio::test]
async fn a_job_stops_when_its_workload_is_deactivated_or_deleted() {
    let mut world = start(&["v1beta2"]).await;
    world.kubectl.queue("digits", "gpus", job()).await;
    world
        .cluster
        .until(|state| state.only(WORKLOADS).is_some())
        .await;
    world.cluster.change(admit);
    trains(&mut world).await;
    let made = world.pods(2).await;
    world.cluster.change(|state| {
        state.change_only(WORKLOADS, Some(json!({ "spec": { "active": false } })));
    });
    world.pods(0).await;
    world.until(says("its Workload is not active")).await;
    for pod in &made {
        world.goes(pod);
    }
    world.cluster.change(|state| {
        state.change_only(WORKLOADS, Some(json!({ "spec": { "active": true } })));
    });
    let made = world.pods(2).await;
    for pod in &made {
        world.runs(pod, "gpu-1").await;
    }
    world.until(runs_on("2/2")).await;
    world
        .cluster
        .change(|state| state.change_only(WORKLOADS, None));
    world.pods(0).await;
    world
        .cluster
        .change(|state| assert!(state.all_of(WORKLOADS).is_empty()));
    for pod in &made {
        world.goes(pod);
    }
    world
        .cluster
        .until(|state| state.only(WORKLOADS).is_some())
        .await;
    world.pods(0).await;
}

/// A Workload in another namespace that names the job as its owner, and is not active.
#[tokio::test]
async fn a_stranger_s_workload_in_another_namespace_is_none_of_the_job_s() {
    let mut world = start(&["v1beta2"]).await;
    world.kubectl.queue("digits", "gpus", job()).await;
    world
        .cluster
        .until(|state| state.only(WORKLOADS).is_some())
        .await;
    let forged = world.cluster.change(|state| {
        admit(state);
        let mut forged = workload(state);
        forged["metadata"]["namespace"] = json!("team-b");
        forged["metadata"]["uid"] = json!("33333333-0000-4000-8000-000000000001");
        forged["spec"]["active"] = json!(false);
        forged
    });
    trains(&mut world).await;
    let forged_again = forged.clone();
    world
        .cluster
        .change(|state| state.put_object(WORKLOADS, forged));
    // Another job gets its pods: what came before that through the same watch has been heard.
    world.kubectl.queue("other", "gpus", job()).await;
    let of_other = |state: &State| {
        let mut all = state.all_of(WORKLOADS).into_iter();
        let is_other = |one: &&Value| {
            one["metadata"]["name"]
                .as_str()
                .unwrap()
                .contains("-other-")
        };
        all.find(is_other).cloned()
    };
    world.cluster.until(|state| of_other(state).is_some()).await;
    world.cluster.change(|state| {
        let mut other = of_other(state).unwrap();
        other["status"] = forged_again["status"].clone();
        state.put_object(WORKLOADS, other);
    });
    let of = |state: &State, job: &str| {
        let all = state.pods.values();
        let own = all.filter(|pod| pod["metadata"]["name"].as_str().unwrap().starts_with(job));
        own.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .count()
    };
    world.cluster.until(|state| of(state, "other-") == 2).await;
    let object = world.kubectl.get("digits").await.unwrap();
    assert!(runs_on("2/2")(&object), "{object:#}");
    world.cluster.change(|state| {
        assert_eq!(of(state, "digits-"), 2);
        assert!(!state.was_deleted(WORKLOADS));
        let mut all = state.all_of(WORKLOADS).into_iter();
        let evil = all.find(|one| one["metadata"]["namespace"] == "team-b");
        assert_eq!(evil.unwrap()["spec"]["active"], false);
    });
}

#[tokio::test]
async fn without_kueue_a_job_that_names_a_queue_waits_and_all_others_run() {
    let world = start(&[]).await;
    world.kubectl.queue("digits", "gpus", job()).await;
    world
        .until(says(
            "the cluster has no Kueue (the API server does not know kueue.x-k8s.io)",
        ))
        .await;
    world.kubectl.apply("plain", job()).await.unwrap();
    world.pods(2).await;
    world.cluster.change(|state| {
        let mut names = state.pods.keys().map(|(_, name)| name);
        assert!(names.all(|name| name.starts_with("plain-")));
    });
}

#[tokio::test]
async fn a_coordinator_that_does_not_speak_with_kueue_says_so() {
    let cluster = Cluster::start().await;
    let settings = cluster.pods();
    let world = World::with(cluster, settings).await;
    world.kubectl.queue("digits", "gpus", job()).await;
    let object = world
        .until(says("--kubernetes-kueue, manifests/components/kueue"))
        .await;
    assert_eq!(object["status"]["reason"], "QueuedInKueue");
    world.pods(0).await;
}

#[tokio::test]
async fn it_says_why_a_workload_cannot_be_made_and_why_a_flavor_does_not_fit() {
    let world = start(&["v1beta2"]).await;
    world
        .cluster
        .change(|state| state.forbidden.insert("create workloads"));
    let mut spec = job();
    spec["template"]["spec"]["nodeSelector"] = json!({ "pool": "reserved" });
    world.kubectl.queue("digits", "gpus", spec).await;
    world
        .until(says(
            "cannot create workloads; manifests/components/kueue has the right",
        ))
        .await;
    world.cluster.change(|state| state.forbidden.clear());
    world
        .cluster
        .until(|state| state.only(WORKLOADS).is_some())
        .await;
    world.cluster.change(admit);
    let why = "the template says pool=reserved, and the admission by Kueue pool=spot";
    world.until(says(why)).await;
    world.pods(0).await;
}
