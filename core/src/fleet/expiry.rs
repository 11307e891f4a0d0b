//! Jobs that have been over for the time that their users gave them, and are deleted by themselves.
//!
//! Such a job is deleted as a user would delete it. One that belongs to an object is left to the object.

use crate::{
    fleet::{scratch::Scratch, state::Fleet},
    id::JobUid,
    period,
};

/// Jobs that are deleted in one turn. After a long absence of the coordinator many are due at once,
/// and a turn that deletes them all would hold up all others.
const AT_ONCE: usize = 50;

impl Fleet {
    /// Deletes jobs that have been over for their time.
    pub(crate) fn delete_expired(&mut self, scratch: &mut Scratch) {
        for _ in 0..AT_ONCE {
            let due = self.expiring.first().filter(|(at, _)| *at <= scratch.now);
            let Some((at, uid)) = due.cloned() else {
                return;
            };
            self.expiring.remove(&(at, uid.clone()));
            self.delete_one(&uid, scratch);
        }
    }

    fn delete_one(&mut self, uid: &JobUid, scratch: &mut Scratch) {
        let Some(job) = self.jobs.get(uid) else {
            return;
        };
        let after = job.spec.lifetime.ttl().map(period::format);
        let why = format!(
            "deleted: it was over for the {} of its ttlSecondsAfterFinished",
            after.unwrap_or_default()
        );
        let name = job.name.clone();
        if self.remove_job(uid, &name, &why, scratch).is_err() {
            // A node must prove first that its workers are dead.
            let again = scratch.now + self.policy.delete_again;
            self.expiring.insert((again, uid.clone()));
        }
    }
}
