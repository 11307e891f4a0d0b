//! The component for worker pods as it is shipped, and what its policies refuse.

use http::Method;
use serde_json::{Value, json};

use super::{ADMIN, AGENTS, Server, manifest};
use crate::server::within;

const MERGE: &str = "merge-patch+json";
const PODS: &str = "/api/v1/namespaces/team-a/pods";
const NETWORK_POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/team-a/networkpolicies";
const BUDGETS: &str = "/apis/policy/v1/namespaces/team-a/poddisruptionbudgets";

impl Server {
    /// The component, and what the pods need of the cluster.
    pub(in crate::semantics) async fn install_pods(&self) {
        self.grant("worker-pods").await;
        for object in manifest("components/worker-pods/policy.yaml") {
            let kinds = match object["kind"].as_str().unwrap() {
                "ValidatingAdmissionPolicy" => "validatingadmissionpolicies",
                _ => "validatingadmissionpolicybindings",
            };
            let path = format!("/apis/admissionregistration.k8s.io/v1/{kinds}");
            self.create(&path, object).await;
        }
        let agents = manifest("base/agent.yaml");
        let agents = agents.iter().find(|object| object["kind"] == "DaemonSet");
        let path = format!("/apis/apps/v1/namespaces/{AGENTS}/daemonsets");
        self.create(&path, agents.unwrap().clone()).await;
        // Nothing here makes it for each namespace, as a cluster does.
        let account = json!({ "metadata": { "name": "default" } });
        let path = "/api/v1/namespaces/team-a/serviceaccounts";
        self.create(path, account).await;
        self.until_listed("/apis/policy/v1/poddisruptionbudgets")
            .await;
    }

    /// As the coordinator, with its own rights.
    async fn does(&self, method: Method, path: &str, object: &Value) -> Result<Value, String> {
        let content = match method {
            Method::PATCH => MERGE,
            _ => "json",
        };
        let content = format!("application/{content}");
        let body = object.to_string();
        let asked = self.send(&self.coordinator, method, path, &content, &body);
        within(asked).await.map_err(|e| e.to_string())
    }

    /// The policy refuses this, and says so.
    async fn is_denied(&self, method: Method, path: &str, object: &Value, says: &str) {
        let answer = self.does(method, path, object).await;
        let why = answer.expect_err(&format!("{path}: {object}"));
        let is_so = why.contains("denied request") && why.contains(says);
        assert!(is_so, "{path}: {object}\n{why}");
    }

    /// A MusterJob object with this template. Returns its uid.
    async fn job(&self, namespace: &str, name: &str, template: &Value) -> String {
        let spec = json!({ "replicas": 1, "args": ["train.py"], "template": { "spec": template } });
        let api = muster_core::spec::API_VERSION;
        let object = json!({ "apiVersion": api, "kind": "MusterJob", "metadata": { "name": name }, "spec": spec });
        let path = format!("/apis/{api}/namespaces/{namespace}/musterjobs");
        let made = self.create(&path, object).await;
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }
}

/// What a MusterJob object owns.
fn owned(kind: &str, name: &str, job: &str, uid: &str, spec: &Value) -> Value {
    let owner = json!({
        "apiVersion": muster_core::spec::API_VERSION, "kind": "MusterJob", "name": job, "uid": uid, "controller": true,
    });
    json!({
        "kind": kind,
        "metadata": { "name": name, "labels": { "muster.dev/job-uid": uid }, "ownerReferences": [owner] },
        "spec": spec,
    })
}

/// The container of a pod that says this of itself.
fn container(says: Value) -> Value {
    let mut container = json!({ "name": "train", "image": "none" });
    for (field, value) in says.as_object().unwrap() {
        container[field] = value.clone();
    }
    json!({ "containers": [container] })
}

