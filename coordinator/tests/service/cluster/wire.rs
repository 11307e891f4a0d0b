//! One request and its answer, and how requests fail.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
};

use super::{State, collections::KINDS, nodes};

/// How the requests for a resource fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// 429, with a time to wait.
    Busy,
    /// 503.
    Away,
    /// Nothing is answered for as long as the fault lasts.
    Hangs,
    /// The connection ends within the answer.
    Cut,
    /// 409 to each change: somebody was faster.
    Overtaken,
    /// The answer is not what it should be, and repeats what was asked.
    Nonsense,
}

pub(super) struct Asked {
    pub(super) head: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
    pub(super) text: String,
}

impl Asked {
    pub(super) fn body(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.head))
    }
}

pub(super) enum Answer {
    Whole(u16, Value),
    Watch {
        what: &'static str,
        from: u64,
        cuts: u64,
    },
}

pub(super) fn failure(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message });
    Answer::Whole(code, status)
}

/// The resource of a path, as faults and counts call it.
fn resource(path: &str) -> &'static str {
    let known = [
        "musterrecords",
        "leases",
        "secrets",
        "musterjobs",
        "events",
        "tokenreviews",
        "subjectaccessreviews",
        "configmaps",
        "pods",
        "daemonsets",
        "nodes",
        "kueue.x-k8s.io",
        "scheduling.",
    ];
    let found = KINDS
        .into_iter()
        .chain(known)
        .find(|name| path.contains(name));
    found.unwrap_or_else(|| panic!("this server has no {path}"))
}

pub(super) async fn serve(
    mut stream: TcpStream,
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
) -> Option<()> {
    if state.lock().unwrap().down {
        return None;
    }
    let asked = read(&mut stream).await?;
    let what = resource(&asked.path);
    let mut changes = changed.subscribe();
    let (answer, fault) = {
        let mut state = state.lock().unwrap();
        let cut = (state.cut_patches && asked.method == "PATCH").then_some(Fault::Cut);
        let fault = state.faults.get(what).copied().or(cut);
        if what != "nodes" {
            *state.asked.entry(what).or_default() += 1;
        }
        let answer = match fault {
            Some(Fault::Busy) => failure(429, "TooManyRequests", "too many requests"),
            Some(Fault::Away) => failure(503, "ServiceUnavailable", "away"),
            Some(Fault::Overtaken) if asked.method != "GET" => {
                failure(409, "Conflict", "the object has been modified")
            }
            _ => state.answer(what, &asked),
        };
        (answer, fault)
    };
    changed.send_modify(|count| *count += 1);
    if fault == Some(Fault::Hangs) {
        let still = |state: &State| state.faults.get(what) == Some(&Fault::Hangs);
        let mut byte = [0];
        while still(&state.lock().unwrap()) {
            tokio::select! {
                changed = changes.changed() => changed.ok()?,
                // The client does not wait any longer.
                _ = stream.read(&mut byte) => {
                    state.lock().unwrap().abandoned += 1;
                    return None;
                }
            }
        }
        return None;
    }
    match answer {
        Answer::Watch { what, from, cuts } => {
            let watch = (what, asked.path.as_str(), from, cuts);
            nodes::follow(&mut stream, &state, &mut changes, watch).await
        }
        Answer::Whole(code, body) => {
            let body = match fault {
                Some(Fault::Nonsense) => format!("[{}]", asked.text),
                _ => body.to_string(),
            };
            let wait = match code {
                429 => "Retry-After: 30\r\n",
                _ => "",
            };
            let head = format!(
                "HTTP/1.1 {code} x\r\nContent-Type: application/json\r\n{wait}Content-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let sent = match fault {
                Some(Fault::Cut) => &body[..body.len() / 2],
                _ => &body,
            };
            stream.write_all((head + sent).as_bytes()).await.ok()
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.eq_ignore_ascii_case("content-length")).then(|| value.trim().parse().unwrap())
    });
    let mut text = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut text).await.ok()?;
    Some(Asked {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect(),
        text: String::from_utf8(text).unwrap(),
        head,
    })
}

impl State {
    fn answer(&mut self, what: &'static str, asked: &Asked) -> Answer {
        let followed = ["musterjobs", "pods"].contains(&what) || KINDS.contains(&what);
        let verb = match asked.method.as_str() {
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" => "delete",
            _ if followed && asked.query.contains_key("watch") => "watch",
            _ if followed && asked.path.ends_with(what) => "list",
            _ => "get",
        };
        let part = asked.path.ends_with("/status").then_some("/status");
        let part = part.unwrap_or_default();
        let right = format!("{verb} {what}{part}");
        // Lists and watches have names of their own.
        let is_whole = asked.path.ends_with(what) && verb == "get";
        if self.forbidden.contains(right.as_str()) && !is_whole {
            self.refused += 1;
            let why = match what {
                // As a real server says it.
                "nodes" => format!(
                    "{what} is forbidden: User \"muster\" cannot {verb} resource \"{what}{part}\" in API group \"\" at the cluster scope"
                ),
                _ => format!("{what} is forbidden: User \"muster\" cannot {right}"),
            };
            return failure(403, "Forbidden", &why);
        }
        match what {
            "nodes" => self.nodes(asked),
            "musterrecords" | "leases" | "secrets" => self.keeper(what, asked),
            "musterjobs" => self.job_objects(verb, asked),
            "events" => self.tell_event(asked),
            "tokenreviews" => self.review(&asked.body()),
            "subjectaccessreviews" => self.decide(&asked.body()),
            "pods" => self.pod(verb, asked),
            "daemonsets" => self.agents(),
            "kueue.x-k8s.io" | "scheduling." => self.versions(&asked.path),
            _ if KINDS.contains(&what) => self.collection(verb, what, asked),
            _ => self.config_map(asked),
        }
    }
}
