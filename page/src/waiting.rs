//! Who waits, in which order, and for what: what pages and the command line show of it.
//!
//! A job that waits has one of three places. In the queue: it gets nodes when those before it have theirs. Not eligible: it waits for
//! other jobs or for its time, and has no position until then. Held back: it waits for something else, as for `muster resume` or for
//! the end of its back-off; `muster queue` leaves these out.

use std::{cmp::Reverse, collections::HashMap};

use muster_proto::v1::{
    Job, JobPhase, JobRef, JobStart, JobStatus, ListQueuesResponse, NotEligible, StartEstimate,
};

use crate::{start, words};

/// Said where nobody is in the queue, and nobody will come into it by itself.
pub const NOBODY: &str = "No jobs wait for nodes, other jobs or their time.";

/// A job that waits.
#[derive(Clone, Debug)]
pub struct Waiting<'j> {
    pub place: Place<'j>,
    pub namespace: &'j str,
    pub name: &'j str,
    pub priority: i64,
    /// Members that it wants, and without which it does not start.
    pub wants: u32,
    pub least: u32,
    pub gpus_per_member: u32,
    /// One word. Empty: it is not known yet.
    pub lacks: &'j str,
    /// Its state's reason: Preempted, if it had nodes before.
    pub reason: &'j str,
    pub message: &'j str,
    /// Microseconds since 1970. 0: it is not known.
    pub since_us: u64,
    /// When it will start. None: nothing is said of it.
    pub start: Option<&'j StartEstimate>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place<'j> {
    /// It waits for nodes.
    InQueue {
        /// From 1, in all namespaces.
        position: usize,
        /// Namespace and name of the job before it.
        ahead: Option<(&'j str, &'j str)>,
    },
    NotEligible(&'j NotEligible),
    HeldBack,
}

/// Jobs in the queue, the first to get nodes in front, and behind them those that are not eligible. Positions count the jobs of all
/// namespaces. Those of other namespaces than this one are left out, unless it is empty. `order`: what the coordinator says of it. Jobs
/// that it does not name come last, by priority and age.
pub fn in_order<'j>(jobs: &'j [Job], order: &[JobRef], namespace: &str) -> Vec<Waiting<'j>> {
    let mut all = in_queue(jobs, order);
    let mut others: Vec<(&Job, &JobStatus, &NotEligible)> = jobs
        .iter()
        .filter_map(|job| {
            let status = job.status.as_ref()?;
            Some((job, status, not_eligible(status)?))
        })
        .collect();
    others.sort_by_key(|(job, ..)| (job.created_unix_us, &job.uid));
    all.extend(others.into_iter().map(|(job, status, waits)| Waiting {
        since_us: waits.since_unix_us,
        ..row(job, status, Place::NotEligible(waits))
    }));
    all.retain(|job| namespace.is_empty() || job.namespace == namespace);
    all
}

/// Jobs that wait for something else, the oldest first.
pub fn held_back<'j>(jobs: &'j [Job], namespace: &str) -> Vec<Waiting<'j>> {
    let of = |job: &&Job| namespace.is_empty() || name(job).0 == namespace;
    let mut all: Vec<(&Job, &JobStatus)> = jobs
        .iter()
        .filter(of)
        .filter_map(|job| Some((job, job.status.as_ref()?)))
        .filter(|(_, status)| is_held_back(status))
        .collect();
    all.sort_by_key(|(job, _)| (job.created_unix_us, &job.uid));
    all.into_iter()
        .map(|(job, status)| row(job, status, Place::HeldBack))
        .collect()
}

/// Adds when they will start.
pub fn add_starts<'j>(waiting: &mut [Waiting<'j>], starts: &'j [JobStart]) {
    let said: HashMap<(&str, &str), &StartEstimate> = starts
        .iter()
        .filter_map(|one| {
            let job = one.r#ref.as_ref()?;
            Some(((&*job.namespace, &*job.name), one.start.as_ref()?))
        })
        .collect();
    for job in waiting {
        job.start = said.get(&(job.namespace, job.name)).copied();
    }
}

/// What a page of the queue is made of.
#[derive(Clone, Debug, Default)]
pub struct QueueStory {
    /// Of all namespaces: positions count them all.
    pub jobs: Vec<Job>,
    /// Only jobs of this namespace are shown. Empty: of all.
    pub namespace: String,
    pub queues: ListQueuesResponse,
    /// Why estimates or quotas are not there. Empty: they are.
    pub missing: String,
}

impl Waiting<'_> {
    /// `3`, or that it has no place until it may start.
    pub fn position(&self) -> String {
        match self.place {
            Place::InQueue { position, .. } => position.to_string(),
            Place::NotEligible(_) => "not eligible".to_owned(),
            Place::HeldBack => "held back".to_owned(),
        }
    }

    /// `4`, or `2-4`: the least that it starts with, and what it wants.
    pub fn nodes(&self) -> String {
        match self.least == self.wants {
            true => self.wants.to_string(),
            false => format!("{}-{}", self.least, self.wants),
        }
    }

    /// `~14:20Z in 2h`. Empty: nothing is said of it.
    pub fn starts(&self, now_us: u64) -> String {
        self.start
            .map_or_else(String::new, |said| start::when(said, now_us))
    }

    /// On what the estimate is based, or why there is none.
    pub fn basis(&self) -> &str {
        self.start.map_or("", |said| &said.basis)
    }

    /// What comes before it: the job before it, or what it waits for.
    pub fn ahead(&self) -> Vec<Ahead<'_>> {
        match self.place {
            Place::InQueue { ahead, .. } => ahead.map(Ahead::job).into_iter().collect(),
            Place::NotEligible(waits) => awaited(self.namespace, waits),
            Place::HeldBack => Vec::new(),
        }
    }
}

