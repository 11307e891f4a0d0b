//! Node objects: listed in pages, watched from a version on, patched.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
};

use super::{
    State,
    wire::{Answer, Asked, failure},
};

/// Node objects in one answer. It is small, so that a few objects need several answers.
const PAGE: usize = 2;

const EXPIRED: &str = "too old resource version";

impl State {
    pub(crate) fn put(&mut self, name: &str, labels: &[(&str, &str)]) {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        // A real object carries this beside its labels; the coordinator drops it.
        let annotations = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true", "noise": "n".repeat(2_000) });
        let metadata = json!({ "name": name, "labels": labels, "annotations": annotations });
        let object = json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata });
        self.set(name, object);
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
        if let Some(name) = asked.path.strip_prefix("/api/v1/nodes/") {
            return self.patch_node(name, asked);
        }
        assert!(
            asked.head.contains("as=PartialObjectMetadata"),
            "only metadata is asked for: {}",
            asked.head
        );
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

    fn patch_node(&mut self, name: &str, asked: &Asked) -> Answer {
        assert_eq!(asked.method, "PATCH", "{}", asked.head);
        let Some(mut object) = self.nodes.get(name).cloned() else {
            return failure(404, "NotFound", &format!("nodes {name:?} not found"));
        };
        super::objects::merge(&mut object, asked.body());
        self.set(name, object);
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
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": { "resourceVersion": self.version.to_string(), "continue": more },
            "items": page.iter().map(|(_, object)| object).collect::<Vec<_>>(),
        })
    }

    /// What a watch hears next, and whether it ends after that.
    fn news(&self, what: &str, from: u64, seen: &mut u64, cuts: u64) -> (Vec<Value>, bool) {
        let gone = from < self.oldest && self.cuts == cuts;
        let expired = match failure(410, "Expired", EXPIRED) {
            Answer::Whole(_, status) => json!({ "type": "ERROR", "object": status }),
            _ => unreachable!("a failure is a whole answer"),
        };
        let new = self.log.iter();
        let new = new.filter(|(version, of, _)| *version > *seen && *of == what && !gone);
        let lines = gone.then_some(expired).into_iter();
        let new = new.map(|(_, _, event)| event.clone());
        let lines: Vec<Value> = lines.chain(new).collect();
        *seen = self.version;
        (lines, gone || self.cuts != cuts || self.down)
    }
}

/// Sends events until the watch is cut or its client leaves.
pub(super) async fn follow(
    stream: &mut TcpStream,
    state: &std::sync::Mutex<State>,
    changes: &mut watch::Receiver<u64>,
    (what, from, cuts): (&str, u64, u64),
) -> Option<()> {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
    stream.write_all(head).await.ok()?;
    let mut seen = from;
    loop {
        changes.borrow_and_update();
        let (lines, over) = state.lock().unwrap().news(what, from, &mut seen, cuts);
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
