//! The loop: what objects ask for is done, and how their jobs are is written.
//!
//! Whenever an object or its job has changed, the object is *waiting*. It is looked at, and at most
//! one thing is done about it at a time: the next step of its plan, or else a write of its status.
//! After that it is looked at again. What fails is tried again with a back-off. Nothing is done
//! before all objects were listed once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_core::{
    fleet::{
        Actor, Answer, Request,
        job_object::{Objection, Plan, Step, plan},
        job_status,
    },
    id::JobName,
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

use super::{
    events,
    object::{MusterJob, Seen},
    status::{self, Urgency},
};
use crate::{
    board,
    handle::{Handle, NoAnswer},
    kubernetes::{
        access::{GROUP, JOBS},
        attempts::Attempts,
        follow::News,
        pace::Pace,
        server::{Server, Unanswered},
        turns::next,
    },
};

/// Things that are done at a time, each about another object. An API server that hangs holds up so
/// many for some seconds.
const AT_ONCE: usize = 16;

/// One object's status is not written more often than this, however often it changes.
const NOW: Duration = Duration::from_secs(1);
/// The same if nobody waits for the change.
const SOON: Duration = Duration::from_secs(5);
/// The same if only steps have changed.
const LATER: Duration = Duration::from_secs(30);

/// All statuses together: 20 a second, as kubectl and controllers ask of themselves by default, and
/// 100 at once.
const WRITES_AT_ONCE: u32 = 100;
const WRITE_EVERY: Duration = Duration::from_millis(50);
/// Writes reserved for changes that people wait for.
const WRITES_RESERVED: u32 = 25;

/// If a list lacks the objects of more jobs than this, and of more than half of all, the API server
/// may be the wrong one, or an empty one. A person then has so much time.
const MISSING_MAX: usize = 3;
const DOUBT: Duration = Duration::from_secs(600);

/// The longest wait for a moment that a plan names: clocks may be set.
const LOOK_AGAIN: Duration = Duration::from_secs(3_600);

pub(super) struct Controller {
    handle: Handle,
    server: Server,
    /// Worker pods are made.
    makes_pods: bool,
    news: mpsc::Receiver<News<JobName, Seen>>,
    board: watch::Receiver<board::Jobs>,
    /// The last revision of the board that was looked at.
    revision: u64,
    objects: BTreeMap<JobName, Seen>,
    /// All objects were read once. Until then a job may have one that is not known.
    listed: bool,
    /// Until then no job is ended because it has no object.
    doubt: Option<Instant>,
    works: BTreeMap<JobName, Work>,
    waiting: BTreeSet<JobName>,
    /// The object that something was begun for last. Those behind it are next, so that each has its
    /// turn.
    turn: Option<JobName>,
    /// When an object is waiting again.
    due: BTreeMap<JobName, Instant>,
    under_way: JoinSet<(JobName, Result<Done, Failed>)>,
    writes: Pace,
    /// The failure that was logged last. `None`: things go well.
    logged: Option<String>,
}

/// What is known of the work on one object, besides the object.
struct Work {
    busy: bool,
    step: Attempts,
    write: Attempts,
    written: Option<Instant>,
    /// What the fleet said to the last step.
    refused: Option<String>,
}

/// What was done.
enum Done {
    /// A step that the fleet has taken.
    Decided,
    /// A step about the object itself, which is now so.
    Changed(Box<Seen>),
    /// The object is being deleted. The watch says when it is gone.
    Deleted,
    /// The status, which is now so.
    Written(Box<Seen>),
}

enum Failed {
    /// The fleet does not take the step.
    Refused(String),
    Step(Unanswered),
    Write(Unanswered),
    /// The engine did not answer.
    NoAnswer(NoAnswer),
}

impl Work {
    fn new() -> Self {
        Self {
            busy: false,
            step: Attempts::default(),
            write: Attempts::default(),
            written: None,
            refused: None,
        }
    }
}

impl Controller {
    pub(super) fn new(
        handle: Handle,
        server: Server,
        makes_pods: bool,
        news: mpsc::Receiver<News<JobName, Seen>>,
    ) -> Self {
        Self {
            board: handle.jobs(),
            handle,
            server,
            makes_pods,
            news,
            revision: 0,
            objects: BTreeMap::new(),
            listed: false,
            doubt: None,
            works: BTreeMap::new(),
            waiting: BTreeSet::new(),
            turn: None,
            due: BTreeMap::new(),
            under_way: JoinSet::new(),
            writes: Pace::new(WRITES_AT_ONCE, WRITE_EVERY, Instant::now()),
            logged: None,
        }
    }

