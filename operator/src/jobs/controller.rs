//! The loop: what objects ask for is done, and how their jobs are is written.
//!
//! Whenever an object or its job has changed, the object is *waiting*. It is looked at, and at most
//! one thing is done about it at a time: a change of its dependents, or else the next step of its plan,
//! or else a write of its status. A job gets nodes only when its dependents are there.
//! After that it is looked at again. A step that fails is tried again with a back-off. Nothing is done
//! before all objects were listed once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use muster_core::{
    fleet::job::JobRecord,
    id::{JobName, JobUid},
};
use muster_handle::{board, handle::Handle};
use serde_json::json;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tracing::{debug, info, warn};

use super::{
    deeds::{Done, Failed, do_step, protect, sentence, write},
    dependents::{self, Dependents, Next, Told},
    doubt::{DOUBT, is_doubtful},
    events,
    object::Seen,
    status::{self, Urgency},
    telling::{self, Hidden},
};
use crate::{
    attempts::Attempts,
    controller,
    desk::{Desk, Standings},
    follow::News,
    pace::Pace,
    rules::{
        dependents::Kind,
        job_object::{Objection, Plan, Step, plan},
        job_status::{self, InQueue},
        queue::{Admission, Said},
    },
    server::Server,
    work_queue::WorkQueue,
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

/// The longest wait for a moment that a plan names: clocks may be set.
const LOOK_AGAIN: Duration = Duration::from_secs(3_600);

/// Where the controller hears from.
pub(super) struct Sources {
    news: mpsc::Receiver<News<JobName, Seen>>,
    told: mpsc::Receiver<(Kind, Told)>,
    /// News of jobs' queues. Nothing comes if there are none.
    standings: watch::Receiver<Standings>,
    board: watch::Receiver<board::Jobs>,
}

pub(super) enum Heard {
    Objects(Box<News<JobName, Seen>>),
    Dependents((Kind, Told)),
    Standings,
    Board,
}

impl Sources {
    pub(super) fn new(
        handle: &Handle,
        desk: Option<&Desk>,
        news: mpsc::Receiver<News<JobName, Seen>>,
        told: mpsc::Receiver<(Kind, Told)>,
    ) -> Self {
        let standings = desk.map(Desk::standings);
        Self {
            news,
            told,
            standings: standings.unwrap_or_else(|| watch::channel(Standings::new()).1),
            board: handle.jobs(),
        }
    }
}

impl controller::Sources for Sources {
    type News = Heard;

    async fn next(&mut self) -> Option<Heard> {
        tokio::select! {
            news = self.news.recv() => news.map(Box::new).map(Heard::Objects),
            Some(told) = self.told.recv() => Some(Heard::Dependents(told)),
            Ok(()) = self.standings.changed() => Some(Heard::Standings),
            // The error: the engine has ended.
            changed = self.board.changed() => changed.ok().map(|()| Heard::Board),
        }
    }
}

pub(super) struct Controller {
    handle: Handle,
    server: Server,
    /// Worker pods are made.
    makes_pods: bool,
    dependents: Dependents,
    desk: Option<Arc<Desk>>,
    board: watch::Receiver<board::Jobs>,
    /// The last revision of the board that was looked at.
    revision: u64,
    objects: BTreeMap<JobName, Seen>,
    hidden: Hidden,
    /// All objects were read once. Until then a job may have one that is not known.
    listed: bool,
    /// Until then no job is ended because it has no object.
    doubt: Option<Instant>,
    works: BTreeMap<JobName, Work>,
    queue: WorkQueue<JobName, Result<Done, Failed>>,
    writes: Pace,
    /// The failure that was logged last. `None`: things go well.
    logged: Option<String>,
}

/// What is known of the work on one object, besides the object.
struct Work {
    step: Attempts,
    write: Attempts,
    protect: Attempts,
    written: Option<Instant>,
    /// Why a dependent is not as it should be.
    unprotected: Option<(Kind, String)>,
    /// What the fleet said to the last step.
    refused: Option<String>,
}

/// Whether an object has the dependents that it should have.
enum Protected {
    Yes,
    /// One is being changed.
    UnderWay,
    /// `None`: that is not known yet.
    No(Option<Objection>),
}

impl Work {
    fn new() -> Self {
        Self {
            step: Attempts::default(),
            write: Attempts::default(),
            protect: Attempts::default(),
            written: None,
            unprotected: None,
            refused: None,
        }
    }
}

impl Controller {
    pub(super) fn new(
        handle: Handle,
        server: Server,
        makes_pods: bool,
        desk: Option<Arc<Desk>>,
    ) -> Self {
        Self {
            board: handle.jobs(),
            handle,
            server,
            makes_pods,
            dependents: Dependents::default(),
            desk,
            revision: 0,
            objects: BTreeMap::new(),
            hidden: Hidden::default(),
            listed: false,
            doubt: None,
            works: BTreeMap::new(),
            queue: WorkQueue::new(AT_ONCE),
            writes: Pace::new(WRITES_AT_ONCE, WRITE_EVERY, Instant::now()),
            logged: None,
        }
    }

    fn hear_objects(&mut self, news: News<JobName, Seen>) {
        match news {
            News::Listed(all, crowded) => {
                self.hidden.listed(crowded);
                let board = self.board.borrow();
                let owned = board.after(None);
                let owned = owned.filter(|(_, view)| view.record.is_of_object());
                let owned: Vec<JobName> = owned.map(|(name, _)| name.clone()).collect();
                drop(board);
                let hidden = &self.hidden;
                let is_missing =
                    |name: &&JobName| !all.contains_key(*name) && !hidden.may_have(name);
                let missing = owned.iter().filter(is_missing).count();
                self.doubt_list(missing, owned.len(), Instant::now());
                self.queue.wait(owned);
                self.queue.wait(self.objects.keys().cloned());
                self.queue.wait(all.keys().cloned());
                let all = all
                    .into_iter()
                    .map(|(name, seen)| (name, self.checked(seen)));
                (self.objects, self.listed) = (all.collect(), true);
                self.list_places();
            }
            News::Applied(name, seen) => {
                self.know(&name, seen);
                self.queue.wait([name]);
            }
            News::Deleted(name, last) => {
                let same = |known: &Seen| known.object.uid == last.object.uid;
                if self.objects.get(&name).is_some_and(same) {
                    self.objects.remove(&name);
                }
                self.hidden.gone(&name);
                if let Some(desk) = &self.desk {
                    desk.put(&last.object.uid, None);
                }
                self.queue.wait([name]);
            }
            News::Crowded(crowded) => self.hidden.crowd(crowded),
            // The log has it. Jobs go on, and all statuses are compared when a list has come.
            News::Followed | News::Unreadable(_) => {}
        }
    }

    fn hear_dependents(&mut self, (kind, told): (Kind, Told)) {
        if matches!(
            told,
            Told::News(News::Listed(..) | News::Crowded(_) | News::Unreadable(_))
        ) {
            // Whoever asks for one waits for this.
            self.queue.wait(self.objects.keys().cloned());
        }
        self.queue.wait(self.dependents.hear(kind, told));
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
            seen.refuse(why.to_owned());
        }
        seen
    }

    /// Takes what the server says of an object, unless something newer is known.
    fn know(&mut self, name: &JobName, seen: Seen) {
        let seen = self.checked(seen);
        let known = self.objects.get(name);
        let same = known.filter(|known| known.object.uid == seen.object.uid);
        if !same.is_some_and(|known| seen.is_older_than(known)) {
            if let Some(desk) = &self.desk {
                desk.put(&seen.object.uid, seen.place());
            }
            self.objects.insert(name.clone(), seen);
        }
    }

    /// Tells of the queues of all objects.
    fn list_places(&self) {
        let Some(desk) = &self.desk else { return };
        let all = self.objects.values();
        let all = all.filter_map(|seen| Some((seen.object.uid.clone(), seen.place()?)));
        let board = self.board.borrow();
        let jobs = board.after(None).map(|(_, view)| view.record.uid.clone());
        let jobs: BTreeSet<JobUid> = jobs.collect();
        desk.list(all.collect(), |uid| jobs.contains(uid));
    }

    /// Whether the queue of the object gives its job nodes.
    fn admission(&self, seen: &Seen) -> Admission {
        match (&seen.object.queue, &self.desk) {
            (None, _) => Admission::Free,
            (Some(_), Some(desk)) => desk.admission(&seen.object.uid),
            (Some(_), None) => Admission::Waits(Said::new(
                "KueueNotFollowed",
                "this coordinator does not speak with Kueue (--kubernetes-kueue, manifests/components/kueue)",
            )),
        }
    }

    /// Looks which jobs have changed.
    fn look(&mut self) {
        let board = self.board.borrow_and_update();
        for (name, view) in board.since(self.revision) {
            if view.record.is_of_object() || self.objects.contains_key(name) {
                self.queue.wait([name.clone()]);
            }
        }
        if board.removed_since(self.revision) {
            let gone = self.objects.keys().filter(|name| board.get(name).is_none());
            self.queue.wait(gone.cloned());
        }
        self.revision = board.revision();
    }

    fn begin_one(&mut self, name: &JobName, now: Instant) {
        let seen = self.objects.get(name);
        if seen.is_none() && self.hidden.may_have(name) {
            // Its object may be there, so its job goes on.
            return;
        }
        let view = self.handle.job(name);
        let record = view.as_ref().map(|view| &view.record);
        let clock = self.handle.now();
        let admission = seen.map_or(Admission::Free, |seen| self.admission(seen));
        let Plan {
            step,
            objection,
            again,
        } = plan(seen.map(|seen| &seen.object), record, &admission, clock);
        if seen.is_none() && step.is_none() {
            self.works.remove(name);
            return;
        }
        let doubt = self.doubt.filter(|until| *until > now);
        if let Some(until) = doubt.filter(|_| seen.is_none() && step == Some(Step::Cancel)) {
            return self.queue.wake(name, until);
        }
        let own = record.filter(|job| seen.is_some_and(|seen| seen.object.uid == job.uid));
        let standing = seen.cloned().filter(|seen| !seen.object.deleting);
        let protected = standing.map_or(Protected::Yes, |seen| {
            self.protect(name, seen, own, &admission, now)
        });
        let gives_nodes = |step: &Step| matches!(step, Step::Submit(_) | Step::Suspend(false));
        let (step, objection) = match protected {
            Protected::UnderWay => return,
            Protected::Yes => (step, objection),
            Protected::No(why) => (step.filter(|step| !gives_nodes(step)), objection.or(why)),
        };
        let seen = self.objects.get(name);
        let held = seen.is_some_and(|seen| seen.object.holds_back(None, &admission));
        let work = self.works.entry(name.clone()).or_insert_with(Work::new);
        if step.is_none() {
            (work.refused, work.step) = (None, Attempts::default());
        }
        if let Some(step) = step {
            match work.step.may(now) {
                Ok(()) => {
                    let doing = do_step(
                        self.handle.clone(),
                        self.server.clone(),
                        name.clone(),
                        step,
                        seen.cloned(),
                        held,
                    );
                    return self.queue.begin(name, doing);
                }
                Err(again) => self.queue.wake(name, again),
            }
        }
        if let Some(again) = again {
            // A far moment is looked at again before.
            self.queue
                .wake(name, now + again.since(clock).min(LOOK_AGAIN));
        }
        self.begin_write(name, objection, now);
    }

    /// Begins the next change of the object's dependents, if there is one.
    fn protect(
        &mut self,
        name: &JobName,
        seen: Seen,
        job: Option<&JobRecord>,
        admission: &Admission,
        now: Instant,
    ) -> Protected {
        let wanted = seen.object.dependents(job, admission);
        let next = self.dependents.next(name, &seen.object.uid, &wanted);
        let work = self.works.entry(name.clone()).or_insert_with(Work::new);
        match next {
            Next::Nothing => {
                (work.unprotected, work.protect) = (None, Attempts::default());
                Protected::Yes
            }
            Next::Unknown(kind, why) => {
                Protected::No(why.map(|why| Objection::Unprotected(kind, why)))
            }
            Next::Change(change) => match work.protect.may(now) {
                Ok(()) => {
                    let doing = protect(self.server.clone(), seen, *change);
                    self.queue.begin(name, doing);
                    Protected::UnderWay
                }
                Err(again) => {
                    let why = work.unprotected.clone();
                    self.queue.wake(name, again);
                    Protected::No(why.map(|(kind, why)| Objection::Unprotected(kind, why)))
                }
            },
        }
    }

    fn begin_write(&mut self, name: &JobName, objection: Option<Objection>, now: Instant) {
        let admission = self.objects.get(name).map(|seen| self.admission(seen));
        let admission = admission.unwrap_or(Admission::Free);
        let Some((seen, work)) = self.objects.get(name).zip(self.works.get_mut(name)) else {
            return;
        };
        let objection = objection.or(work.refused.clone().map(Objection::Refused));
        let view = self.handle.job(name);
        let own = view.filter(|view| view.record.uid == seen.object.uid);
        let document = seen.object.spec.as_ref().ok();
        let queue = seen
            .object
            .queue
            .as_deref()
            .filter(|_| !seen.object.suspend);
        let queue = queue.map(|name| InQueue {
            name,
            admission: &admission,
            wanted: document.and_then(|document| document.replicas),
        });
        let Some(status) = job_status::status(own.as_deref(), objection.as_ref(), queue.as_ref())
        else {
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
            return self.queue.wake(name, again);
        }
        // An object that is refused is told of it once more, where `kubectl describe` shows it.
        let at = self.handle.now();
        let new = objection.filter(|now| seen.reason("Accepted") != Some(json!(now.reason())));
        let told = new.map(|objection| events::of_objection(&seen.object, &objection, at));
        // So is one that begins to wait in its queue, or has waited.
        let told = told.or_else(|| {
            let queued = status.conditions.iter().find(|now| now.kind == "Queued")?;
            let is_new = seen.reason("Queued") != Some(json!(queued.reason));
            is_new.then(|| events::of_queue(&seen.object, &queued.reason, &queued.message, at))
        });
        let doing = write(self.server.clone(), seen.clone(), wanted, told);
        self.queue.begin(name, doing);
    }

    fn has_ended(&mut self, name: JobName, result: Result<Done, Failed>) {
        let now = Instant::now();
        let Some(work) = self.works.get_mut(&name) else {
            return;
        };
        let seen = match result {
            Ok(Done::Decided) => {
                (work.refused, work.step) = (None, Attempts::default());
                return;
            }
            Ok(Done::Deleted) => {
                // Not again before the watch had time to tell.
                let again = work.step.failed(now);
                return self.queue.wake(&name, again);
            }
            Ok(Done::Changed(seen)) => {
                work.step = Attempts::default();
                seen
            }
            Ok(Done::Written(seen)) => {
                (work.write, work.written) = (Attempts::default(), Some(now));
                seen
            }
            Ok(Done::Dependent(changed)) => {
                // If nothing of it can be read, another attempt would make the same.
                match changed {
                    Some(changed) => self.dependents.changed(changed),
                    None => drop(work.protect.failed(now)),
                }
                return;
            }
            Err(failed) => return self.failed(&name, failed, now),
        };
        if self.logged.take().is_some() {
            info!("MusterJob objects can be changed again");
        }
        // If it is gone, or another one of its name is there, the watch has said so.
        let known = self.objects.get(&name);
        if let Some(known) = known.filter(|known| known.object.uid == seen.object.uid) {
            let seen = telling::with_room_of(known, *seen);
            self.know(&name, seen);
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
            Failed::Dependent(kind, why) => {
                let why = dependents::sentence(kind, &why);
                debug!(job = %name, "its {} cannot be kept: {why}", kind.name());
                work.unprotected = Some((kind, why));
                (&mut work.protect, None)
            }
        };
        let again = attempts.failed(now);
        self.queue.wake(name, again);
        if let Some(why) = why.filter(|why| self.logged.as_ref() != Some(why)) {
            warn!(job = %name, "MusterJob objects cannot be changed, their jobs go on: {why}");
            self.logged = Some(why);
        }
    }
}

impl controller::Controller for Controller {
    type Key = JobName;
    type Done = Result<Done, Failed>;
    type News = Heard;

    const OBJECTS: &'static str = "a MusterJob object";

    fn queue(&mut self) -> &mut WorkQueue<JobName, Self::Done> {
        &mut self.queue
    }

    fn is_ready(&mut self) -> bool {
        self.listed
    }

    async fn look_at(&mut self, name: &JobName) {
        self.begin_one(name, Instant::now());
    }

    async fn hear(&mut self, news: Heard) {
        match news {
            Heard::Objects(news) => self.hear_objects(*news),
            Heard::Dependents(told) => self.hear_dependents(told),
            Heard::Standings => {
                let queued = self.objects.iter();
                let queued = queued.filter(|(_, seen)| seen.object.queue.is_some());
                self.queue.wait(queued.map(|(name, _)| name.clone()));
            }
            Heard::Board => self.look(),
        }
    }

    async fn done(&mut self, name: JobName, result: Self::Done) {
        self.has_ended(name, result);
    }
}
