//! Writes on Node objects what the fleet wants there: cordons, and Muster's condition.
//!
//! It compares and writes, and decides nothing: what an object should carry stands in the view of
//! its node, once the decision is stored, and `core::node_object` says what is missing. Nothing is
//! queued: while the API server is away, the latest wish of each node waits, and the engine never
//! waits for this task.
//!
//! Every write names the version of the object that was read a moment before. If somebody else has
//! written meanwhile, the object is read again, so nobody's change is lost. Cordons go first, and
//! conditions follow at a pace that an API server does not notice. An object whose write fails
//! waits, and holds up no other.
//!
//! | file | owns |
//! |---|---|
//! | `failing` | which writes fail, when they are tried again, what people are told |

mod failing;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    time::Duration,
};

use kube::Config;
use muster_core::{
    fleet::{Input, ObjectNews},
    id::NodeName,
    node_object::{Condition, Correction, NodeObject, Told, correction},
    time::Timestamp,
};
use muster_runtime::backoff::{Backoff, USEFUL, entropy};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    KubernetesError,
    nodes::NODES,
    object::Object,
    server::{Server, Unanswered, cut},
};
use crate::handle::{Handle, NoAnswer};
use failing::{Failing, News, RETRY_MAX, Why};

/// The pause after each object that was asked about: at most 20 objects in a second.
const PACE: Duration = Duration::from_millis(50);

/// Objects in one round, so that each lasts about a second.
const ROUND: usize = 20;

/// After this time an object that should have been written is looked at again: somebody may have
/// undone the write before anybody saw it.
const AGAIN: Duration = Duration::from_secs(10);

/// How often in a row an object may change between reading and writing. Then it waits with the
/// others.
const CONFLICTS_MAX: u32 = 5;

/// After this many objects in a row about which the server cannot be asked, it is left alone for a
/// while. Fewer may have something of their own, as a webhook that is away.
const IN_VAIN: u32 = 3;

/// Events about objects without a namespace are in this one.
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// Who changes the objects, as the API server records it.
const MANAGER: &str = "fieldManager=muster-coordinator";

pub(crate) struct Marking {
    server: Server,
    /// The pod or machine that this runs on, for events.
    instance: String,
}

/// What one attempt came to.
enum Outcome {
    Done,
    /// The object is gone, or nobody can be asked about it any more.
    Gone,
    Failed(Why),
}

impl Marking {
    pub(crate) fn of(configuration: &Config) -> Result<Self, KubernetesError> {
        let instance = env::var("HOSTNAME").unwrap_or_default();
        Ok(Self {
            server: Server::of(configuration)?,
            instance: match instance.as_str() {
                "" => "muster-coordinator".to_owned(),
                name => cut(name).chars().take(63).collect(),
            },
        })
    }

    /// Writes until the shutdown.
    pub(crate) async fn follow(self, handle: Handle, shutdown: CancellationToken) {
        let work = Writer {
            marking: self,
            handle,
            revision: 0,
            due: BTreeMap::new(),
            failing: Failing::default(),
        };
        // Boxed, because kube's requests are large and this task is spawned with others.
        shutdown.run_until_cancelled(Box::pin(work.work())).await;
    }
}

struct Writer {
    marking: Marking,
    handle: Handle,
    /// Of the board, at the last look.
    revision: u64,
    /// Nodes whose object lacks something, each with the moment of the next attempt.
    due: BTreeMap<NodeName, Instant>,
    failing: Failing,
}