    pub(super) async fn work(mut self) {
        loop {
            self.begin();
            let due = self.due.values().min().copied();
            tokio::select! {
                news = self.news.recv() => match news {
                    Some(news) => self.hear(news),
                    None => return,
                },
                changed = self.board.changed() => match changed {
                    Ok(()) => self.look(),
                    // The engine has ended.
                    Err(_) => return,
                },
                Some(ended) = self.under_way.join_next() => match ended {
                    Ok((name, result)) => self.done(name, result),
                    // A panic was logged. The object stays busy, and the rest goes on.
                    Err(e) => warn!("work on a MusterJob object: {e}"),
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let now = Instant::now();
                    let ready = self.due.extract_if(.., |_, at| *at <= now);
                    self.waiting.extend(ready.map(|(name, _)| name));
                }
            }
        }
    }

    fn hear(&mut self, news: News<JobName, Seen>) {
        match news {
            News::Listed(all) => {
                let board = self.board.borrow();
                let owned = board.after(None);
                let owned = owned.filter(|(_, view)| view.record.is_of_object());
                let owned: Vec<JobName> = owned.map(|(name, _)| name.clone()).collect();
                drop(board);
                let missing = owned.iter().filter(|name| !all.contains_key(*name)).count();
                self.doubt_list(missing, owned.len(), Instant::now());
                self.waiting.extend(owned);
                self.waiting.extend(self.objects.keys().cloned());
                self.waiting.extend(all.keys().cloned());
                let all = all
                    .into_iter()
                    .map(|(name, seen)| (name, self.checked(seen)));
                (self.objects, self.listed) = (all.collect(), true);
            }
            News::Applied(name, seen) => {
                self.know(&name, seen);
                self.waiting.insert(name);
            }
            News::Deleted(name, last) => {
                let same = |known: &Seen| known.object.uid == last.object.uid;
                if self.objects.get(&name).is_some_and(same) {
                    self.objects.remove(&name);
                }
                self.waiting.insert(name);
            }
            // The log has it. Jobs go on, and all statuses are compared when a list has come.
            News::Followed | News::Unreadable(_) => {}
        }
    }

    /// Waits before it believes a list that lacks most objects.
    fn doubt_list(&mut self, missing: usize, owned: usize, now: Instant) {
        if !is_doubtful(missing, owned) {
            self.doubt = None;
        } else if self.doubt.is_none() {
            warn!(
                "the API server has no MusterJob object for {missing} of {owned} jobs that came from objects; they are cancelled in {} \
                 minutes, unless the objects are back: is it the right API server, and was it restored?",
                DOUBT.as_secs() / 60
            );
            self.doubt = Some(now + DOUBT);
        }
    }

    /// The object. If it asks for pods and nobody makes any, its spec is wrong.
    fn checked(&self, mut seen: Seen) -> Seen {
        if !self.makes_pods && seen.object.template.is_some() {
            let why = "spec.template: this coordinator makes no pods (--kubernetes-pods, manifests/components/worker-pods)";
            seen.object.spec = Err(why.to_owned());
        }
        seen
    }

    /// Takes what the server says of an object, unless something newer is known.
    fn know(&mut self, name: &JobName, seen: Seen) {
        let seen = self.checked(seen);
        let known = self.objects.get(name);
        let same = known.filter(|known| known.object.uid == seen.object.uid);
        if !same.is_some_and(|known| seen.is_older_than(known)) {
            self.objects.insert(name.clone(), seen);
        }
    }

    /// Looks which jobs have changed.
    fn look(&mut self) {
        let board = self.board.borrow_and_update();
        for (name, view) in board.since(self.revision) {
            if view.record.is_of_object() || self.objects.contains_key(name) {
                self.waiting.insert(name.clone());
            }
        }
        if board.removed_since(self.revision) {
            let gone = self.objects.keys().filter(|name| board.get(name).is_none());
            self.waiting.extend(gone.cloned());
        }
        self.revision = board.revision();
    }

    /// Begins as much as may be under way.
    fn begin(&mut self) {
        if !self.listed {
            return;
        }
        while self.under_way.len() < AT_ONCE {
            let is_busy = |name: &JobName| self.works.get(name).is_some_and(|work| work.busy);
            let Some(name) = next(&self.waiting, self.turn.as_ref(), is_busy) else {
                return;
            };
            self.waiting.remove(&name);
            self.due.remove(&name);
            let before = self.under_way.len();
            self.begin_one(&name, Instant::now());
            if self.under_way.len() > before {
                self.turn = Some(name);
            }
        }
    }

