//! The stage of a job: what it does now, the moves from one stage to another, and the words that users read
//! of it. Nothing else sets `current`, `ending`, `finished` or `why` of a record.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    fleet::job::{Ending, GenerationRecord, JobRecord, Stopping},
    time::Timestamp,
};

/// The stage as users read it. It is told, and no rule reads it.
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

/// Why a job is in its phase. It is told, and no rule reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    Submitted,
    /// Fewer nodes than the job's minimum can take it.
    BelowMinimum,
    /// The job fails again and again, and its next start waits.
    BackOff,
    /// Not every member is ready to start, or the TCPStore is not served yet.
    Preparing,
    /// Members of an earlier generation cannot be asked. They stop by themselves at a known moment.
    Fencing,
    /// Members of an earlier generation cannot be asked, and nothing proves them dead.
    Unreachable,
    /// A job of higher priority has taken its nodes, and it waits for others.
    Preempted,
    /// The job is held back until somebody resumes it.
    Suspended,
    /// It waits for the end of other jobs.
    Dependency,
    /// It waits for its time.
    BeginTime,
    /// Workers are being ended.
    Stopping,
    Launching,
    Running,
    /// The job trains, and a new node makes its launcher ready.
    #[serde(alias = "Warming")]
    Prewarming,
    /// The job trains on fewer nodes than wanted.
    BelowReplicas,
    /// Many nodes fell silent at once, among them all nodes of this job. The job is left as it is.
    MassLoss,
    /// A node knows more of the job than the store does. Nothing is decided.
    StoreBehind,
    Completed,
    RestartBudgetSpent,
    /// What it is to run is not there, or cannot be run, and two starts or two nodes say so.
    CannotStart,
    /// The same failure of its code or data came again and again, without progress.
    DeterministicFailure,
    /// It took longer than its `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// It waited longer than its `startDeadlineSeconds` for its first start.
    StartDeadlineExceeded,
    /// A job that it waited for has ended in another way than it asked.
    DependencyNeverSatisfied,
    /// The store takes no record as large as its own.
    RecordTooLarge,
    /// One of its rules says that it has failed.
    FailedByRule,
    Cancelled,
    /// A reason that a later version wrote.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What a job does. It is computed from the record and from nothing that users are told.
///
/// A job goes `Waiting -> Forming -> Training`, and back to `Waiting` when its generation breaks or gives
/// way to another. From each of these it can come to `Ending`, and from there to `Over`, which is final.
#[derive(Clone, Copy, Debug)]
pub enum Stage<'a> {
    /// It has no generation. `None`: nothing is known that keeps it from the next.
    Waiting(Option<Why>),
    /// Its generation gets ready. `None`: nothing is in its way but time.
    Forming(&'a GenerationRecord, Option<Why>),
    /// Its generation was told to train.
    Training(&'a GenerationRecord),
    /// Whatever still runs of it is stopped, and then it has this end.
    Ending(&'a Ending),
    /// It has this end.
    Over(&'a Ending),
}

/// Why a job makes no steps, as a turn found it. It is stored, because it must survive the coordinator: what was
/// told once is not told again, and the account of time goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// A user holds it back.
    Suspended,
    /// It waits for the end of other jobs.
    Dependency,
    /// It waits for its time.
    BeginTime,
    /// A job of higher priority has taken its nodes, and it waits for others.
    Preempted,
    /// Its next start has a time, which has not come.
    BackOff,
    /// Placement has found too few nodes for a generation.
    BelowMinimum,
    /// Placement has found too few nodes to replace members that are silent. Their generation was left as it
    /// is; if it breaks, the job has too few nodes from the first moment on.
    Stranded,
    /// Workers of an earlier generation that nobody can ask stop by themselves at a known moment.
    Fencing,
    /// Workers of an earlier generation cannot be asked, and nothing proves them dead.
    Unreachable,
    /// A reason that a later version wrote.
    #[serde(other)]
    Unknown,
}

impl Why {
    /// Whether placement was asked in vain.
    pub(crate) fn lacks_nodes(self) -> bool {
        matches!(self, Why::BelowMinimum | Why::Stranded | Why::Preempted)
    }
}

impl JobRecord {
    pub fn stage(&self) -> Stage<'_> {
        match (&self.ending, &self.current) {
            (Some(ending), _) if self.finished.is_some() => Stage::Over(ending),
            (Some(ending), _) => Stage::Ending(ending),
            (None, Some(generation)) if generation.started => Stage::Training(generation),
            (None, Some(generation)) => Stage::Forming(generation, self.why),
            (None, None) => Stage::Waiting(self.why),
        }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.stage(), Stage::Over(_))
    }

    /// Whether it is over or is brought to its end.
    pub fn ends(&self) -> bool {
        matches!(self.stage(), Stage::Ending(_) | Stage::Over(_))
    }

    /// The generation that forms or trains.
    pub fn generation_now(&self) -> Option<&GenerationRecord> {
        match self.stage() {
            Stage::Forming(generation, _) | Stage::Training(generation) => Some(generation),
            Stage::Waiting(_) | Stage::Ending(_) | Stage::Over(_) => None,
        }
    }

    /// The generation that was told to train.
    pub fn training(&self) -> Option<&GenerationRecord> {
        match self.stage() {
            Stage::Training(generation) => Some(generation),
            Stage::Waiting(_) | Stage::Forming(..) | Stage::Ending(_) | Stage::Over(_) => None,
        }
    }

    /// Whether it has no nodes, and placement has found too few.
    pub fn waits_for_nodes(&self) -> bool {
        matches!(self.stage(), Stage::Waiting(Some(why)) if why.lacks_nodes())
    }

    /// Whether its ranks run, so far as users are told.
    pub fn is_running(&self) -> bool {
        self.training()
            .is_some_and(|generation| generation.launched)
    }

    /// Whether it waits to begin, or to begin anew: it does not restart after a break.
    pub fn begins(&self) -> bool {
        match self.stage() {
            Stage::Waiting(Some(
                Why::Suspended
                | Why::Dependency
                | Why::BeginTime
                | Why::BelowMinimum
                | Why::Preempted,
            )) => true,
            Stage::Waiting(None) => self.incidents.is_empty(),
            Stage::Waiting(Some(_)) => false,
            Stage::Forming(..) | Stage::Training(_) | Stage::Ending(_) | Stage::Over(_) => false,
        }
    }

    /// The stage as users read it.
    fn phase_now(&self) -> Phase {
        let forming = |generation: &GenerationRecord| match generation.is_first() {
            true => Phase::Forming,
            false => Phase::Recovering,
        };
        match self.stage() {
            Stage::Waiting(_) if self.begins() => Phase::Pending,
            Stage::Waiting(_) => Phase::Recovering,
            Stage::Forming(generation, _) => forming(generation),
            Stage::Training(generation) if generation.launched => Phase::Running,
            Stage::Training(generation) => forming(generation),
            Stage::Ending(_) => Phase::Stopping,
            Stage::Over(end) => end.phase,
        }
    }
}

