//! The users of one adopted kind and their cluster: objects are made, changed and waited for, pods get
//! their agents.

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use muster_coordinator::kubernetes::Settings;
use muster_foreign::adopt::Adoptable;
use serde_json::{Value, json};

use crate::{
    access::Secure,
    agent::FakeAgent,
    cluster::Holder,
    kubectl::{Kubectl, NAMESPACE},
    semantics::{Method, World},
    server::within,
    tokens::mint,
};

/// How often an object is looked at that should become different.
pub(super) const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// The users of one kind, with a coordinator that adopts it.
pub(super) struct Team {
    pub(super) world: World,
    pub(super) kubectl: Kubectl,
    pub(super) kind: Adoptable,
    settings: Settings,
    pub(super) secure: Option<Secure>,
    /// By the name of their pod.
    pub(super) agents: BTreeMap<String, FakeAgent>,
}

impl Team {
    /// The first kind is the one that the users have.
    pub(super) async fn start(world: World, kinds: &[Adoptable]) -> Self {
        let kubectl = world.kubectl();
        let mut settings = world.makes_pods().await;
        settings.adopt = kinds.to_vec();
        let asked = settings.clone();
        let secure = Secure::start_with(|all| all.kubernetes = Some(asked)).await;
        Self {
            world,
            kubectl,
            kind: kinds[0],
            settings,
            secure: Some(secure),
            agents: BTreeMap::new(),
        }
    }

    /// While the coordinator is away, something else happens. The one that comes adopts these kinds.
    pub(super) async fn restart(
        &mut self,
        kinds: &[Adoptable],
        meanwhile: impl AsyncFnOnce(&Self),
    ) {
        let stopped = self.secure.take().unwrap().stop().await;
        meanwhile(self).await;
        self.settings.adopt = kinds.to_vec();
        let asked = self.settings.clone();
        let secure = stopped.start_with(|all| all.kubernetes = Some(asked)).await;
        self.secure = Some(secure);
    }

    fn path(&self, name: &str) -> String {
        let (path, plural) = (self.kind.path(), self.kind.plural);
        format!("{path}/namespaces/{NAMESPACE}/{plural}{name}")
    }

    pub(super) async fn create(&self, object: Value) -> Value {
        let path = self.path("");
        let made = self.kubectl.ask(Method::POST, &path, Some(&object));
        made.await.unwrap()
    }

    pub(super) async fn patch(&self, name: &str, patch: Value) {
        let path = self.path(&format!("/{name}"));
        let patched = self.kubectl.ask(Method::PATCH, &path, Some(&patch));
        patched.await.unwrap();
    }

    pub(super) async fn get(&self, name: &str) -> Value {
        let path = self.path(&format!("/{name}"));
        self.kubectl.ask(Method::GET, &path, None).await.unwrap()
    }

    pub(super) async fn until(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let mut look = tokio::time::interval(LOOK);
        let waiting = async {
            loop {
                look.tick().await;
                last = self.get(name).await;
                if wanted(&last) {
                    return;
                }
            }
        };
        let waited = tokio::time::timeout(crate::server::PATIENCE, waiting).await;
        assert!(waited.is_ok(), "{name} stays {last:#}");
        last
    }

    /// Waits until a job has so many pods that stay. Nobody collects here those of a job that is gone.
    pub(super) async fn pods(&self, job: &str, count: usize) -> Vec<Value> {
        let path =
            format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=muster.dev%2Fjob-uid");
        let mut look = tokio::time::interval(LOOK);
        within(async {
            loop {
                look.tick().await;
                let list = self.kubectl.ask(Method::GET, &path, None).await.unwrap();
                let items = list["items"].as_array().unwrap();
                let stands = |item: &&Value| {
                    item["metadata"]["deletionTimestamp"].is_null()
                        && item["metadata"]["labels"]["muster.dev/job-name"] == *job
                };
                let items: Vec<&Value> = items.iter().filter(stands).collect();
                if items.len() == count {
                    return items.into_iter().cloned().collect();
                }
            }
        })
        .await
    }

    /// All pods get a host, and their agents dial.
    pub(super) async fn run_all(&mut self, pods: &[Value]) {
        for (i, pod) in pods.iter().enumerate() {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let token = self.world.run_pod(pod, &format!("gpu-{i}")).await;
            let secure = self.secure.as_ref().unwrap();
            let clients = secure.with_token(&token).await;
            let agent = FakeAgent::over(&clients, &format!("{name}.{NAMESPACE}.pod")).await;
            self.agents.insert(name.to_owned(), agent);
        }
    }

    /// The agents go, and the kubelets let their pods go.
    pub(super) async fn drop_all(&mut self) {
        for name in std::mem::take(&mut self.agents).into_keys() {
            self.world.drop_pod(&name).await;
        }
    }

    pub(super) async fn delete(&self, name: &str) {
        let path = self.path(&format!("/{name}"));
        self.kubectl.ask(Method::DELETE, &path, None).await.unwrap();
    }

    /// The reasons of the events about an object, and their notes.
    pub(super) async fn events(&self, object: &Value) -> Vec<(String, String)> {
        let uid = object["metadata"]["uid"].as_str().unwrap();
        let events = self.world.events_of(NAMESPACE, uid).await;
        let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
        let events = events.iter();
        events
            .map(|event| (text(event, "reason"), text(event, "note")))
            .collect()
    }

