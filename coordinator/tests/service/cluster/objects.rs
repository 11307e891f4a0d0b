//! Pods, the DaemonSet of the agents, and config maps. Nothing runs in the pods: a test says what
//! their kubelets would.

use serde_json::{Value, json};

use super::{
    State,
    wire::{Answer, Asked, failure},
};

/// Applies a merge patch (RFC 7386).
pub(super) fn merge(into: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *into = patch;
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let fields = into.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(&key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// The namespace and the name in `/api/v1/namespaces/NAMESPACE/RESOURCE/NAME`.
fn place(path: &str) -> (String, String) {
    let parts: Vec<&str> = path.split('/').collect();
    let part = |at: usize| parts.get(at).copied().unwrap_or_default().to_owned();
    (part(4), part(6))
}

impl State {
    pub(crate) fn put_pod(&mut self, namespace: &str, name: &str, uid: &str, node: &str) {
        let pod = json!({ "metadata": { "name": name, "namespace": namespace, "uid": uid }, "spec": { "nodeName": node } });
        self.pods.insert((namespace.into(), name.into()), pod);
    }

    /// The scheduler or a kubelet changes a pod, by a merge patch.
    pub(crate) fn change_pod(&mut self, namespace: &str, name: &str, patch: Value) {
        let place = (namespace.to_owned(), name.to_owned());
        let mut pod = self.pods[&place].clone();
        merge(&mut pod, patch);
        self.set_pod(place, pod, "MODIFIED");
    }

    /// Somebody makes a pod.
    pub(crate) fn add_pod(&mut self, namespace: &str, name: &str, pod: Value) {
        self.set_pod((namespace.into(), name.into()), pod, "ADDED");
    }

    /// Its containers have ended, and it goes.
    pub(crate) fn drop_pod(&mut self, namespace: &str, name: &str) {
        let place = (namespace.to_owned(), name.to_owned());
        let pod = self.pods[&place].clone();
        self.set_pod(place.clone(), pod, "DELETED");
        self.pods.remove(&place);
    }

    fn set_pod(&mut self, place: (String, String), mut pod: Value, change: &str) -> Value {
        self.version += 1;
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let event = json!({ "type": change, "object": pod });
        self.log.push((self.version, "pods", event));
        self.pods.insert(place, pod.clone());
        pod
    }

    pub(super) fn pod(&mut self, verb: &str, asked: &Asked) -> Answer {
        let place = place(&asked.path);
        let from = asked.query.get("resourceVersion");
        let from: u64 = from.and_then(|text| text.parse().ok()).unwrap_or_default();
        let there = self.pods.get(&place).cloned();
        match (verb, there) {
            ("watch", _) => Answer::Watch {
                what: "pods",
                from,
                cuts: self.cuts,
            },
            ("list", _) if asked.query["labelSelector"] == "muster.dev%2Fleader%3Dtrue" => {
                let leads = |pod: &&Value| pod["metadata"]["labels"]["muster.dev/leader"] == "true";
                let items: Vec<&Value> = self.pods.values().filter(leads).collect();
                Answer::Whole(200, json!({ "kind": "PodList", "items": items }))
            }
            ("list", _) => {
                assert_eq!(asked.query["labelSelector"], "muster.dev%2Fjob-uid");
                let has =
                    |pod: &&Value| pod["metadata"]["labels"]["muster.dev/job-uid"].is_string();
                let items: Vec<&Value> = self.pods.values().filter(has).collect();
                let version = self.version.to_string();
                let list = json!({ "kind": "PodList", "apiVersion": "v1", "metadata": { "resourceVersion": version }, "items": items });
                Answer::Whole(200, list)
            }
            ("create", _) => self.create_pod(asked),
            (_, None) => failure(404, "NotFound", &format!("pods {:?} not found", place.1)),
            ("delete", Some(mut pod)) => {
                let uid = &asked.body()["preconditions"]["uid"];
                assert_eq!(*uid, pod["metadata"]["uid"], "another pod of that name");
                // Without a node nobody has to stop anything.
                if pod["spec"]["nodeName"].is_null() {
                    self.drop_pod(&place.0, &place.1);
                    return Answer::Whole(200, pod);
                }
                pod["metadata"]["deletionTimestamp"] = json!("2026-11-23T11:00:00Z");
                Answer::Whole(200, self.set_pod(place, pod, "MODIFIED"))
            }
            ("patch", Some(mut pod)) => {
                merge(&mut pod, asked.body());
                Answer::Whole(200, self.set_pod(place, pod, "MODIFIED"))
            }
            (_, Some(pod)) => Answer::Whole(200, pod),
        }
    }

    fn create_pod(&mut self, asked: &Asked) -> Answer {
        assert_eq!(asked.query["fieldValidation"], "Strict");
        if let Some(why) = &self.no_pods {
            return failure(403, "Forbidden", why);
        }
        let mut pod = asked.body();
        let (namespace, _) = place(&asked.path);
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let place = (namespace, name);
        assert!(!self.pods.contains_key(&place), "{}", place.1);
        pod["metadata"]["uid"] =
            json!(format!("11111111-0000-4000-8000-{:012x}", self.version + 1));
        pod["metadata"]["creationTimestamp"] = json!("2026-11-23T10:00:00Z");
        pod["status"] = json!({ "phase": "Pending" });
        Answer::Whole(201, self.set_pod(place, pod, "ADDED"))
    }

    pub(super) fn agents(&self) -> Answer {
        let env = json!([{ "name": "MUSTER_COORDINATOR", "value": "https://muster:7070" }]);
        let agent = json!({ "name": "agent", "image": "muster-agent:1", "env": env });
        let template = json!({ "spec": { "initContainers": [agent] } });
        Answer::Whole(200, json!({ "spec": { "template": template } }))
    }

    pub(super) fn config_map(&mut self, asked: &Asked) -> Answer {
        let place = place(&asked.path);
        let there = self.config_maps.get(&place).cloned();
        let (code, object) = match (asked.method.as_str(), there) {
            ("GET", Some(object)) => return Answer::Whole(200, object),
            ("GET", None) => {
                return failure(
                    404,
                    "NotFound",
                    &format!("configmaps {:?} not found", place.1),
                );
            }
            ("PATCH", there) => {
                // Server-side apply makes what is not there; a merge patch does not.
                let applies = asked.head.contains("application/apply-patch+yaml");
                if there.is_none() && !applies {
                    return failure(404, "NotFound", "no such config map");
                }
                if applies && !asked.query.contains_key("fieldManager") {
                    return failure(
                        400,
                        "BadRequest",
                        "fieldManager is required for apply patch",
                    );
                }
                let code = if there.is_some() { 200 } else { 201 };
                let mut object = there.unwrap_or_else(|| json!({}));
                merge(&mut object, asked.body());
                (code, object)
            }
            (method, _) => return failure(405, "MethodNotAllowed", method),
        };
        let mut object = object;
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.config_maps.insert(place, object.clone());
        Answer::Whole(code, object)
    }
}
