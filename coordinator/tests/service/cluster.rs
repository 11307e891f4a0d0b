//! A Kubernetes API server with nothing but Node objects. It lists them in pages, and answers
//! watches that begin at a version.
//!
//! It speaks plain HTTP/1.1 over real sockets, one request per connection. Every change by a test
//! is one step, so no request sees half of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// Node objects in one answer. It is small, so that a few objects need several answers.
const PAGE: usize = 2;

pub(crate) struct Cluster {
    pub address: String,
    state: Arc<Mutex<State>>,
    /// Counts changes, so that tasks can wait for one.
    changed: watch::Sender<u64>,
    serving: JoinHandle<()>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[derive(Default)]
pub(crate) struct State {
    version: u64,
    nodes: BTreeMap<String, Value>,
    log: Vec<(u64, Value)>,
    /// A watch from an older version is answered with 410.
    oldest: u64,
    /// True: 410 is the status of the answer. False: it is an event of the watch.
    pub gone_as_status: bool,
    /// Open watches end when this number changes.
    cuts: u64,
    /// New connections are closed at once.
    pub down: bool,
    pub forbidden: BTreeSet<&'static str>,
    pub lists: u32,
    pub watches: u32,
}

impl State {
    pub(crate) fn put(&mut self, name: &str, labels: &[(&str, &str)]) {
        let change = if self.nodes.contains_key(name) {
            "MODIFIED"
        } else {
            "ADDED"
        };
        self.version += 1;
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        // A real object carries this beside its labels; the coordinator drops it.
        let annotations = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true", "noise": "n".repeat(2_000) });
        let metadata = json!({ "name": name, "resourceVersion": self.version.to_string(), "labels": labels, "annotations": annotations });
        let object = json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata });
        self.nodes.insert(name.into(), object.clone());
        self.log
            .push((self.version, json!({ "type": change, "object": object })));
    }

    pub(crate) fn delete(&mut self, name: &str) {
        self.version += 1;
        let mut object = self.nodes.remove(name).unwrap();
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.log
            .push((self.version, json!({ "type": "DELETED", "object": object })));
    }

    /// Ends all watches, and forgets every version before the present one.
    pub(crate) fn forget(&mut self) {
        (self.oldest, self.cuts) = (self.version, self.cuts + 1);
    }

    pub(crate) fn cut(&mut self) {
        self.cuts += 1;
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
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (state, changed) = (Arc::<Mutex<State>>::default(), watch::Sender::new(0));
        let serving = tokio::spawn({
            let (state, changed) = (state.clone(), changed.clone());
            async move {
                let mut connections = tokio::task::JoinSet::new();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    connections.spawn(serve(stream, state.clone(), changed.clone()));
                }
            }
        });
        Self {
            address,
            state,
            changed,
            serving,
        }
    }

    /// Changes the state in one step.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.send_modify(|count| *count += 1);
    }

    /// Waits until the state, with its counts of requests, is as wanted.
    pub(crate) async fn until(&self, wanted: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        crate::server::within(changed.wait_for(|_| wanted(&self.state.lock().unwrap())))
            .await
            .unwrap();
    }

    pub(crate) fn configuration(&self) -> kube::Config {
        kube::Config::new(format!("http://{}", self.address).parse().unwrap())
    }

    /// The configuration as a user has it in a file.
    pub(crate) fn kubeconfig(&self) -> String {
        let context = json!({ "name": "c", "context": { "cluster": "c", "user": "u" } });
        let cluster =
            json!({ "name": "c", "cluster": { "server": format!("http://{}", self.address) } });
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [context],
            "clusters": [cluster],
            "users": [{ "name": "u", "user": {} }],
        })
        .to_string()
    }
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message })
}

async fn serve(
    mut stream: TcpStream,
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
) -> Option<()> {
    if state.lock().unwrap().down {
        return None;
    }
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let target = head.split(' ').nth(1).unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    assert!(
        head.starts_with("GET ") && path == "/api/v1/nodes",
        "{head}"
    );
    assert!(
        head.contains("as=PartialObjectMetadata"),
        "only metadata is asked for: {head}"
    );
    let query: BTreeMap<String, String> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
    let verb = if query.contains_key("watch") {
        "watch"
    } else {
        "list"
    };
    let mut changes = changed.subscribe();
    let (answer, from, cuts) = {
        let mut state = state.lock().unwrap();
        let from: u64 = query
            .get("resourceVersion")
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        let gone = verb == "watch" && from < state.oldest;
        let answer = if state.forbidden.contains(verb) {
            let why = format!(
                "nodes is forbidden: User \"muster\" cannot {verb} resource \"nodes\" in API group \"\" at the cluster scope"
            );
            Some((403, status(403, "Forbidden", &why)))
        } else if gone && state.gone_as_status {
            Some((410, status(410, "Expired", "too old resource version")))
        } else if verb == "list" {
            Some((200, state.list(&query)))
        } else {
            state.watches += 1;
            None
        };
        (answer, from, state.cuts)
    };
    changed.send_modify(|count| *count += 1);
    if let Some((code, body)) = answer {
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        return stream.write_all((head + &body).as_bytes()).await.ok();
    }
    stream
        .write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n",
        )
        .await
        .ok()?;
    let mut seen = from;
    loop {
        changes.borrow_and_update();
        let (lines, over) = {
            let state = state.lock().unwrap();
            let gone = from < state.oldest && state.cuts == cuts;
            let expired = gone.then(|| json!({ "type": "ERROR", "object": status(410, "Expired", "too old resource version") }));
            let news = state
                .log
                .iter()
                .filter(|(version, _)| *version > seen && !gone)
                .map(|(_, event)| event.clone());
            let lines: Vec<Value> = expired.into_iter().chain(news).collect();
            seen = state.version;
            (lines, gone || state.cuts != cuts || state.down)
        };
        // The events at the end of a watch that is cut are lost.
        if over && lines.iter().all(|line| line["type"] != "ERROR") {
            return None;
        }
        for line in lines {
            stream
                .write_all(format!("{line}\n").as_bytes())
                .await
                .ok()?;
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