/// Something that comes before a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead<'j> {
    /// Namespace and name of a job. None: it is a time.
    pub job: Option<(&'j str, &'j str)>,
    pub text: String,
}

impl<'j> Ahead<'j> {
    fn job((namespace, name): (&'j str, &'j str)) -> Self {
        Self {
            job: Some((namespace, name)),
            text: format!("{namespace}/{name}"),
        }
    }
}

/// What a job that may not start yet waits for, as one word each: jobs, and its time.
fn awaited<'j>(namespace: &'j str, waits: &'j NotEligible) -> Vec<Ahead<'j>> {
    let open = waits.jobs.iter().filter(|job| job.end.is_empty());
    let mut all: Vec<Ahead<'_>> = open
        .map(|job| Ahead {
            job: Some((namespace, &job.name)),
            text: match job.condition.as_str() {
                "succeeded" => job.name.clone(),
                condition => format!("{}:{condition}", job.name),
            },
        })
        .collect();
    if waits.start_after_unix_us != 0 {
        all.push(Ahead {
            job: None,
            text: words::utc_seconds(waits.start_after_unix_us),
        });
    }
    all
}

/// The address of the job's line on the page of the queue. Empty: it does not wait.
pub(crate) fn link(job: &Job) -> String {
    let waits = |status: &JobStatus| {
        waits_for_room(status) || not_eligible(status).is_some() || is_held_back(status)
    };
    let (namespace, name) = name(job);
    match job.status.as_ref().is_some_and(waits) {
        true => format!(
            "/queue?q={}",
            words::in_query(&format!("{namespace}/{name}"))
        ),
        false => String::new(),
    }
}

fn in_queue<'j>(jobs: &'j [Job], order: &[JobRef]) -> Vec<Waiting<'j>> {
    let place: HashMap<(&str, &str), usize> = order
        .iter()
        .enumerate()
        .map(|(place, job)| ((&*job.namespace, &*job.name), place))
        .collect();
    let mut all: Vec<(&Job, &JobStatus)> = jobs
        .iter()
        .filter_map(|job| Some((job, job.status.as_ref()?)))
        .filter(|(_, status)| waits_for_room(status))
        .collect();
    all.sort_by_key(|(job, _)| {
        let place = place.get(&name(job)).copied().unwrap_or(usize::MAX);
        (place, Reverse(priority(job)), job.created_unix_us, &job.uid)
    });
    let mut waiting: Vec<Waiting<'_>> = Vec::with_capacity(all.len());
    for (job, status) in all {
        let before = waiting.last();
        let place = Place::InQueue {
            position: waiting.len() + 1,
            ahead: before.map(|before| (before.namespace, before.name)),
        };
        let one = row(job, status, place);
        waiting.extend(status.waits_for_room.as_ref().map(|waits| Waiting {
            least: waits.least,
            gpus_per_member: waits.gpus_per_member,
            lacks: &waits.lacks,
            since_us: waits.since_unix_us,
            ..one
        }));
    }
    waiting
}

/// A job with what its spec and its state say. What it lacks is the reason of its state.
fn row<'j>(job: &'j Job, status: &'j JobStatus, place: Place<'j>) -> Waiting<'j> {
    let (namespace, name) = name(job);
    let spec = job.spec.as_ref();
    Waiting {
        place,
        namespace,
        name,
        priority: priority(job),
        wants: status.replicas,
        least: spec
            .and_then(|spec| spec.min_replicas)
            .and_then(|least| u32::try_from(least).ok())
            .unwrap_or(status.replicas),
        gpus_per_member: spec
            .and_then(|spec| spec.gpus_per_node)
            .and_then(|gpus| u32::try_from(gpus).ok())
            .unwrap_or_default(),
        lacks: &status.reason,
        reason: &status.reason,
        message: &status.message,
        since_us: 0,
        start: None,
    }
}

fn waits_for_room(status: &JobStatus) -> bool {
    status.waits_for_room.is_some() && !status.suspended
}

fn not_eligible(status: &JobStatus) -> Option<&NotEligible> {
    status.not_eligible.as_ref().filter(|_| !status.suspended)
}

/// Whether the job has no nodes, is not over, and waits for none.
fn is_held_back(status: &JobStatus) -> bool {
    matches!(status.phase(), JobPhase::Pending | JobPhase::Recovering)
        && status.members.is_empty()
        && !waits_for_room(status)
        && not_eligible(status).is_none()
}

fn name(job: &Job) -> (&str, &str) {
    let named = job.r#ref.as_ref();
    named.map_or(("", ""), |named| (&named.namespace, &named.name))
}

fn priority(job: &Job) -> i64 {
    let spec = job.spec.as_ref();
    spec.and_then(|spec| spec.priority).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_proto::v1::AwaitedJob;

    #[test]
    fn it_says_what_is_still_to_come() {
        let job = |name: &str, condition: &str, end: &str| AwaitedJob {
            name: name.into(),
            condition: condition.into(),
            end: end.into(),
            ..AwaitedJob::default()
        };
        let waits = NotEligible {
            jobs: vec![
                job("a", "succeeded", ""),
                job("b", "ended", "Failed"),
                job("c", "failed", ""),
            ],
            start_after_unix_us: 5_000_000,
            since_unix_us: 1_000_000,
        };
        let texts: Vec<String> = awaited("team", &waits)
            .into_iter()
            .map(|one| one.text)
            .collect();
        assert_eq!(texts, ["a", "c:failed", "1970-01-01T00:00:05Z"]);
    }
}
