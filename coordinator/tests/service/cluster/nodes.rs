//! Node objects: listed in pages, watched from a version on, read one by one, patched.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
};

use super::{
    State,
    collections::is_of_group,
    wire::{Answer, Asked, failure},
};

/// Node objects in one answer. It is small, so that a few objects need several answers.
const PAGE: usize = 2;

const EXPIRED: &str = "too old resource version";

impl State {
    /// Makes an object, or gives it other labels.
    pub(crate) fn put(&mut self, name: &str, labels: &[(&str, &str)]) {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        let object = self.nodes.get(name).cloned();
        let mut object = object.unwrap_or_else(|| {
            // A real object carries this beside its labels; the coordinator drops it.
            let annotations = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true", "noise": "n".repeat(2_000) });
            let ready = json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": "2026-11-23T17:00:36Z" });
            json!({
                "kind": "Node", "apiVersion": "v1",
                "metadata": { "name": name, "uid": format!("uid-of-{name}"), "annotations": annotations },
                "spec": { "podCIDR": "10.0.0.0/24" },
                "status": { "conditions": [ready], "images": [{ "names": ["i".repeat(200)] }] },
            })
        });
        object["metadata"]["labels"] = json!(labels);
        self.set(name, object);
    }

    /// Somebody changes an object, by a merge patch.
    pub(crate) fn change_node(&mut self, name: &str, patch: Value) {
        let mut object = self.nodes[name].clone();
        super::objects::merge(&mut object, patch);
        self.set(name, object);
    }

    pub(crate) fn node(&self, name: &str) -> &Value {
        &self.nodes[name]
    }

    fn set(&mut self, name: &str, mut object: Value) {
        let change = match self.nodes.contains_key(name) {
            true => "MODIFIED",
            false => "ADDED",
        };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.nodes.insert(name.into(), object.clone());
        self.log.push((
            self.version,
            "nodes",
            json!({ "type": change, "object": object }),
        ));
    }

    pub(crate) fn delete(&mut self, name: &str) {
        self.version += 1;
        let mut object = self.nodes.remove(name).unwrap();
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.log.push((
            self.version,
            "nodes",
            json!({ "type": "DELETED", "object": object }),
        ));
    }

    /// Ends all watches, and forgets every version before the present one.
    pub(crate) fn forget(&mut self) {
        (self.oldest, self.cuts) = (self.version, self.cuts + 1);
    }

    pub(crate) fn cut(&mut self) {
        self.cuts += 1;
    }

    pub(super) fn nodes(&mut self, asked: &Asked) -> Answer {
        if let Some(rest) = asked.path.strip_prefix("/api/v1/nodes/") {
            let (name, part) = rest.split_once('/').unwrap_or((rest, ""));
            return self.one_node(name, part, asked);
        }
        let verb = match asked.query.contains_key("watch") {
            true => "watch",
            false => "list",
        };
        let from = asked.query.get("resourceVersion");
        let from: u64 = from.and_then(|text| text.parse().ok()).unwrap_or_default();
        let gone = verb == "watch" && from < self.oldest;
        if self.forbidden.contains(verb) {
            let why = format!(
                "nodes is forbidden: User \"muster\" cannot {verb} resource \"nodes\" in API group \"\" at the cluster scope"
            );
            return failure(403, "Forbidden", &why);
        }
        if gone && self.gone_as_status {
            return failure(410, "Expired", EXPIRED);
        }
        if verb == "list" {
            return Answer::Whole(200, self.list(&asked.query));
        }
        self.watches += 1;
        Answer::Watch {
            what: "nodes",
            from,
            cuts: self.cuts,
        }
    }

