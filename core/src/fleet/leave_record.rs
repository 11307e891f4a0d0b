//! A job that is over leaves a record. It is made in the turn in which the job ends. A coordinator that starts
//! makes those that are missing: it died between the two writes, or an earlier version kept none.

use std::sync::Arc;

use crate::{
    fleet::{
        history::{HistoryRecord, Over},
        job::JobRecord,
        news,
        notify::{KEPT_FOR, Notice},
        scratch::Scratch,
        state::Fleet,
    },
    id::JobUid,
    time::Timestamp,
};

impl JobRecord {
    /// What is left of the job at this time: its record, if it is over.
    pub fn left(&self, now: Timestamp, doubted_since: Option<Timestamp>) -> HistoryRecord {
        let account = self.time.as_ref();
        let spent = account.map(|account| account.until(now, doubted_since));
        HistoryRecord::of(self, &spent.unwrap_or_default())
    }
}

impl Fleet {
    /// Leaves a record of this job, if it is over and has none. False: it has one.
    pub(crate) fn leave_record(&mut self, uid: &JobUid, scratch: &mut Scratch) -> bool {
        let Some(job) = self.jobs.get(uid) else {
            return false;
        };
        if !job.is_over() || self.history.has(&(job.uid.clone(), job.created)) {
            return false;
        }
        let left = job.left(job.finished.unwrap_or(scratch.now), None);
        let number = self.history.add(Over::of(&left), &self.policy, scratch.now);
        let Some(number) = number else {
            return false;
        };
        let record = HistoryRecord { number, ..left };
        scratch.changes.history.push(Arc::new(record));
        true
    }

    /// Leaves the records of the jobs that have ended in this turn.
    pub(crate) fn leave_records(&mut self, scratch: &mut Scratch) {
        let is_over = |uid: &&JobUid| self.jobs.get(*uid).is_some_and(|job| job.is_over());
        let touched = scratch.changes.jobs.keys();
        let over: Vec<JobUid> = touched.filter(is_over).cloned().collect();
        for uid in over {
            self.leave_record(&uid, scratch);
        }
    }

    /// Leaves the records of all jobs that are over and have none, in the order of their ends. What was to be told of
    /// these ends is stored just before the record, so it may be missing too.
    pub(crate) fn leave_missing_records(&mut self, scratch: &mut Scratch) {
        let over = self.jobs.values().filter(|job| job.is_over());
        let mut ends: Vec<_> = over.map(|job| (job.finished, job.uid.clone())).collect();
        ends.sort();
        for (_, uid) in ends {
            if !self.leave_record(&uid, scratch) {
                continue;
            }
            let end = self.jobs.get(&uid).and_then(news::of_end);
            let is_news = |end: &Notice| scratch.now.since(end.at) < KEPT_FOR;
            scratch.changes.untold.extend(end.filter(is_news));
        }
    }
}
