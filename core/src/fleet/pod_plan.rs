//! Which worker pods a job lacks, and which it does not need.
//!
//! The cluster's scheduler chooses the node of each pod. These rules only decide how many there are. A
//! generation has pods that are up as its members (`placement`), so a pod outlives many
//! generations. No pod is deleted while a worker may live in it.
//!
//! A job that trains already leaves the pods that it lacks to the scheduler, for as long as that
//! takes. A job that waits for its minimum would keep what it has from others that wait too, so
//! after [`GANG_TIMEOUT`] it gives everything back, and comes again later.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fleet::{
        job::JobRecord,
        view::NodeView,
        worker_pod::{PodStage, WorkerPod},
    },
    health::{Finding, Severity},
    id::NodeName,
    time::Timestamp,
};

/// How long a job that has too few pods to begin may hold them while others find no host. It counts
/// from the newest pod.
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
    pub gives_back: bool,
    /// When to ask again, if nothing changes before.
    pub again: Option<Timestamp>,
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
    Barred,
    /// It should get no new work.
    Avoided,
    Unknown,
}

impl Host {
    pub fn of(view: &NodeView) -> Self {
        match view.record.cordon.is_some() || view.withheld.is_some() {
            true => Host::Avoided,
            false if view.bars_pods.is_some() => Host::Barred,
            false => Host::Fit,
        }
    }

    /// Whether new pods are kept from it.
    pub fn is_closed(self) -> bool {
        matches!(self, Host::Barred | Host::Avoided)
    }
}

/// What is thought of a pod, by what is known of the node that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    Sound,
    /// A GPU that it holds is unhealthy.
    Sick,
    /// Its agent was silent for too long.
    Lost,
}

impl PodState {
    /// `None`: the pod's agent was never heard.
    pub fn of(view: Option<&NodeView>) -> Self {
        let grave = |finding: &Finding| finding.severity >= Severity::Drain;
        let place = view.and_then(|view| view.place.as_ref());
        match view {
            Some(view) if view.record.gone => PodState::Lost,
            _ if place.is_some_and(|place| place.findings.iter().any(grave)) => PodState::Sick,
            _ => PodState::Sound,
        }
    }
}

/// What to do about the pods of this job.
///
/// `hosts` says what is thought of each host. A pod that no generation needs is replaced if its host
/// should not have the job, or if it cannot be scheduled because it must avoid a host that is fit
/// again. `state` says what is thought of each pod. One that is sick is replaced when no worker can live in it.
/// One that is Lost does not count as a pod of the job, so another is created. It is deleted with its
/// job, or when the job is suspended.
pub fn plan<'a>(
    job: &JobRecord,
    pods: impl IntoIterator<Item = &'a WorkerPod>,
    hosts: impl Fn(&NodeName) -> Host,
    state: impl Fn(&NodeName) -> PodState,
    now: Timestamp,
) -> PodPlan {
    let mut plan = PodPlan::default();
    if job.spec.template.is_none() {
        return plan;
    }
    let of_job = pods
        .into_iter()
        .filter(|pod| pod.is_of(&job.name, &job.uid));
    let (gone, there): (Vec<&WorkerPod>, Vec<_>) =
        of_job.partition(|pod| pod.stage == PodStage::Ended);
    let standing = there.into_iter().filter(|pod| !pod.deleting);
    let mut standing: Vec<&WorkerPod> = standing.collect();
    if job.phase.is_over() {
        after_the_end(job, &standing, now, &mut plan);
        return plan;
    }
    // The next pod is created only after the deletion is requested (see `pod_work`).
    gone.iter()
        .filter(|pod| !pod.deleting)
        .for_each(|pod| plan.drop_and_back_off(pod, "has ended"));
    if job.ending.is_some() {
        return plan;
    }
    let is_idle = |pod: &WorkerPod| !may_live(job, &pod.node());
    if job.suspended {
        let idle = standing.iter().filter(|pod| is_idle(pod));
        idle.for_each(|pod| plan.drop_pod(pod, "its job is suspended"));
        return plan;
    }
    let is_avoided = |host: &NodeName| hosts(host) == Host::Avoided;
    standing.retain(|pod| {
        let is_fit = |host: &NodeName| hosts(host) == Host::Fit;
        let waits = pod.host.is_none() && pod.waits.is_some();
        let why = match pod.host.as_ref().is_some_and(&is_avoided) {
            true => Some("its host should not have the job"),
            false if state(&pod.node()) == PodState::Sick => Some("one of its GPUs is unhealthy"),
            false if waits && pod.avoids.iter().any(is_fit) => {
                Some("it must not go to a host that is fit again")
            }
            false => None,
        };
        let why = why.filter(|_| is_idle(pod));
        if let Some(why) = why {
            plan.drop_and_back_off(pod, why);
        }
        why.is_none()
    });
    standing.retain(|pod| state(&pod.node()) != PodState::Lost);
    if give_back(job, &standing, now, &mut plan) {
        return plan;
    }
    let wanted = job.replicas as usize;
    // A generation that is too small grows only onto hosts that are fit, so the pods of members on
    // other hosts do not count.
    let current = job.current.as_ref();
    let is_short = current.is_some_and(|current| current.members.len() < wanted);
    let is_place = |pod: &&&WorkerPod| {
        let is_sick = state(&pod.node()) == PodState::Sick;
        !is_sick && (!is_short || !pod.host.as_ref().is_some_and(&is_avoided))
    };
    let have = standing.iter().filter(is_place).count();
    if have < wanted {
        plan.create = (wanted - have) as u32;
        return plan;
    }
    let surplus = have - wanted;
    let idle = standing.into_iter().filter(|pod| is_idle(pod));
    let mut idle: Vec<&WorkerPod> = idle.collect();
    // Pods that run go last. Of equals, the newest goes first.
    idle.sort_by_key(|pod| {
        let runs = pod.stage == PodStage::Running;
        (runs, std::cmp::Reverse(pod.created), pod.name.clone())
    });
    let surplus = idle.into_iter().take(surplus);
    surplus.for_each(|pod| plan.drop_pod(pod, "the job wants fewer nodes"));
    plan
}

