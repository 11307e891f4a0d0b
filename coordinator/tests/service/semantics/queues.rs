//! Jobs in the queues of Kueue, by the objects of Kueue alone: the test plays its part. A real API server is asked
//! if TEST_ASSET_KUEUE_CRDS names a folder with Kueue's CustomResourceDefinitions
//! (`config/components/crd/bases` in kubernetes-sigs/kueue).

use std::{env, path::PathBuf, time::Duration};

use serde_json::{Value, json};

use super::{Method, World, real};
use crate::{
    access::Secure,
    cluster::Cluster,
    kubectl::{Kubectl, NAMESPACE, condition},
    server::within,
    worker_pods::job,
};

#[tokio::test]
async fn queues_are_objects_of_the_api_server_that_is_not_there() {
    let cluster = Cluster::start().await;
    cluster.change(|state| {
        state.kueue = vec!["v1beta2"];
        state.put_global("resourceflavors", "spot", flavor());
    });
    Box::pin(suite(World::Fake(cluster))).await;
}

#[tokio::test]
async fn queues_are_objects_of_a_real_api_server() {
    let definitions = env::var_os("TEST_ASSET_KUEUE_CRDS").map(PathBuf::from);
    let server = match &definitions {
        Some(_) => real::Server::start().await,
        None => None,
    };
    match server.zip(definitions) {
        Some((server, folder)) => {
            server.install_kueue(&folder, flavor()).await;
            Box::pin(suite(World::Real(server))).await;
        }
        None => eprintln!(
            "!!! no kube-apiserver, or no definitions of Kueue (TEST_ASSET_KUEUE_CRDS): that a REAL API server takes what is written on \
             Workloads is NOT SHOWN"
        ),
    }
}

fn flavor() -> Value {
    let toleration = json!({ "key": "spot", "operator": "Exists" });
    json!({ "nodeLabels": { "pool": "spot" }, "tolerations": [toleration] })
}

/// The path of all objects of a kind. `api`: as `api/v1`.
fn path(api: &str, plural: &str) -> String {
    format!("/{api}/namespaces/{NAMESPACE}/{plural}")
}

/// Waits until there are so many objects of a kind that are jobs', and all are as wanted.
async fn until(
    kubectl: &Kubectl,
    (api, plural): (&str, &str),
    count: usize,
    wanted: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let path = format!("{}?labelSelector=muster.dev%2Fjob-uid", path(api, plural));
    let mut look = tokio::time::interval(Duration::from_millis(50));
    within(async {
        loop {
            look.tick().await;
            let list = kubectl.ask(Method::GET, &path, None).await.unwrap();
            let items = list["items"].as_array().unwrap();
            let stands = |item: &&Value| item["metadata"]["deletionTimestamp"].is_null();
            let items: Vec<&Value> = items.iter().filter(stands).collect();
            if items.len() == count && items.iter().all(|item| wanted(item)) {
                return items.into_iter().cloned().collect();
            }
        }
    })
    .await
}

const KUEUE: (&str, &str) = ("apis/kueue.x-k8s.io/v1beta2", "workloads");
const PODS: (&str, &str) = ("api/v1", "pods");

/// Kueue says so on the Workload.
async fn say(kubectl: &Kubectl, workload: &Value, news: &[(&str, &str, &str)], admission: Value) {
    let mut all = workload["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    for (kind, status, reason) in news {
        all.retain(|old| old["type"] != *kind);
        all.push(json!({
            "type": kind, "status": status, "reason": reason, "message": "as the test says",
            "lastTransitionTime": "2026-11-24T10:00:00Z",
        }));
    }
    let name = workload["metadata"]["name"].as_str().unwrap();
    let path = format!("{}/{name}/status", path(KUEUE.0, KUEUE.1));
    let status = json!({ "status": { "conditions": all, "admission": admission } });
    kubectl
        .ask(Method::PATCH, &path, Some(&status))
        .await
        .unwrap();
}

async fn admit(kubectl: &Kubectl, workload: &Value) {
    let assignment = json!({ "name": "main", "count": 2, "flavors": { "cpu": "spot" }, "resourceUsage": { "cpu": "200m" } });
    let admission = json!({ "clusterQueue": "all", "podSetAssignments": [assignment] });
    let news = [
        ("QuotaReserved", "True", "QuotaReserved"),
        ("Admitted", "True", "Admitted"),
        ("Evicted", "False", "QuotaReserved"),
    ];
    say(kubectl, workload, &news, admission).await;
}

async fn suite(world: World) {
    let kubectl = world.kubectl();
    let mut settings = world.makes_pods().await;
    settings.kueue = true;
    let _secure = Secure::start_with(|all| all.kubernetes = Some(settings)).await;
    let applied = kubectl.queue("digits", "gpus", job()).await;
    let made = until(&kubectl, KUEUE, 1, |_| true).await.remove(0);
    assert_eq!(
        made["metadata"]["ownerReferences"][0]["uid"],
        applied["metadata"]["uid"]
    );
    // Nothing of the pod is lost on the way: Kueue counts what it asks for.
    let template = &made["spec"]["podSets"][0]["template"]["spec"];
    let agent = &template["initContainers"][1];
    assert_eq!(
        (
            &agent["name"],
            &agent["restartPolicy"],
            &agent["resources"]["requests"]["cpu"]
        ),
        (&json!("muster-agent"), &json!("Always"), &json!("100m")),
    );
    until(&kubectl, PODS, 0, |_| true).await;

    admit(&kubectl, &made).await;
    let placed = |pod: &Value| pod["spec"]["nodeSelector"]["pool"] == "spot";
    until(&kubectl, PODS, 2, placed).await;
    let admitted = until(&kubectl, KUEUE, 1, |_| true).await.remove(0);
    let admission = admitted["status"]["admission"].clone();
    say(
        &kubectl,
        &admitted,
        &[("Evicted", "True", "Preempted")],
        admission,
    )
    .await;
    until(&kubectl, PODS, 0, |_| true).await;
    let released = |workload: &Value| {
        workload["status"]["admission"].is_null()
            && condition(workload, "QuotaReserved")["status"] == "False"
            && condition(workload, "Admitted")["status"] == "False"
            && condition(workload, "Requeued")["status"] == "True"
    };
    let released = until(&kubectl, KUEUE, 1, released).await.remove(0);
    // While it waits, what it asks for follows the job.
    kubectl.scale("digits", 1).await.unwrap();
    let smaller = |workload: &Value| workload["spec"]["podSets"][0]["count"] == 1;
    until(&kubectl, KUEUE, 1, smaller).await;
    kubectl.scale("digits", 2).await.unwrap();
    let again = |workload: &Value| workload["spec"]["podSets"][0]["count"] == 2;
    let waits = until(&kubectl, KUEUE, 1, again).await.remove(0);
    assert_eq!(waits["metadata"]["uid"], released["metadata"]["uid"]);
    admit(&kubectl, &waits).await;
    until(&kubectl, PODS, 2, placed).await;

    // A smaller job gives quota back, which is not undone.
    kubectl.scale("digits", 1).await.unwrap();
    let reclaimed = |workload: &Value| workload["status"]["reclaimablePods"][0]["count"] == 1;
    until(&kubectl, KUEUE, 1, reclaimed).await;
    let suspend = json!({ "spec": { "suspend": true } });
    kubectl.patch("digits", "", suspend).await.unwrap();
    until(&kubectl, KUEUE, 0, |_| true).await;
    until(&kubectl, PODS, 0, |_| true).await;
}
