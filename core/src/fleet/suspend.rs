//! A suspended job keeps its place and holds no nodes. Its generation is stopped with the job's
//! grace, and `open` opens none until the job is resumed.

use crate::fleet::{
    account, budget, generation,
    job::{Phase, Stopping},
    job_turn::JobTurn,
    receipt::{Cause, Incident},
};

impl JobTurn<'_> {
    /// Ends the current generation of a job that is suspended. One that is about to be judged is
    /// judged first, because it may be done or broken. One that is left as it is may stay so for ever,
    /// so it ends.
    pub(crate) fn suspend(&mut self) {
        let job = &*self.job;
        let condition = &self.live.condition;
        let is_judged = condition.is_sound() || condition.left().is_some();
        let due = job.suspended && job.ending.is_none() && is_judged;
        let Some(generation) = job.current.as_ref().filter(|_| due) else {
            return;
        };
        let (number, size) = (generation.number, generation.size());
        let steps = generation::steps(self.nodes, self.uid, generation);
        let job = &mut *self.job;
        budget::note_progress(job, &steps, self.policy, self.now);
        let message = "suspended as asked".to_owned();
        job.open_incident(Incident {
            cause: Cause::Suspended,
            message: message.clone(),
            from: Some(number),
            from_nodes: size,
            last_step_before: steps.last,
            ..Incident::at(self.now)
        });
        job.last_step = steps.last.or(job.last_step);
        job.retire_current(Stopping {
            reason: message.clone(),
            grace: job.spec.stop_grace_period,
        });
        job.phase = Phase::Pending;
        account::waits(job, self.now);
        self.note("Suspending", message).in_generation(number);
    }
}