impl Writer {
    async fn work(mut self) {
        let mut backoff = Backoff::new(RETRY_MAX, USEFUL);
        let mut nodes = self.handle.nodes();
        loop {
            self.look();
            let begun = Instant::now();
            match self.round().await {
                Ok(true) => backoff = Backoff::new(RETRY_MAX, USEFUL),
                Ok(false) => {
                    sleep(backoff.after(begun.elapsed(), entropy())).await;
                    continue;
                }
                Err(NoAnswer::Ended | NoAnswer::Late) => return,
            }
            let next = self.due.values().min().copied();
            let wait = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = nodes.changed() => if changed.is_err() { return },
                () = wait => {}
            }
        }
    }

    /// Finds the nodes whose wish is new. Those that fail wait for their next attempt.
    fn look(&mut self) {
        let board = self.handle.nodes();
        let board = board.borrow();
        let now = Instant::now();
        for (name, view) in board.since(self.revision) {
            match &view.unmarked {
                Some(_) if self.failing.has(name) => {}
                Some(_) => drop(self.due.insert(name.clone(), now)),
                None => drop(self.due.remove(name)),
            }
        }
        self.revision = board.revision();
        self.due.retain(|name, _| board.get(name).is_some());
        self.failing.retain(|name| self.due.contains_key(name));
    }

    /// One attempt for every object whose time has come. False: the server cannot be asked.
    async fn round(&mut self) -> Result<bool, NoAnswer> {
        let mut in_vain = 0;
        // A cordon that is decided meanwhile comes first in the next round, and must not wait long.
        for name in self.in_order().into_iter().take(ROUND) {
            let attempt = Box::pin(self.marking.mark(&self.handle, &name)).await;
            in_vain = match attempt {
                Outcome::Failed(Why::Away(_) | Why::Forbidden(_)) => in_vain + 1,
                _ => 0,
            };
            self.take_down(name, attempt);
            if in_vain >= IN_VAIN {
                self.tell().await?;
                return Ok(false);
            }
            sleep(PACE).await;
        }
        self.tell().await?;
        Ok(true)
    }

    fn take_down(&mut self, name: NodeName, attempt: Outcome) {
        let now = Instant::now();
        let free = match attempt {
            Outcome::Done => {
                self.due.insert(name.clone(), now + AGAIN);
                self.failing.answered(&name)
            }
            Outcome::Gone => {
                self.due.remove(&name);
                self.failing.answered(&name)
            }
            Outcome::Failed(why) => {
                debug!(%name, "its Node object cannot be written: {why:?}");
                let (pause, free) = self.failing.failed(name.clone(), why);
                self.due.insert(name, now + pause);
                free
            }
        };
        for name in free {
            self.due.insert(name, now);
        }
    }

    /// The nodes whose time has come: those with a cordon to set or to lift first, and of others
    /// those that have not failed, and those that wait longest.
    fn in_order(&self) -> Vec<NodeName> {
        let now = Instant::now();
        let ready = self.due.iter().filter(|(_, at)| **at <= now);
        let mut ready: Vec<_> = ready
            .map(|(name, at)| {
                let urgent = self.handle.node(name).is_some_and(|view| {
                    let wanted = view.unmarked.as_ref().zip(view.object.as_ref());
                    wanted.is_some_and(|(wanted, object)| {
                        correction(wanted, object, Timestamp(0)).is_urgent()
                    })
                });
                (!urgent, self.failing.has(name), *at, name)
            })
            .collect();
        ready.sort_unstable();
        let names = ready.into_iter().map(|(.., name)| name.clone());
        names.collect()
    }

    /// Tells the log and the fleet that objects cannot be written, or that no write fails any more.
    async fn tell(&mut self) -> Result<(), NoAnswer> {
        let news = match self.failing.news() {
            None => return Ok(()),
            Some(News::Over) => {
                info!("no write on a Kubernetes Node object fails any more");
                ObjectNews::Written
            }
            Some(News::Fail { sentence, known }) => {
                warn!("Kubernetes Node objects cannot be written: {sentence}");
                ObjectNews::Unwritable {
                    why: sentence,
                    known,
                }
            }
        };
        self.handle.tell(Input::Objects(news)).await
    }
}

impl Marking {
    /// Brings one object to where it should be.
    async fn mark(&self, handle: &Handle, name: &NodeName) -> Outcome {
        let mut conflicts = BTreeSet::new();
        for _ in 0..CONFLICTS_MAX {
            match self.attempt(handle, name).await {
                Ok(outcome) => return outcome,
                Err(Unanswered::Refused { code: 409, text }) => drop(conflicts.insert(text)),
                Err(why) => return outcome(why),
            }
        }
        debug!(%name, ?conflicts, "the object changes all the time");
        Outcome::Done
    }

