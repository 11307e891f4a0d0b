//! Makes the pods that jobs lack and deletes those that they do not need, as
//! `core::fleet::pod_plan` says. What was made or deleted counts at once, before the watch tells it,
//! so nothing is made twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use muster_core::{
    fleet::{
        Input, PodNews,
        job::{JobRecord, Phase},
        pod_plan::{PodPlan, plan},
        view::NodeView,
        worker_pod::{WorkerPod, is_pod, node_of},
    },
    id::{JobName, JobUid, NodeName, node_name_error},
};
use muster_runtime::backoff::entropy;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tracing::{debug, info, warn};

use super::{
    Known,
    model::{Model, NoSite},
    object::kept,
    template,
};
use crate::{
    board,
    handle::Handle,
    kubernetes::{
        attempts::Attempts,
        follow::News,
        pace::Pace,
        server::{Server, Unanswered},
        turns::next,
    },
};

/// Pods that are being made or deleted at a time.
const AT_ONCE: usize = 16;
/// All of them together: 20 a second, and 200 at once, so that a large job begins quickly.
const WRITES_AT_ONCE: u32 = 200;
const WRITE_EVERY: Duration = Duration::from_millis(50);
/// How long a job that has given its pods back waits before it comes again, at first and at most.
const GIVEN_BACK_MIN: Duration = Duration::from_secs(30);
const GIVEN_BACK_MAX: Duration = Duration::from_secs(600);
/// How long a job waits after a pod that was made in vain, at first and at most.
const IN_VAIN_MIN: Duration = Duration::from_secs(1);
const IN_VAIN_MAX: Duration = Duration::from_secs(300);
/// Letters of a job's name in the names of its pods: an object has no more.
const NAME_MAX: usize = 52;
/// How often hosts are looked at again, and the authorities in the namespaces of pods.
const LOOK: Duration = Duration::from_secs(5);

pub(super) struct Controller {
    handle: Handle,
    server: Server,
    model: Arc<Model>,
    news: mpsc::Receiver<News<NodeName, Arc<WorkerPod>>>,
    board: watch::Receiver<board::Jobs>,
    revision: u64,
    /// Jobs with a template.
    names: BTreeMap<JobUid, JobName>,
    pods: BTreeMap<JobUid, Known>,
    /// All pods were read once. Until then a job may have some that are not known.
    listed: bool,
    works: BTreeMap<JobName, Work>,
    waiting: BTreeSet<JobName>,
    /// The job that something was begun for last.
    turn: Option<JobName>,
    due: BTreeMap<JobName, Instant>,
    under_way: JoinSet<(JobName, Did)>,
    writes: Pace,
}

/// What is known of the work for one job.
#[derive(Default)]
struct Work {
    job: Option<JobUid>,
    making: u32,
    removing: BTreeSet<String>,
    attempts: Attempts,
    /// How often in a row the job has given its pods back.
    given_back: u32,
    /// How many pods were made in vain since it last trained.
    in_vain: u32,
    not_before: Option<Instant>,
    /// Why its pods cannot be made, as the fleet was told.
    refused: Option<String>,
}

enum Did {
    Make(Result<Box<WorkerPod>, NotMade>),
    Remove(String, Result<(), Unanswered>),
}

