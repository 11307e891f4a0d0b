//! Objects of other kinds, by one set of rules: versions, generations, merge patches, a status that is a
//! part of its own, deletion under a condition.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    State,
    objects::merge,
    wire::{Answer, Asked, failure},
};

/// The kinds that are here, as paths name them.
pub(super) const KINDS: [&str; 16] = [
    "pytorchjobs",
    "tfjobs",
    "jaxjobs",
    "xgboostjobs",
    "paddlejobs",
    "mpijobs",
    "elasticjobs",
    "aitrainingjobs",
    "trainjobs",
    "clustertrainingruntimes",
    "trainingruntimes",
    "networkpolicies",
    "poddisruptionbudgets",
    "podgroups",
    "workloads",
    "resourceflavors",
];

/// By resource, namespace and name.
pub(super) type Collections = BTreeMap<(&'static str, String, String), Value>;

/// Whether an object is of the group that is asked. Two schedulers have kinds of one plural.
pub(super) fn is_of_group(object: &Value, path: &str) -> bool {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let is_group = |group: &str| {
        let asked = format!("/apis/{group}/");
        path.starts_with(&asked)
    };
    match version.split_once('/') {
        Some((group, _)) if object["kind"] == "PodGroup" => is_group(group),
        _ => true,
    }
}

/// The namespace, the name and the subresource in `/apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/NAME/PART`.
fn place(what: &str, path: &str) -> (String, String, String) {
    let parts: Vec<&str> = path.split('/').collect();
    let at = parts.iter().position(|part| *part == what).unwrap();
    let part = |at: usize| parts.get(at).copied().unwrap_or_default().to_owned();
    let namespace = match at {
        // Objects in no namespace, or in all.
        4 => String::new(),
        _ => part(at - 1),
    };
    (namespace, part(at + 1), part(at + 2))
}

impl State {
    /// All objects of a kind.
    pub(crate) fn all_of(&self, what: &str) -> Vec<&Value> {
        let all = self.collections.iter();
        let all = all.filter(|((of, _, _), _)| *of == what);
        all.map(|(_, object)| object).collect()
    }

    /// The only object of a kind.
    pub(crate) fn only(&self, what: &str) -> Option<Value> {
        match self.all_of(what)[..] {
            [one] => Some(one.clone()),
            _ => None,
        }
    }

    /// Somebody else changes the only object of a kind by a merge patch, or deletes it.
    pub(crate) fn change_only(&mut self, what: &'static str, patch: Option<Value>) {
        let mut keys = self.collections.keys().filter(|(of, _, _)| *of == what);
        let key = keys.next().expect("there is one").clone();
        assert_eq!(keys.next(), None, "there are several");
        let mut object = self.collections[&key].clone();
        match patch {
            Some(patch) => {
                merge(&mut object, patch);
                self.collect(key, object, "MODIFIED");
            }
            None => drop(self.collect(key, object, "DELETED")),
        }
    }

    /// Whether one of this kind was ever deleted.
    pub(crate) fn was_deleted(&self, what: &str) -> bool {
        let mut all = self.log.iter();
        all.any(|(_, of, event)| *of == what && event["type"] == "DELETED")
    }

    /// Somebody makes an object of any namespace.
    pub(crate) fn put_object(&mut self, what: &'static str, object: Value) {
        let text = |field: &str| object["metadata"][field].as_str().unwrap().to_owned();
        let key = (what, text("namespace"), text("name"));
        self.collect(key, object, "ADDED");
    }

    /// Somebody makes an object that belongs to no namespace.
    pub(crate) fn put_global(&mut self, what: &'static str, name: &str, spec: Value) {
        let object = json!({ "metadata": { "name": name }, "spec": spec });
        let key = (what, String::new(), name.to_owned());
        self.collect(key, object, "ADDED");
    }

    /// The versions of Kueue's objects, or of the PodGroups of a scheduler.
    pub(super) fn versions(&self, path: &str) -> Answer {
        let group = path.trim_start_matches("/apis/");
        let versions = match group {
            "kueue.x-k8s.io" => self.kueue.clone(),
            _ => self.pod_groups.get(group).into_iter().copied().collect(),
        };
        if versions.is_empty() {
            return failure(
                404,
                "NotFound",
                "the server could not find the requested resource",
            );
        }
        let of = |version: &&str| json!({ "version": version, "groupVersion": format!("{group}/{version}") });
        let versions: Vec<Value> = versions.iter().map(of).collect();
        Answer::Whole(
            200,
            json!({ "kind": "APIGroup", "name": group, "versions": versions }),
        )
    }

    fn collect(
        &mut self,
        key: (&'static str, String, String),
        mut object: Value,
        change: &str,
    ) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let event = json!({ "type": change, "object": object });
        self.log.push((self.version, key.0, event));
        match change {
            "DELETED" => drop(self.collections.remove(&key)),
            _ => drop(self.collections.insert(key, object.clone())),
        }
        object
    }

    pub(super) fn collection(&mut self, verb: &str, what: &'static str, asked: &Asked) -> Answer {
        let (namespace, name, part) = place(what, &asked.path);
        let from = asked.query.get("resourceVersion");
        let from: u64 = from.and_then(|text| text.parse().ok()).unwrap_or_default();
        let key = (what, namespace, name);
        let there = self.collections.get(&key).cloned();
        let there = there.filter(|object| is_of_group(object, &asked.path));
        if self.not_installed.contains(what) {
            let why = "the server could not find the requested resource";
            return failure(404, "NotFound", why);
        }
        match (verb, there) {
            ("watch", _) => Answer::Watch {
                what,
                from,
                cuts: self.cuts,
            },
            ("list", _) => {
                // Those that it adopts are others' own, and have no label of Muster.
                if !what.ends_with("jobs") {
                    assert_eq!(asked.query["labelSelector"], "muster.dev%2Fjob-uid");
                }
                let version = self.version.to_string();
                let mut items = self.all_of(what);
                items.retain(|object| is_of_group(object, &asked.path));
                let list = json!({ "metadata": { "resourceVersion": version }, "items": items });
                Answer::Whole(200, list)
            }
            ("create", _) => self.put_into(key, asked.body()),
            (_, None) => failure(404, "NotFound", &format!("{what} {:?} not found", key.2)),
            ("delete", Some(object)) => {
                // A user deletes whatever has the name.
                if !asked.text.is_empty() {
                    let uid = &asked.body()["preconditions"]["uid"];
                    assert_eq!(*uid, object["metadata"]["uid"], "another one of that name");
                }
                Answer::Whole(200, self.collect(key, object, "DELETED"))
            }
            ("patch", Some(old)) => self.patch_in(key, &part, old, asked),
            (_, Some(object)) => Answer::Whole(200, object),
        }
    }

    fn put_into(&mut self, mut key: (&'static str, String, String), mut object: Value) -> Answer {
        key.2 = object["metadata"]["name"].as_str().unwrap().to_owned();
        if self.collections.contains_key(&key) {
            let why = format!("{} {:?} already exists", key.0, key.2);
            return failure(409, "AlreadyExists", &why);
        }
        let metadata = &mut object["metadata"];
        metadata["namespace"] = json!(key.1);
        metadata["uid"] = json!(format!("22222222-0000-4000-8000-{:012x}", self.version + 1));
        metadata["generation"] = json!(1);
        metadata["creationTimestamp"] = json!("2026-11-23T10:00:00Z");
        object.as_object_mut().unwrap().remove("status");
        Answer::Whole(201, self.collect(key, object, "ADDED"))
    }

    /// If nothing changes, nothing is written.
    fn patch_in(
        &mut self,
        key: (&'static str, String, String),
        part: &str,
        old: Value,
        asked: &Asked,
    ) -> Answer {
        assert!(asked.head.contains("application/merge-patch+json"));
        let patch = asked.body();
        for field in ["uid", "resourceVersion"] {
            let wanted = &patch["metadata"][field];
            if !wanted.is_null() && *wanted != old["metadata"][field] {
                let why = format!("{} {:?}: the object has been modified", key.0, key.2);
                return failure(409, "Conflict", &why);
            }
        }
        let mut new = old.clone();
        merge(&mut new, patch);
        // Each way to an object leaves the other's part as it is, if there are two.
        match (asked.path.contains("/elasticdeeplearning.ai/"), part) {
            (true, "status") => return failure(404, "NotFound", "404 page not found"),
            (true, _) => {}
            (false, "status") => new["spec"] = old["spec"].clone(),
            (false, _) => new["status"] = old["status"].clone(),
        }
        if new["spec"] != old["spec"] {
            let generation = old["metadata"]["generation"].as_u64().unwrap();
            new["metadata"]["generation"] = json!(generation + 1);
        }
        match new == old {
            true => Answer::Whole(200, new),
            false => Answer::Whole(200, self.collect(key, new, "MODIFIED")),
        }
    }
}