    async fn attempt(&self, handle: &Handle, name: &NodeName) -> Result<Outcome, Unanswered> {
        let path = format!("{NODES}/{name}");
        let object: Object = self.server.get(&path).await?;
        let mut version = object.version().to_owned();
        let seen = NodeObject::read(object.raw());
        // What was decided while it was read counts too.
        let Some(wanted) = handle.node(name).and_then(|view| view.unmarked.clone()) else {
            return Ok(Outcome::Done);
        };
        let now = handle.now();
        let Correction {
            unschedulable,
            annotations,
            event,
            condition,
            judged,
        } = correction(&wanted, &seen, now);
        if unschedulable.is_some() || !annotations.is_empty() {
            let mut patch = json!({ "metadata": { "resourceVersion": version } });
            if !annotations.is_empty() {
                let pairs = annotations.into_iter();
                let pairs: Map<String, Value> = pairs
                    .map(|(key, value)| (key.to_owned(), json!(value)))
                    .collect();
                patch["metadata"]["annotations"] = pairs.into();
            }
            if let Some(unschedulable) = unschedulable {
                patch["spec"] = json!({ "unschedulable": unschedulable });
            }
            let path = format!("{path}?{MANAGER}");
            let written: Object = self.server.merge(&path, &patch).await?;
            version = written.version().to_owned();
        }
        // Each event follows its own write: an attempt that fails tells nothing, and is repeated.
        if let Some(told) = event {
            self.tell(name, &seen.uid, &told, now).await;
        }
        if let Some(condition) = condition {
            let patch = json!({
                "metadata": { "resourceVersion": version },
                "status": { "conditions": [stated(&condition, now)] },
            });
            let path = format!("{path}/status?{MANAGER}");
            let _: Object = self.server.merge_by_key(&path, &patch).await?;
        }
        if let Some(told) = judged {
            self.tell(name, &seen.uid, &told, now).await;
        }
        Ok(Outcome::Done)
    }

    /// Events are for people, and best effort: `muster explain` reads Muster's own.
    async fn tell(&self, name: &NodeName, uid: &str, told: &Told, now: Timestamp) {
        let event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": { "generateName": "muster-", "namespace": "default" },
            "eventTime": now.rfc3339(),
            "reportingController": "muster.dev/coordinator",
            "reportingInstance": self.instance,
            "type": if told.warning { "Warning" } else { "Normal" },
            "reason": told.reason,
            "action": told.action,
            "note": told.note,
            "regarding": { "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid },
        });
        if let Err(why) = self.server.create::<Value>(EVENTS, &event).await {
            debug!(%name, "the event {} is lost: {why}", told.reason);
        }
    }
}

fn stated(condition: &Condition, now: Timestamp) -> Value {
    json!({
        "type": condition.kind,
        "status": condition.status.word(),
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": condition.since.unwrap_or(now).rfc3339_seconds(),
        "lastHeartbeatTime": now.rfc3339_seconds(),
    })
}

fn outcome(why: Unanswered) -> Outcome {
    Outcome::Failed(match why {
        _ if why.is_missing() => return Outcome::Gone,
        Unanswered::Forbidden(text) if lacks_a_right(&text) => Why::Forbidden(format!(
            "the coordinator may not write nodes ({text}): its user needs a ClusterRole with apiGroups [\"\"], resources [nodes, \
             nodes/status], verbs [get, patch]; manifests/components/cordon has it"
        )),
        Unanswered::Forbidden(text) => Why::Refused(text),
        Unanswered::Refused {
            code: 400..=499, ..
        }
        | Unanswered::Malformed { .. } => Why::Refused(why.to_string()),
        _ => Why::Away(why.to_string()),
    })
}

/// Whether RBAC says this, about every object, and not an admission policy about one. Both answer
/// with 403, so only the words tell them apart (apiserver, `responsewriters.Forbidden`).
fn lacks_a_right(text: &str) -> bool {
    ["get", "patch"].iter().any(|verb| {
        let said = format!("\" cannot {verb} resource \"nodes");
        text.contains("User \"") && text.contains(&said)
    })
}
