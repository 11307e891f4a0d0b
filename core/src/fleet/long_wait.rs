//! Notes that a job waits too long for its start. It is stored with the job, so that people are told once.

use crate::{
    fleet::{
        job::{JobRecord, Stage, Why},
        job_turn::JobTurn,
        notify::Kind,
    },
    time::Timestamp,
};

/// Since when the job waits for something that somebody could give it. A job that a user holds back, that waits for
/// other jobs, or whose next start has a time, does not.
fn waits_since(job: &JobRecord) -> Option<Timestamp> {
    match job.stage() {
        Stage::Waiting(Some(Why::Suspended | Why::Dependency | Why::BeginTime | Why::BackOff)) => {
            None
        }
        Stage::Waiting(_) if job.incidents.is_empty() => Some(job.counts_since()),
        Stage::Waiting(_) => job.waiting_since,
        Stage::Forming(..) | Stage::Training(_) | Stage::Ending(_) | Stage::Over(_) => None,
    }
}

impl JobTurn<'_> {
    pub(crate) fn notice_long_wait(&mut self) {
        let rules = &self.policy.notify;
        if !rules.wants(Kind::JobWaiting, &self.job.spec.notify) {
            return;
        }
        let Some(since) = waits_since(self.job) else {
            return;
        };
        let due = since + rules.waiting;
        if self.now < due {
            return self.wake(due);
        }
        if self.job.told_waiting == Some(since) {
            return;
        }
        self.job.told_waiting = Some(since);
        let limit = rules.waiting_in_words();
        let message = format!(
            "{} has waited for more than {limit}: {}",
            self.job.name, self.job.message
        );
        self.warn("JobWaiting", message);
    }
}
