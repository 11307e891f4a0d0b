//! The loop: what foreign objects ask for is done, and how their jobs are is written.
//!
//! Whenever an object, its `MusterJob` or its job has changed, the object is *waiting*. It is looked at, and
//! at most one thing is done about it at a time: the next step of its plan, or else the label of a pod, or
//! else a write of its status. A step that fails is tried again with a back-off. Nothing is done about a
//! kind before all its objects were listed once, and all `MusterJob` objects that were made for any.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_core::id::JobName;
use muster_foreign::adopt::Adoptable;
use muster_handle::{board, handle::Handle};
use serde_json::json;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tracing::{info, warn};

use super::{
    All, CHILDREN, Told,
    deeds::{self, Done, Failed, sentence},
    events,
    labels::{self, Labelled},
    made,
    object::{Made, Raw, Seen},
    status::{self, Urgency},
};
use crate::{
    attempts::Attempts,
    controller,
    follow::{Crowded, News},
    pace::Pace,
    rules::adoption::{Claim, Objection, Plan, Shows, Step, plan},
    server::Server,
    work_queue::WorkQueue,
};

/// Things that are done at a time, each about another object.
const AT_ONCE: usize = 8;

/// One object's status is not written more often than this, however often it changes.
const NOW: Duration = Duration::from_secs(1);
/// The same if only numbers have changed.
const SOON: Duration = Duration::from_secs(5);

/// All statuses together, as with the statuses of MusterJob objects.
const WRITES_AT_ONCE: u32 = 100;
const WRITE_EVERY: Duration = Duration::from_millis(50);
/// Writes reserved for conditions, for which people wait.
const WRITES_RESERVED: u32 = 25;

/// The longest wait for a moment that a plan names: clocks may be set.
const LOOK_AGAIN: Duration = Duration::from_secs(3_600);

/// An object: the place of its kind in the list, and its name.
type Key = (usize, JobName);

/// Where the controller hears from.
pub(super) struct Sources {
    news: mpsc::Receiver<Told>,
    board: watch::Receiver<board::Jobs>,
}

pub(super) enum Heard {
    Objects(Told),
    Board,
}

impl Sources {
    pub(super) fn new(handle: &Handle, news: mpsc::Receiver<Told>) -> Self {
        let board = handle.jobs();
        Self { news, board }
    }
}

impl controller::Sources for Sources {
    type News = Heard;

    async fn next(&mut self) -> Option<Heard> {
        tokio::select! {
            news = self.news.recv() => news.map(Heard::Objects),
            // The error: the engine has ended.
            changed = self.board.changed() => changed.ok().map(|()| Heard::Board),
        }
    }
}

pub(super) struct Controller {
    handle: Handle,
    server: Server,
    kinds: Vec<Adoptable>,
    board: watch::Receiver<board::Jobs>,
    /// The last revision of the board that was looked at.
    revision: u64,
    /// By kind.
    objects: Vec<All<Seen>>,
    made: All<Box<Made>>,
    /// By kind, and of those that were made: namespaces of which not all are known.
    crowded: (Vec<Crowded>, Crowded),
    works: BTreeMap<Key, Work>,
    queue: WorkQueue<Key, Result<Done, Failed>>,
    writes: Pace,
    /// The failure that was logged last. `None`: things go well.
    logged: Option<String>,
}

/// What is known of the work on one object, besides the object.
#[derive(Default)]
struct Work {
    step: Attempts,
    write: Attempts,
    label: Attempts,
    written: Option<Instant>,
    labelled: Labelled,
    /// Why the API server did not take the last step, and whether it never will.
    refused: Option<(String, bool)>,
    /// The objection that was told last as an event.
    told: Option<Objection>,
}

