//! Decides how many worker pods a job lacks, and which pods it does not need. It never counts requests
//! on their way: `pod_work` does.
//!
//! The cluster's scheduler chooses the node of each pod. These rules decide how many there are, and
//! which of them go. The members of a generation are running pods (`placement`), so a pod outlives many
//! generations. No pod is deleted while a worker may live in it. In a pod whose containers have all
//! ended, none can.
//!
//! A job that already trains waits for its missing pods without limit. A job that waits for its
//! minimum would keep what it has from others that wait too: nodes, and the quota of its namespace,
//! which counts each pod. So if one of its pods cannot be made, or finds no host, or cannot begin there,
//! within [`GANG_TIMEOUT`], it gives back all that are not lost, and comes again later. If none of them
//! had a host, it comes again soon, because it took nothing from others but quota.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fleet::{
        job::JobRecord,
        shortage::Shortage,
        view::NodeView,
        worker_pod::{PodStage, WorkerPod},
    },
    health::{Finding, Severity},
    id::NodeName,
    time::Timestamp,
};

/// How long a job that has too few pods to begin may hold them while others are missing, find no host or
/// cannot begin. It counts from the newest pod, and from the moment at which pods began to be missing.
pub const GANG_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// How long the containers of a job that is over may take to end by themselves, beyond the time
/// that workers have to stop. Then their pods are deleted.
const END: Duration = Duration::from_secs(60);

/// What to do about the pods of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodPlan {
    pub create: u32,
    pub delete: Vec<Unneeded>,
    /// The job gives its pods back: too few of them could be had. New ones are made after a while.
    pub gives_back: Option<GivesBack>,
    /// The job has fewer pods than it needs to begin.
    pub is_missing: bool,
    /// When to look at the job's pods again, if nothing changes before.
    pub look_at: Option<Timestamp>,
}

/// What a job gives back with its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivesBack {
    /// Room on hosts. Others may have waited for it.
    Hosts,
    /// No pod had a host.
    Quota,
}

/// A pod that is not needed, and why, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unneeded {
    pub pod: String,
    pub uid: String,
    pub why: &'static str,
    /// The next pod waits for a while, because it may end in the same way.
    pub backs_off: bool,
}

/// What is thought of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    Fit,
    /// One of its GPUs is unhealthy, and a new pod could get it. Pods with other GPUs stay.
    NoNewPods,
    /// It is cordoned, or its node gets no new work for another reason.
    NoNewWork,
    /// Neither its agent nor its kubelet is heard.
    Silent,
    Unknown,
}

impl Host {
    pub fn of(view: &NodeView) -> Self {
        let object = view.object.as_ref();
        let kubelet_silent = object.is_some_and(|object| object.kubelet_silent);
        match view.record.cordon.is_some() || view.no_new_work.is_some() {
            true => Host::NoNewWork,
            // Without its agent a host can still run pods.
            false if view.record.gone && kubelet_silent => Host::Silent,
            false if view.bars_pods.is_some() => Host::NoNewPods,
            false => Host::Fit,
        }
    }

    /// Whether new pods are kept from it.
    pub fn takes_no_new_pods(self) -> bool {
        matches!(self, Host::NoNewPods | Host::NoNewWork)
    }
}

/// What is thought of a pod, by what is known of the node that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    /// As far as is known.
    Healthy,
    /// A GPU that it holds is unhealthy.
    Unhealthy,
    /// Its agent was silent for too long.
    Lost,
    /// It was lost together with many other nodes (`brake`), so it is probably not the cause. Nothing is
    /// created in its place.
    LostWithMany,
}

impl PodState {
    /// `None`: the pod's agent was never heard.
    pub fn of(view: Option<&NodeView>) -> Self {
        let grave = |finding: &Finding| finding.severity >= Severity::Drain;
        let place = view.and_then(|view| view.place.as_ref());
        match view {
            Some(view) if view.record.gone && view.mass_loss => PodState::LostWithMany,
            Some(view) if view.record.gone => PodState::Lost,
            _ if place.is_some_and(|place| place.findings.iter().any(grave)) => PodState::Unhealthy,
            _ => PodState::Healthy,
        }
    }
}

