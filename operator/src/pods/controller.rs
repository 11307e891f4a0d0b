//! Makes the pods that jobs lack and deletes those that they do not need, as `core::fleet::pod_work`
//! says. Here are the requests, how many go out at a time, and when they are tried again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use muster_core::{
    fleet::{
        Input, PodNews,
        job::JobRecord,
        pod_plan::{Host, PodState},
        pod_work::{Created, Deleted, NextWork, PodWork, PodsByNode},
        view::JobView,
        worker_pod::{WorkerPod, is_pod, node_of},
    },
    id::{JobName, JobUid, NodeName, node_name_error},
};
use muster_handle::{board, handle::Handle};
use muster_runtime::backoff::entropy;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, Interval, MissedTickBehavior, interval},
};
use tracing::{debug, info, warn};

use super::{
    ABOUT,
    kueue::{Flavors, Unplaced},
    model::{Model, NoSite},
    object::kept,
    template,
};
use crate::{
    attempts::Attempts,
    controller,
    desk::{Counts, Desk, Placement, Standings},
    follow::{Crowded, News},
    owner::JobKey,
    pace::Pace,
    server::{Server, Unanswered},
    work_queue::WorkQueue,
};

/// Pods that are being made or deleted at a time.
const AT_ONCE: usize = 16;
/// All of them together: 20 a second, and 200 at once, so that a large job begins quickly.
const WRITES_AT_ONCE: u32 = 200;
const WRITE_EVERY: Duration = Duration::from_millis(50);
/// How often hosts are looked at again, and the authorities in the namespaces of pods.
const LOOK: Duration = Duration::from_secs(5);

/// Where the controller hears from.
pub(super) struct Sources {
    news: mpsc::Receiver<News<NodeName, Arc<WorkerPod>>>,
    board: watch::Receiver<board::Jobs>,
    /// News of jobs' queues. Nothing comes if there are none.
    standings: watch::Receiver<Standings>,
    look: Interval,
}

pub(super) enum Heard {
    Pods(News<NodeName, Arc<WorkerPod>>),
    Board,
    Standings,
    /// It is time to look around.
    Time,
}

impl Sources {
    pub(super) fn new(
        handle: &Handle,
        desk: Option<&Desk>,
        news: mpsc::Receiver<News<NodeName, Arc<WorkerPod>>>,
    ) -> Self {
        let standings = desk.map(Desk::standings);
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            news,
            board: handle.jobs(),
            standings: standings.unwrap_or_else(|| watch::channel(Standings::new()).1),
            look,
        }
    }
}

impl controller::Sources for Sources {
    type News = Heard;

    async fn next(&mut self) -> Option<Heard> {
        tokio::select! {
            news = self.news.recv() => news.map(Heard::Pods),
            // The error: the engine has ended.
            changed = self.board.changed() => changed.ok().map(|()| Heard::Board),
            Ok(()) = self.standings.changed() => Some(Heard::Standings),
            _ = self.look.tick() => Some(Heard::Time),
        }
    }
}

pub(super) struct Controller {
    handle: Handle,
    server: Server,
    model: Arc<Model>,
    board: watch::Receiver<board::Jobs>,
    revision: u64,
    /// Jobs with a template.
    name_by_uid: BTreeMap<JobUid, JobName>,
    /// Those whose job is not there are of one that was deleted, or were never of any.
    works: BTreeMap<JobKey, Work>,
    /// All pods were read once. Until then a job may have some that are not known.
    listed: bool,
    /// Namespaces with more worker pods than are kept of them. Their jobs get no pods: nobody knows how many
    /// they have.
    crowded: Crowded,
    queue: WorkQueue<JobName, (JobUid, Did)>,
    /// What the fleet thinks of each host, for all that wait.
    hosts: BTreeMap<NodeName, Host>,
    writes: Pace,
    queues: Option<Arc<Queues>>,
}

/// Kueue admits jobs.
pub(super) struct Queues {
    pub(super) desk: Arc<Desk>,
    pub(super) flavors: Flavors,
}