impl Controller {
    pub(super) fn new(handle: Handle, server: Server, kinds: Vec<Adoptable>) -> Self {
        Self {
            board: handle.jobs(),
            handle,
            server,
            objects: kinds.iter().map(|_| None).collect(),
            crowded: (vec![Crowded::new(); kinds.len()], Crowded::new()),
            kinds,
            revision: 0,
            made: None,
            works: BTreeMap::new(),
            queue: WorkQueue::new(AT_ONCE),
            writes: Pace::new(WRITES_AT_ONCE, WRITE_EVERY, Instant::now()),
            logged: None,
        }
    }

    fn hear_objects(&mut self, at: usize, news: News<JobName, Box<Raw>>) {
        let kind = self.kinds[at];
        match news {
            News::Listed(all, crowded) => {
                self.crowded.0[at] = crowded;
                let before = self.objects[at].take().unwrap_or_default();
                self.queue.wait(before.into_keys().map(|name| (at, name)));
                self.queue.wait(all.keys().map(|name| (at, name.clone())));
                let of_kind = self.made.iter().flatten();
                let of_kind = of_kind.filter(|(_, made)| made.is_of(&kind));
                let owned: Vec<Key> = of_kind.map(|(name, _)| (at, name.clone())).collect();
                self.queue.wait(owned);
                let all = all.into_iter();
                let all = all.map(|(name, raw)| (name, Seen::of(kind, *raw)));
                self.objects[at] = Some(all.collect());
            }
            News::Applied(name, raw) => {
                self.know(at, Seen::of(kind, *raw));
                self.queue.wait([(at, name)]);
            }
            News::Deleted(name, raw) => {
                let last = Seen::of(kind, *raw);
                if let Some(all) = &mut self.objects[at] {
                    let same = |known: &Seen| known.object.uid == last.object.uid;
                    if all.get(&name).is_some_and(same) {
                        all.remove(&name);
                    }
                }
                self.queue.wait([(at, name)]);
            }
            News::Crowded(crowded) => self.crowded.0[at] = crowded,
            // The log has it. Jobs go on, and all is compared when a list has come.
            News::Followed | News::Unreadable(_) => {}
        }
    }

    fn hear_made(&mut self, news: News<JobName, Box<Made>>) {
        match news {
            News::Listed(all, crowded) => {
                self.crowded.1 = crowded;
                let before = self.made.replace(all).unwrap_or_default();
                for name in before.keys() {
                    self.wait_for(name);
                }
                let names: Vec<JobName> = self
                    .made
                    .iter()
                    .flatten()
                    .map(|(name, _)| name.clone())
                    .collect();
                for name in &names {
                    self.wait_for(name);
                }
                // Those without one wait for this list.
                let all = self.objects.iter().enumerate();
                let all = all.flat_map(|(at, objects)| {
                    objects
                        .iter()
                        .flatten()
                        .map(move |(name, _)| (at, name.clone()))
                });
                let all: Vec<Key> = all.collect();
                self.queue.wait(all);
            }
            News::Applied(name, made) => {
                self.know_made(made);
                self.wait_for(&name);
            }
            News::Deleted(name, last) => {
                if let Some(all) = &mut self.made
                    && all.get(&name).is_some_and(|known| known.uid == last.uid)
                {
                    all.remove(&name);
                }
                self.wait_for(&name);
            }
            News::Crowded(crowded) => self.crowded.1 = crowded,
            News::Followed | News::Unreadable(_) => {}
        }
    }

    /// All objects of this name wait.
    fn wait_for(&mut self, name: &JobName) {
        let kinds = 0..self.kinds.len();
        self.queue.wait(kinds.map(|at| (at, name.clone())));
    }

    /// Takes what the server says of an object, unless something newer is known.
    fn know(&mut self, at: usize, seen: Seen) {
        let Some(all) = &mut self.objects[at] else {
            return;
        };
        let known = all.get(&seen.object.name);
        let same = known.filter(|known| known.object.uid == seen.object.uid);
        if !same.is_some_and(|known| seen.is_older_than(known)) {
            all.insert(seen.object.name.clone(), seen);
        }
    }

