//! The loop: whenever a job, its object, its pods or its Workload has changed, the job is looked at.
//! Where it stands is told to the others, and at most one change of its Workload is under way.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use muster_core::{fleet::job::JobRecord, id::JobUid};
use muster_handle::{board, handle::Handle};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tracing::{debug, info, warn};

use super::{
    ABOUT, Told,
    object::{self, GROUP, PLURAL, Seen},
};
use crate::{
    attempts::Attempts,
    controller,
    desk::{Counts, Desk, Placement, Places, Standing},
    follow::{Crowded, News},
    owner::JobKey,
    pace::Pace,
    pods::{
        model::{Model, NoSite},
        template,
    },
    rules::queue::{Admission, Decision, Queued, Said, Step, decide},
    server::{Server, Unanswered},
    work_queue::WorkQueue,
};

/// Workloads that are being written at a time.
const AT_ONCE: usize = 16;
/// All of them together: 20 a second, and 100 at once.
const WRITES_AT_ONCE: u32 = 100;
const WRITE_EVERY: Duration = Duration::from_millis(50);

/// So many that are gone are remembered. Late news comes within seconds.
const GONE_MAX: usize = 4_096;

/// Where the controller hears from.
pub(super) struct Sources {
    told: mpsc::Receiver<Told>,
    board: watch::Receiver<board::Jobs>,
    places: watch::Receiver<Option<Places>>,
    counts: watch::Receiver<Option<Counts>>,
}

pub(super) enum Heard {
    Workloads(Told),
    Board,
    Desk,
}

impl Sources {
    pub(super) fn new(handle: &Handle, desk: &Desk, told: mpsc::Receiver<Told>) -> Self {
        Self {
            told,
            board: handle.jobs(),
            places: desk.places(),
            counts: desk.counts(),
        }
    }
}

impl controller::Sources for Sources {
    type News = Heard;

    async fn next(&mut self) -> Option<Heard> {
        tokio::select! {
            told = self.told.recv() => told.map(Heard::Workloads),
            // The error: the engine has ended.
            changed = self.board.changed() => changed.ok().map(|()| Heard::Board),
            Ok(()) = self.places.changed() => Some(Heard::Desk),
            Ok(()) = self.counts.changed() => Some(Heard::Desk),
        }
    }
}

pub(super) struct Controller {
    handle: Handle,
    server: Server,
    model: Arc<Model>,
    desk: Arc<Desk>,
    board: watch::Receiver<board::Jobs>,
    revision: u64,
    places: watch::Receiver<Option<Places>>,
    counts: watch::Receiver<Option<Counts>>,
    /// The version of the Workloads.
    version: &'static str,
    /// `None`: they were not read yet.
    known: Option<BTreeMap<JobKey, Box<Seen>>>,
    /// Namespaces of which not all of them are known.
    crowded: Crowded,
    /// Why nothing is known of them.
    unreadable: Option<String>,
    /// The uids of Workloads that are gone. An answer that comes late must not bring one back.
    gone: BTreeSet<String>,
    works: BTreeMap<JobUid, Work>,
    queue: WorkQueue<JobUid, Result<Option<Seen>, Failed>>,
    writes: Pace,
}

