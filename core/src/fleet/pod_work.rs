//! The work for the worker pods of one job, as one coordinator does it: which pods it creates and
//! deletes next, and what it assumes until the watch says so.
//!
//! [`pod_plan`](super::pod_plan) says what a job lacks. Between the plan and the cluster lie requests
//! on their way, answers that are lost, and a watch that is late. A pod is *requested* until the
//! answer comes, and then *created* until the watch tells of it. Both count as existing. If no
//! answer comes, nobody knows whether the pod was created. Then it is *unanswered*, and the next pod
//! that the job lacks is requested under the same name, because the API server creates no second pod
//! of one name. A job that needs no pods any more requests none. So an unanswered pod, too, counts only
//! until the watch must have told of it. Otherwise the job would never be without pods, and would hold
//! its quota for ever.
//!
//! A pod that is not needed is deleted in two steps, since the fleet could begin a generation in it at
//! the same moment. First the fleet hears that the pod will go, and places nothing there any more. The
//! pod is deleted only when the job's view shows that the fleet has heard it, and when no worker can
//! live in the pod. A job that is over gets no generation, so its pods need no announcement. From its
//! deletion request on a pod counts as going.
//!
//! A job that has given its pods back, or whose pods end at once, pauses before it gets new ones (`pause`).
//! Nothing of this is stored. A coordinator that starts reads all pods first.

mod pause;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use pause::Pauses;

use crate::{
    fleet::{
        job::JobRecord,
        pod_plan::{Host, PodState, Unneeded, plan},
        worker_pod::WorkerPod,
    },
    id::NodeName,
    time::Timestamp,
};

/// How long a pod that was created, or may have been, counts as existing if the watch does not report it.
/// It may have come and gone between two watches. An API server works no longer on one request
/// (`--request-timeout`, 60 s). Kubernetes' own controllers wait for five minutes (`ExpectationsTimeout`
/// in `pkg/controller/controller_utils.go`). Less is enough here, because a surplus pod is deleted
/// again.
const EXPECTED: Duration = Duration::from_secs(60);
/// The longest part of a job's name in a pod's name. No job object has a longer name.
const NAME_MAX: usize = 52;

/// Pods by the node that each is.
pub type PodsByNode = BTreeMap<NodeName, Arc<WorkerPod>>;

/// What is known of the pods of one job, and of the work for them that is under way.
#[derive(Clone, Debug, Default)]
pub struct PodWork {
    pods: PodsByNode,
    /// Pods that the watch has not told of yet, by name.
    creating: BTreeMap<String, Creating>,
    /// Pods whose deletion was requested, by uid. A request cannot be cancelled: it may still arrive.
    deleting: BTreeMap<String, Deleting>,
    /// When each pod was seen first, by uid.
    first_seen: BTreeMap<String, Timestamp>,
    /// Since when the job has fewer pods than it needs to begin.
    missing_since: Option<Timestamp>,
    pauses: Pauses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Creating {
    /// `earlier`: a request for it had no answer, and may be carried out until this moment.
    Requested { earlier: Option<Timestamp> },
    /// It may be created until this moment.
    Unanswered { until: Timestamp },
    /// The watch is expected to tell of it until this moment.
    Created { until: Timestamp },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deleting {
    Requested,
    Unanswered,
}

impl Creating {
    /// Until when the pod counts without news from the watch. `None`: until the answer comes.
    fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Requested { .. } => None,
            Self::Unanswered { until } | Self::Created { until } => Some(*until),
        }
    }
}

/// What came of a request for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    Yes,
    /// A pod of this name exists already.
    Exists,
    No,
    /// There was no answer.
    Unknown,
}

/// What came of the deletion of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    Yes,
    /// There is no such pod any more.
    Missing,
    No,
    /// There was no answer. Asking again does no harm.
    Unknown,
}

/// What to do next for the pods of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextWork {
    /// The fleet must be told that exactly these pods, by uid, are about to be deleted.
    pub tell: Option<BTreeSet<String>>,
    pub delete: Vec<Unneeded>,
    /// How many pods to ask for.
    pub create: u32,
    /// The watch has told of all pods that the job should have, or it should have none.
    pub is_complete: bool,
    /// The job gives its pods back, and that was not so before.
    pub gives_back: bool,
    /// When to look at the job's pods again, if nothing changes before.
    pub look_at: Option<Timestamp>,
}