impl GenerationRecord {
    fn is_first(&self) -> bool {
        self.number.0 == 1 && self.restart_count == 0
    }
}

/// The moves from one stage to another.
impl JobRecord {
    /// `Waiting -> Forming`.
    pub(crate) fn open_generation(&mut self, generation: GenerationRecord) {
        (self.why, self.not_before) = (None, None);
        self.current = Some(generation);
        self.phase = self.phase_now();
    }

    /// `Forming -> Training`. The caller has seen that there is a generation.
    pub(crate) fn start_generation(&mut self, now: Timestamp) -> Option<&mut GenerationRecord> {
        let generation = self.current.as_mut()?;
        (generation.started, generation.started_at) = (true, Some(now));
        self.first_started.get_or_insert(now);
        Some(generation)
    }

    /// `Forming | Training -> Waiting`. The generation is out of service for good, and retiring until every
    /// member is proven dead.
    pub(crate) fn retire_current(&mut self, stopping: Stopping) {
        if let Some(mut generation) = self.current.take() {
            generation.stopping = Some(stopping);
            self.retiring.push(generation);
            self.why = self.why.filter(|why| *why == Why::Stranded);
            self.phase = self.phase_now();
        }
    }

    /// `Waiting(_) -> Waiting(why)`, or what keeps a generation from making steps.
    pub(crate) fn found(&mut self, why: Option<Why>) {
        self.why = why;
    }

    /// All ranks of the current generation have been started.
    pub(crate) fn note_launched(&mut self) {
        if let Some(generation) = &mut self.current {
            (generation.launched, self.has_launched) = (true, true);
        }
    }

    /// `Waiting | Forming | Training -> Ending`. Another end may take the place of one that has not come.
    pub(crate) fn end(&mut self, ending: Ending, stopping: Stopping) {
        self.retire_current(stopping);
        (self.ending, self.why) = (Some(ending), None);
        self.phase = self.phase_now();
    }

    /// `Ending -> Over`.
    pub(crate) fn close(&mut self, now: Timestamp) {
        self.finished = Some(now);
        self.phase = self.phase_now();
    }

    /// What users are told from now on. The phase is that of the stage.
    pub(crate) fn say(&mut self, reason: Reason, message: String) {
        self.phase = self.phase_now();
        (self.reason, self.message) = (reason, message);
    }

    /// The job waits for the same as before, and more is known of it.
    pub(crate) fn say_of_same(&mut self, message: String) {
        self.say(self.reason, message);
    }

    /// Nothing is decided about the job, so its phase stays.
    pub(crate) fn say_undecided(&mut self, reason: Reason, message: String) {
        (self.reason, self.message) = (reason, message);
    }

    /// Fills in what coordinators before this one kept only in what users were told.
    pub(crate) fn read_older(&mut self) {
        if self.phase.is_over() {
            let told = Ending {
                phase: self.phase,
                reason: self.reason,
                message: self.message.clone(),
            };
            self.ending.get_or_insert(told);
            self.finished.get_or_insert(self.created);
        }
        let launched = self.phase == Phase::Running;
        if let Some(generation) = self.current.as_mut().filter(|g| g.started && launched) {
            generation.launched = true;
        }
        let generations = self.current.iter().chain(&self.retiring);
        let mut generations = generations.chain(&self.history);
        self.has_launched |= generations.any(|generation| generation.launched);
        if self.why.is_none() && self.ending.is_none() {
            let forms = self.current.as_ref().is_some_and(|g| !g.started);
            self.why = match (self.reason, &self.current) {
                (Reason::Suspended, None) => Some(Why::Suspended),
                (Reason::Preempted, None) => Some(Why::Preempted),
                (Reason::BackOff, None) => Some(Why::BackOff),
                (Reason::BelowMinimum, None) if self.phase == Phase::Pending => {
                    Some(Why::BelowMinimum)
                }
                (Reason::BelowMinimum, _) => Some(Why::Stranded),
                (Reason::Fencing, Some(_)) if forms => Some(Why::Fencing),
                (Reason::Unreachable, Some(_)) if forms => Some(Why::Unreachable),
                _ => None,
            };
        }
    }
}

#[cfg(test)]
mod tests;