#[derive(Debug, thiserror::Error)]
enum NotMade {
    #[error(transparent)]
    Site(#[from] NoSite),
    #[error("{0}")]
    Unanswered(#[from] Unanswered),
    #[error("{0:?} cannot be a node's name: {1}")]
    Name(String, String),
    #[error("the API server made something else")]
    Strange,
}

impl Controller {
    pub(super) fn new(
        handle: Handle,
        server: Server,
        model: Arc<Model>,
        news: mpsc::Receiver<News<NodeName, Arc<WorkerPod>>>,
    ) -> Self {
        Self {
            board: handle.jobs(),
            handle,
            server,
            model,
            news,
            revision: 0,
            names: BTreeMap::new(),
            pods: BTreeMap::new(),
            listed: false,
            works: BTreeMap::new(),
            waiting: BTreeSet::new(),
            turn: None,
            due: BTreeMap::new(),
            under_way: JoinSet::new(),
            writes: Pace::new(WRITES_AT_ONCE, WRITE_EVERY, Instant::now()),
        }
    }

    pub(super) async fn work(mut self) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.look();
        loop {
            self.begin().await;
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
                    Ok((name, did)) => self.done(&name, did).await,
                    // A panic was logged. The job's work stays undone, and the rest goes on.
                    Err(e) => warn!("work on worker pods: {e}"),
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let now = Instant::now();
                    let ready = self.due.extract_if(.., |_, at| *at <= now);
                    self.waiting.extend(ready.map(|(name, _)| name));
                }
                _ = look.tick() => self.look_around().await,
            }
        }
    }

    fn hear(&mut self, news: News<NodeName, Arc<WorkerPod>>) {
        match news {
            News::Listed(all) => {
                self.pods.clear();
                for (name, pod) in all {
                    self.know(name, pod);
                }
                self.listed = true;
                self.look_at_all();
            }
            News::Applied(name, pod) => {
                self.wait(&pod.job);
                self.know(name, pod);
            }
            News::Deleted(name, pod) => {
                self.wait(&pod.job);
                if let Some(pods) = self.pods.get_mut(&pod.job) {
                    pods.remove(&name);
                    if pods.is_empty() {
                        self.pods.remove(&pod.job);
                    }
                }
                if let Some(work) = self.work_of(&pod.job) {
                    work.removing.remove(&pod.uid);
                }
            }
            // The log has it.
            News::Followed | News::Unreadable(_) => {}
        }
    }

    /// Takes what is said of a pod. One that was deleted just now is being deleted, also if the watch
    /// does not say so yet.
    fn know(&mut self, name: NodeName, mut pod: Arc<WorkerPod>) {
        let removing = |work: &mut Work| work.removing.contains(&pod.uid);
        if !pod.deleting && self.work_of(&pod.job).is_some_and(removing) {
            Arc::make_mut(&mut pod).deleting = true;
        }
        let pods = self.pods.entry(pod.job.clone()).or_default();
        pods.insert(name, pod);
    }

    fn work_of(&mut self, job: &JobUid) -> Option<&mut Work> {
        self.works.get_mut(self.names.get(job)?)
    }

    /// The job of this uid is looked at.
    fn wait(&mut self, job: &JobUid) {
        self.waiting.extend(self.names.get(job).cloned());
    }

    fn look_at_all(&mut self) {
        self.waiting.extend(self.names.values().cloned());
    }

    /// Looks which jobs have changed.
    fn look(&mut self) {
        let board = self.board.borrow_and_update();
        for (name, view) in board.since(self.revision) {
            let job = &view.record;
            if job.spec.template.is_some() {
                self.names.insert(job.uid.clone(), name.clone());
                self.waiting.insert(name.clone());
            }
        }
        if board.removed_since(self.revision) {
            self.names.retain(|uid, name| {
                let view = board.get(name);
                view.is_some_and(|view| view.record.uid == *uid)
            });
            self.works.retain(|name, _| board.get(name).is_some());
        }
        self.revision = board.revision();
    }

    /// Hosts may have become bad, and the authorities other ones.
    async fn look_around(&mut self) {
        self.look_at_all();
        let pods = self.pods.values().flat_map(BTreeMap::values);
        let namespaces: BTreeSet<String> = pods.map(|pod| pod.namespace.clone()).collect();
        self.model.retain(&namespaces);
        for namespace in &namespaces {
            if let Err(why) = self.model.publish(namespace).await {
                debug!("{why}");
            }
        }
    }

    async fn begin(&mut self) {
        if !self.listed || self.waiting.is_empty() {
            return;
        }
        let avoided = self.avoided();
        while self.under_way.len() < AT_ONCE
            && let Some(name) = next(&self.waiting, self.turn.as_ref(), |_| false)
        {
            self.waiting.remove(&name);
            self.due.remove(&name);
            let view = self.handle.job(&name);
            if let Some(view) = view.filter(|view| view.record.spec.template.is_some()) {
                let before = self.under_way.len();
                self.begin_one(&name, &view.record, &avoided).await;
                if self.under_way.len() > before {
                    self.turn = Some(name);
                }
            }
        }
    }

    async fn begin_one(&mut self, name: &JobName, job: &JobRecord, avoided: &BTreeSet<NodeName>) {
        let now = Instant::now();
        let pods = self.pods.get(&job.uid).into_iter().flatten();
        let pods = pods.map(|(_, pod)| &**pod);
        let PodPlan {
            create,
            delete,
            gives_back,
            again,
        } = plan(
            job,
            pods,
            |host| avoided.contains(host),
            |node| self.is_lost(node),
            self.handle.now(),
        );
        let clock = self.handle.now();
        if let Some(at) = again {
            self.wake(name, now + at.since(clock).min(LOOK * 720));
        }
        let work = self.works.entry(name.clone()).or_default();
        if work.job.as_ref() != Some(&job.uid) {
            // An earlier job had the name.
            *work = Work {
                job: Some(job.uid.clone()),
                ..Work::default()
            };
        }
        if job.phase == Phase::Running {
            (work.given_back, work.in_vain) = (0, 0);
        }
        // Pods that are about to be given back are seen several times.
        let rests = work.not_before.is_some_and(|at| at > now);
        if gives_back && !rests {
            let pause = (GIVEN_BACK_MIN * (1 << work.given_back.min(5))).min(GIVEN_BACK_MAX);
            // Two jobs that gave way to each other do not come back together.
            let jitter = pause.mul_f64((entropy() % 1_000) as f64 / 1_000.0);
            work.not_before = Some(now + pause + jitter);
            work.given_back += 1;
            info!(job = %name, "too few worker pods could be had, so it gives all back and comes again");
        }
        for pod in delete {
            let work = self.works.entry(name.clone()).or_default();
            if work.removing.contains(&pod.uid) {
                continue;
            }
            if self.under_way.len() >= AT_ONCE {
                self.waiting.insert(name.clone());
                return;
            }
            if let Err(at) = work
                .attempts
                .may(now)
                .and_then(|()| self.writes.take(now, 0))
            {
                return self.wake(name, at);
            }
            info!(job = %name, pod = pod.pod, "worker pod deleted: {}", pod.why);
            work.removing.insert(pod.uid.clone());
            if pod.in_vain {
                let pause = IN_VAIN_MIN * (1 << work.in_vain.min(9));
                let until = now + pause.min(IN_VAIN_MAX);
                work.not_before = Some(work.not_before.map_or(until, |at| at.max(until)));
                work.in_vain += 1;
            }
            let (server, path) = (self.server.clone(), path(name, &pod.pod));
            let key = name.clone();
            self.under_way.spawn(async move {
                let result = remove(&server, &path, &pod.uid).await;
                (key, Did::Remove(pod.uid, result))
            });
        }
        let work = self.works.entry(name.clone()).or_default();
        let lacking = create.saturating_sub(work.making);
        if lacking == 0 && create == 0 && work.refused.take().is_some() {
            self.tell(job, None).await;
        }
        for _ in 0..lacking {
            let work = self.works.entry(name.clone()).or_default();
            if self.under_way.len() >= AT_ONCE {
                self.waiting.insert(name.clone());
                return;
            }
            let rested = work.not_before.filter(|at| *at > now).map_or(Ok(()), Err);
            let may = rested.and_then(|()| work.attempts.may(now));
            if let Err(at) = may.and_then(|()| self.writes.take(now, 0)) {
                return self.wake(name, at);
            }
            work.making += 1;
            let (server, model, job) = (self.server.clone(), self.model.clone(), job.clone());
            let (avoided, key) = (avoided.iter().cloned().collect(), name.clone());
            self.under_way.spawn(async move {
                let made = make(&server, &model, &job, avoided).await;
                (key, Did::Make(made.map(Box::new)))
            });
        }
    }

    /// Hosts that should get no new work, as the fleet sees it.
    fn avoided(&self) -> BTreeSet<NodeName> {
        let nodes = self.handle.nodes();
        let nodes = nodes.borrow();
        let bad = |view: &NodeView| view.record.cordon.is_some() || view.withheld.is_some();
        let hosts = nodes
            .after(None)
            .filter(|(name, view)| !is_pod(name) && bad(view));
        hosts.map(|(name, _)| name.clone()).collect()
    }

    /// Whether the pod's agent was silent for too long.
    fn is_lost(&self, node: &NodeName) -> bool {
        let view = self.handle.node(node);
        view.is_some_and(|view| view.record.gone)
    }

    fn wake(&mut self, name: &JobName, at: Instant) {
        let due = self.due.entry(name.clone()).or_insert(at);
        *due = at.min(*due);
    }

    async fn done(&mut self, name: &JobName, did: Did) {
        let now = Instant::now();
        self.waiting.insert(name.clone());
        let work = self.works.entry(name.clone()).or_default();
        match did {
            Did::Make(made) => {
                work.making = work.making.saturating_sub(1);
                match made {
                    Ok(pod) => {
                        work.attempts = Attempts::default();
                        let told = work.refused.take().is_some();
                        let node = pod.node();
                        // The watch may have told more of it already.
                        let pods = self.pods.entry(pod.job.clone()).or_default();
                        pods.entry(node).or_insert_with(|| Arc::new(*pod));
                        if told && let Some(view) = self.handle.job(name) {
                            self.tell(&view.record, None).await;
                        }
                    }
                    Err(why) => {
                        let again = work.attempts.failed(now);
                        let why = sentence(&why);
                        let is_new = work.refused.as_ref() != Some(&why);
                        work.refused = Some(why.clone());
                        self.wake(name, again);
                        if is_new {
                            warn!(job = %name, "its worker pods cannot be made: {why}");
                            if let Some(view) = self.handle.job(name) {
                                self.tell(&view.record, Some(why)).await;
                            }
                        }
                    }
                }
            }
            Did::Remove(uid, Ok(())) => {
                // Until the watch says so.
                let mut pods = self.pods.values_mut().flat_map(BTreeMap::values_mut);
                if let Some(pod) = pods.find(|pod| pod.uid == uid) {
                    Arc::make_mut(pod).deleting = true;
                }
            }
            Did::Remove(uid, Err(why)) => {
                work.removing.remove(&uid);
                if why.is_missing() {
                    // The watch has not said so yet.
                    for pods in self.pods.values_mut() {
                        pods.retain(|_, pod| pod.uid != uid);
                    }
                } else {
                    let again = work.attempts.failed(now);
                    warn!(job = %name, "a worker pod cannot be deleted: {why}");
                    self.wake(name, again);
                }
            }
        }
    }

    /// Tells the fleet why a job lacks pods.
    async fn tell(&self, job: &JobRecord, why: Option<String>) {
        let news = PodNews::Refused(job.uid.clone(), why);
        // If the engine has ended, so does this.
        let _ = self.handle.tell(Input::Pods(news)).await;
    }
}

