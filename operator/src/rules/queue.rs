//! A job in a queue of Kueue, a program that shares out the quota of a Kubernetes cluster.
//!
//! For each such job there is a Workload object, which says what the job needs. Kueue *reserves quota* for
//! it and *admits* it. Until then the job waits and has no nodes. Kueue may *evict* an admitted Workload, for
//! instance to make room. Then the job is stopped with its grace. When its pods are gone, the quota is
//! *released*, and the job waits in the queue again.
//!
//! [`decide`] says whether the job may have nodes, and names the next change of its Workload. What each
//! change means to Kueue is told by its job reconciler (kubernetes-sigs/kueue,
//! `pkg/controller/jobframework/reconciler.go`).

use muster_core::fleet::job::{JobRecord, Phase, Stage};

/// A Workload object as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    pub queue: String,
    /// How many pods it asks for.
    pub count: u32,
    pub priority: i64,
    /// `spec.active`. False: a person, or Kueue after too many attempts, has taken it out of its queue.
    pub active: bool,
    pub deleting: bool,
    /// Its quota is reserved.
    pub reserved: bool,
    pub admitted: bool,
    pub evicted: Option<Said>,
    pub finished: Option<Said>,
    /// How many pods were admitted, if Kueue says so.
    pub assigned: Option<u32>,
    /// So many of the admitted pods are not needed any more.
    pub reclaimable: u32,
    /// Whether Kueue was told that the pods are ready. `None`: it was told nothing.
    pub ready: Option<bool>,
    /// Why it waits, as Kueue says it.
    pub waits: Option<Said>,
}

/// What Kueue says: a reason and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub reason: String,
    pub message: String,
}

/// Whether a job may have nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is in no queue.
    Free,
    /// It may have so many.
    Admitted(u32),
    /// It waits, and has none.
    Waits(Said),
    /// Nobody knows now. A job that has nodes keeps them, and gets no more.
    Unknown,
}

/// The next change of a Workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Create(Asks),
    /// It waits, and asks for something else now.
    Update(Asks),
    /// The job has stopped, so its quota is free. `requeued`: it is in the queue again at once. Otherwise
    /// Kueue puts it there when it thinks fit.
    Release {
        why: Said,
        requeued: bool,
    },
    /// So many of the admitted pods are not needed any more. This number never falls while it is admitted.
    Reclaim(u32),
    /// Its pods are ready, or are not any more.
    Ready(bool),
    Finish {
        succeeded: bool,
        message: String,
    },
    Delete,
}

/// What a Workload asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asks {
    pub queue: String,
    pub count: u32,
    pub priority: i64,
}

/// A job as far as its place in a queue depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Queued<'a> {
    pub job: &'a JobRecord,
    /// Its queue. `None`: it has left all queues.
    pub queue: Option<&'a str>,
    /// Its object says that it is to have no nodes.
    pub suspend: bool,
    /// How many pods it has, with those that are being deleted. `None`: nobody knows yet.
    pub pods: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub admission: Admission,
    pub step: Option<Step>,
}

