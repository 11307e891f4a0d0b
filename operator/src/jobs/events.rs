//! The story of a job as Kubernetes Events of its object, where `kubectl describe` shows it.
//!
//! Events are a courtesy: a cluster keeps them for an hour, and what cannot be written after some
//! attempts is dropped. `muster explain` has the whole story.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use muster_core::{
    fleet::{Actor, Event},
    id::{JobName, JobUid},
    spec::{API_VERSION, KIND},
    time::Timestamp,
};
use muster_handle::handle::Handle;
use muster_runtime::backoff::{Backoff, USEFUL, entropy};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use crate::{
    pace::Pace,
    rules::job_object::{JobObject, Objection},
    server::{Server, Unanswered},
    stamp::precise_time,
};

const CONTROLLER: &str = "muster.dev/coordinator";

/// Bytes of the longest note that an API server takes.
const NOTE_MAX: usize = 1_024;

/// What one object may tell: as many at once as client-go allows, and after that one in five
/// minutes.
const AT_ONCE: u32 = 25;
const ONE_EVERY: Duration = Duration::from_secs(300);

/// Jobs whose pace is remembered. Beyond that all are forgotten.
const PACES_MAX: usize = 10_000;

/// Events that wait while the API server is away. Older ones are dropped.
const WAITING_MAX: usize = 256;

/// How often one event is tried, and the longest pause between two attempts.
const ATTEMPTS: u32 = 20;
const RETRY_MAX: Duration = Duration::from_secs(10);

pub(super) struct Events {
    handle: Handle,
    server: Server,
    paces: BTreeMap<JobUid, Pace>,
    /// The number of the last event that was looked at.
    last: u64,
    /// The log was told that events cannot be written.
    told: bool,
}

impl Events {
    /// Begins with the next event that happens: those before were told by the coordinator before.
    pub(super) fn new(handle: Handle, server: Server) -> Self {
        let last = handle.events().borrow().last();
        Self {
            handle,
            server,
            paces: BTreeMap::new(),
            last,
            told: false,
        }
    }

    pub(super) async fn work(mut self) {
        let mut board = self.handle.events();
        loop {
            let mut new: Vec<Arc<Event>> = {
                let board = board.borrow_and_update();
                let new = board.after(self.last).cloned().collect();
                self.last = board.last().max(self.last);
                new
            };
            let dropped = new.len().saturating_sub(WAITING_MAX);
            for event in new.drain(..).skip(dropped) {
                self.tell(&event).await;
            }
            if board.changed().await.is_err() {
                // The engine has ended.
                return;
            }
        }
    }

    async fn tell(&mut self, event: &Event) {
        let Some((uid, name)) = &event.job else {
            return;
        };
        let view = self.handle.job(name);
        let own = view.filter(|view| view.record.uid == *uid);
        // A job that is new is not on the board yet, but then its object asked for it.
        let owned = event.actor == Some(Actor::Object)
            || own.is_some_and(|view| view.record.is_of_object());
        if !owned || !self.may_tell(uid) {
            return;
        }
        let (path, object) = object(name, uid, event);
        let mut backoff = Backoff::new(RETRY_MAX, USEFUL);
        for _ in 0..ATTEMPTS {
            let begun = Instant::now();
            match self.server.create::<Value>(&path, &object).await {
                Ok(_) => {
                    if std::mem::take(&mut self.told) {
                        info!("Events of MusterJob objects are written again");
                    }
                    return;
                }
                Err(
                    why @ (Unanswered::Refused { .. }
                    | Unanswered::Exists(_)
                    | Unanswered::Malformed { .. }),
                ) => {
                    return debug!("tell an event of {name}: {why}");
                }
                Err(why) => {
                    self.failed(&why);
                    if matches!(why, Unanswered::Forbidden(_)) {
                        // Somebody must change that, or the namespace is going.
                        return;
                    }
                }
            }
            sleep(backoff.after(begun.elapsed(), entropy())).await;
        }
    }

    fn may_tell(&mut self, uid: &JobUid) -> bool {
        if self.paces.len() >= PACES_MAX {
            self.paces.clear();
        }
        let now = Instant::now();
        let new = || Pace::new(AT_ONCE, ONE_EVERY, now);
        let pace = self.paces.entry(uid.clone()).or_insert_with(new);
        pace.take(now, 0).is_ok()
    }

    fn failed(&mut self, why: &Unanswered) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        let hint = match why {
            Unanswered::Forbidden(_) => {
                "; its user needs a ClusterRole with apiGroups [events.k8s.io], resources [events], verbs [create]"
            }
            _ => "",
        };
        warn!("Events of MusterJob objects cannot be written: {why}{hint}");
    }
}

/// The event that an object is not accepted: where it is created, and what.
pub(super) fn of_objection(
    object: &JobObject,
    objection: &Objection,
    at: Timestamp,
) -> (String, Value) {
    let told = Told {
        reason: objection.reason(),
        note: &objection.to_string(),
        warning: true,
        at,
        number: 0,
    };
    told.of(&object.name, &object.uid)
}

/// The event that a job waits in its queue, or does not any more.
pub(super) fn of_queue(
    object: &JobObject,
    reason: &str,
    note: &str,
    at: Timestamp,
) -> (String, Value) {
    let told = Told {
        reason,
        note,
        warning: false,
        at,
        number: 0,
    };
    told.of(&object.name, &object.uid)
}

fn object(name: &JobName, uid: &JobUid, event: &Event) -> (String, Value) {
    let told = Told {
        reason: &event.reason,
        note: &event.message,
        warning: event.warning,
        at: event.at,
        number: event.sequence,
    };
    told.of(name, uid)
}

struct Told<'a> {
    reason: &'a str,
    note: &'a str,
    warning: bool,
    at: Timestamp,
    number: u64,
}

impl Told<'_> {
    fn of(&self, job: &JobName, uid: &JobUid) -> (String, Value) {
        let JobName { namespace, name } = job;
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let machine = rustix::system::uname();
        let object = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": format!("{name}.{:x}.{:x}", self.at.0, self.number),
                "namespace": namespace,
            },
            "eventTime": precise_time(self.at),
            "reportingController": CONTROLLER,
            "reportingInstance": machine.nodename().to_string_lossy(),
            "action": self.reason,
            "reason": self.reason,
            "type": if self.warning { "Warning" } else { "Normal" },
            "note": cut(self.note),
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": namespace,
                "name": name,
                "uid": uid.as_str(),
            },
        });
        (path, object)
    }
}

fn cut(note: &str) -> &str {
    if note.len() <= NOTE_MAX {
        return note;
    }
    let ends = note.char_indices().map(|(at, _)| at);
    let end = ends.take_while(|at| *at <= NOTE_MAX).last();
    &note[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = "ä".repeat(800);
        assert_eq!(cut(&long).len(), NOTE_MAX);
        let odd = format!("a{long}");
        assert_eq!(cut(&odd).len(), NOTE_MAX - 1);
    }
}