fn path(job: &JobName, pod: &str) -> String {
    format!("/api/v1/namespaces/{}/pods/{pod}", job.namespace)
}

async fn make(
    server: &Server,
    model: &Model,
    job: &JobRecord,
    avoided: Vec<NodeName>,
) -> Result<WorkerPod, NotMade> {
    let namespace = &job.name.namespace;
    let site = model.site(namespace).await?;
    let text = job.spec.template.as_deref().unwrap_or_default();
    let template: Value = serde_json::from_str(text).unwrap_or_default();
    let name = pod_name(&job.name.name);
    if let Some(why) = node_name_error(node_of(namespace, &name).as_str()) {
        return Err(NotMade::Name(name, why));
    }
    let pod = template::pod(job, &template, &name, &site, &avoided);
    // A field that this cluster does not know is a mistake, and is told as one.
    let path = format!("/api/v1/namespaces/{namespace}/pods?fieldValidation=Strict");
    let made: Pod = server.create(&path, &pod).await?;
    kept(made).ok_or(NotMade::Strange)
}

/// Deletes this very pod, and none of its name that came after it.
async fn remove(server: &Server, path: &str, uid: &str) -> Result<(), Unanswered> {
    let options =
        json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid } });
    server.delete::<Value>(path, &options).await.map(drop)
}

fn pod_name(job: &str) -> String {
    let cut = job.get(..NAME_MAX).unwrap_or(job);
    format!("{}-{}", cut.trim_end_matches('-'), suffix())
}

/// Five characters that make no words, as Kubernetes gives them to its pods.
fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut number = entropy();
    let mut letter = || {
        let letter = LETTERS[(number % LETTERS.len() as u64) as usize];
        number /= LETTERS.len() as u64;
        char::from(letter)
    };
    (0..5).map(|_| letter()).collect()
}

fn sentence(why: &NotMade) -> String {
    match why {
        NotMade::Unanswered(Unanswered::Forbidden(_)) => format!(
            "{why}; a quota or a policy of the namespace may forbid it, or the coordinator lacks the verb create on pods \
             (manifests/components/worker-pods)"
        ),
        _ => why.to_string(),
    }
}