impl Said {
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self {
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

impl Admission {
    /// Whether a job gets no nodes. `is`: whether it gets none now.
    pub fn holds_back(&self, is: bool) -> bool {
        match self {
            Admission::Free | Admission::Admitted(_) => false,
            Admission::Waits(_) => true,
            Admission::Unknown => is,
        }
    }

    /// How many nodes a job gets that wants so many, has so many, and needs at least so many.
    pub fn bounds(&self, wanted: u32, has: u32, least: u32) -> u32 {
        let most = match self {
            Admission::Admitted(most) => *most,
            Admission::Unknown => has,
            Admission::Free | Admission::Waits(_) => wanted,
        };
        wanted.min(most).max(least)
    }
}

impl Decision {
    fn waits(said: Said, step: Option<Step>) -> Self {
        Self {
            admission: Admission::Waits(said),
            step,
        }
    }
}

/// Where a job stands, and what its Workload needs next.
pub fn decide(queued: Queued<'_>, workload: Option<&Workload>) -> Decision {
    let Queued {
        job,
        queue,
        suspend,
        pods,
    } = queued;
    let may_live = job.unproven_generations().next().is_some();
    let is_idle = pods == Some(0) && !may_live;
    let delete = || workload.filter(|workload| !workload.deleting);
    let Some(queue) = queue else {
        return Decision {
            admission: Admission::Free,
            step: delete().map(|_| Step::Delete),
        };
    };
    if let Stage::Over(end) = job.stage() {
        let running = workload.filter(|workload| workload.finished.is_none() && !may_live);
        return Decision {
            admission: Admission::Free,
            step: running.map(|_| Step::Finish {
                succeeded: end.phase == Phase::Succeeded,
                message: end.message.clone(),
            }),
        };
    }
    if suspend {
        // It holds no quota, and loses its place.
        let step = delete().filter(|_| is_idle).map(|_| Step::Delete);
        let said = Said::new("Suspended", "suspended, so it is in no queue");
        return Decision::waits(said, step);
    }
    let asks = Asks {
        queue: queue.to_owned(),
        count: job.replicas,
        priority: i64::from(job.spec.priority),
    };
    let Some(workload) = workload else {
        let said = Said::new("NoWorkload", "its Workload is being made");
        return Decision::waits(said, is_idle.then_some(Step::Create(asks)));
    };
    if workload.deleting {
        let said = Said::new("WorkloadDeleted", "its Workload is being deleted");
        return Decision::waits(said, None);
    }
    if let Some(Said { reason, message }) = &workload.finished {
        let message = format!(
            "somebody else has said that its Workload is finished ({reason}: {message}); delete the Workload to queue the job again"
        );
        return Decision::waits(Said::new("WorkloadFinished", message), None);
    }
    let unready = (workload.ready == Some(true)).then_some(Step::Ready(false));
    // The condition stays until quota is reserved again.
    if let Some(why) = workload.evicted.as_ref().filter(|_| workload.reserved) {
        let release = Step::Release {
            why: why.clone(),
            requeued: ["Preempted", "NodeFailures"].contains(&&*why.reason),
        };
        let release = is_idle.then_some(release);
        return Decision::waits(why.clone(), release.or(unready));
    }
    if !workload.active {
        let mut message = "its Workload is not active (spec.active is false)".to_owned();
        // Kueue has done it, and says why, as in DeactivatedDueToAdmissionCheck.
        let by_kueue = |why: &&Said| why.reason.starts_with("DeactivatedDueTo");
        if let Some(why) = workload.evicted.as_ref().filter(by_kueue) {
            message = format!("{message}: {}", why.message);
        }
        return Decision::waits(Said::new("Deactivated", message), unready);
    }
    if !workload.admitted {
        let fits = workload.queue == asks.queue
            && workload.count == asks.count
            && workload.priority == asks.priority;
        let change = (!workload.reserved && !fits).then_some(Step::Update(asks));
        let waits = || Said::new("Pending", format!("it waits in the queue {queue}"));
        let said = workload.waits.clone().or_else(|| workload.evicted.clone());
        let said = said.unwrap_or_else(waits);
        return Decision::waits(said, unready.or(change));
    }
    let assigned = workload.assigned.unwrap_or(workload.count);
    let nodes = assigned.saturating_sub(workload.reclaimable);
    // Quota that was given back does not come back: Kueue may have given it to others.
    let has_shrunk = job.replicas < nodes && pods.is_some_and(|pods| pods <= job.replicas as usize);
    let reclaim = has_shrunk.then(|| Step::Reclaim(assigned.saturating_sub(job.replicas)));
    // A new generation takes tenths of a second, and Kueue need not hear of it.
    let ready = match workload.ready {
        None | Some(false) if job.is_running() => Some(Step::Ready(true)),
        Some(true) if job.begins() => Some(Step::Ready(false)),
        _ => None,
    };
    Decision {
        admission: Admission::Admitted(nodes),
        step: reclaim.or(ready),
    }
}

#[cfg(test)]
mod tests;
