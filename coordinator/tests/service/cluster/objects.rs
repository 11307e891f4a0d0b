//! Pods and config maps.

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

    pub(super) fn pod(&self, path: &str) -> Answer {
        let place = place(path);
        match self.pods.get(&place) {
            Some(pod) => Answer::Whole(200, pod.clone()),
            None => failure(404, "NotFound", &format!("pods {:?} not found", place.1)),
        }
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
