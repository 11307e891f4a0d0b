//! What a job with pods of its own owns besides them: how it is made, kept and deleted.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Method, World, real};
use crate::{
    access::Secure,
    cluster::Cluster,
    kubectl::{Kubectl, NAMESPACE, code, job_of_two},
    server::within,
};

pub(super) const POLICIES: &str = "networking.k8s.io/v1 networkpolicies";
const BUDGETS: &str = "policy/v1 poddisruptionbudgets";
pub(super) const PODS: &str = "v1 pods";

#[tokio::test]
async fn dependents_are_objects_of_the_api_server_that_is_not_there() {
    Box::pin(suite(World::Fake(Cluster::start().await))).await;
}

#[tokio::test]
async fn dependents_are_objects_of_a_real_api_server() {
    match real::Server::start().await {
        Some(server) => {
            let world = World::Real(server);
            Box::pin(rules(&world.kubectl())).await;
            Box::pin(suite(world)).await;
        }
        None => eprintln!(
            "!!! no kube-apiserver: that a REAL API server takes NetworkPolicies and PodDisruptionBudgets of jobs is NOT SHOWN"
        ),
    }
}

pub(super) fn job() -> Value {
    let mut job = job_of_two();
    job["replicas"] = json!(2);
    job["template"] =
        json!({ "spec": { "containers": [{ "name": "train", "image": "me/train:1" }] } });
    (job["networkPolicy"], job["disruptionBudget"]) = (json!("Job"), json!("Minimum"));
    job
}

/// The words of both fields are the definition's.
async fn rules(kubectl: &Kubectl) {
    for field in ["networkPolicy", "disruptionBudget"] {
        let mut wrong = job();
        wrong[field] = json!("All");
        let why = kubectl.apply("refused", wrong).await.unwrap_err();
        assert_eq!(code(&why), 422, "{why}");
        let says = format!("spec.{field}: Unsupported value: \"All\"");
        assert!(why.to_string().contains(&says), "{why}");
    }
}

/// The path of all objects of a kind, given with its API.
fn path(kind: &str) -> String {
    let (api, plural) = kind.split_once(' ').unwrap();
    let root = if api == "v1" { "api" } else { "apis" };
    format!("/{root}/{api}/namespaces/{NAMESPACE}/{plural}")
}

/// Waits until there are so many objects of a kind that are jobs', and all are as wanted.
pub(super) async fn until(
    kubectl: &Kubectl,
    kind: &str,
    count: usize,
    wanted: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let path = format!("{}?labelSelector=muster.dev%2Fjob-uid", path(kind));
    let mut look = tokio::time::interval(Duration::from_millis(50));
    within(async {
        loop {
            look.tick().await;
            let list = kubectl.ask(Method::GET, &path, None).await.unwrap();
            let items = list["items"].as_array().unwrap();
            if items.len() == count && items.iter().all(&wanted) {
                return items.clone();
            }
        }
    })
    .await
}

async fn suite(world: World) {
    let kubectl = world.kubectl();
    let settings = world.makes_pods().await;
    let _secure = Secure::start_with(|all| all.kubernetes = Some(settings)).await;
    let applied = kubectl.apply("digits", job()).await.unwrap();
    let uid = &applied["metadata"]["uid"];
    until(&kubectl, PODS, 2, |_| true).await;
    let minimum = |budget: &Value| budget["spec"]["minAvailable"] == 1;
    let budget = until(&kubectl, BUDGETS, 1, minimum).await.remove(0);
    let policy = until(&kubectl, POLICIES, 1, |_| true).await.remove(0);
    for owned in [&budget, &policy] {
        assert_eq!(owned["metadata"]["ownerReferences"][0]["uid"], *uid);
    }

    // Whatever somebody does to them is put right, and nothing is written again after that.
    let place = |kind: &str, object: &Value| {
        format!(
            "{}/{}",
            path(kind),
            object["metadata"]["name"].as_str().unwrap()
        )
    };
    let open = json!({ "spec": { "ingress": [{}] } });
    let way = place(POLICIES, &policy);
    kubectl.ask(Method::PATCH, &way, Some(&open)).await.unwrap();
    let closed = |policy: &Value| policy["spec"]["ingress"][0]["from"].is_array();
    let policy = until(&kubectl, POLICIES, 1, closed).await.remove(0);
    let uid = &budget["metadata"]["uid"];
    let options =
        json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid } });
    let way = place(BUDGETS, &budget);
    kubectl
        .ask(Method::DELETE, &way, Some(&options))
        .await
        .unwrap();
    let other = |budget: &Value| budget["metadata"]["uid"] != *uid;
    until(&kubectl, BUDGETS, 1, other).await;

    // What is not asked for any more goes, and the other one stays as it is.
    let edit = json!({ "spec": { "disruptionBudget": "None" } });
    kubectl.patch("digits", "", edit).await.unwrap();
    until(&kubectl, BUDGETS, 0, |_| true).await;
    let same = until(&kubectl, POLICIES, 1, |_| true).await.remove(0);
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    assert_eq!(version(&same), version(&policy));
}
