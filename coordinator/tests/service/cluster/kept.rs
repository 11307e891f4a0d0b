//! Objects that are kept as they are written, with versions: Leases, records, Secrets.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    State,
    objects::merge,
    wire::{Answer, Asked, failure},
};

/// By resource, namespace and name.
pub(super) type Kept = std::collections::BTreeMap<(&'static str, String, String), Value>;

impl State {
    pub(crate) fn kept(&self, what: &str, name: &str) -> Option<&Value> {
        let mut all = self.kept.iter();
        all.find_map(|((of, _, named), object)| (*of == what && named == name).then_some(object))
    }

    /// The names of kept objects that begin so.
    pub(crate) fn kept_names(&self, what: &str, start: &str) -> BTreeSet<String> {
        let named = self.kept.keys().filter(|(of, _, _)| *of == what);
        let names = named.map(|(_, _, name)| name.clone());
        names.filter(|name| name.starts_with(start)).collect()
    }

    /// Somebody makes another object beside one, like it but for this.
    pub(crate) fn keep_copy(&mut self, what: &'static str, name: &str, patch: Value) {
        let mut keys = self.kept.keys();
        let key = keys.find(|(of, _, named)| *of == what && named == name);
        let (_, namespace, _) = key.unwrap_or_else(|| panic!("no {what} {name}")).clone();
        let mut object = self.kept[&(what, namespace.clone(), name.to_owned())].clone();
        merge(&mut object, patch);
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.keep((what, namespace, name), object);
    }

    /// Somebody else writes or deletes an object.
    pub(crate) fn meddle(&mut self, what: &'static str, name: &str, patch: Option<Value>) {
        let keys: Vec<_> = self.kept.keys().cloned().collect();
        let key = keys
            .into_iter()
            .find(|(of, _, named)| *of == what && named == name);
        let key = key.unwrap_or_else(|| panic!("no {what} {name}"));
        let Some(patch) = patch else {
            self.kept.remove(&key);
            return;
        };
        let mut object = self.kept[&key].clone();
        merge(&mut object, patch);
        self.keep(key, object);
    }

    fn keep(&mut self, key: (&'static str, String, String), mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["metadata"]["namespace"] = json!(key.1);
        self.kept.insert(key, object.clone());
        object
    }

    /// `/apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/NAME`, or `/api/VERSION/...`.
    pub(super) fn keeper(&mut self, what: &'static str, asked: &Asked) -> Answer {
        let mut parts = asked
            .path
            .split('/')
            .skip_while(|part| *part != "namespaces")
            .skip(1);
        let namespace = parts.next().unwrap_or_default().to_owned();
        assert_eq!(parts.next(), Some(what), "{}", asked.path);
        let name = parts.next().unwrap_or_default().to_owned();
        let conflict = |why: &str| failure(409, "Conflict", &format!("{what} {name:?}: {why}"));
        let missing = || failure(404, "NotFound", &format!("{what} {name:?} not found"));
        let key = (what, namespace.clone(), name.clone());
        let there = self.kept.get(&key).cloned();
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        if let Some(why) = self.too_large(asked) {
            return why;
        }
        match (asked.method.as_str(), there) {
            ("GET", _) if name.is_empty() => self.page(what, &namespace, asked),
            ("POST", _) => {
                let object = asked.body();
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                let key = (what, namespace, name.clone());
                if self.kept.contains_key(&key) {
                    return failure(
                        409,
                        "AlreadyExists",
                        &format!("{what} {name:?} already exists"),
                    );
                }
                let mut object = object;
                object["metadata"]["creationTimestamp"] = json!(self.made_at);
                Answer::Whole(201, self.keep(key, object))
            }
            ("PATCH", there) if asked.head.contains("application/apply-patch+yaml") => {
                assert!(asked.query.contains_key("fieldManager"));
                let mut object = there.unwrap_or_else(|| json!({}));
                merge(&mut object, asked.body());
                Answer::Whole(200, self.keep(key, object))
            }
            (_, None) => missing(),
            ("GET", Some(object)) => Answer::Whole(200, object),
            ("PUT", Some(object)) => {
                let new = asked.body();
                assert!(
                    version(&new).is_string(),
                    "a custom resource needs a version"
                );
                if version(&new) != version(&object) {
                    return conflict("the object has been modified");
                }
                Answer::Whole(200, self.keep(key, new))
            }
            ("DELETE", Some(object)) => {
                let wanted = &asked.body()["preconditions"]["resourceVersion"];
                if wanted.is_string() && *wanted != version(&object) {
                    return conflict("the precondition is not met");
                }
                self.kept.remove(&key);
                Answer::Whole(200, json!({ "kind": "Status", "status": "Success" }))
            }
            (method, _) => failure(405, "MethodNotAllowed", method),
        }
    }

    /// What a real server answers to an object that it or its etcd does not take.
    fn too_large(&mut self, asked: &Asked) -> Option<Answer> {
        let size = asked.text.len();
        self.largest = self.largest.max(size);
        let etcd = self.object_max.unwrap_or(3 << 19);
        let internal = |message: &str| Some(failure(500, "", message));
        match size {
            _ if size > 3 << 20 => {
                let why = "Request entity too large: limit is 3145728";
                Some(failure(413, "RequestEntityTooLarge", why))
            }
            _ if size > 2 << 20 => internal(&format!(
                "rpc error: code = ResourceExhausted desc = trying to send message larger than max ({size} vs. 2097152)"
            )),
            _ if size > etcd => internal("etcdserver: request is too large"),
            _ => None,
        }
    }

    fn page(&self, what: &str, namespace: &str, asked: &Asked) -> Answer {
        let number = |key: &str| asked.query.get(key).and_then(|text| text.parse().ok());
        let (from, limit): (usize, usize) =
            (number("continue").unwrap_or(0), number("limit").unwrap());
        let of = |key: &&(&str, String, String)| key.0 == what && key.1 == namespace;
        let keys: Vec<_> = self.kept.keys().filter(of).collect();
        let items: Vec<&Value> = keys
            .iter()
            .skip(from)
            .take(limit)
            .map(|key| &self.kept[key])
            .collect();
        let rest = keys.len() > from + limit;
        let next = if rest {
            (from + limit).to_string()
        } else {
            String::new()
        };
        let meta = json!({ "resourceVersion": self.version.to_string(), "continue": next });
        Answer::Whole(
            200,
            json!({ "kind": "List", "metadata": meta, "items": items }),
        )
    }
}
