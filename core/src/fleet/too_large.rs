//! A job whose record the store refuses because of its size. It ends, so that it holds up nobody else.
//!
//! What the record tells of what is over is dropped at once: generations whose processes are dead, receipts,
//! software that was found. What is left names the processes that may live, and is smaller than what the
//! store took before, unless a generation with more members was just opened. If the store refuses that too,
//! the job ends all the same. Then a coordinator that starts meets the record as it was before, and ends the job
//! again when it cannot write it. No generation was begun meanwhile, so nothing that runs is unknown to it.

use crate::{
    fleet::{
        account::lost,
        ending,
        job::{Ending, JobRecord, Phase, Reason},
        scratch::Scratch,
        state::Fleet,
    },
    id::JobUid,
};

impl Fleet {
    pub(crate) fn record_too_large(&mut self, uid: &JobUid, why: &str, scratch: &mut Scratch) {
        let Some(job) = self.jobs.get_mut(uid) else {
            return;
        };
        scratch.changes.touch_job(job);
        job.lost = lost(job, scratch.now);
        job.forget_story();
        let reason = Reason::RecordTooLarge;
        let is_ending = job.ending.as_ref().is_some_and(|end| end.reason == reason);
        if job.is_over() || is_ending {
            return;
        }
        let message = format!(
            "its record is larger than the store takes: {why}; give it fewer nodes or a smaller spec, or let the API server take larger objects"
        );
        scratch
            .events
            .warn("RecordTooLarge", message.clone())
            .of_job(uid, &job.name);
        let ending = Ending {
            phase: Phase::Failed,
            reason,
            message,
        };
        ending::end(&self.nodes, job, ending);
    }
}

impl JobRecord {
    fn forget_story(&mut self) {
        self.history.clear();
        self.incidents_dropped = self
            .incidents_dropped
            .saturating_add(self.incidents.len() as u32);
        self.incidents.clear();
        self.stacks.clear();
        self.doubtful.clear();
    }
}