/// The work for one job.
#[derive(Default)]
struct Work {
    pods: PodWork,
    attempts: Attempts,
    /// Why its pods cannot be made, as the fleet was told.
    refused: Option<String>,
}

pub(super) enum Did {
    Create(String, Result<(), NotMade>),
    Delete(String, Result<(), Unanswered>),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum NotMade {
    #[error(transparent)]
    Site(#[from] NoSite),
    #[error("{0}")]
    Unanswered(#[from] Unanswered),
    #[error("{0:?} cannot be a node's name: {1}")]
    Name(String, String),
    #[error(transparent)]
    Unplaced(#[from] Unplaced),
    #[error("the API server made something else")]
    Strange,
}

impl Controller {
    pub(super) fn new(
        handle: Handle,
        server: Server,
        model: Arc<Model>,
        queues: Option<Queues>,
    ) -> Self {
        let mut controller = Self {
            queues: queues.map(Arc::new),
            board: handle.jobs(),
            handle,
            server,
            model,
            revision: 0,
            name_by_uid: BTreeMap::new(),
            works: BTreeMap::new(),
            listed: false,
            crowded: Crowded::new(),
            queue: WorkQueue::new(AT_ONCE),
            hosts: BTreeMap::new(),
            writes: Pace::new(WRITES_AT_ONCE, WRITE_EVERY, Instant::now()),
        };
        controller.look();
        controller
    }

    fn hear_pods(&mut self, news: News<NodeName, Arc<WorkerPod>>) {
        let now = self.handle.now();
        match news {
            News::Listed(all, crowded) => {
                self.crowded = crowded;
                let mut of: BTreeMap<JobKey, PodsByNode> = BTreeMap::new();
                for (node, pod) in all {
                    of.entry(JobKey::of_pod(&pod))
                        .or_default()
                        .insert(node, pod);
                }
                for (job, work) in &mut self.works {
                    let listed = of.remove(job).unwrap_or_default();
                    if self.crowded.contains(&job.namespace) {
                        work.pods.watch_listed_in_part(listed, now);
                    } else {
                        work.pods.watch_listed(listed, now);
                    }
                }
                for (job, known) in of {
                    self.works
                        .entry(job)
                        .or_default()
                        .pods
                        .watch_listed(known, now);
                }
                self.listed = true;
                self.queue.wait(self.name_by_uid.values().cloned());
            }
            News::Crowded(crowded) => {
                self.crowded = crowded;
                self.queue.wait(self.name_by_uid.values().cloned());
            }
            News::Applied(node, pod) => {
                self.wait(&pod.job);
                let work = self.works.entry(JobKey::of_pod(&pod)).or_default();
                work.pods.watch_applied(node, pod, now);
            }
            News::Deleted(node, pod) => {
                self.wait(&pod.job);
                if let Some(work) = self.works.get_mut(&JobKey::of_pod(&pod)) {
                    work.pods.watch_deleted(&node, &pod);
                }
            }
            // The log has it.
            News::Followed | News::Unreadable(_) => {}
        }
        self.forget_idle();
    }

    /// Work for a job that is not there any more is kept for as long as it has pods.
    fn forget_idle(&mut self) {
        let of = &self.name_by_uid;
        self.works
            .retain(|key, work| is_there(of, key) || !work.pods.is_empty());
        if let Some(queues) = self.queues.as_ref().filter(|_| self.listed) {
            let counts = self.works.iter();
            let counts = counts.map(|(key, work)| (key.clone(), work.pods.count()));
            queues.desk.count(Counts {
                of_jobs: counts.filter(|(_, count)| *count > 0).collect(),
                crowded: self.crowded.clone(),
            });
        }
    }

    /// What the next pod of a job is to have besides. `None`: it is to get none now.
    fn placement(&self, job: &JobUid) -> Option<(&'static str, Placement)> {
        match &self.queues {
            Some(queues) => queues.desk.placement(job),
            None => Some(Default::default()),
        }
    }

    /// The job of this uid is looked at.
    fn wait(&mut self, job: &JobUid) {
        self.queue.wait(self.name_by_uid.get(job).cloned());
    }

    /// Looks which jobs have changed.
    fn look(&mut self) {
        let board = self.board.borrow_and_update();
        let mut is_new = false;
        for (name, view) in board.since(self.revision) {
            let job = &view.record;
            if job.spec.template.is_some() {
                let known = self.name_by_uid.insert(job.uid.clone(), name.clone());
                is_new |= known.is_none();
                self.queue.wait([name.clone()]);
            }
        }
        let removed = board.removed_since(self.revision);
        if removed {
            self.name_by_uid.retain(|uid, name| {
                let view = board.get(name);
                view.is_some_and(|view| view.record.uid == *uid)
            });
        }
        self.revision = board.revision();
        drop(board);
        if is_new || removed {
            self.model.own(self.name_by_uid.iter());
        }
        if removed {
            self.forget_idle();
        }
    }

    /// Hosts may have become bad, and the authorities other ones.
    async fn look_around(&mut self) {
        self.queue.wait(self.name_by_uid.values().cloned());
        let of = &self.name_by_uid;
        let works = self.works.iter();
        let works = works.filter(|(key, work)| is_there(of, key) && !work.pods.is_empty());
        let namespaces: BTreeSet<String> = works.map(|(key, _)| key.namespace.clone()).collect();
        self.model.retain(&namespaces);
        for namespace in &namespaces {
            if let Err(why) = self.model.publish(namespace).await {
                debug!("{why}");
            }
        }
    }

    async fn begin_one(&mut self, name: &JobName, view: &JobView) {
        let (now, clock, job) = (Instant::now(), self.handle.now(), &view.record);
        let key = JobKey::new(name, &job.uid);
        let mut work = self.works.remove(&key).unwrap_or_default();
        let hosts = &self.hosts;
        let NextWork {
            tell,
            delete,
            create,
            is_complete,
            gives_back,
            look_at,
        } = work.pods.next(
            job,
            &view.pods_unneeded,
            |host| hosts.get(host).copied().unwrap_or(Host::Unknown),
            |node| self.state(node),
            clock,
            entropy(),
        );
        if let Some(at) = look_at {
            self.queue.wake(name, now + at.since(clock).min(LOOK * 720));
        }
        if gives_back {
            info!(job = %name, "too few worker pods could be had, so it gives all back and comes again");
        }
        let placement = self.placement(&job.uid);
        let mut held_up = None;
        for pod in delete {
            if let Err(at) = may_begin(&self.queue, &work.attempts, &mut self.writes, now) {
                held_up = Some(at);
                break;
            }
            info!(job = %name, pod = pod.pod, "worker pod deleted: {}", pod.why);
            work.pods.begin_delete(&pod, clock);
            let (server, path) = (self.server.clone(), path(name, &pod.pod));
            let job = job.uid.clone();
            self.queue.begin_beside(name, async move {
                let result = remove(&server, &path, &pod.uid).await;
                (job, Did::Delete(pod.uid, result))
            });
        }
        // A job that is to get none is looked at again when its queue says more.
        let mut create = placement.as_ref().map_or(0, |_| create);
        let mut hidden = None;
        if create > 0 && self.crowded.contains(&name.namespace) {
            create = 0;
            let why = ABOUT.crowded(&name.namespace);
            hidden = (work.refused.as_ref() != Some(&why)).then_some(why);
            work.refused = hidden.clone().or(work.refused);
        }
        for _ in 0..create {
            if held_up.is_some() {
                break;
            }
            if let Err(at) = may_begin(&self.queue, &work.attempts, &mut self.writes, now) {
                held_up = Some(at);
                break;
            }
            let pod = work.pods.begin_create(&job.name.name, entropy());
            let (server, model, job) = (self.server.clone(), self.model.clone(), job.clone());
            let avoided = hosts.iter().filter(|(_, host)| host.takes_no_new_pods());
            let avoided: Vec<NodeName> = avoided.map(|(name, _)| name.clone()).collect();
            let (queues, placement) = (self.queues.clone(), placement.clone());
            self.queue.begin_beside(name, async move {
                let placed = queues.as_deref().zip(placement.as_ref());
                let made = make(&server, &model, &job, &pod, avoided, placed).await;
                (job.uid, Did::Create(pod, made))
            });
        }
        let is_told = is_complete && work.refused.take().is_some();
        self.works.insert(key, work);
        self.forget_idle();
        match held_up {
            // Whatever ends next makes room.
            Some(at) if at <= now => self.queue.wait([name.clone()]),
            Some(at) => self.queue.wake(name, at),
            None => {}
        }
        if is_told {
            self.tell(&job.uid, None).await;
        }
        if let Some(why) = hidden {
            warn!(job = %name, "it gets no worker pods: {why}");
            self.tell(&job.uid, Some(why)).await;
        }
        if let Some(unneeded) = tell {
            // The job's view tells when the fleet has taken it.
            let news = PodNews::Unneeded(job.uid.clone(), unneeded);
            let _ = self.handle.tell(Input::Pods(news)).await;
        }
    }

    /// What the fleet thinks of each host.
    fn hosts(&self) -> BTreeMap<NodeName, Host> {
        let nodes = self.handle.nodes();
        let nodes = nodes.borrow();
        let hosts = nodes.after(None).filter(|(name, _)| !is_pod(name));
        hosts
            .map(|(name, view)| (name.clone(), Host::of(view)))
            .collect()
    }

    /// What the fleet thinks of the pod that is this node.
    fn state(&self, node: &NodeName) -> PodState {
        PodState::of(self.handle.node(node).as_deref())
    }

    async fn has_ended(&mut self, name: &JobName, job: &JobUid, did: Did) {
        let (now, clock) = (Instant::now(), self.handle.now());
        let work = self.works.entry(JobKey::new(name, job)).or_default();
        match did {
            Did::Create(pod, Ok(())) => {
                work.pods.create_answered(&pod, Created::Yes, clock);
                work.attempts = Attempts::default();
                if work.refused.take().is_some() {
                    self.tell(job, None).await;
                }
            }
            Did::Create(pod, Err(why)) => {
                work.pods.create_answered(&pod, why.means(), clock);
                let again = work.attempts.failed(now);
                let why = sentence(&pod, &why);
                let is_new = work.refused.as_ref() != Some(&why);
                work.refused = Some(why.clone());
                self.queue.wake(name, again);
                if is_new {
                    warn!(job = %name, "its worker pods cannot be made: {why}");
                    self.tell(job, Some(why)).await;
                }
            }
            Did::Delete(uid, Ok(())) => work.pods.delete_answered(&uid, Deleted::Yes),
            Did::Delete(uid, Err(why)) if why.is_missing() => {
                work.pods.delete_answered(&uid, Deleted::Missing);
            }
            Did::Delete(uid, Err(why)) => {
                let removed = match why.may_be_done() {
                    true => Deleted::Unknown,
                    false => Deleted::No,
                };
                work.pods.delete_answered(&uid, removed);
                let again = work.attempts.failed(now);
                warn!(job = %name, "a worker pod cannot be deleted: {why}");
                self.queue.wake(name, again);
            }
        }
        self.forget_idle();
    }

    /// Tells the fleet why a job lacks pods.
    async fn tell(&self, job: &JobUid, why: Option<String>) {
        let news = PodNews::Refused(job.clone(), why);
        // If the engine has ended, so does this.
        let _ = self.handle.tell(Input::Pods(news)).await;
    }
}

impl controller::Controller for Controller {
    type Key = JobName;
    type Done = (JobUid, Did);
    type News = Heard;

    const OBJECTS: &'static str = "worker pods";

    fn queue(&mut self) -> &mut WorkQueue<JobName, Self::Done> {
        &mut self.queue
    }

    fn is_ready(&mut self) -> bool {
        if !self.listed || self.queue.is_empty() {
            return false;
        }
        self.hosts = self.hosts();
        true
    }

    async fn look_at(&mut self, name: &JobName) {
        let view = self.handle.job(name);
        if let Some(view) = view.filter(|view| view.record.spec.template.is_some()) {
            self.begin_one(name, &view).await;
        }
    }

    async fn hear(&mut self, news: Heard) {
        match news {
            Heard::Pods(news) => self.hear_pods(news),
            Heard::Board => self.look(),
            Heard::Standings => self.queue.wait(self.name_by_uid.values().cloned()),
            Heard::Time => self.look_around().await,
        }
    }

    async fn done(&mut self, name: JobName, (job, did): (JobUid, Did)) {
        self.has_ended(&name, &job, did).await;
    }
}

impl NotMade {
    /// Whether the pod may have been made all the same.
    fn means(&self) -> Created {
        match self {
            Self::Unanswered(Unanswered::Exists(_)) => Created::Exists,
            Self::Unanswered(why) if why.may_be_done() => Created::Unknown,
            // It is there, and no worker pod. Another one would be alike.
            Self::Strange => Created::Unknown,
            Self::Unanswered(_) | Self::Site(_) | Self::Unplaced(_) | Self::Name(..) => Created::No,
        }
    }
}

/// Whether something else may be begun now. The error is when it may.
fn may_begin(
    queue: &WorkQueue<JobName, (JobUid, Did)>,
    attempts: &Attempts,
    writes: &mut Pace,
    now: Instant,
) -> Result<(), Instant> {
    match queue.has_room() {
        true => attempts.may(now).and_then(|()| writes.take(now, 0)),
        // Whatever ends next makes room.
        false => Err(now),
    }
}

fn is_there(name_by_uid: &BTreeMap<JobUid, JobName>, key: &JobKey) -> bool {
    let name = name_by_uid.get(&key.uid);
    name.is_some_and(|name| name.namespace == key.namespace)
}

fn path(job: &JobName, pod: &str) -> String {
    format!("/api/v1/namespaces/{}/pods/{pod}", job.namespace)
}

async fn make(
    server: &Server,
    model: &Model,
    job: &JobRecord,
    name: &str,
    avoided: Vec<NodeName>,
    placed: Option<(&Queues, &(&str, Placement))>,
) -> Result<(), NotMade> {
    let namespace = &job.name.namespace;
    let site = model.site(namespace).await?;
    let text = job.spec.template.as_deref().unwrap_or_default();
    let template: Value = serde_json::from_str(text).unwrap_or_default();
    if let Some(why) = node_name_error(node_of(namespace, name).as_str()) {
        return Err(NotMade::Name(name.to_owned(), why));
    }
    let mut pod = template::pod(job, &template, name, &site, &avoided);
    if let Some((queues, (version, placement))) = placed {
        queues.flavors.place(&mut pod, version, placement).await?;
    }
    // A field that this cluster does not know is a mistake, and is told as one.
    let path = format!("/api/v1/namespaces/{namespace}/pods?fieldValidation=Strict");
    let made: Pod = server.create(&path, &pod).await?;
    kept(made).map(drop).ok_or(NotMade::Strange)
}

/// Deletes this very pod, and none of its name that came after it.
async fn remove(server: &Server, path: &str, uid: &str) -> Result<(), Unanswered> {
    let options =
        json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid } });
    server.delete::<Value>(path, &options).await.map(drop)
}

/// Why, in the words of the API server. Its name of the pod is left out, because each attempt has
/// another one, and people are told what is new.
fn sentence(pod: &str, why: &NotMade) -> String {
    let (text, code) = match why {
        NotMade::Unanswered(Unanswered::Forbidden(text)) => (text, String::new()),
        NotMade::Unanswered(Unanswered::Refused { code, text }) => (text, format!(" ({code})")),
        _ => return why.to_string(),
    };
    // Each attempt has a pod of another name, and the reason is the same.
    let said = [" is forbidden: ", " is invalid: "]
        .iter()
        .find_map(|words| text.split_once(words))
        .map_or(&**text, |(_, said)| said)
        .replace(pod, "NAME");
    if said.contains("cannot create resource") {
        return format!("{said}; manifests/components/worker-pods has the right");
    }
    // A quota, the namespace's Pod Security level, another policy, or a template that is no pod. It
    // says which.
    format!("{said}{code}")
}

#[cfg(test)]
mod tests;
