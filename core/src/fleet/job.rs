//! A job's durable record: all that must survive a coordinator that dies at any moment.
//!
//! What a job does is its [`Stage`], and `job/stage.rs` alone moves it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    fleet::{
        actor::Actor,
        member_end::MemberEnd,
        members::Members,
        receipt::{Cause, Incident, Lost},
        restarts_before::RestartsBefore,
        time_account::TimeAccount,
    },
    id::{Generation, JobName, JobUid, NodeName},
    layout::Layout,
    nccl::profile::Profile,
    nccl::stack::Stack,
    period::micros,
    run::{Endpoint, Key, RunId},
    slow::{Left, Slow},
    spec::JobSpec,
    stall::Stall,
    time::Timestamp,
};

pub use awaited::{Awaited, AwaitedEnd};
pub use failed_start::FailedStart;
pub(crate) use same_failure::SAME_FAILURE_NODES_MAX;
pub use same_failure::{InVain, SameFailure};
pub use stage::{Phase, Reason, Stage, Why};
pub use told_of_world::ToldOfWorld;

mod awaited;
mod failed_start;
mod same_failure;
mod stage;
mod told_of_world;

pub use crate::fleet::members::{Member, Seat};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRecord {
    pub uid: JobUid,
    pub name: JobName,
    pub spec: JobSpec,
    /// The submission's idempotency key; empty if the client gave none.
    pub request_id: String,
    /// Who submitted it. `None`: a coordinator that did not keep this took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Actor>,
    pub created: Timestamp,
    /// The number of nodes wanted now. It is `spec.replicas` until a user scales the job.
    pub replicas: u32,
    /// No generation is opened until the job is resumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// When it was last resumed. `None`: it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Timestamp>,
    /// The jobs that it waits for, or has waited for, in the order of the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaited: Vec<Awaited>,
    /// When it had all that it waited for: jobs and its time. `None`: it waits, or has nothing to wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eligible: Option<Timestamp>,
    /// When a generation of it was started for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_started: Option<Timestamp>,
    /// What users were last told: the phase, why the job is in it (`reason` is a word, `message` a sentence
    /// with the numbers). No rule reads these three: what a job does is its [`Stage`].
    pub phase: Phase,
    pub reason: Reason,
    pub message: String,
    /// Why the job makes no steps, as was last found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
    /// The generation being formed or running.
    pub current: Option<GenerationRecord>,
    /// Generations that were replaced, and have a member that is not yet proven dead.
    pub retiring: Vec<GenerationRecord>,
    /// The last generation number given out.
    pub last_generation: Generation,
    /// Failures charged to the job within its window, newest last, bounded by `RESTARTS_KEPT`.
    pub restarts: Vec<Timestamp>,
    /// Those before them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts_before: Option<RestartsBefore>,
    /// The restarts that were charged to rules with a limit of their own, by their place in the list.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rule_restarts: BTreeMap<usize, RuleRestarts>,
    /// How often workers that had been started were started again, for any reason: a failure, a
    /// lost node or a resize.
    pub restart_count: u32,
    /// Failures charged in a row without a generation that trained between them. The back-off uses
    /// it.
    pub failures_in_row: u32,
    /// Failures charged in a row that look alike, in a job that has never shown a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash_loop: Option<CrashLoop>,
    /// Failures in a row that are the same, without progress between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_failure: Option<SameFailure>,
    /// Generations in a row that have brought the job no further.
    #[serde(default, skip_serializing_if = "InVain::is_none")]
    pub generations_in_vain: InVain,
    /// The last start, if it failed in a way that does not change by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_start: Option<FailedStart>,
    /// All ranks of a generation of it have been started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_launched: bool,
    /// A generation of it has run for so long that it did not fail at its start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_run: bool,
    /// A generation of it has trained, so far as can be seen from outside. Steps need not have been
    /// seen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_trained: bool,
    /// Breaks in a row that could be charged to nobody for certain, and that brought no new step.
    #[serde(default, rename = "in_vain")]
    pub doubtful_in_row: u32,
    /// Breaks within the window of `restartPolicy` that could be charged to nobody for certain, and were
    /// not charged to the job, newest last. Bounded by `DOUBTFUL_IN_WINDOW_MAX`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubtful: Vec<Timestamp>,
    /// The job is not started again before this moment.
    pub not_before: Option<Timestamp>,
    /// The receipts, newest last, bounded by `INCIDENTS_MAX`.
    pub incidents: Vec<Incident>,
    pub incidents_dropped: u32,
    /// What the dropped incidents cost.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lost: BTreeMap<Cause, Lost>,
    /// Since when nothing can be done, because nodes are missing or the job is in back-off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<Timestamp>,
    /// When others were first asked to give nodes for it, of the time that it waits now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room_made: Option<Timestamp>,
    /// Where its time has gone. `None`: only coordinators that kept no account have decided about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeAccount>,
    /// The last step that was seen of the generations that are over.
    pub last_step: Option<u64>,
    /// The highest step that any generation has shown, of those that are over.
    #[serde(default)]
    pub furthest_step: Option<u64>,
    /// The end to which this job is being brought. Its generations are being stopped.
    pub ending: Option<Ending>,
    /// The software found on the nodes of refused generations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stacks: BTreeMap<NodeName, KnownStack>,
    /// Generations that are over, newest last: they tell where their logs are. They are bounded by
    /// `HISTORY_MAX` and `HISTORY_MEMBERS_MAX`. The first generation that failed is kept.
    pub history: Vec<GenerationRecord>,
    /// Every node that ever held a run of this job and may hold its logs. Above `NODES_USED_MAX` those
    /// that are not known any more are left out.
    pub nodes_used: BTreeSet<NodeName>,
    pub finished: Option<Timestamp>,
    /// What people were told of the world that its ranks form.
    #[serde(default, skip_serializing_if = "ToldOfWorld::is_nothing")]
    pub told_of_world: ToldOfWorld,
    /// It has waited too long since this moment, as people were told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_waiting: Option<Timestamp>,
    /// The longest time in which nothing of it moved and after which it went on by itself.
    #[serde(default, with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub longest_pause: Duration,
    /// Nodes that it has left because ranks there made the others wait.
    #[serde(default, skip_serializing_if = "Left::is_nothing")]
    pub left_slow: Left,
}

