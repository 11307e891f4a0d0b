//! A job's durable record: all that must survive a coordinator that dies at any moment.
//!
//! Phases: `Pending -> Forming -> Running -> Succeeded`, with `Running -> Recovering -> Running`
//! for every broken or outgrown generation, `Recovering -> Pending` when fewer than the minimum are
//! left, `* -> Stopping -> Cancelled` on request, and `* -> Failed` when the restart budget is
//! spent. Succeeded, Failed and Cancelled are for ever.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    fleet::{
        member_end::MemberEnd,
        members::Members,
        receipt::{Cause, Incident, Lost},
    },
    id::{Generation, JobName, JobUid, NodeName},
    nccl::profile::Profile,
    nccl::stack::Stack,
    run::{Endpoint, RunId},
    spec::JobSpec,
    time::Timestamp,
};

pub use crate::fleet::members::Member;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    Pending,
    Forming,
    Running,
    Recovering,
    Stopping,
    Succeeded,
    Failed,
    Cancelled,
}

impl Phase {
    pub fn is_over(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed | Phase::Cancelled)
    }
}

/// Why a job is in its phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    Submitted,
    /// Fewer nodes than its minimum can take it.
    BelowMinimum,
    /// It fails again and again, and the next start waits.
    BackOff,
    /// Not every member is ready to start, or the store is not served yet.
    Preparing,
    /// Members of the generation before cannot be asked, and stop by themselves at a known moment.
    Fencing,
    /// Members of the generation before cannot be asked, and nothing proves them dead.
    Unreachable,
    /// Workers are being ended.
    Stopping,
    Launching,
    Running,
    /// It trains, and a node gets ready to join.
    Warming,
    /// It trains on fewer nodes than wanted.
    BelowReplicas,
    /// Many nodes fell silent at once, all of its own among them: it is left as it is.
    MassLoss,
    /// A node knows more of it than the store: nothing is decided.
    StoreBehind,
    Completed,
    RestartBudgetSpent,
    Cancelled,
    /// What a later version wrote.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRecord {
    pub uid: JobUid,
    pub name: JobName,
    pub spec: JobSpec,
    /// The submission's idempotency key; empty if the client gave none.
    pub request_id: String,
    pub created: Timestamp,
    /// Nodes wanted now: `spec.replicas` until somebody scales.
    pub replicas: u32,
    pub phase: Phase,
    /// Why it is in this phase, in a word and in a sentence with the numbers.
    pub reason: Reason,
    pub message: String,
    /// The generation being formed or running.
    pub current: Option<GenerationRecord>,
    /// Generations replaced by newer ones of which some member is not yet proven dead.
    pub retiring: Vec<GenerationRecord>,
    /// The last generation number given out.
    pub last_generation: Generation,
    /// Failures charged to the job within its window, newest last.
    pub restarts: Vec<Timestamp>,
    /// How often workers that had been started were started again, for whatever reason: a failure,
    /// a lost node, a resize.
    pub restart_count: u32,
    /// Failures charged in a row, with no generation between them that trained: for the back-off.
    pub failures_in_row: u32,
    /// Failures charged in a row that look alike, before the job has ever shown a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash_loop: Option<CrashLoop>,
    /// Breaks in a row that nobody could be charged with for certain, without a step further than
    /// before.
    #[serde(default)]
    pub in_vain: u32,
    /// Not to be started again before this.
    pub not_before: Option<Timestamp>,
    /// Newest last, bounded by `INCIDENTS_MAX`.
    pub incidents: Vec<Incident>,
    pub incidents_dropped: u32,
    /// What those cost that are no longer kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lost: BTreeMap<Cause, Lost>,
    /// Since when nothing can be done, for want of nodes or in back-off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<Timestamp>,
    /// The last step seen of the generations that are over.
    pub last_step: Option<u64>,
    /// The highest step that any generation which is over has shown.
    #[serde(default)]
    pub furthest_step: Option<u64>,
    /// The end this job is being brought to; its generations are being stopped.
    pub ending: Option<Ending>,
    /// What the nodes of refused generations have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stacks: BTreeMap<NodeName, KnownStack>,
    /// Generations that are over, newest last, bounded by `HISTORY_MAX` and `HISTORY_MEMBERS_MAX`:
    /// where their logs are. The first that failed stays among them.
    pub history: Vec<GenerationRecord>,
    /// Every node that ever held a run of this job and may hold its logs.
    pub nodes_used: BTreeSet<NodeName>,
    pub finished: Option<Timestamp>,
}

/// What a node was found to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KnownStack {
    pub at: Timestamp,
    pub stack: Stack,
    /// The agent that said so.
    pub incarnation: u64,
}

