//! How long a job may take, and how long it may wait for its first start.
//!
//! A deadline counts from the submission, or from when the job was last resumed or had all that it waited for: time in
//! which a job is suspended, or waits for other jobs or its time, does not count. It ends the job like any other end.

use crate::{
    fleet::{
        job::{Ending, JobRecord, Phase, Reason},
        job_turn::Facts,
        rules,
    },
    period,
    time::Timestamp,
};

impl JobRecord {
    /// When the job must be over. `None`: it may take any time, or its time does not count yet.
    pub fn active_deadline(&self) -> Option<Timestamp> {
        if !self.is_eligible() {
            return None;
        }
        let deadline = self.spec.lifetime.active_deadline()?;
        Some(self.counts_since() + deadline)
    }

    /// When the job must have been started for the first time. `None`: it need not, or it has been.
    pub(crate) fn start_deadline(&self) -> Option<Timestamp> {
        let deadline = self.spec.lifetime.start_deadline()?;
        // Records of older coordinators do not say when.
        let started = self.first_started.is_some() || self.trained_last().is_some();
        (!started).then(|| self.counts_since() + deadline)
    }
}

/// What a job's deadlines ask for.
#[derive(Debug)]
pub(crate) enum Due {
    Never,
    /// To look again then.
    At(Timestamp),
    /// The job has had all its time, or has waited too long for its first start.
    Over(Ending),
}

/// Whether a deadline of the job is due. A job that is about to be judged is judged first: it may be done.
pub(crate) fn due(facts: Facts<'_>) -> Due {
    let job = facts.job;
    let won = job.current.as_ref().is_some_and(|g| g.won.is_some());
    if job.ends() || job.suspended || !job.is_eligible() || won {
        return Due::Never;
    }
    let (active, start) = (job.active_deadline(), job.start_deadline());
    let Some(first) = active.into_iter().chain(start).min() else {
        return Due::Never;
    };
    if first > facts.now {
        return Due::At(first);
    }
    if facts.is_listening() {
        // Its nodes may yet say that it is done, or has started.
        return Due::At(facts.presence.listen_until);
    }
    Due::Over(match active.is_some_and(|at| at <= facts.now) {
        true => rules::deadline(job),
        false => too_late(job),
    })
}

/// The end of a job that was not started in time.
fn too_late(job: &JobRecord) -> Ending {
    let after = job.spec.lifetime.start_deadline().map(period::format);
    let waits = match job.message.is_empty() {
        true => String::new(),
        false => format!("; at last: {}", job.message),
    };
    Ending {
        phase: Phase::Failed,
        reason: Reason::StartDeadlineExceeded,
        message: format!(
            "it was not started within the {} of its startDeadlineSeconds{waits}",
            after.unwrap_or_default()
        ),
    }
}
