//! A job gives up members, or all it has, to a job of higher priority that waits. `preempt` has decided it.

use crate::fleet::{
    account, budget, generation,
    job::{Stopping, Why},
    job_turn::JobTurn,
    placement::Placement,
    receipt::{Cause, Incident},
    slow,
    yields::Yields,
};

impl JobTurn<'_> {
    /// Does so, if the job trains soundly. One that is about to be judged, or that ends, is not disturbed.
    pub(crate) fn give_up(&mut self) {
        let given = self.scratch.yields.get(self.uid);
        let Some(given) = given.filter(|_| self.scratch.give_now).cloned() else {
            return;
        };
        let Some(training) = self.job.training() else {
            return;
        };
        let ends = generation::ended_well(self.nodes, self.uid, training).is_some();
        if ends || !self.live.condition.is_sound() || self.is_listening() {
            return;
        }
        if !given.evicted && matches!(self.facts().place(), Placement::Short(_)) {
            return;
        }
        self.retire_for(&given);
    }

    fn retire_for(&mut self, given: &Yields) {
        let Some(generation) = &self.job.current else {
            return;
        };
        let (number, size) = (generation.number, generation.size());
        let steps = generation::steps(self.nodes, self.uid, generation);
        let to = given.to(&self.job.name.namespace);
        let message = match given.evicted {
            true => format!("preempted by {to}"),
            false => format!("gives up {given} to {to}"),
        };
        let job = &mut *self.job;
        budget::note_progress(job, &steps, self.policy, self.now);
        job.open_incident(Incident {
            cause: Cause::Preempted,
            message: message.clone(),
            from: Some(number),
            from_nodes: size,
            last_step_before: steps.last,
            ..Incident::at(self.now)
        });
        job.last_step = steps.last.or(job.last_step);
        slow::leave(job, self.now);
        job.retire_current(Stopping {
            reason: message.clone(),
            grace: job.spec.stop_grace_period,
        });
        if given.evicted {
            job.found(Some(Why::Preempted));
            account::waits(job, self.now);
        }
        self.warn("Preempted", message).in_generation(number);
    }
}