    fn know_made(&mut self, made: Box<Made>) {
        let Some(all) = &mut self.made else { return };
        let same = all.get(&made.name).filter(|known| known.uid == made.uid);
        if !same.is_some_and(|known| made.is_older_than(known)) {
            all.insert(made.name.clone(), made);
        }
    }

    /// Looks which jobs have changed.
    fn look(&mut self) {
        let board = self.board.borrow_and_update();
        let made = self.made.iter().flatten();
        let made: BTreeSet<&JobName> = made.map(|(name, _)| name).collect();
        let changed = board.since(self.revision).map(|(name, _)| name);
        let changed: Vec<JobName> = changed
            .filter(|name| made.contains(name))
            .cloned()
            .collect();
        self.revision = board.revision();
        drop(board);
        for name in &changed {
            self.wait_for(name);
        }
    }

    fn begin_one(&mut self, key: &Key, now: Instant) {
        let (at, name) = key;
        let kind = self.kinds[*at];
        let seen = self.objects[*at].as_ref().and_then(|all| all.get(name));
        // One that another kind's object owns is met when ours is made.
        let made = self.made.as_ref().and_then(|all| all.get(name));
        let made = made.filter(|made| made.is_of(&kind));
        let clock = self.handle.now();
        let beside = seen.and_then(|seen| seen.beside(made?));
        let object = seen.map(|seen| beside.as_ref().unwrap_or(&seen.object));
        let Plan {
            step,
            objection,
            shows,
            again,
        } = match self.hidden(key, seen, made.is_some()) {
            Some(plan) => plan,
            None => plan(object, made.map(|made| &made.child), clock),
        };
        if seen.is_none() && made.is_none() {
            self.works.remove(key);
            return;
        }
        let (seen, made) = (seen.cloned(), made.map(|made| (**made).clone()));
        let work = self.works.entry(key.clone()).or_default();
        if step.is_none() {
            (work.refused, work.step) = (None, Attempts::default());
        }
        if let Some(step) = step {
            match work.step.may(now) {
                Ok(()) => {
                    return self.do_step(key, step, seen, made);
                }
                Err(again) => self.queue.wake(key, again),
            }
        }
        if let Some(again) = again {
            // A far moment is looked at again before.
            self.queue
                .wake(key, now + again.since(clock).min(LOOK_AGAIN));
        }
        let Some(seen) = seen else { return };
        if self.begin_label(key, &seen, made.as_ref(), now) {
            return;
        }
        self.begin_write(key, &seen, made.as_ref(), (shows, objection), now);
    }

    /// What is done where the object, or the `MusterJob` that was made for it, may be there without being
    /// known. `None`: both are known, or are not there.
    fn hidden(&self, (at, name): &Key, seen: Option<&Seen>, is_made: bool) -> Option<Plan> {
        let (objects, made) = &self.crowded;
        let why = match seen {
            None if objects[*at].contains(&name.namespace) => None,
            Some(seen) if seen.shed => Some(format!(
                "the {} objects of namespace {} take more than their share of the coordinator's memory; delete some that are not needed, and then \
                 change this one",
                seen.kind.kind, name.namespace
            )),
            Some(_) if !is_made && made.contains(&name.namespace) => {
                Some(CHILDREN.crowded(&name.namespace))
            }
            _ => return None,
        };
        let is_ours = seen.is_some_and(|seen| seen.object.claim == Claim::Ours);
        Some(Plan {
            step: None,
            objection: why.filter(|_| is_ours).map(Objection::NotYet),
            shows: Shows::AsItIs,
            again: None,
        })
    }

