//! The end of a job, good or bad. Whatever still runs is stopped; `settle` closes the job when
//! nothing runs any more.

use std::time::Duration;

use crate::fleet::{
    generation,
    job::{Ending, JobRecord, Phase, Reason, Stopping},
    job_turn::JobTurn,
    registry::Registry,
};

impl JobTurn<'_> {
    pub(crate) fn succeed(&mut self) {
        self.compare(None);
        self.end(Ending {
            phase: Phase::Succeeded,
            reason: Reason::Completed,
            message: "every rank ended with exit code 0".into(),
        });
    }

    pub(crate) fn end(&mut self, ending: Ending) {
        end(self.nodes, self.job, ending);
    }
}

/// Brings a job to its end. Whatever still runs is stopped.
pub(crate) fn end(nodes: &Registry, job: &mut JobRecord, ending: Ending) {
    let grace = match ending.phase {
        Phase::Cancelled => job.spec.stop_grace_period,
        // Nothing has failed, so there may be something to save.
        _ if ending.reason == Reason::DeadlineExceeded => job.spec.stop_grace_period,
        // The processes that are left are torchrun's, in their exit barrier.
        Phase::Succeeded => Duration::from_secs(1),
        _ => Duration::ZERO,
    };
    let reason = ending.message.clone();
    if let Some(generation) = &job.current {
        let steps = generation::steps(nodes, &job.uid, generation);
        job.last_step = steps.last.or(job.last_step);
    }
    job.ending = Some(ending);
    job.retire_current(Stopping { reason, grace });
}