/// Agents end the containers of a job that is over, so that their logs stay. Pods that do not end are
/// deleted, and so are pods that never ran, because both would hold room that other jobs need.
fn after_the_end(job: &JobRecord, standing: &[&WorkerPod], now: Timestamp, plan: &mut PodPlan) {
    let ended = job.finished.unwrap_or(now);
    let until = ended + job.spec.stop_grace_period + END;
    for pod in standing {
        if may_live(job, &pod.node()) {
            continue;
        }
        match pod.stage {
            PodStage::Waiting => plan.drop_pod(pod, "its job is over"),
            _ if until <= now => plan.drop_pod(pod, "its job is over, and it does not end"),
            _ => plan.again = Some(until),
        }
    }
}

/// Whether the job gives its pods back, because for too long it had too few to begin.
fn give_back(job: &JobRecord, standing: &[&WorkerPod], now: Timestamp, plan: &mut PodPlan) -> bool {
    let held = standing.iter().any(|pod| pod.host.is_some());
    let running = standing
        .iter()
        .filter(|pod| pod.stage == PodStage::Running)
        .count();
    let has_begun = job.current.is_some() || job.unproven_generations().next().is_some();
    let lacks = running < job.spec.min_replicas as usize;
    // Pods with a host come up by themselves, however long their images take.
    let is_unscheduled = standing
        .iter()
        .any(|pod| pod.stage == PodStage::Waiting && pod.host.is_none());
    if has_begun || !lacks || !held || !is_unscheduled {
        return false;
    }
    // Each new pod starts the time anew.
    let Some(newest) = standing.iter().map(|pod| pod.created).max() else {
        return false;
    };
    let until = newest + GANG_TIMEOUT;
    if now < until {
        plan.again = Some(until);
        return false;
    }
    let all = standing.iter();
    all.for_each(|pod| plan.drop_pod(pod, "too few pods of the job could be had"));
    plan.gives_back = true;
    true
}

impl PodPlan {
    fn drop_pod(&mut self, pod: &WorkerPod, why: &'static str) {
        self.delete.push(Unneeded {
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            why,
            backs_off: false,
        });
    }

    fn drop_and_back_off(&mut self, pod: &WorkerPod, why: &'static str) {
        self.drop_pod(pod, why);
        if let Some(last) = self.delete.last_mut() {
            last.backs_off = true;
        }
    }
}

/// Whether a worker of the job may live on this node.
fn may_live(job: &JobRecord, node: &NodeName) -> bool {
    job.unproven_generations()
        .any(|generation| generation.has(node) && !generation.dead.contains(node))
}

/// Why the job's pods do not all run yet, most frequent reason first: for a sentence.
pub fn waits<'a>(pods: impl IntoIterator<Item = &'a WorkerPod>) -> Option<String> {
    let mut reasons: BTreeMap<&str, (usize, &WorkerPod)> = BTreeMap::new();
    for pod in pods {
        if let Some(wait) = &pod.waits {
            reasons.entry(&wait.reason).or_insert((0, pod)).0 += 1;
        }
    }
    let (reason, (count, pod)) = reasons.into_iter().max_by_key(|(_, (count, _))| *count)?;
    let message = &pod.waits.as_ref()?.message;
    let others = match count {
        1 => String::new(),
        _ => format!(" and {} more", count - 1),
    };
    let colon = if message.is_empty() { "" } else { ": " };
    Some(format!(
        "pod {}{others} waits: {reason}{colon}{message}",
        pod.name
    ))
}

#[cfg(test)]
mod tests;