/// Plans the pods of this job. `hosts` says what is thought of each host, and `states` what
/// is thought of each pod. `missing_since`: since when the plans before this one say that pods are missing.
pub fn plan<'a>(
    job: &JobRecord,
    pods: impl IntoIterator<Item = &'a WorkerPod>,
    hosts: impl Fn(&NodeName) -> Host,
    states: impl Fn(&NodeName) -> PodState,
    missing_since: Option<Timestamp>,
    now: Timestamp,
) -> PodPlan {
    let mut plan = PodPlan::default();
    if job.spec.template.is_none() {
        return plan;
    }
    let of_job = pods
        .into_iter()
        .filter(|pod| pod.is_of(&job.name, &job.uid) && !pod.deleting);
    let (ended, mut pods): (Vec<&WorkerPod>, Vec<_>) =
        of_job.partition(|pod| pod.stage == PodStage::Ended);
    if job.is_over() {
        after_the_end(job, &pods, now, &mut plan);
        return plan;
    }
    // The next pod is created only after the deletion is requested (see `pod_work`).
    for pod in ended {
        plan.delete_and_back_off(pod, "has ended");
    }
    if job.ends() {
        return plan;
    }
    if job.suspended || !job.is_eligible() {
        let why = match job.suspended {
            true => "its job is suspended",
            false => "its job waits for other jobs or for its time",
        };
        for pod in pods.into_iter().filter(|pod| is_idle(job, pod)) {
            plan.delete_pod(pod, why);
        }
        return plan;
    }
    delete_unfit(job, &mut pods, &hosts, &states, &mut plan);
    // A lost pod does not count, so another is created. It is deleted with its job, or when the job is
    // suspended.
    pods.retain(|pod| states(&pod.node()) != PodState::Lost);
    plan.is_missing = pods.len() < job.spec.min_replicas as usize;
    let missing_since = plan.is_missing.then(|| missing_since.unwrap_or(now));
    if !give_back(job, &pods, missing_since, now, &mut plan) {
        match_size(job, pods, &hosts, &states, &mut plan);
    }
    plan
}

/// Deletes the pods that the job should not use, unless a worker may live in them.
fn delete_unfit(
    job: &JobRecord,
    pods: &mut Vec<&WorkerPod>,
    hosts: &impl Fn(&NodeName) -> Host,
    states: &impl Fn(&NodeName) -> PodState,
    plan: &mut PodPlan,
) {
    let is_unschedulable = |pod: &WorkerPod| pod.host.is_none() && pod.waits.is_some();
    pods.retain(|pod| {
        let why = if host_gets_no_work(pod, hosts) {
            "its host should not have the job"
        } else if states(&pod.node()) == PodState::Unhealthy {
            "one of its GPUs is unhealthy"
        } else if pod.stage == PodStage::Waiting && is_on(pod, Host::Silent, hosts) {
            // The scheduler chose it before the cluster noticed.
            "its host is silent, and it cannot begin there"
        } else if is_unschedulable(pod) && pod.avoids.iter().any(|host| hosts(host) == Host::Fit) {
            "it must not go to a host that is fit again"
        } else {
            return true;
        };
        let goes = is_idle(job, pod);
        if goes {
            plan.delete_and_back_off(pod, why);
        }
        !goes
    });
}

/// Creates the pods that the job lacks, or deletes those beyond its size that no generation needs.
fn match_size(
    job: &JobRecord,
    pods: Vec<&WorkerPod>,
    hosts: &impl Fn(&NodeName) -> Host,
    states: &impl Fn(&NodeName) -> PodState,
    plan: &mut PodPlan,
) {
    let wanted = job.replicas as usize;
    // A generation of another size, larger or smaller, is opened only on hosts that are fit. So the pods
    // of members on other hosts do not count: without others the job could never have that size.
    let current = job.current.as_ref();
    let changes = current.is_some_and(|current| current.members.len() != wanted);
    let is_no_place = |pod: &WorkerPod| {
        let is_unhealthy = states(&pod.node()) == PodState::Unhealthy;
        is_unhealthy || (changes && host_gets_no_work(pod, hosts))
    };
    // A silent pod is not replaced, and no other one goes because it counts.
    let is_silent = |pod: &WorkerPod| states(&pod.node()) == PodState::LostWithMany;
    let have = pods.iter().filter(|pod| !is_no_place(pod)).count();
    if have < wanted {
        plan.create = (wanted - have) as u32;
        return;
    }
    let silent = pods
        .iter()
        .filter(|pod| is_silent(pod) && !is_no_place(pod));
    let heard = have - silent.count();
    let idle = pods
        .into_iter()
        .filter(|pod| is_idle(job, pod) && !is_silent(pod));
    let mut idle: Vec<&WorkerPod> = idle.collect();
    // Pods that run go last. Of equals, the newest goes first.
    idle.sort_by_key(|pod| {
        let runs = pod.stage == PodStage::Running;
        (runs, std::cmp::Reverse(pod.created), pod.name.clone())
    });
    for pod in idle.into_iter().take(heard.saturating_sub(wanted)) {
        plan.delete_pod(pod, "the job wants fewer nodes");
    }
}