    fn begin_one(&mut self, name: &JobName, now: Instant) {
        let seen = self.objects.get(name);
        let view = self.handle.job(name);
        let record = view.as_ref().map(|view| &view.record);
        let clock = self.handle.now();
        let Plan {
            step,
            objection,
            again,
        } = plan(seen.map(|seen| &seen.object), record, clock);
        if seen.is_none() && step.is_none() {
            self.works.remove(name);
            return;
        }
        let doubt = self.doubt.filter(|until| *until > now);
        if let Some(until) = doubt.filter(|_| seen.is_none() && step == Some(Step::Cancel)) {
            return self.wake(name, until);
        }
        let work = self.works.entry(name.clone()).or_insert_with(Work::new);
        if step.is_none() {
            (work.refused, work.step) = (None, Attempts::default());
        }
        if let Some(step) = step {
            match work.step.may(now) {
                Ok(()) => {
                    work.busy = true;
                    let doing = do_step(
                        self.handle.clone(),
                        self.server.clone(),
                        name.clone(),
                        step,
                        seen.cloned(),
                    );
                    let name = name.clone();
                    self.under_way.spawn(async move { (name, doing.await) });
                    return;
                }
                Err(again) => self.wake(name, again),
            }
        }
        if let Some(again) = again {
            // A far moment is looked at again before.
            self.wake(name, now + again.since(clock).min(LOOK_AGAIN));
        }
        self.begin_write(name, objection, now);
    }

    fn begin_write(&mut self, name: &JobName, objection: Option<Objection>, now: Instant) {
        let Some((seen, work)) = self.objects.get(name).zip(self.works.get_mut(name)) else {
            return;
        };
        let objection = objection.or(work.refused.clone().map(Objection::Refused));
        let view = self.handle.job(name);
        let own = view.filter(|view| view.record.uid == seen.object.uid);
        let Some(status) = job_status::status(own.as_deref(), objection.as_ref()) else {
            return;
        };
        let wanted = status::wanted(&status, seen, self.handle.now());
        let (wait, reserve) = match status::urgency(&seen.status, &wanted) {
            None => return,
            Some(Urgency::Now) => (NOW, 0),
            Some(Urgency::Soon) => (SOON, WRITES_RESERVED),
            Some(Urgency::Later) => (LATER, WRITES_RESERVED),
        };
        let rested = work.written.map(|at| at + wait).filter(|at| *at > now);
        let may = rested.map_or(Ok(()), Err).and(work.write.may(now));
        if let Err(again) = may.and_then(|()| self.writes.take(now, reserve)) {
            return self.wake(name, again);
        }
        work.busy = true;
        // An object that is refused is told of it once more, where `kubectl describe` shows it.
        let was = |seen: &Seen| {
            let known = seen.status["conditions"].as_array().into_iter().flatten();
            let mut known = known.filter(|known| known["type"] == "Accepted");
            known.next().map(|known| known["reason"].clone())
        };
        let new = objection.filter(|now| was(seen) != Some(json!(now.reason())));
        let told = new.map(|objection| {
            let at = self.handle.now();
            events::of_objection(&seen.object, &objection, at)
        });
        let doing = write(self.server.clone(), seen.clone(), wanted, told);
        let name = name.clone();
        self.under_way.spawn(async move { (name, doing.await) });
    }

    fn wake(&mut self, name: &JobName, at: Instant) {
        let due = self.due.entry(name.clone()).or_insert(at);
        *due = at.min(*due);
    }

    fn done(&mut self, name: JobName, result: Result<Done, Failed>) {
        let now = Instant::now();
        self.waiting.insert(name.clone());
        let Some(work) = self.works.get_mut(&name) else {
            return;
        };
        work.busy = false;
        let seen = match result {
            Ok(Done::Decided) => {
                (work.refused, work.step) = (None, Attempts::default());
                return;
            }
            Ok(Done::Deleted) => {
                // Not again before the watch had time to tell.
                let again = work.step.failed(now);
                return self.wake(&name, again);
            }
            Ok(Done::Changed(seen)) => {
                work.step = Attempts::default();
                seen
            }
            Ok(Done::Written(seen)) => {
                (work.write, work.written) = (Attempts::default(), Some(now));
                seen
            }
            Err(failed) => return self.failed(&name, failed, now),
        };
        if self.logged.take().is_some() {
            info!("MusterJob objects can be changed again");
        }
        // If it is gone, or another one of its name is there, the watch has said so.
        let known = self.objects.get(&name);
        if known.is_some_and(|known| known.object.uid == seen.object.uid) {
            self.know(&name, *seen);
        }
    }

    fn failed(&mut self, name: &JobName, failed: Failed, now: Instant) {
        let Some(work) = self.works.get_mut(name) else {
            return;
        };
        let (attempts, why) = match failed {
            Failed::Refused(why) => {
                debug!(job = %name, "{why}");
                work.refused = Some(why);
                (&mut work.step, None)
            }
            Failed::NoAnswer(why) => (&mut work.step, Some(why.to_string())),
            Failed::Step(why) => (&mut work.step, sentence(&why, "")),
            Failed::Write(why) => (&mut work.write, sentence(&why, "/status")),
        };
        let again = attempts.failed(now);
        self.wake(name, again);
        if let Some(why) = why.filter(|why| self.logged.as_ref() != Some(why)) {
            warn!(job = %name, "MusterJob objects cannot be changed, their jobs go on: {why}");
            self.logged = Some(why);
        }
    }
}