/// The software that was found on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KnownStack {
    pub at: Timestamp,
    pub stack: Stack,
    /// The incarnation of the agent that reported it.
    pub incarnation: u64,
}

/// The restarts that one rule has allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleRestarts {
    /// Their number. If the limit has a window, only those in it.
    pub count: u32,
    /// When they were. Only a limit with a window needs this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<Timestamp>,
}

/// Failures in a row that look alike, each soon after its start. The job has never shown a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CrashLoop {
    pub times: u32,
    /// How long the longest of them lasted.
    #[serde(with = "crate::period::serde_period")]
    pub within: Duration,
    /// How they ended: the exit code or signal, and the first error.
    pub symptom: String,
}

/// The end that a job will have when none of its processes runs any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    pub phase: Phase,
    pub reason: Reason,
    pub message: String,
}

/// The number of generations that a job remembers, for `logs --previous` and `--generation`: the
/// newest ones, and the first that failed.
pub const HISTORY_MAX: usize = 10;
/// The number of members in all remembered generations together, if there is more than one. 1,024
/// members of about 100 bytes keep a record near 100 KiB.
pub const HISTORY_MEMBERS_MAX: usize = 1_024;

/// How many nodes a job remembers that are not known any more. Twice the largest generation: a job in pods
/// gets a new node for each pod.
pub const NODES_USED_MAX: usize = 8_192;

/// The number of receipts kept with a job. 100 of about 400 bytes stay far below a record of 64
/// KiB.
pub const INCIDENTS_MAX: usize = 100;

