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
//! | `queue` | which objects are looked at, when, and in which order |
//! | `failing` | which writes fail, when they are tried again, what people are told |

mod failing;
mod queue;

use std::{collections::BTreeSet, env, time::Duration};

use failing::{News, RETRY_MAX, Why};
use kube::Config;
use muster_core::{
    fleet::{Input, ObjectNews},
    id::NodeName,
    node_object::{Condition, Correction, NodeObject, Told, correction},
    time::Timestamp,
};
use muster_handle::handle::{Handle, NoAnswer};
use muster_runtime::backoff::{Backoff, USEFUL, entropy};
use queue::{Outcome, Queue};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    nodes::NODES,
    object::Object,
    server::{NoServer, Server, Unanswered, cut},
};

/// The pause after each object that was asked about: at most 20 objects in a second.
const PACE: Duration = Duration::from_millis(50);

/// How often in a row an object may change between reading and writing. Then it waits with the
/// others.
const CONFLICTS_MAX: u32 = 5;

/// After this many objects in a row about which the server cannot be asked, it is left alone for a
/// while. Fewer may have something of their own, as a webhook that is away.
const FAILED_IN_ROW_MAX: u32 = 3;

/// Events about objects without a namespace are in this one.
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// Who changes the objects, as the API server records it.
const MANAGER: &str = "fieldManager=muster-coordinator";

#[derive(Clone)]
pub struct Marking {
    server: Server,
    /// The pod or machine that this runs on, for events.
    instance: String,
}

impl Marking {
    pub fn of(configuration: &Config) -> Result<Self, NoServer> {
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
    pub async fn follow(mut self, handle: Handle, shutdown: CancellationToken) {
        self.server = self.server.while_leading(handle.lead());
        let work = Writer {
            marking: self,
            handle,
            revision: 0,
            queue: Queue::default(),
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
    queue: Queue,
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
            let next = self.queue.next();
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

    /// Hears what is new of all nodes.
    fn look(&mut self) {
        let board = self.handle.nodes();
        let board = board.borrow();
        let now = Instant::now();
        for (name, view) in board.since(self.revision) {
            self.queue.hear(name, view.unmarked.is_some(), now);
        }
        self.revision = board.revision();
        self.queue.retain(|name| board.get(name).is_some());
    }

    /// One attempt for objects whose time has come. False: the server cannot be asked.
    async fn round(&mut self) -> Result<bool, NoAnswer> {
        let mut failed_in_row = 0;
        for name in self
            .queue
            .round(Instant::now(), |name| self.is_urgent(name))
        {
            let outcome = Box::pin(self.marking.mark(&self.handle, &name)).await;
            if let Outcome::Failed(why) = &outcome {
                debug!(%name, "its Node object cannot be written: {why:?}");
            }
            failed_in_row = match outcome {
                Outcome::Failed(Why::Away(_) | Why::Forbidden(_)) => failed_in_row + 1,
                _ => 0,
            };
            self.queue.take_down(name, outcome, Instant::now());
            if failed_in_row >= FAILED_IN_ROW_MAX {
                self.tell().await?;
                return Ok(false);
            }
            sleep(PACE).await;
        }
        self.tell().await?;
        Ok(true)
    }

    fn is_urgent(&self, name: &NodeName) -> bool {
        self.handle.node(name).is_some_and(|view| {
            let wanted = view.unmarked.as_ref().zip(view.object.as_ref());
            wanted.is_some_and(|(wanted, object)| {
                correction(wanted, object, Timestamp(0)).is_urgent()
            })
        })
    }

    /// Tells the log and the fleet that objects cannot be written, or that no write fails any more.
    async fn tell(&mut self) -> Result<(), NoAnswer> {
        let news = match self.queue.news() {
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
        // A decision made while it was read counts too.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_is_taken_for_what_it_is() {
        let kind = |why: Unanswered| match outcome(why) {
            Outcome::Done => "done",
            Outcome::Gone => "gone",
            Outcome::Failed(Why::Refused(_)) => "refused",
            Outcome::Failed(Why::Forbidden(_)) => "forbidden",
            Outcome::Failed(Why::Away(_)) => "away",
        };
        let forbidden = |text: &str| Unanswered::Forbidden(text.into());
        let code = |code: u16| Unanswered::Refused {
            code,
            text: String::new(),
        };
        let rbac = "nodes \"n1\" is forbidden: User \"system:serviceaccount:muster-system:muster-coordinator\" cannot patch resource \
                    \"nodes/status\" in API group \"\" at the cluster scope";
        assert_eq!(kind(forbidden(rbac)), "forbidden");
        for text in [
            "ValidatingAdmissionPolicy 'theirs' denied request: a node cannot change now",
            "admission webhook \"theirs\" denied the request: User \"muster\" cannot do this",
        ] {
            assert_eq!(kind(forbidden(text)), "refused", "{text}");
        }
        assert_eq!(kind(code(404)), "gone");
        assert_eq!((kind(code(422)), kind(code(500))), ("refused", "away"));
        let malformed = Unanswered::Malformed { line: 1, column: 1 };
        assert_eq!(kind(malformed), "refused");
        for why in [Unanswered::Silent, Unanswered::Unknown, Unanswered::Busy] {
            assert_eq!(kind(why), "away");
        }
    }
}