/// Failures in a row that look alike, each soon after its start, in a job that has never shown a
/// step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CrashLoop {
    pub times: u32,
    /// The longest of them lasted so long.
    #[serde(with = "crate::period::serde_period")]
    pub within: Duration,
    /// How they ended: the exit and the first error.
    pub symptom: String,
}

/// The end a job will have once nothing of it runs any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    pub phase: Phase,
    pub reason: Reason,
    pub message: String,
}

/// Generations a job remembers, the newest and the first that failed, for `logs --previous` and
/// `--generation`.
pub const HISTORY_MAX: usize = 10;
/// Members in all remembered generations together: 1,024 of about 100 bytes keep a record near 100
/// KiB.
pub const HISTORY_MEMBERS_MAX: usize = 1_024;

/// Receipts kept with a job. 100 of about 400 bytes stay far below a record of 64 KiB.
pub const INCIDENTS_MAX: usize = 100;

/// One sealed membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GenerationRecord {
    pub number: Generation,
    pub cause: Cause,
    pub members: Members,
    pub proc_per_node: u32,
    /// The job's restarts with this one; part of the assignment, which must never change within a
    /// generation.
    pub restart_count: u32,
    pub store_host: NodeName,
    /// Where the store is served; known and stored from the moment the generation is started.
    pub store: Option<Endpoint>,
    /// Rendezvous id with the generation's number in it; unique for ever.
    pub rendezvous: String,
    pub opened: Timestamp,
    /// Members may be told to train: everybody was ready and the generation before is inert.
    pub started: bool,
    pub started_at: Option<Timestamp>,
    /// The grace its predecessor was given to stop; members cannot be ready before that.
    #[serde(with = "crate::period::serde_period")]
    pub previous_grace: std::time::Duration,
    /// A member broke or the world is outgrown; never trains again.
    pub stopping: Option<Stopping>,
    /// Members proven dead.
    pub dead: BTreeSet<NodeName>,
    /// Members that could not be heard for so long that their workers have stopped by themselves
    /// (`fenceAfter`). They make no step any more, for ever; what they hold is theirs until their
    /// node has spoken.
    #[serde(default)]
    pub fenced: BTreeSet<NodeName>,
    /// What all its ranks agree on.
    #[serde(default)]
    pub profile: Profile,
    /// How its members ended; kept of the last generation that was started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ends: BTreeMap<NodeName, MemberEnd>,
}

/// How a generation is being ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stopping {
    pub reason: String,
    /// Time to save a checkpoint. Zero for a broken synchronous generation: its survivors cannot
    /// make a step any more.
    #[serde(with = "crate::period::serde_period")]
    pub grace: std::time::Duration,
}

impl JobRecord {
    /// A job as just accepted.
    pub fn submitted(
        uid: JobUid,
        name: JobName,
        spec: JobSpec,
        request_id: String,
        now: Timestamp,
    ) -> Self {
        Self {
            uid,
            name,
            replicas: spec.replicas,
            spec,
            request_id,
            created: now,
            phase: Phase::Pending,
            reason: Reason::Submitted,
            message: String::new(),
            current: None,
            retiring: Vec::new(),
            last_generation: Generation(0),
            restarts: Vec::new(),
            restart_count: 0,
            failures_in_row: 0,
            crash_loop: None,
            in_vain: 0,
            not_before: None,
            incidents: Vec::new(),
            incidents_dropped: 0,
            lost: BTreeMap::new(),
            waiting_since: None,
            last_step: None,
            furthest_step: None,
            ending: None,
            stacks: BTreeMap::new(),
            history: Vec::new(),
            nodes_used: BTreeSet::new(),
            finished: None,
        }
    }

    /// Generations of which some process may live, oldest first.
    pub fn unproven_generations(&self) -> impl Iterator<Item = &GenerationRecord> {
        self.retiring.iter().chain(self.current.as_ref())
    }

    pub fn unproven_generations_mut(&mut self) -> impl Iterator<Item = &mut GenerationRecord> {
        self.retiring.iter_mut().chain(self.current.as_mut())
    }

    /// The generation a user means who names none: the current one, else the newest.
    pub fn latest(&self) -> Option<&GenerationRecord> {
        self.current.as_ref().or_else(|| {
            self.retiring
                .iter()
                .chain(&self.history)
                .max_by_key(|g| g.number)
        })
    }

    /// The generation that tells most about the job: the latest; once the job is over, the last
    /// that was started.
    pub fn shown(&self) -> Option<&GenerationRecord> {
        self.trained_last()
            .filter(|_| self.phase.is_over())
            .or_else(|| self.latest())
    }