    fn do_step(&mut self, key: &Key, step: Step, seen: Option<Seen>, made: Option<Made>) {
        let (server, kind) = (self.server.clone(), self.kinds[key.0]);
        let at = self.handle.now();
        let mut spawn =
            |doing: std::pin::Pin<Box<dyn Future<Output = Result<Done, Failed>> + Send>>| {
                self.queue.begin(key, doing);
            };
        match (step, seen, made) {
            (Step::Create(_), Some(seen), _) if seen.spec.is_some() => {
                spawn(Box::pin(deeds::create_with_runtime(server, seen, at)));
            }
            (Step::Create(wanted), Some(seen), _) => {
                let object = made::object(&kind, &seen.object, &wanted);
                let told = events::no_effect(&seen, &seen.warnings, at);
                spawn(Box::pin(deeds::create(server, seen, object, told)));
            }
            (Step::Update(change), _, Some(made)) => {
                spawn(Box::pin(deeds::change(server, made, change)));
            }
            (Step::DeleteChild, seen, Some(made)) => {
                // The object of that name is another one, or somebody has deleted it.
                let is_certain = seen.is_some();
                spawn(Box::pin(deeds::delete_child(
                    server, kind, made, is_certain,
                )));
            }
            (Step::DeleteObject, Some(seen), _) => {
                spawn(Box::pin(deeds::delete_object(server, seen)));
            }
            _ => spawn(Box::pin(async { Ok(Done::Asked) })),
        }
    }

    /// Begins to label a pod, if one has other labels than its member.
    fn begin_label(&mut self, key: &Key, seen: &Seen, made: Option<&Made>, now: Instant) -> bool {
        let view = made.and_then(|made| {
            let view = self.handle.job(&made.name)?;
            (view.record.uid == made.uid).then_some(view)
        });
        let Some((view, work)) = view.zip(self.works.get_mut(key)) else {
            return false;
        };
        let Some((pod, place)) = labels::next(&seen.kind, &view, &work.labelled) else {
            return false;
        };
        if let Err(again) = work.label.may(now) {
            self.queue.wake(key, again);
            return false;
        }
        let namespace = key.1.namespace.clone();
        let doing = deeds::label(self.server.clone(), seen.kind, namespace, pod, place);
        self.queue.begin(key, doing);
        true
    }

    fn begin_write(
        &mut self,
        key: &Key,
        seen: &Seen,
        made: Option<&Made>,
        (mut shows, mut objection): (Shows, Option<Objection>),
        now: Instant,
    ) {
        let Some(work) = self.works.get_mut(key) else {
            return;
        };
        if let Some((why, is_final)) = work.refused.clone() {
            (shows, objection) = match is_final {
                true => (Shows::Failed, Some(Objection::Refused(why))),
                false => (shows, objection.or(Some(Objection::NotYet(why)))),
            };
        }
        let at = self.handle.now();
        let mut told = Vec::new();
        if let Some(objection) = &objection
            && work.told.as_ref() != Some(objection)
        {
            let note = objection.to_string();
            told.push(events::event(seen, true, objection.reason(), &note, at));
        }
        let view = made.and_then(|made| {
            let view = self.handle.job(&made.name)?;
            (view.record.uid == made.uid).then_some(view)
        });
        let board = self.handle.events();
        let board = board.borrow();
        let story: Vec<_> = view
            .iter()
            .flat_map(|view| board.story(&view.record.uid))
            .collect();
        let story: Vec<_> = story.into_iter().map(|event| &**event).collect();
        let job = view.as_deref().map(|view| (view, &story[..]));
        let wanted = status::wanted(seen, shows, objection.as_ref(), made, job, at);
        drop(story);
        drop(board);
        let urgency = wanted
            .as_ref()
            .and_then(|wanted| status::urgency(&seen.status, wanted));
        let (Some(wanted), Some(urgency)) = (wanted, urgency) else {
            if !told.is_empty() {
                work.told = objection;
                let server = self.server.clone();
                self.queue.begin(key, async move {
                    deeds::tell(&server, told).await;
                    Ok(Done::Asked)
                });
            }
            return;
        };
        let (wait, reserve) = match urgency {
            Urgency::Now => (NOW, 0),
            Urgency::Soon => (SOON, WRITES_RESERVED),
        };
        let rested = work.written.map(|at| at + wait).filter(|at| *at > now);
        let may = rested.map_or(Ok(()), Err).and(work.write.may(now));
        if let Err(again) = may.and_then(|()| self.writes.take(now, reserve)) {
            return self.queue.wake(key, again);
        }
        work.told = objection;
        if let Some(new) = status::news(&seen.status, &wanted) {
            let failed = seen.kind.words().is_failure(new.kind);
            told.push(events::event(seen, failed, new.reason, new.message, at));
        }
        let patch = json!({
            "metadata": { "resourceVersion": seen.version },
            "status": crate::jobs::difference(&seen.status, &wanted),
        });
        let doing = deeds::write(self.server.clone(), seen.clone(), patch, told);
        self.queue.begin(key, doing);
    }