fn of_container(context: Value) -> Value {
    container(json!({ "securityContext": context }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_coordinators_account_has_no_pods_but_those_of_jobs() {
    let Some(server) = Server::start().await else {
        eprintln!(
            "!!! no kube-apiserver (KUBEBUILDER_ASSETS, or TEST_ASSET_KUBE_APISERVER and TEST_ASSET_ETCD): what the policies of \
             worker-pods refuse is NOT SHOWN"
        );
        return;
    };
    server.install_pods().await;
    let plain = container(json!({}));
    let uid = server.job("team-a", "one", &plain).await;
    // A real server hears of its policies a moment later, of each binding for itself.
    let ownerless = json!({ "kind": "Pod", "metadata": { "name": "stranger" }, "spec": plain });
    let other = json!({ "metadata": { "name": "other" } });
    let claims = json!({ "securityContext": {}, "serviceAccountName": "robot", "containers": plain["containers"] });
    let robot = json!({ "metadata": { "name": "robot" } });
    let accounts = "/api/v1/namespaces/team-a/serviceaccounts";
    server.create(accounts, robot).await;
    let claims = owned("Pod", "claims", "one", &uid, &claims);
    for (path, object) in [
        (PODS, &ownerless),
        (PODS, &claims),
        ("/api/v1/namespaces/team-a/configmaps", &other),
    ] {
        within(async {
            while server.does(Method::POST, path, object).await.is_ok() {
                let made = format!(
                    "{path}/{}?gracePeriodSeconds=0",
                    object["metadata"]["name"].as_str().unwrap()
                );
                drop(server.try_ask(Method::DELETE, &made, None).await);
            }
        })
        .await;
    }
    Box::pin(pods(&server, &uid, &plain)).await;
    Box::pin(privileges(&server, &uid)).await;
    Box::pin(others(&server, &uid)).await;
}

/// Whose pods, and where.
async fn pods(server: &Server, uid: &str, plain: &Value) {
    let good = owned("Pod", "good", "one", uid, plain);
    server.does(Method::POST, PODS, &good).await.unwrap();
    let mut ownerless = owned("Pod", "x", "one", uid, plain);
    ownerless["metadata"]["ownerReferences"] = json!([]);
    let owned_by = "only pods that a MusterJob object controls";
    server
        .is_denied(Method::POST, PODS, &ownerless, owned_by)
        .await;
    let wrong_label = owned("Pod", "x", "one", "another", plain);
    let mut wrong = wrong_label.clone();
    wrong["metadata"]["labels"]["muster.dev/job-uid"] = json!(uid);
    server.is_denied(Method::POST, PODS, &wrong, owned_by).await;
    let account = json!({ "metadata": { "name": "default" } });
    // Somebody may have one there.
    let of_cluster = server.job("kube-system", "one", plain).await;
    for (namespace, there, says) in [
        ("kube-system", &*of_cluster, "the cluster's own namespaces"),
        // It has no MusterJob object.
        ("team-b", uid, "no params found"),
    ] {
        let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        drop(within(server.try_ask(Method::POST, &accounts, Some(account.clone()))).await);
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let pod = owned("Pod", "x", "one", there, plain);
        server.is_denied(Method::POST, &path, &pod, says).await;
        // One of somebody else.
        let theirs = json!({ "metadata": { "name": "theirs" }, "spec": plain });
        server.create(&path, theirs).await;
        let one = format!("{path}/theirs");
        server.is_denied(Method::DELETE, &one, &json!({}), "").await;
    }
    let good = format!("{PODS}/good");
    server
        .does(Method::DELETE, &good, &json!({ "gracePeriodSeconds": 0 }))
        .await
        .unwrap();
}

/// What a pod may have.
async fn privileges(server: &Server, uid: &str) {
    let label = "pod-security.kubernetes.io/enforce=privileged";
    let host_path = json!([{ "name": "d", "hostPath": { "path": "/" } }]);
    let with = |field: &str, value: Value| {
        let mut spec = container(json!({}));
        spec[field] = value;
        spec
    };
    let cases = [
        // No template may have it, either.
        (with("hostPID", json!(true)), ""),
        (with("hostIPC", json!(true)), label),
        (with("hostNetwork", json!(true)), label),
        (with("volumes", host_path.clone()), label),
        (of_container(json!({ "privileged": true })), label),
        (
            of_container(json!({ "capabilities": { "add": ["SYS_ADMIN"] } })),
            label,
        ),
        (
            of_container(json!({ "seccompProfile": { "type": "Unconfined" } })),
            label,
        ),
        (
            container(json!({ "ports": [{ "containerPort": 1, "hostPort": 1 }] })),
            label,
        ),
        (
            with(
                "securityContext",
                json!({ "sysctls": [{ "name": "kernel.msgmax", "value": "1" }] }),
            ),
            label,
        ),
        (
            with("serviceAccountName", json!("robot")),
            "service account",
        ),
        (
            with("priorityClassName", json!("system-node-critical")),
            "priority of the system",
        ),
    ];
    for (number, (spec, says)) in (0..).zip(cases) {
        // The template asks for it, so that the namespace alone forbids it; or it does not, where that is the rule.
        let name = format!("asks-{number}");
        let asking = match says == label {
            true => server.job("team-a", &name, &spec).await,
            false => uid.to_owned(),
        };
        let pod = owned("Pod", "x", "one", &asking, &spec);
        server.is_denied(Method::POST, PODS, &pod, says).await;
    }
    // Where privileged pods may be, those are that the template asks for.
    let labelled =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "privileged" } } });
    let labelled = server.patch(false, "/api/v1/namespaces/team-a", MERGE, &labelled);
    within(labelled).await.unwrap();
    let mut asks = of_container(json!({ "privileged": true }));
    asks["hostNetwork"] = json!(true);
    asks["volumes"] = json!([{ "name": "d", "hostPath": { "path": "/data" } }]);
    let two = server.job("team-a", "two", &asks).await;
    let pod = owned("Pod", "asked", "two", &two, &asks);
    // It hears of the label, and of the job, a moment later.
    within(async { while server.does(Method::POST, PODS, &pod).await.is_err() {} }).await;
    for (spec, says) in [
        (with("hostNetwork", json!(true)), "namespace of the host"),
        (with("hostPID", json!(true)), "namespace of the host"),
        (with("volumes", host_path), "path of the host"),
        (
            of_container(json!({ "privileged": true })),
            "privileged container",
        ),
    ] {
        let pod = owned("Pod", "x", "one", uid, &spec);
        server.is_denied(Method::POST, PODS, &pod, says).await;
    }
    let gone = format!("{PODS}/asked");
    server
        .does(Method::DELETE, &gone, &json!({ "gracePeriodSeconds": 0 }))
        .await
        .unwrap();
}

