//! A user of kubectl who may do everything, in one namespace.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::server::{PATIENCE, within};

pub(crate) const NAMESPACE: &str = "team-a";

/// How often an object is looked at that should become different.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) struct Kubectl(kube::Client);

impl Kubectl {
    pub(crate) fn new(configuration: kube::Config) -> Self {
        Self(kube::Client::try_from(configuration).unwrap())
    }

    /// The path of a MusterJob object, given as `/NAME` or `/NAME/PART`, or of all.
    pub(crate) fn path(name: &str) -> String {
        format!("/apis/muster.dev/v1alpha1/namespaces/{NAMESPACE}/musterjobs{name}")
    }

    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        object: Option<&Value>,
    ) -> Result<Value, kube::Error> {
        let content = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = object.map(|object| serde_json::to_vec(object).unwrap());
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .body(body.unwrap_or_default())
            .unwrap();
        within(self.0.request(request)).await
    }

    pub(crate) async fn apply(&self, name: &str, spec: Value) -> Result<Value, kube::Error> {
        self.apply_with(name, json!({}), spec).await
    }

    /// The same, in a queue of Kueue.
    pub(crate) async fn queue(&self, name: &str, queue: &str, spec: Value) -> Value {
        let labels = json!({ "kueue.x-k8s.io/queue-name": queue });
        self.apply_with(name, labels, spec).await.unwrap()
    }

    async fn apply_with(
        &self,
        name: &str,
        labels: Value,
        spec: Value,
    ) -> Result<Value, kube::Error> {
        let object = json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob",
            "metadata": { "name": name, "labels": labels }, "spec": spec,
        });
        self.ask(Method::POST, &Self::path(""), Some(&object)).await
    }

    pub(crate) async fn get(&self, name: &str) -> Result<Value, kube::Error> {
        let path = Self::path(&format!("/{name}"));
        self.ask(Method::GET, &path, None).await
    }

    /// `part`: empty, or a subresource as `/scale`.
    pub(crate) async fn patch(
        &self,
        name: &str,
        part: &str,
        patch: Value,
    ) -> Result<Value, kube::Error> {
        let path = Self::path(&format!("/{name}{part}"));
        self.ask(Method::PATCH, &path, Some(&patch)).await
    }

    pub(crate) async fn scale(&self, name: &str, replicas: u32) -> Result<Value, kube::Error> {
        let patch = json!({ "spec": { "replicas": replicas } });
        self.patch(name, "/scale", patch).await
    }

    pub(crate) async fn delete(&self, name: &str) {
        let path = Self::path(&format!("/{name}"));
        self.ask(Method::DELETE, &path, None).await.unwrap();
    }

    /// Waits until the object is as wanted.
    pub(crate) async fn until(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let mut look = tokio::time::interval(LOOK);
        let waiting = async {
            loop {
                look.tick().await;
                last = self.get(name).await.unwrap();
                if wanted(&last) {
                    return;
                }
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(waited.is_ok(), "{name} stays {last:#}");
        last
    }

    pub(crate) async fn until_gone(&self, name: &str) {
        let mut look = tokio::time::interval(LOOK);
        within(async {
            loop {
                look.tick().await;
                match self.get(name).await {
                    Ok(_) => {}
                    Err(why) if code(&why) == 404 => return,
                    Err(why) => panic!("{why}"),
                }
            }
        })
        .await;
    }
}

pub(crate) fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}

/// A job of one node that can be scaled to two.
pub(crate) fn job_of_two() -> Value {
    json!({ "replicas": 1, "minReplicas": 1, "maxReplicas": 2, "args": ["train.py"],
        "workingDir": "/", "scaleUpCooldown": "0s", "stopGracePeriod": "0s" })
}

/// The types of the conditions that hold.
pub(crate) fn holding(object: &Value) -> Vec<&str> {
    let all = object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    all.filter(|condition| condition["status"] == "True")
        .filter_map(|condition| condition["type"].as_str())
        .collect()
}

pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let mut all = object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    all.find(|condition| condition["type"] == kind)
        .unwrap_or(&Value::Null)
}

pub(crate) fn in_phase(wanted: &str) -> impl Fn(&Value) -> bool {
    move |object| object["status"]["phase"] == wanted
}