/// One generation: a sealed membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GenerationRecord {
    pub number: Generation,
    pub cause: Cause,
    pub members: Members,
    /// Processes of each member, if it has no roles.
    pub proc_per_node: u32,
    /// The roles of its members. Empty: they are all alike.
    #[serde(default, skip_serializing_if = "Layout::is_empty")]
    pub layout: Layout,
    /// The job's restart count when this generation was opened. It is part of the assignment, which
    /// must never change within a generation.
    pub restart_count: u32,
    pub store_host: NodeName,
    /// Where the TCPStore is served. It is unknown before the generation is started.
    pub store: Option<Endpoint>,
    /// Where each member's process listens for its peers, by node rank. It is stored when the
    /// generation is started, and only for a framework whose processes are told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Endpoint>,
    /// The keys by which the members know MPI's launcher, until the generation is over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Key>,
    /// The rendezvous id. It contains the generation's number and is never used again.
    pub rendezvous: String,
    pub opened: Timestamp,
    /// Members may be told to train: all were ready, and the previous generations were inert.
    pub started: bool,
    pub started_at: Option<Timestamp>,
    /// All its ranks have been started, or it was left as it is before that. Until then a job shows the
    /// phase of one that forms.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub launched: bool,
    /// The grace that its predecessor was given to stop. Members cannot be ready before that.
    #[serde(with = "crate::period::serde_period")]
    pub previous_grace: std::time::Duration,
    /// A member broke, or the job is to have another size. The generation never trains again.
    pub stopping: Option<Stopping>,
    /// Members proven dead.
    pub dead: BTreeSet<NodeName>,
    /// Members whose node could not be heard for so long that their workers have stopped by
    /// themselves (`fenceAfter`). They never make a step again. They keep their GPUs and slots
    /// until their node has spoken.
    #[serde(default)]
    pub fenced: BTreeSet<NodeName>,
    /// What all ranks of this generation agree on.
    #[serde(default)]
    pub profile: Profile,
    /// How its members ended. Only the last generation that was started keeps this.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ends: BTreeMap<NodeName, MemberEnd>,
    /// A rule says that the job has succeeded, because of this member. The others have some time
    /// left to end by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub won: Option<Won>,
    /// Members whose ranks have left processes behind, as people were told.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub left_behind: BTreeSet<NodeName>,
    /// Members of which people were told what had to be killed there.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub forced: BTreeSet<NodeName>,
    /// Members whose runners did not obey, as people were told.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub disobeyed: BTreeSet<NodeName>,
    /// People were told why its steps are not shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub step_pattern_told: bool,
    /// The ranks that have failed and were started again alone, or will be.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub member_restarts: BTreeMap<u32, MemberRestart>,
    /// Nothing of it moves any more, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Box<Stall>>,
    /// Ranks of it make the others wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow: Option<Box<Slow>>,
}

/// The restarts of one rank in a generation that goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberRestart {
    /// The attempt that was ordered last. The first start of a rank is attempt 1.
    pub attempt: u32,
    /// When it was ordered.
    pub at: Timestamp,
    /// That attempt has failed. The next is ordered at this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
}

/// A member's success that decides the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Won {
    /// The place of the rule in the list.
    pub rule: usize,
    pub node: NodeName,
    /// The member's number, if its node holds several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// When the coordinator saw it.
    pub at: Timestamp,
}

/// How a generation is being ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stopping {
    pub reason: String,
    /// The time to save a checkpoint. It is zero for a broken synchronous generation, because its
    /// survivors cannot make a step any more.
    #[serde(with = "crate::period::serde_period")]
    pub grace: std::time::Duration,
}

