//! PodGroups and Kubernetes' own gang scheduler, which is real here: a job's pods get nodes together.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Method, World, real};
use crate::{
    access::Secure,
    kubectl::{Kubectl, NAMESPACE, job_of_two},
    server::within,
};

/// The gates and the version of Kubernetes 1.36.
const APISERVER: [&str; 2] = [
    "--feature-gates=GenericWorkload=true",
    "--runtime-config=scheduling.k8s.io/v1alpha2=true",
];
const SCHEDULER: [&str; 1] = ["--feature-gates=GenericWorkload=true,GangScheduling=true"];
const API: &str = "scheduling.k8s.io/v1alpha2";

async fn pods_until(kubectl: &Kubectl, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=muster.dev%2Fjob-uid");
    let mut look = tokio::time::interval(Duration::from_millis(100));
    within(async {
        loop {
            look.tick().await;
            let list = kubectl.ask(Method::GET, &path, None).await.unwrap();
            let pods = list["items"].as_array().unwrap().clone();
            if wanted(&pods) {
                return pods;
            }
        }
    })
    .await
}

fn refused(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|one| one["type"] == "PodScheduled" && one["status"] == "False")
}

#[tokio::test]
async fn a_real_gang_scheduler_places_both_pods_of_a_job_or_none() {
    let shown = "that a REAL gang scheduler takes PodGroups of jobs is NOT SHOWN";
    let Some(mut server) = real::Server::start_with(&APISERVER).await else {
        eprintln!("!!! no kube-apiserver: {shown}");
        return;
    };
    server.install_pod_groups(API).await;
    server.add_node("n1", 1).await;
    if !server.start_scheduler(&SCHEDULER) {
        eprintln!("!!! no kube-scheduler: {shown}");
        return;
    }
    let world = World::Real(server);
    let kubectl = world.kubectl();
    let mut settings = world.makes_pods().await;
    settings.pod_groups = true;
    let _secure = Secure::start_with(|all| all.kubernetes = Some(settings)).await;
    let mut job = job_of_two();
    (job["replicas"], job["minReplicas"], job["gpusPerNode"]) = (json!(2), json!(2), json!(1));
    job["podGroup"] = json!("Kubernetes");
    job["template"] =
        json!({ "spec": { "containers": [{ "name": "train", "image": "me/train:1" }] } });
    kubectl.apply("digits", job).await.unwrap();
    // There is room for one of them.
    let pods = pods_until(&kubectl, |pods| pods.len() == 2 && pods.iter().all(refused)).await;
    assert!(pods.iter().all(|pod| pod["spec"]["nodeName"].is_null()));
    let World::Real(server) = &world else {
        unreachable!("it is")
    };
    server.add_node("n2", 1).await;
    let placed = |pods: &[Value]| {
        let mut nodes: Vec<&str> = pods
            .iter()
            .filter_map(|pod| pod["spec"]["nodeName"].as_str())
            .collect();
        nodes.sort_unstable();
        nodes == ["n1", "n2"]
    };
    pods_until(&kubectl, placed).await;
    let path = format!("/apis/{API}/namespaces/{NAMESPACE}/podgroups");
    let groups = kubectl.ask(Method::GET, &path, None).await.unwrap();
    let group = &groups["items"][0];
    assert_eq!(group["spec"]["schedulingPolicy"]["gang"]["minCount"], 2);
}