#[derive(Default)]
struct Work {
    attempts: Attempts,
    /// Why the last change of the Workload has failed.
    refused: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error(transparent)]
    Site(#[from] NoSite),
    #[error("{0}")]
    Unanswered(#[from] Unanswered),
}

impl Controller {
    pub(super) fn new(handle: Handle, server: Server, model: Arc<Model>, desk: Arc<Desk>) -> Self {
        Self {
            board: handle.jobs(),
            places: desk.places(),
            counts: desk.counts(),
            handle,
            server,
            model,
            desk,
            revision: 0,
            version: "",
            known: None,
            crowded: Crowded::new(),
            unreadable: None,
            gone: BTreeSet::new(),
            works: BTreeMap::new(),
            // All that wait are looked at, because where each stands is told at once. Writes have their own bound.
            queue: WorkQueue::new(usize::MAX),
            writes: Pace::new(WRITES_AT_ONCE, WRITE_EVERY, Instant::now()),
        }
    }

    fn hear_workloads(&mut self, told: Told) {
        match told {
            Told::Version(version) => {
                info!("Workloads of Kueue are followed in version {version}");
                (self.version, self.known, self.unreadable) = (version, None, None);
            }
            Told::Absent(why) => {
                if self.unreadable.as_ref() != Some(&why) {
                    warn!("jobs that name a queue wait: {why}");
                }
                (self.known, self.unreadable) = (None, Some(why));
                self.look_at_all();
            }
            Told::News(News::Listed(all, crowded)) => {
                self.crowded = crowded;
                (self.known, self.unreadable) = (Some(all), None);
                self.look_at_all();
            }
            Told::News(News::Crowded(crowded)) => {
                self.crowded = crowded;
                self.look_at_all();
            }
            Told::News(News::Applied(job, seen)) => {
                self.know(seen);
                self.queue.wait([job.uid]);
            }
            Told::News(News::Deleted(job, last)) => {
                if self.gone.len() >= GONE_MAX {
                    self.gone.clear();
                }
                self.gone.insert(last.own_uid.clone());
                if let Some(known) = &mut self.known
                    && known
                        .get(&job)
                        .is_some_and(|known| known.own_uid == last.own_uid)
                {
                    known.remove(&job);
                }
                self.queue.wait([job.uid]);
            }
            // The log has it. Until a new list comes, the objects as known count.
            Told::News(News::Unreadable(why)) => {
                self.unreadable = Some(why);
                self.look_at_all();
            }
            Told::News(News::Followed) => self.unreadable = None,
        }
    }

    /// Takes what the server says of a Workload, unless something newer is known.
    fn know(&mut self, seen: Box<Seen>) {
        let Some(known) = &mut self.known else { return };
        if self.gone.contains(&seen.own_uid) {
            return;
        }
        let there = known.get(&seen.key);
        if !there.is_some_and(|there| seen.is_older_than(there)) {
            known.insert(seen.key.clone(), seen);
        }
    }

    /// Looks which jobs have changed.
    fn look(&mut self) {
        let board = self.board.borrow_and_update();
        let places = self.places.borrow();
        let changed = board.since(self.revision).map(|(_, view)| &view.record.uid);
        let is_there = |uid: &&JobUid| places.as_ref().is_some_and(|all| all.contains_key(*uid));
        self.queue.wait(changed.filter(is_there).cloned());
        self.revision = board.revision();
    }

    fn look_at_all(&mut self) {
        let places = self.places.borrow_and_update();
        self.queue
            .wait(places.iter().flatten().map(|(uid, _)| uid.clone()));
        drop(places);
        self.counts.borrow_and_update();
        self.works
            .retain(|uid, _| self.queue.is_busy(uid) || self.queue.is_waiting(uid));
    }

    fn begin_one(&mut self, uid: &JobUid) {
        let place = self
            .places
            .borrow()
            .as_ref()
            .and_then(|all| all.get(uid).cloned());
        let view = place.as_ref().and_then(|place| self.handle.job(&place.job));
        let view = view.filter(|view| view.record.uid == *uid);
        let Some((place, view)) = place.zip(view) else {
            // With the object its Workload goes, too.
            return self.desk.stands(uid, None);
        };
        let job = &view.record;
        let Some(known) = &self.known else {
            let admission = match &self.unreadable {
                Some(why) if job.suspended => Admission::Waits(Said::new("KueueAway", why)),
                _ => Admission::Unknown,
            };
            return self.tell(uid, place.queue.is_some(), admission, Placement::default());
        };
        let key = JobKey::new(&job.name, uid);
        let seen = known.get(&key);
        if seen.is_none() && place.queue.is_some() && self.crowded.contains(&key.namespace) {
            // It may have one, so none is made.
            let admission = match job.suspended {
                true => {
                    Admission::Waits(Said::new("NamespaceCrowded", ABOUT.crowded(&key.namespace)))
                }
                false => Admission::Unknown,
            };
            return self.tell(uid, true, admission, Placement::default());
        }
        let counts = self.counts.borrow();
        let pods = counts.as_ref().and_then(|counts| counts.of(&key));
        drop(counts);
        let queued = Queued {
            job,
            queue: place.queue.as_deref(),
            suspend: place.suspend,
            pods,
        };
        let Decision { admission, step } = decide(queued, seen.map(|seen| &seen.workload));
        let work = self.works.entry(uid.clone()).or_default();
        let admission = match (admission, &work.refused) {
            (Admission::Waits(_), Some(why)) if step.is_some() => {
                Admission::Waits(Said::new("WorkloadRefused", why))
            }
            (admission, _) => admission,
        };
        let placement = seen.map(|seen| seen.placement.clone()).unwrap_or_default();
        let seen = seen.map(|seen| Seen::clone(seen));
        self.tell(uid, place.queue.is_some(), admission, placement);
        match step {
            Some(step) => self.change(uid, job, seen, step),
            None => drop(self.works.remove(uid)),
        }
    }

    fn tell(&self, uid: &JobUid, is_queued: bool, admission: Admission, placement: Placement) {
        let standing = Standing {
            admission,
            placement,
            version: self.version,
        };
        self.desk.stands(uid, is_queued.then_some(standing));
    }

    fn change(&mut self, uid: &JobUid, job: &JobRecord, seen: Option<Seen>, step: Step) {
        let now = Instant::now();
        let work = self.works.entry(uid.clone()).or_default();
        let room = match self.queue.under_way() < AT_ONCE {
            true => Ok(()),
            false => Err(now + WRITE_EVERY),
        };
        let may = room.and(work.attempts.may(now));
        if let Err(again) = may.and_then(|()| self.writes.take(now, 0)) {
            return self.queue.wake(uid, again);
        }
        debug!(job = %job.name, "its Workload: {step:?}");
        let writing = Writing {
            server: self.server.clone(),
            model: self.model.clone(),
            version: self.version,
            job: job.clone(),
            seen,
            now: self.handle.now(),
        };
        self.queue.begin(uid, writing.write(step));
    }

    fn has_ended(&mut self, uid: &JobUid, result: Result<Option<Seen>, Failed>) {
        let work = self.works.entry(uid.clone()).or_default();
        match result {
            Ok(seen) => {
                (work.refused, work.attempts) = (None, Attempts::default());
                if let Some(seen) = seen {
                    self.know(Box::new(seen));
                }
            }
            Err(why) => {
                let again = work.attempts.failed(Instant::now());
                self.queue.wake(uid, again);
                // Somebody else has written at the same time. The watch tells.
                if matches!(&why, Failed::Unanswered(why) if why.is_conflict() || why.is_missing())
                {
                    return debug!("write a Workload: {why}");
                }
                let why = sentence(&why);
                if work.refused.as_ref() != Some(&why) {
                    warn!(job = %uid, "its Workload cannot be written: {why}");
                }
                work.refused = Some(why);
            }
        }
    }
}

impl controller::Controller for Controller {
    type Key = JobUid;
    type Done = Result<Option<Seen>, Failed>;
    type News = Heard;

    const OBJECTS: &'static str = "Workloads";

    fn queue(&mut self) -> &mut WorkQueue<JobUid, Self::Done> {
        &mut self.queue
    }

    fn is_ready(&mut self) -> bool {
        self.places.borrow().is_some()
    }

    async fn look_at(&mut self, uid: &JobUid) {
        self.begin_one(uid);
    }

    async fn hear(&mut self, news: Heard) {
        match news {
            Heard::Workloads(told) => self.hear_workloads(told),
            Heard::Board => self.look(),
            Heard::Desk => self.look_at_all(),
        }
    }

    async fn done(&mut self, uid: JobUid, result: Self::Done) {
        self.has_ended(&uid, result);
    }
}

fn sentence(why: &Failed) -> String {
    match why {
        Failed::Unanswered(Unanswered::Forbidden(text)) if text.contains(" cannot ") => {
            format!("{text}; manifests/components/kueue has the right")
        }
        _ => why.to_string(),
    }
}

/// One change of one Workload.
struct Writing {
    server: Server,
    model: Arc<Model>,
    version: &'static str,
    job: JobRecord,
    seen: Option<Seen>,
    now: muster_core::time::Timestamp,
}

impl Writing {
    /// The Workload as it is then.
    async fn write(self, step: Step) -> Result<Option<Seen>, Failed> {
        let namespace = &self.job.name.namespace;
        let all = format!(
            "/apis/{GROUP}/{}/namespaces/{namespace}/{PLURAL}",
            self.version
        );
        let Some(seen) = &self.seen else {
            let Step::Create(asks) = &step else {
                return Ok(None);
            };
            let object = object::made(&self.job, asks, &self.pod().await?, self.version);
            let made: Value = self.server.create(&all, &object).await?;
            return Ok(Seen::of(made));
        };
        let own = format!("{all}/{}", seen.name);
        let written: Value = match &step {
            Step::Delete => {
                let options = json!({
                    "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": seen.own_uid },
                });
                match self.server.delete::<Value>(&own, &options).await {
                    Err(why) if !why.is_missing() => return Err(why.into()),
                    _ => {}
                }
                // The watch tells when it is gone.
                let mut gone = seen.clone();
                gone.workload.deleting = true;
                return Ok(Some(gone));
            }
            Step::Update(asks) => {
                let patch = json!({
                    "metadata": { "uid": seen.own_uid, "resourceVersion": seen.version },
                    "spec": object::asked(asks, &self.pod().await?),
                });
                self.server.merge(&own, &patch).await?
            }
            step => {
                let Some(patch) = object::patch(seen, step, self.now) else {
                    return Ok(None);
                };
                self.server.merge(&format!("{own}/status"), &patch).await?
            }
        };
        Ok(Seen::of(written))
    }

    /// A pod of the job as it will be made, without what its admission adds.
    async fn pod(&self) -> Result<Value, NoSite> {
        let site = self.model.site(&self.job.name.namespace).await?;
        let text = self.job.spec.template.as_deref().unwrap_or_default();
        let template: Value = serde_json::from_str(text).unwrap_or_default();
        Ok(template::pod(
            &self.job,
            &template,
            &self.job.name.name,
            &site,
            &[],
        ))
    }
}
