//! The loop: whenever a job, its object, its pods or its Workload has changed, the job is looked at.
//! Where it stands is told to the others, and at most one change of its Workload is under way.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use muster_core::{
    fleet::{
        job::JobRecord,
        queue::{Admission, Decision, Queued, Said, Step, decide},
    },
    id::JobUid,
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

use super::{
    ABOUT, Told,
    object::{self, GROUP, PLURAL, Seen},
};
use crate::{
    board,
    handle::Handle,
    kubernetes::{
        attempts::Attempts,
        desk::{Counts, Desk, Placement, Places, Standing},
        follow::{Crowded, News},
        owner::JobKey,
        pace::Pace,
        pods::{
            model::{Model, NoSite},
            template,
        },
        server::{Server, Unanswered},
    },
};

/// Workloads that are being written at a time.
const AT_ONCE: usize = 16;
/// All of them together: 20 a second, and 100 at once.
const WRITES_AT_ONCE: u32 = 100;
const WRITE_EVERY: Duration = Duration::from_millis(50);

/// So many that are gone are remembered. Late news comes within seconds.
const GONE_MAX: usize = 4_096;

pub(super) struct Controller {
    handle: Handle,
    server: Server,
    model: Arc<Model>,
    desk: Arc<Desk>,
    told: mpsc::Receiver<Told>,
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
    waiting: BTreeSet<JobUid>,
    due: BTreeMap<JobUid, Instant>,
    under_way: JoinSet<(JobUid, Result<Option<Seen>, Failed>)>,
    writes: Pace,
}

#[derive(Default)]
struct Work {
    busy: bool,
    attempts: Attempts,
    /// Why the last change of the Workload has failed.
    refused: Option<String>,
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Site(#[from] NoSite),
    #[error("{0}")]
    Unanswered(#[from] Unanswered),
}

impl Controller {
    pub(super) fn new(
        handle: Handle,
        server: Server,
        model: Arc<Model>,
        desk: Arc<Desk>,
        told: mpsc::Receiver<Told>,
    ) -> Self {
        Self {
            board: handle.jobs(),
            places: desk.places(),
            counts: desk.counts(),
            handle,
            server,
            model,
            desk,
            told,
            revision: 0,
            version: "",
            known: None,
            crowded: Crowded::new(),
            unreadable: None,
            gone: BTreeSet::new(),
            works: BTreeMap::new(),
            waiting: BTreeSet::new(),
            due: BTreeMap::new(),
            under_way: JoinSet::new(),
            writes: Pace::new(WRITES_AT_ONCE, WRITE_EVERY, Instant::now()),
        }
    }

    pub(super) async fn work(mut self) {
        loop {
            self.begin();
            let due = self.due.values().min().copied();
            tokio::select! {
                told = self.told.recv() => match told {
                    Some(told) => self.hear(told),
                    None => return,
                },
                changed = self.board.changed() => match changed {
                    Ok(()) => self.look(),
                    // The engine has ended.
                    Err(_) => return,
                },
                Ok(()) = self.places.changed() => self.look_at_all(),
                Ok(()) = self.counts.changed() => self.look_at_all(),
                Some(ended) = self.under_way.join_next() => match ended {
                    Ok((job, result)) => self.done(&job, result),
                    // A panic was logged. The job's Workload stays as it is, and the rest goes on.
                    Err(e) => warn!("work on Workloads: {e}"),
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let now = Instant::now();
                    let ready = self.due.extract_if(.., |_, at| *at <= now);
                    self.waiting.extend(ready.map(|(job, _)| job));
                }
            }
        }
    }

    fn hear(&mut self, told: Told) {
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
                self.waiting.insert(job.uid);
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
                self.waiting.insert(job.uid);
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
        self.waiting.extend(changed.filter(is_there).cloned());
        self.revision = board.revision();
    }

    fn look_at_all(&mut self) {
        let places = self.places.borrow_and_update();
        self.waiting
            .extend(places.iter().flatten().map(|(uid, _)| uid.clone()));
        drop(places);
        self.counts.borrow_and_update();
        self.works
            .retain(|uid, work| work.busy || self.waiting.contains(uid));
    }

    fn begin(&mut self) {
        if self.places.borrow().is_none() {
            return;
        }
        let busy: BTreeSet<JobUid> = self
            .waiting
            .iter()
            .filter(|uid| self.works.get(uid).is_some_and(|work| work.busy))
            .cloned()
            .collect();
        let all = std::mem::replace(&mut self.waiting, busy.clone());
        for uid in all.difference(&busy) {
            self.due.remove(uid);
            self.begin_one(uid);
        }
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
        let room = match self.under_way.len() < AT_ONCE {
            true => Ok(()),
            false => Err(now + WRITE_EVERY),
        };
        let may = room.and(work.attempts.may(now));
        if let Err(again) = may.and_then(|()| self.writes.take(now, 0)) {
            let due = self.due.entry(uid.clone()).or_insert(again);
            *due = again.min(*due);
            return;
        }
        work.busy = true;
        debug!(job = %job.name, "its Workload: {step:?}");
        let writing = Writing {
            server: self.server.clone(),
            model: self.model.clone(),
            version: self.version,
            job: job.clone(),
            seen,
            now: self.handle.now(),
        };
        let uid = uid.clone();
        self.under_way
            .spawn(async move { (uid, writing.write(step).await) });
    }

    fn done(&mut self, uid: &JobUid, result: Result<Option<Seen>, Failed>) {
        self.waiting.insert(uid.clone());
        let work = self.works.entry(uid.clone()).or_default();
        work.busy = false;
        match result {
            Ok(seen) => {
                (work.refused, work.attempts) = (None, Attempts::default());
                if let Some(seen) = seen {
                    self.know(Box::new(seen));
                }
            }
            Err(why) => {
                let again = work.attempts.failed(Instant::now());
                self.due.insert(uid.clone(), again);
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