fn is_doubtful(missing: usize, owned: usize) -> bool {
    missing > MISSING_MAX && missing * 2 > owned
}

/// Why something failed, for the log. `None`: it is everyday life.
fn sentence(why: &Unanswered, part: &str) -> Option<String> {
    match why {
        // Somebody else has changed or deleted the object. The watch tells.
        Unanswered::Refused {
            code: 404 | 409, ..
        } => None,
        Unanswered::Forbidden(_) => Some(format!(
            "{why}; its user needs a ClusterRole with apiGroups [{GROUP}], resources [{JOBS}{part}], verbs [patch, delete]"
        )),
        _ => Some(why.to_string()),
    }
}

fn path(name: &JobName, part: &str) -> String {
    let JobName { namespace, name } = name;
    format!(
        "/apis/{}/namespaces/{namespace}/{JOBS}/{name}{part}",
        muster_core::spec::API_VERSION
    )
}

async fn do_step(
    handle: Handle,
    server: Server,
    name: JobName,
    step: Step,
    seen: Option<Seen>,
) -> Result<Done, Failed> {
    let request = match step {
        Step::Submit(spec) => {
            let Some(seen) = seen else {
                return Ok(Done::Decided);
            };
            Request::Submit {
                name,
                spec: *spec,
                uid: seen.object.uid,
                request_id: String::new(),
                suspended: seen.object.suspend,
                validate_only: false,
            }
        }
        Step::Suspend(suspended) => Request::Suspend { name, suspended },
        Step::Scale(nodes) => Request::Scale { name, nodes },
        Step::Cancel => Request::Cancel { name },
        Step::Expire(after) => Request::Expire { name, after },
        Step::Forget => Request::Delete { name },
        Step::Delete => return delete(server, name, seen).await,
        Step::Hold => return hold(server, name, seen, true).await,
        Step::Release => return hold(server, name, seen, false).await,
    };
    match handle.request(Actor::Object, request).await {
        Ok(Answer::Refused(refusal)) => Err(Failed::Refused(refusal.to_string())),
        Ok(_) => Ok(Done::Decided),
        Err(why) => Err(Failed::NoAnswer(why)),
    }
}

/// Deletes this very object, and none of its name that came after it.
async fn delete(server: Server, name: JobName, seen: Option<Seen>) -> Result<Done, Failed> {
    let Some(seen) = seen else {
        return Ok(Done::Decided);
    };
    let options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": { "uid": seen.object.uid.as_str() },
    });
    let deleted = server.delete::<Value>(&path(&name, ""), &options).await;
    deleted.map(|_| Done::Deleted).map_err(Failed::Step)
}

/// Adds our finalizer or takes it away.
async fn hold(
    server: Server,
    name: JobName,
    seen: Option<Seen>,
    held: bool,
) -> Result<Done, Failed> {
    let Some(seen) = seen else {
        return Ok(Done::Decided);
    };
    let metadata =
        json!({ "resourceVersion": seen.version, "finalizers": seen.finalizers_with(held) });
    let patch = json!({ "metadata": metadata });
    let object: MusterJob = (server.merge(&path(&name, ""), &patch).await).map_err(Failed::Step)?;
    let seen = Seen::of(object).map(Box::new);
    Ok(seen.map_or(Done::Decided, Done::Changed))
}

/// Writes the status on the version of the object that was seen. Then tells an event, if there is
/// one; whether that works is not important.
async fn write(
    server: Server,
    seen: Seen,
    wanted: Value,
    told: Option<(String, Value)>,
) -> Result<Done, Failed> {
    let patch = json!({
        "metadata": { "resourceVersion": seen.version },
        "status": status::difference(&seen.status, &wanted),
    });
    let path = path(&seen.object.name, "/status");
    let object: MusterJob = (server.merge(&path, &patch).await).map_err(Failed::Write)?;
    if let Some((path, event)) = told
        && let Err(why) = server.create::<Value>(&path, &event).await
    {
        debug!("tell an event: {why}");
    }
    let seen = Seen::of(object).map(Box::new);
    Ok(seen.map_or(Done::Decided, Done::Written))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_most_of_the_objects_is_doubted() {
        assert!(is_doubtful(4, 4) && is_doubtful(51, 100));
        assert!(!is_doubtful(3, 3) && !is_doubtful(50, 100) && !is_doubtful(0, 0));
    }
}