    /// `part`: the subresource, or nothing.
    fn one_node(&mut self, name: &str, part: &str, asked: &Asked) -> Answer {
        let Some(object) = self.nodes.get(name).cloned() else {
            return failure(404, "NotFound", &format!("nodes {name:?} not found"));
        };
        if asked.method == "GET" {
            for (name, patch) in std::mem::take(&mut self.after_get) {
                self.change_node(&name, patch);
            }
            return Answer::Whole(200, object);
        }
        assert_eq!(asked.method, "PATCH", "{}", asked.head);
        self.patches += 1;
        if let Some(why) = self.denied.get(name) {
            self.denials += 1;
            return failure(403, "Forbidden", why);
        }
        if let Some(why) = self.broken.get(name) {
            return failure(500, "InternalError", why);
        }
        let patch = asked.body();
        let version = &patch["metadata"]["resourceVersion"];
        let is_coordinator = asked.query.get("fieldManager").map(String::as_str);
        assert!(
            is_coordinator != Some("muster-coordinator") || version.is_string(),
            "the coordinator names the version that it has read: {patch}"
        );
        if version.is_string() && *version != object["metadata"]["resourceVersion"] {
            let why = format!(
                "Operation cannot be fulfilled on nodes {name:?}: the object has been modified"
            );
            return failure(409, "Conflict", &why);
        }
        let mut changed = object.clone();
        let head = asked.head.to_lowercase();
        if head.contains("application/strategic-merge-patch+json") {
            merge_by_type(&mut changed, patch);
        } else if head.contains("application/merge-patch+json") {
            super::objects::merge(&mut changed, patch);
        } else {
            return failure(415, "UnsupportedMediaType", "this patch is not known");
        }
        // Each way to an object leaves the other's part as it is.
        let kept = if part == "status" { "spec" } else { "status" };
        changed[kept] = object[kept].clone();
        let spec = changed["spec"].as_object_mut().unwrap();
        // What is false or empty is not kept.
        spec.retain(|_, value| *value != json!(false) && !value.is_null());
        if changed != object {
            self.set(name, changed);
        }
        Answer::Whole(200, self.nodes[name].clone())
    }

    fn list(&mut self, query: &BTreeMap<String, String>) -> Value {
        self.lists += 1;
        let after = query.get("continue").cloned().unwrap_or_default();
        let limit: usize = query
            .get("limit")
            .map_or(usize::MAX, |limit| limit.parse().unwrap())
            .min(PAGE);
        let rest: Vec<(&String, &Value)> = self
            .nodes
            .iter()
            .filter(|(name, _)| **name > after)
            .collect();
        let page = &rest[..rest.len().min(limit)];
        let more = if rest.len() > page.len() {
            page.last().unwrap().0.as_str()
        } else {
            ""
        };
        json!({
            "kind": "NodeList",
            "apiVersion": "v1",
            "metadata": { "resourceVersion": self.version.to_string(), "continue": more },
            "items": page.iter().map(|(_, object)| object).collect::<Vec<_>>(),
        })
    }

    /// What a watch hears next, and whether it ends after that.
    fn news(
        &self,
        (what, path): (&str, &str),
        from: u64,
        seen: &mut u64,
        cuts: u64,
    ) -> (Vec<Value>, bool) {
        let gone = from < self.oldest && self.cuts == cuts;
        let expired = match failure(410, "Expired", EXPIRED) {
            Answer::Whole(_, status) => json!({ "type": "ERROR", "object": status }),
            _ => unreachable!("a failure is a whole answer"),
        };
        let new = self.log.iter();
        let new = new.filter(|(version, of, _)| *version > *seen && *of == what && !gone);
        let lines = gone.then_some(expired).into_iter();
        let new = new.filter(|(_, _, event)| is_of_group(&event["object"], path));
        let new = new.map(|(_, _, event)| event.clone());
        let lines: Vec<Value> = lines.chain(new).collect();
        *seen = self.version;
        (lines, gone || self.cuts != cuts || self.down)
    }
}

/// A strategic merge patch of a node's status: conditions are merged by their type.
fn merge_by_type(into: &mut Value, mut patch: Value) {
    let news = patch["status"]["conditions"].take();
    patch["status"]
        .as_object_mut()
        .unwrap()
        .remove("conditions");
    super::objects::merge(into, patch);
    let conditions = into["status"]["conditions"].as_array_mut().unwrap();
    for new in news.as_array().into_iter().flatten() {
        match conditions.iter_mut().find(|old| old["type"] == new["type"]) {
            Some(old) => super::objects::merge(old, new.clone()),
            None => conditions.push(new.clone()),
        }
    }
}

/// Sends events until the watch is cut or its client leaves.
pub(super) async fn follow(
    stream: &mut TcpStream,
    state: &std::sync::Mutex<State>,
    changes: &mut watch::Receiver<u64>,
    (what, path, from, cuts): (&str, &str, u64, u64),
) -> Option<()> {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
    stream.write_all(head).await.ok()?;
    let mut seen = from;
    loop {
        changes.borrow_and_update();
        let (lines, over) = state
            .lock()
            .unwrap()
            .news((what, path), from, &mut seen, cuts);
        // The events at the end of a watch that is cut are lost.
        if over && lines.iter().all(|line| line["type"] != "ERROR") {
            return None;
        }
        for line in lines {
            let line = format!("{line}\n");
            stream.write_all(line.as_bytes()).await.ok()?;
        }
        if over {
            return None;
        }
        let mut byte = [0];
        tokio::select! {
            changed = changes.changed() => changed.ok()?,
            // The client has gone.
            _ = stream.read(&mut byte) => return None,
        }
    }
}