impl JobRecord {
    /// A job that was just accepted.
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
            suspended: spec.suspend,
            resumed: None,
            awaited: Vec::new(),
            eligible: None,
            first_started: None,
            spec,
            request_id,
            owner: None,
            created: now,
            phase: Phase::Pending,
            reason: Reason::Submitted,
            message: String::new(),
            why: None,
            current: None,
            retiring: Vec::new(),
            last_generation: Generation(0),
            restarts: Vec::new(),
            restarts_before: None,
            rule_restarts: BTreeMap::new(),
            restart_count: 0,
            failures_in_row: 0,
            crash_loop: None,
            same_failure: None,
            generations_in_vain: InVain::default(),
            failed_start: None,
            has_launched: false,
            has_run: false,
            has_trained: false,
            doubtful_in_row: 0,
            doubtful: Vec::new(),
            not_before: None,
            incidents: Vec::new(),
            incidents_dropped: 0,
            lost: BTreeMap::new(),
            waiting_since: None,
            room_made: None,
            time: Some(TimeAccount::begun(now)),
            last_step: None,
            furthest_step: None,
            ending: None,
            stacks: BTreeMap::new(),
            history: Vec::new(),
            nodes_used: BTreeSet::new(),
            finished: None,
            told_of_world: ToldOfWorld::default(),
            told_waiting: None,
            longest_pause: Duration::ZERO,
            left_slow: Left::default(),
        }
    }

    /// Whether it belongs to the `MusterJob` object of its name. The object's uid is the job's.
    pub fn is_of_object(&self) -> bool {
        self.owner == Some(Actor::Object)
    }

    /// Generations that may still have a live process, oldest first.
    pub fn unproven_generations(&self) -> impl Iterator<Item = &GenerationRecord> {
        self.retiring.iter().chain(self.current.as_ref())
    }

    pub fn unproven_generations_mut(&mut self) -> impl Iterator<Item = &mut GenerationRecord> {
        self.retiring.iter_mut().chain(self.current.as_mut())
    }

    /// The generation that a user means without naming one: the current one, or else the newest.
    pub fn latest(&self) -> Option<&GenerationRecord> {
        self.current.as_ref().or_else(|| {
            self.retiring
                .iter()
                .chain(&self.history)
                .max_by_key(|g| g.number)
        })
    }

    /// The generation that tells most about the job: the latest. Once the job is over, it is the
    /// last one that was started.
    pub fn shown(&self) -> Option<&GenerationRecord> {
        self.trained_last()
            .filter(|_| self.is_over())
            .or_else(|| self.latest())
    }

    /// The receipt of the incident that this generation answered as a whole.
    pub(crate) fn receipt_of(&self, number: Generation) -> Option<&Incident> {
        let mut newest_first = self.incidents.iter().rev();
        newest_first.find(|one| one.to == Some(number) && one.restarted_ranks.is_empty())
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

    /// Notes that these nodes get a run.
    pub(crate) fn use_nodes<'a>(
        &mut self,
        nodes: impl Iterator<Item = &'a NodeName>,
        is_known: impl Fn(&NodeName) -> bool,
    ) {
        self.nodes_used.extend(nodes.cloned());
        if self.nodes_used.len() > NODES_USED_MAX {
            self.nodes_used.retain(is_known);
        }
    }

    /// Moves generations to the history if all their members are proven dead.
    pub(crate) fn keep_proven_as_history(&mut self) {
        let (mut dead, alive): (Vec<_>, Vec<_>) = std::mem::take(&mut self.retiring)
            .into_iter()
            .partition(GenerationRecord::all_dead);
        self.retiring = alive;
        if dead.is_empty() {
            return;
        }
        dead.iter_mut()
            .for_each(|generation| generation.keys.clear());
        self.history.extend(dead);
        self.forget_details();
        let mut members: usize = self.history.iter().map(|g| g.members.len()).sum();
        while self.history.len() > HISTORY_MAX
            || (members > HISTORY_MEMBERS_MAX && self.history.len() > 1)
        {
            let oldest = usize::from(self.history.len() > 2 && self.keeps_first());
            members -= self.history.remove(oldest).members.len();
        }
    }

    /// Forgets of the generations before the last that trained what matters only while their processes
    /// may live. So the record has the details of one generation, and of the one that takes its place.
    pub(crate) fn forget_details(&mut self) {
        let Some(last) = self.trained_last().map(|generation| generation.number) else {
            return;
        };
        for generation in self.retiring.iter_mut().chain(&mut self.history) {
            if generation.number < last {
                generation.members.forget_details(&generation.dead);
                generation.peers = Vec::new();
            }
        }
    }

    /// Whether the oldest generation of the history is the first that failed. Users ask for it when
    /// the job has failed for good. It stays when the generations after it are dropped, and from
    /// then on the gap in the numbers marks it.
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

    pub fn has(&self, node: &NodeName) -> bool {
        self.members.rank_of(node).is_some()
    }

    /// Whether no worker of this member makes a step any more: it is proven dead, or has stopped by
    /// itself.
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
pub(crate) mod tests;