/// Agents end the containers of a job that is over, so that their logs stay. Pods that do not end are
/// deleted, and so are pods that never ran, because both would hold room that other jobs need.
fn after_the_end(job: &JobRecord, pods: &[&WorkerPod], now: Timestamp, plan: &mut PodPlan) {
    let ended = job.finished.unwrap_or(now);
    let until = ended + job.spec.stop_grace_period + END;
    for pod in pods {
        if !is_idle(job, pod) {
            continue;
        }
        match pod.stage {
            PodStage::Waiting => plan.delete_pod(pod, "its job is over"),
            _ if until <= now => plan.delete_pod(pod, "its job is over, and it does not end"),
            _ => plan.look_at = Some(until),
        }
    }
}

/// Whether the job gives its pods back, because for too long it had too few to begin.
fn give_back(
    job: &JobRecord,
    pods: &[&WorkerPod],
    missing_since: Option<Timestamp>,
    now: Timestamp,
    plan: &mut PodPlan,
) -> bool {
    let running = pods
        .iter()
        .filter(|pod| pod.stage == PodStage::Running)
        .count();
    let has_begun = job.current.is_some() || job.unproven_generations().next().is_some();
    let least = job.spec.min_replicas as usize;
    // What is missing was asked for and refused, or ends again and again. Pods with a host come up by
    // themselves, however long their images take, unless the cluster says that something is wrong.
    let is_stuck = plan.is_missing || pods.iter().any(|pod| pod.cannot_begin());
    if has_begun || running >= least || !is_stuck {
        return false;
    }
    // Each new pod starts the time anew. A pod that has trained for long may be the only one left of a
    // job, and it stays while the others are made.
    let Some(newest) = pods.iter().map(|pod| pod.created).max() else {
        return false;
    };
    let until = missing_since.map_or(newest, |since| newest.max(since)) + GANG_TIMEOUT;
    if now < until {
        plan.look_at = Some(until);
        return false;
    }
    let all = pods.iter();
    all.for_each(|pod| plan.delete_pod(pod, "too few pods of the job could be had"));
    plan.gives_back = Some(match pods.iter().any(|pod| pod.host.is_some()) {
        true => GivesBack::Hosts,
        false => GivesBack::Quota,
    });
    true
}

impl PodPlan {
    fn delete_pod(&mut self, pod: &WorkerPod, why: &'static str) {
        self.delete.push(Unneeded {
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            why,
            backs_off: false,
        });
    }

    fn delete_and_back_off(&mut self, pod: &WorkerPod, why: &'static str) {
        self.delete_pod(pod, why);
        if let Some(last) = self.delete.last_mut() {
            last.backs_off = true;
        }
    }
}

/// Whether no worker of the job can live in this pod.
fn is_idle(job: &JobRecord, pod: &WorkerPod) -> bool {
    let node = pod.node();
    job.unproven_generations()
        .all(|generation| !generation.has(&node) || generation.dead.contains(&node))
}

fn host_gets_no_work(pod: &WorkerPod, hosts: &impl Fn(&NodeName) -> Host) -> bool {
    is_on(pod, Host::NoNewWork, hosts)
}

fn is_on(pod: &WorkerPod, kind: Host, hosts: &impl Fn(&NodeName) -> Host) -> bool {
    pod.host.as_ref().is_some_and(|host| hosts(host) == kind)
}

/// The most frequent reason why pods of the job wait, with the number of pods that it holds up.
pub(crate) fn waits<'a>(
    pods: impl IntoIterator<Item = &'a WorkerPod>,
) -> Option<(Shortage, String)> {
    let mut reasons: BTreeMap<&str, (usize, &WorkerPod)> = BTreeMap::new();
    for pod in pods {
        if let Some(wait) = &pod.waits {
            reasons.entry(&wait.reason).or_insert((0, pod)).0 += 1;
        }
    }
    let (reason, (count, pod)) = reasons.into_iter().max_by_key(|(_, (count, _))| *count)?;
    let wait = pod.waits.as_ref()?;
    let message = &wait.message;
    let others = match count {
        1 => String::new(),
        _ => format!(" and {} more", count - 1),
    };
    let colon = if message.is_empty() { "" } else { ": " };
    let sentence = format!("pod {}{others} waits: {reason}{colon}{message}", pod.name);
    Some((Shortage::of_wait(wait), sentence))
}

#[cfg(test)]
mod tests;