    pub(super) async fn until_told(&self, object: &Value, reason: &str) -> String {
        let mut look = tokio::time::interval(LOOK);
        within(async {
            loop {
                look.tick().await;
                let events = self.events(object).await;
                if let Some((_, note)) = events.into_iter().find(|(is, _)| is == reason) {
                    return note;
                }
            }
        })
        .await
    }
}

/// Whether the status of the kind's objects can be written by itself.
pub(in crate::semantics) fn has_status_subresource(kind: &Adoptable) -> bool {
    kind.group != "elasticdeeplearning.ai"
}

/// The definition of a kind's objects: its system's own if there is one, or else one that takes anything
/// in a spec, and in a status that has what its system's definition asks for.
pub(super) fn definition(kind: &Adoptable) -> Value {
    let Adoptable {
        group,
        version,
        plural,
        ..
    } = kind;
    if let Some(known) = upstream(group, version, plural) {
        return known;
    }
    let mut spec = anything();
    let mut status = anything();
    if kind.has_runtime() {
        // `pkg/apis/trainer/v1alpha1/trainjob_types.go` in kubeflow/trainer.
        spec["properties"] = json!({ "managedBy": {
            "type": "string", "maxLength": 253, "default": "trainer.kubeflow.org/trainjob-controller",
            "x-kubernetes-validations": [
                { "rule": "self in ['trainer.kubeflow.org/trainjob-controller', 'kueue.x-k8s.io/multikueue']",
                  "message": "ManagedBy must be trainer.kubeflow.org/trainjob-controller or kueue.x-k8s.io/multikueue if set" },
                { "rule": "self == oldSelf", "message": "field is immutable" },
            ],
        } });
        status["minProperties"] = json!(1);
    } else {
        // `kubernetes/config/crd/bases/elastic.pytorch.org_elasticjobs.yaml` in pytorch/elastic. The others ask
        // for nothing, or did so before version 1.9.
        status["required"] = json!(["conditions", "replicaStatuses"]);
    }
    let schema = json!({ "spec": spec, "status": status });
    let names =
        json!({ "kind": kind.kind, "plural": plural, "singular": plural.trim_end_matches('s') });
    made_up(group, version, names, schema, has_status_subresource(kind))
}

/// The definitions of the runtimes that objects of the kind name.
pub(super) fn runtimes(kind: &Adoptable) -> Vec<Value> {
    if !kind.has_runtime() {
        return Vec::new();
    }
    let all = [
        ("ClusterTrainingRuntime", "Cluster"),
        ("TrainingRuntime", "Namespaced"),
    ];
    let definition = |(name, scope): (&str, &str)| {
        let plural = format!("{}s", name.to_lowercase());
        upstream(kind.group, kind.version, &plural).unwrap_or_else(|| {
            let names = json!({ "kind": name, "plural": plural, "singular": name.to_lowercase() });
            let schema = json!({ "spec": anything() });
            let mut made = made_up(kind.group, kind.version, names, schema, false);
            made["spec"]["scope"] = json!(scope);
            made
        })
    };
    all.into_iter().map(definition).collect()
}

fn anything() -> Value {
    json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

fn upstream(group: &str, version: &str, plural: &str) -> Option<Value> {
    let folder = PathBuf::from(env::var_os("TEST_ASSET_KUBEFLOW_CRDS")?);
    let folder = match version {
        // Both operators call the file by the same name.
        "v2beta1" => folder.join(version),
        _ => folder,
    };
    let path = folder.join(format!("{group}_{plural}.yaml"));
    let text = fs::read_to_string(path).ok()?;
    Some(serde_saphyr::from_str(&text).unwrap())
}

fn made_up(group: &str, version: &str, names: Value, schema: Value, has_status: bool) -> Value {
    // The operator of the ancestor makes the definition itself (`createCRD`), and gives it none.
    let parts = match has_status {
        true => json!({ "status": {} }),
        false => json!({}),
    };
    let plural = names["plural"].as_str().unwrap_or_default();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": "Namespaced", "names": names,
            "versions": [{ "name": version, "served": true, "storage": true, "subresources": parts,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": schema } } }],
        },
    })
}

impl World {
    /// Installs the definition of a kind.
    pub(super) async fn install(&self, kind: &Adoptable) {
        match self {
            World::Fake(cluster) => cluster.change(|state| {
                state.not_installed.remove(kind.plural);
            }),
            World::Real(server) => {
                for runtime in runtimes(kind) {
                    server.define(runtime).await;
                }
                server.install_adoption(kind, definition(kind)).await;
            }
        }
    }

    async fn run_pod(&self, pod: &Value, host: &str) -> String {
        let name = pod["metadata"]["name"].as_str().unwrap();
        match self {
            World::Real(server) => server.run_pod(NAMESPACE, pod, "n1").await,
            World::Fake(cluster) => {
                let running =
                    json!({ "spec": { "nodeName": host }, "status": { "phase": "Running" } });
                cluster.change(|state| state.change_pod(NAMESPACE, name, running));
                let place = (NAMESPACE.to_owned(), name.to_owned());
                let pod = cluster.change(|state| state.pods[&place].clone());
                mint(cluster, Holder::of_pod(&pod))
            }
        }
    }

    pub(super) async fn drop_pod(&self, name: &str) {
        match self {
            World::Real(server) => server.drop_pod(NAMESPACE, name).await,
            World::Fake(cluster) => cluster.change(|state| {
                let place = (NAMESPACE.to_owned(), name.to_owned());
                if state.pods.contains_key(&place) {
                    state.drop_pod(NAMESPACE, name);
                }
            }),
        }
    }
}
