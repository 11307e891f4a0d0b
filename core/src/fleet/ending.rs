//! The end of a job, good or bad. Whatever still runs is stopped; `settle` closes the job when
//! nothing runs any more.

use std::time::Duration;

use crate::fleet::{
    generation,
    job::{Ending, JobRecord, Phase, Reason, Stopping, Won},
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

    /// The job has succeeded, because a rule says so of one member's success.
    pub(crate) fn succeed_by(&mut self, won: &Won) {
        self.compare(None);
        let message = format!(
            "{} ended with exit code 0; {}",
            self.winner(won),
            self.rule_name(won.rule)
        );
        self.end_in_order(Ending {
            phase: Phase::Succeeded,
            reason: Reason::Completed,
            message,
        });
    }

    /// The ranks that have decided the job, for people.
    pub(crate) fn winner(&self, won: &Won) -> String {
        let generation = self.job.current.as_ref();
        let name = won
            .number
            .zip(generation)
            .and_then(|(number, generation)| self.job.spec.member(&generation.layout, number));
        match name {
            Some(name) => format!("all ranks of {name} on {}", won.node),
            None => format!("all ranks on {}", won.node),
        }
    }

    pub(crate) fn rule_name(&self, index: usize) -> String {
        let rule = self.job.spec.rules.get(index);
        rule.map_or_else(String::new, |rule| rule.named(index))
    }

    /// Ends a job without any failure. Workers that still run may have something to save.
    pub(crate) fn end_in_order(&mut self, ending: Ending) {
        let grace = self.job.spec.stop_grace_period;
        end_with(self.nodes, self.job, ending, grace);
    }
}

/// Brings a job to its end. Whatever still runs is stopped.
pub(crate) fn end(nodes: &Registry, job: &mut JobRecord, ending: Ending) {
    let grace = match ending.phase {
        // What is left of a success are torchruns in their exit barrier, which a runner ends soon
        // after the last rank, services, and what ranks have left behind.
        Phase::Cancelled | Phase::Succeeded => job.spec.stop_grace_period,
        _ => Duration::ZERO,
    };
    end_with(nodes, job, ending, grace);
}

fn end_with(nodes: &Registry, job: &mut JobRecord, ending: Ending, grace: Duration) {
    let reason = ending.message.clone();
    if let Some(generation) = &job.current {
        let steps = generation::steps(nodes, &job.uid, generation);
        job.last_step = steps.last.or(job.last_step);
    }
    job.ending = Some(ending);
    job.retire_current(Stopping { reason, grace });
}
