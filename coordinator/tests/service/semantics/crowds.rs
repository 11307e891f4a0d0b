//! A namespace of a real API server that somebody fills. What the one in `cluster` shows: `crate::crowds`.

use std::time::Duration;

use serde_json::json;

use super::{Method, World, dependents, real};
use crate::{
    access::Secure,
    kubectl::{Kubectl, NAMESPACE, condition},
    server::within,
};

const KEPT: usize = 40;
const FULL: &str = "full";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/full/networkpolicies";

#[tokio::test]
async fn a_full_namespace_of_a_real_api_server_takes_nothing_from_others() {
    match real::Server::start().await {
        Some(server) => Box::pin(suite(World::Real(server))).await,
        None => eprintln!(
            "!!! no kube-apiserver: that a namespace of a REAL API server which is full takes nothing from others is NOT SHOWN"
        ),
    }
}

async fn suite(world: World) {
    let kubectl = world.kubectl();
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": FULL } });
    let made = kubectl.ask(Method::POST, "/api/v1/namespaces", Some(&namespace));
    made.await.unwrap();
    for number in 0..2 * KEPT {
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {
                "name": format!("filler-{number:03}"), "labels": { "muster.dev/job-uid": "0b4e-4711" },
                "ownerReferences": [{ "apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "name": "no",
                    "uid": "0b4e-4711", "controller": true }],
            },
            "spec": { "podSelector": {} },
        });
        let made = kubectl.ask(Method::POST, POLICIES, Some(&policy));
        made.await.unwrap();
    }
    let mut settings = world.makes_pods().await;
    settings.kept_max = KEPT;
    let _coordinator = Secure::start_with(|asked| asked.kubernetes = Some(settings)).await;
    // Others have their policy, and then their pods.
    kubectl.apply("digits", dependents::job()).await.unwrap();
    dependents::until(&kubectl, dependents::POLICIES, 1, |_| true).await;
    dependents::until(&kubectl, dependents::PODS, 2, |_| true).await;
    // Here nobody knows whether the job has one.
    let object = json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": { "name": "digits" },
        "spec": dependents::job(),
    });
    let path = |name: &str| Kubectl::path(name).replace(NAMESPACE, FULL);
    let made = path("");
    kubectl
        .ask(Method::POST, &made, Some(&object))
        .await
        .unwrap();
    let own = path("/digits");
    let mut look = tokio::time::interval(Duration::from_millis(50));
    within(async {
        loop {
            look.tick().await;
            let object = kubectl.ask(Method::GET, &own, None).await.unwrap();
            let accepted = condition(&object, "Accepted")["message"].to_string();
            if accepted.contains("than its share of what this coordinator keeps") {
                return;
            }
        }
    })
    .await;
}