    /// The last generation that trained.
    pub(crate) fn trained_last(&self) -> Option<&GenerationRecord> {
        self.unproven_generations()
            .chain(&self.history)
            .filter(|generation| generation.started)
            .max_by_key(|generation| generation.number)
    }

    pub fn generation(&self, number: Generation) -> Option<&GenerationRecord> {
        self.unproven_generations()
            .chain(&self.history)
            .find(|g| g.number == number)
    }

    /// Takes the current generation out of service for good. It is retiring until every member is
    /// proven dead.
    pub(crate) fn retire_current(&mut self, stopping: Stopping) {
        if let Some(mut generation) = self.current.take() {
            generation.stopping = Some(stopping);
            self.retiring.push(generation);
        }
    }

    /// Moves generations whose every member is proven dead to the history.
    pub(crate) fn keep_proven_as_history(&mut self) {
        let (dead, alive): (Vec<_>, Vec<_>) = std::mem::take(&mut self.retiring)
            .into_iter()
            .partition(GenerationRecord::all_dead);
        self.retiring = alive;
        self.history.extend(dead);
        let mut members: usize = self.history.iter().map(|g| g.members.len()).sum();
        while self.history.len() > HISTORY_MAX
            || (members > HISTORY_MEMBERS_MAX && self.history.len() > 1)
        {
            let oldest = usize::from(self.history.len() > 2 && self.keeps_first());
            members -= self.history.remove(oldest).members.len();
        }
    }

    /// Whether the oldest generation of the history is the first that failed: it is what users ask
    /// for when the job has failed for good. It stays when those after it go, and is known by that
    /// gap then.
    fn keeps_first(&self) -> bool {
        let first = self.history[0].number;
        let failed =
            |incident: &Incident| incident.from == Some(first) && incident.cause.is_failure();
        self.history[1].number > first.next() || self.incidents.iter().any(failed)
    }
}

impl GenerationRecord {
    pub fn run(&self, job: &JobUid) -> RunId {
        RunId {
            job: job.clone(),
            generation: self.number,
        }
    }

    /// Node of a global rank.
    pub fn node_of(&self, rank: u32) -> Option<&NodeName> {
        self.members
            .get((rank / self.proc_per_node.max(1)) as usize)
            .map(|member| &member.node)
    }

    pub fn world_size(&self) -> u32 {
        self.members.len() as u32 * self.proc_per_node
    }

    pub fn has(&self, node: &NodeName) -> bool {
        self.members.rank_of(node).is_some()
    }

    /// No worker of this member makes a step any more: it is proven dead, or has stopped by itself.
    pub fn has_stopped(&self, node: &NodeName) -> bool {
        self.dead.contains(node) || self.fenced.contains(node)
    }

    pub fn all_dead(&self) -> bool {
        self.dead.len() >= self.members.len()
            && self
                .members
                .iter()
                .all(|member| self.dead.contains(&member.node))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument};

    /// A job just submitted.
    pub(crate) fn record() -> JobRecord {
        let metadata = Metadata {
            name: "digits".into(),
            namespace: None,
        };
        let spec = SpecDocument {
            args: vec!["train.py".into()],
            ..SpecDocument::default()
        };
        let document = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata,
            spec,
        };
        let (name, spec) = document.check().unwrap();
        JobRecord::submitted(JobUid::from("uid"), name, spec, String::new(), Timestamp(0))
    }

    fn generation(number: u64) -> GenerationRecord {
        GenerationRecord {
            number: Generation(number),
            cause: Cause::FirstStart,
            members: Vec::new().into(),
            proc_per_node: 1,
            restart_count: 0,
            store_host: NodeName::from("a"),
            store: None,
            rendezvous: String::new(),
            opened: Timestamp(0),
            started: true,
            started_at: None,
            previous_grace: Duration::ZERO,
            stopping: None,
            dead: BTreeSet::new(),
            fenced: BTreeSet::new(),
            profile: Profile::default(),
            ends: BTreeMap::new(),
        }
    }

    #[test]
    fn the_first_generation_that_failed_stays_known() {
        let mut job = record();
        for number in 1..=30 {
            // The first is resized; from the second on, all fail, and the job remembers a hundred
            // incidents.
            let cause = if number == 1 {
                Cause::Scaled
            } else {
                Cause::WorkerFailed
            };
            job.open_incident(Incident {
                cause,
                from: Some(Generation(number)),
                ..Incident::at(Timestamp(number))
            });
            if number > 20 {
                job.incidents.remove(0);
            }
            job.retiring.push(generation(number));
            job.keep_proven_as_history();
        }
        let known: Vec<u64> = job
            .history
            .iter()
            .map(|generation| generation.number.0)
            .collect();
        assert_eq!(known, [2, 22, 23, 24, 25, 26, 27, 28, 29, 30]);
    }
}