impl PodWork {
    /// What to do now. `announced`: the uids of the pods whose deletion was announced to the fleet,
    /// from the same view as `job`. `random`: any number, for the length of a pause.
    pub fn next(
        &mut self,
        job: &JobRecord,
        announced: &BTreeSet<String>,
        hosts: impl Fn(&NodeName) -> Host,
        state: impl Fn(&NodeName) -> PodState,
        now: Timestamp,
        random: u64,
    ) -> NextWork {
        let pods: Vec<WorkerPod> = self.watched().collect();
        let plan = plan(job, &pods, hosts, state, self.missing_since, now);
        let since = self.missing_since.unwrap_or(now);
        self.missing_since = plan.is_missing.then_some(since);
        self.pauses.see(job);
        self.forget_expired(now);
        let gives = plan.gives_back;
        let gives_back = gives.is_some_and(|what| self.pauses.give_back(what, now, random));

        let to_announce = self.to_announce(&plan.delete);
        // A job that is over gets no new generation, so the fleet need not be told.
        let is_over = job.is_over();
        let may_go = |pod: &Unneeded| is_over || announced.contains(&pod.uid);
        let new = self.not_requested(plan.delete);
        // The pause begins when the deletion is requested. Until then no pod follows.
        let will_pause = new.iter().any(|pod| pod.backs_off);

        let lacking = self.lacking(plan.create);
        let until = self.pauses_until();
        let pause = until.filter(|until| now < *until && lacking > 0);
        NextWork {
            tell: (to_announce != *announced && !is_over).then_some(to_announce),
            delete: self
                .unanswered_deletions()
                .chain(new.into_iter().filter(may_go))
                .collect(),
            create: match pause.is_some() || will_pause {
                true => 0,
                false => lacking,
            },
            is_complete: plan.create == 0,
            gives_back,
            look_at: plan
                .look_at
                .into_iter()
                .chain(pause)
                .chain(self.expiries())
                .min(),
        }
    }

    /// Forgets the pods that were created, or may have been, but that the watch has not told of in time.
    fn forget_expired(&mut self, now: Timestamp) {
        self.creating
            .retain(|_, pod| pod.until().is_none_or(|until| now < until));
    }

    /// When pods are forgotten.
    fn expiries(&self) -> impl Iterator<Item = Timestamp> {
        self.creating.values().filter_map(Creating::until)
    }

    /// The uids of all pods that will go: those to be deleted, and those whose deletion was requested.
    fn to_announce(&self, delete: &[Unneeded]) -> BTreeSet<String> {
        let uids = delete.iter().map(|pod| &pod.uid);
        uids.chain(self.deleting.keys()).cloned().collect()
    }

    /// Those of these pods whose deletion was not requested yet.
    fn not_requested(&self, mut delete: Vec<Unneeded>) -> Vec<Unneeded> {
        delete.retain(|pod| !self.deleting.contains_key(&pod.uid));
        delete
    }

    /// How many of the `create` pods that the plan asks for are not yet requested or created.
    fn lacking(&self, create: u32) -> u32 {
        let counts = |pod: &&Creating| !matches!(pod, Creating::Unanswered { .. });
        create.saturating_sub(self.creating.values().filter(counts).count() as u32)
    }

    /// Pods whose deletion was requested without an answer. It is requested again.
    fn unanswered_deletions(&self) -> impl Iterator<Item = Unneeded> {
        let is_unanswered = |uid: &str| self.deleting.get(uid) == Some(&Deleting::Unanswered);
        let pods = self
            .pods
            .values()
            .filter(move |pod| is_unanswered(&pod.uid));
        pods.map(|pod| Unneeded {
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            why: "its deletion had no answer",
            backs_off: false,
        })
    }

    /// Until when the job pauses before it gets new pods.
    pub fn pauses_until(&self) -> Option<Timestamp> {
        self.pauses.until()
    }

    /// The name under which the next pod of the job is requested. From now on the pod is requested.
    /// `random`: any number.
    pub fn begin_create(&mut self, job: &str, random: u64) -> String {
        let unanswered = self.creating.iter().find_map(|(name, pod)| match pod {
            Creating::Unanswered { until } => Some((name.clone(), *until)),
            _ => None,
        });
        let (name, earlier) = match unanswered {
            Some((name, until)) => (name, Some(until)),
            None => (pod_name(job, random), None),
        };
        self.creating
            .insert(name.clone(), Creating::Requested { earlier });
        name
    }