    fn has_ended(&mut self, key: Key, result: Result<Done, Failed>) {
        let now = Instant::now();
        let Some(work) = self.works.get_mut(&key) else {
            return;
        };
        match result {
            Ok(Done::Asked) => {
                // Not again before the watch had time to tell.
                let again = work.step.failed(now);
                self.queue.wake(&key, again);
            }
            Ok(Done::Made(made)) => {
                (work.step, work.refused) = (Attempts::default(), None);
                self.know_made(made);
                self.goes_well();
            }
            Ok(Done::Written(raw)) => {
                (work.write, work.written) = (Attempts::default(), Some(now));
                let seen = Seen::of(self.kinds[key.0], *raw);
                let known = self.objects[key.0].as_ref().and_then(|all| all.get(&key.1));
                // If it is gone, or another one of its name is there, the watch has said so.
                if known.is_some_and(|known| known.object.uid == seen.object.uid) {
                    self.know(key.0, seen);
                }
                self.goes_well();
            }
            Ok(Done::Labelled(pod, place)) => {
                work.label = Attempts::default();
                work.labelled.insert(pod, place);
            }
            Err(failed) => self.failed(&key, failed, now),
        }
    }

    fn goes_well(&mut self) {
        if self.logged.take().is_some() {
            info!("adopted objects and their MusterJob objects can be changed again");
        }
    }

    fn failed(&mut self, key: &Key, failed: Failed, now: Instant) {
        let Some(work) = self.works.get_mut(key) else {
            return;
        };
        let kind = self.kinds[key.0];
        let why = sentence(&failed, &kind);
        let attempts = match failed {
            Failed::Refused { why, is_final } => {
                work.refused = Some((why, is_final));
                &mut work.step
            }
            Failed::Step(_) => &mut work.step,
            Failed::Write(_) => &mut work.write,
            Failed::Label(_) => &mut work.label,
        };
        let again = attempts.failed(now);
        self.queue.wake(key, again);
        if let Some(why) = why.filter(|why| self.logged.as_ref() != Some(why)) {
            warn!(job = %key.1, "{} objects cannot be kept in step, their jobs go on: {why}", kind.kind);
            self.logged = Some(why);
        }
    }
}

impl controller::Controller for Controller {
    type Key = Key;
    type Done = Result<Done, Failed>;
    type News = Heard;

    const OBJECTS: &'static str = "an adopted object";

    fn queue(&mut self) -> &mut WorkQueue<Key, Self::Done> {
        &mut self.queue
    }

    fn is_ready(&mut self) -> bool {
        self.made.is_some()
    }

    async fn look_at(&mut self, key: &Key) {
        if self.objects[key.0].is_some() {
            self.begin_one(key, Instant::now());
        }
    }

    async fn hear(&mut self, news: Heard) {
        match news {
            Heard::Objects(Told::Objects(at, news)) => self.hear_objects(at, news),
            Heard::Objects(Told::Made(news)) => self.hear_made(news),
            Heard::Board => self.look(),
        }
    }

    async fn done(&mut self, key: Key, result: Self::Done) {
        self.has_ended(key, result);
    }
}