/// What is no pod.
async fn others(server: &Server, uid: &str) {
    let selected = json!({ "matchLabels": { "muster.dev/job-uid": uid } });
    let ingress = |pods: &Value| json!({ "podSelector": pods, "policyTypes": ["Ingress"] });
    let budget = |pods: &Value| json!({ "minAvailable": 1, "selector": pods });
    let everybody = json!({});
    for (kind, path, good, wide) in [
        (
            "NetworkPolicy",
            NETWORK_POLICIES,
            ingress(&selected),
            ingress(&everybody),
        ),
        (
            "PodDisruptionBudget",
            BUDGETS,
            budget(&selected),
            budget(&everybody),
        ),
    ] {
        let made = owned(kind, "good", "one", uid, &good);
        server.does(Method::POST, path, &made).await.unwrap();
        let selects = owned(kind, "wide", "one", uid, &wide);
        let says = "selects no others";
        server.is_denied(Method::POST, path, &selects, says).await;
        let one = format!("{path}/good");
        let field = match kind {
            "NetworkPolicy" => "podSelector",
            _ => "selector",
        };
        let widened = json!({ "spec": { field: { "matchLabels": null } } });
        server.is_denied(Method::PATCH, &one, &widened, says).await;
        let theirs = json!({ "kind": kind, "metadata": { "name": "theirs" }, "spec": wide });
        server.create(path, theirs).await;
        let theirs = format!("{path}/theirs");
        let says = "only what a MusterJob object owns";
        server
            .is_denied(Method::DELETE, &theirs, &json!({}), says)
            .await;
        let taken = json!({ "metadata": { "labels": { "muster.dev/job-uid": uid } } });
        server.is_denied(Method::PATCH, &theirs, &taken, says).await;
        server.does(Method::DELETE, &one, &json!({})).await.unwrap();
    }
    let maps = "/api/v1/namespaces/team-a/configmaps";
    let map = |name: &str, key: &str| json!({ "metadata": { "name": name }, "data": { key: "x" } });
    let says = "the only ConfigMap that Muster writes";
    for wrong in [map("other", "ca.crt"), map("muster-ca-bundle", "run.sh")] {
        server.is_denied(Method::POST, maps, &wrong, says).await;
    }
    let authorities = map("muster-ca-bundle", "ca.crt");
    server.does(Method::POST, maps, &authorities).await.unwrap();
    let api = muster_core::spec::API_VERSION;
    let job = format!("/apis/{api}/namespaces/team-a/musterjobs/one");
    let template = container(json!({ "securityContext": { "privileged": true } }));
    for spec in [
        json!({ "template": { "spec": template } }),
        json!({ "replicas": 2 }),
    ] {
        let patch = json!({ "spec": spec });
        server
            .is_denied(Method::PATCH, &job, &patch, "changes no spec")
            .await;
    }
    let held = json!({ "metadata": { "finalizers": ["muster.dev/coordinated-stop"] } });
    server.does(Method::PATCH, &job, &held).await.unwrap();
    let phase = json!({ "status": { "phase": "Running" } });
    let status = format!("{job}/status");
    server.does(Method::PATCH, &status, &phase).await.unwrap();
    // Everybody else is none of its business.
    let free = json!({ "spec": { "suspend": true }, "metadata": { "finalizers": [] } });
    let content = format!("application/{MERGE}");
    within(server.send(ADMIN, Method::PATCH, &job, &content, &free.to_string()))
        .await
        .unwrap();
}