    /// What came of the request for the pod of this name.
    pub fn create_answered(&mut self, name: &str, answer: Created, now: Timestamp) {
        // The watch may have told of this pod already, and even of its end.
        let Some(pod) = self.creating.get_mut(name) else {
            return;
        };
        let until = now + EXPECTED;
        let earlier = match pod {
            Creating::Requested { earlier } => *earlier,
            _ => None,
        };
        match (answer, earlier) {
            (Created::Yes, _) | (Created::Exists, Some(_)) => *pod = Creating::Created { until },
            (Created::Unknown, _) => *pod = Creating::Unanswered { until },
            // An earlier request may still be on its way.
            (Created::No, Some(until)) => *pod = Creating::Unanswered { until },
            // The name is taken by another pod, or nothing was created.
            (Created::Exists | Created::No, None) => drop(self.creating.remove(name)),
        }
    }

    /// This pod is about to be deleted.
    pub fn begin_delete(&mut self, unneeded: &Unneeded, now: Timestamp) {
        self.deleting
            .insert(unneeded.uid.clone(), Deleting::Requested);
        if unneeded.backs_off {
            self.pauses.back_off(now);
        }
    }

    /// What came of the deletion of the pod of this uid.
    pub fn delete_answered(&mut self, uid: &str, answer: Deleted) {
        match answer {
            // The watch tells when it is gone.
            Deleted::Yes => {}
            Deleted::Missing => {
                self.deleting.remove(uid);
                // The watch has not said so yet.
                self.pods.retain(|_, pod| pod.uid != uid);
            }
            Deleted::No => drop(self.deleting.remove(uid)),
            Deleted::Unknown => {
                if let Some(pod) = self.deleting.get_mut(uid) {
                    *pod = Deleting::Unanswered;
                }
            }
        }
    }

    /// The watch begins anew: all pods that exist were read, and these are the job's.
    pub fn watch_listed(&mut self, pods: PodsByNode, now: Timestamp) {
        let is_there = |uid: &String| pods.values().any(|pod| pod.uid == *uid);
        self.deleting.retain(|uid, _| is_there(uid));
        self.first_seen.retain(|uid, _| is_there(uid));
        self.pods.clear();
        pods.into_iter()
            .for_each(|(node, pod)| self.watch_applied(node, pod, now));
    }

    /// The same, and these are some of the job's pods. Those that are not among them stay as they were.
    pub fn watch_listed_in_part(&mut self, pods: PodsByNode, now: Timestamp) {
        pods.into_iter()
            .for_each(|(node, pod)| self.watch_applied(node, pod, now));
    }

    /// The watch tells of a pod.
    pub fn watch_applied(&mut self, node: NodeName, pod: Arc<WorkerPod>, now: Timestamp) {
        self.first_seen.entry(pod.uid.clone()).or_insert(now);
        self.creating.remove(&pod.name);
        self.pods.insert(node, pod);
    }

    /// The watch tells that a pod is gone.
    pub fn watch_deleted(&mut self, node: &NodeName, pod: &WorkerPod) {
        self.pods.remove(node);
        self.creating.remove(&pod.name);
        self.deleting.remove(&pod.uid);
        self.first_seen.remove(&pod.uid);
    }

    /// The pods that the watch has told of. A pod whose deletion was requested counts as going, even if
    /// the watch does not say so yet. Their age is by this coordinator's own clock: if the API server's
    /// clock were wrong, a job would give its pods back at once, or never.
    fn watched(&self) -> impl Iterator<Item = WorkerPod> {
        self.pods.values().map(|pod| WorkerPod {
            deleting: pod.deleting || self.deleting.contains_key(&pod.uid),
            created: self
                .first_seen
                .get(&pod.uid)
                .copied()
                .unwrap_or(pod.created),
            ..(**pod).clone()
        })
    }

    pub fn pods(&self) -> impl Iterator<Item = &Arc<WorkerPod>> {
        self.pods.values()
    }

    /// How many pods there are, including those being deleted and those that may have been created.
    pub fn count(&self) -> usize {
        self.pods.len() + self.creating.len()
    }

    /// Whether no pod of the job is known or requested.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.creating.is_empty()
    }
}

fn pod_name(job: &str, random: u64) -> String {
    let cut = job.get(..NAME_MAX).unwrap_or(job);
    format!("{}-{}", cut.trim_end_matches('-'), suffix(random))
}

/// Five characters that make no words, as Kubernetes gives them to its pods.
fn suffix(mut number: u64) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut letter = || {
        let letter = LETTERS[(number % LETTERS.len() as u64) as usize];
        number /= LETTERS.len() as u64;
        char::from(letter)
    };
    (0..5).map(|_| letter()).collect()
}

#[cfg(test)]
mod tests;
