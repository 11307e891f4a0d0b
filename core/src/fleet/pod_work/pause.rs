//! When a job pauses before it gets new pods: after it gave its pods back, and after the deletion of a
//! pod whose successor may meet the same end (the job *backs off*). Each pause is longer than the one
//! before, until the job trains. Nothing of this is stored.

use std::time::Duration;

use crate::{
    fleet::{job::JobRecord, pod_plan::GivesBack},
    id::Generation,
    time::Timestamp,
};

/// The first and the longest pause after a job gave its pods back, without the random part: up to as
/// much again.
const GIVEN_BACK_MIN: Duration = Duration::from_secs(30);
const GIVEN_BACK_MAX: Duration = Duration::from_secs(600);
/// The first and the longest pause of a job that backs off.
const BACK_OFF_MIN: Duration = Duration::from_secs(1);
const BACK_OFF_MAX: Duration = Duration::from_secs(300);

/// The pauses of one job.
#[derive(Clone, Debug, Default)]
pub(super) struct Pauses {
    /// How often in a row the job has given its pods back.
    given_back: u32,
    /// How often the job has backed off since a generation of it last began to train.
    back_offs: u32,
    /// The last generation that was seen training.
    trained: Generation,
    given_back_until: Option<Timestamp>,
    backs_off_until: Option<Timestamp>,
}

impl Pauses {
    /// A generation that trains makes the next pause a short one. Only a new generation counts: a pod
    /// that ends again and again beside one that trains must not be created each second.
    pub(super) fn see(&mut self, job: &JobRecord) {
        if job.is_running() && job.last_generation != self.trained {
            self.trained = job.last_generation;
            (self.given_back, self.back_offs) = (0, 0);
        }
    }

    /// Begins the pause of a job that gives its pods back. False if that pause has begun: the plan repeats
    /// `gives_back` until the deletions are requested. `random`: any number.
    pub(super) fn give_back(&mut self, what: GivesBack, now: Timestamp, random: u64) -> bool {
        if self.given_back_until.is_some_and(|until| now < until) {
            return false;
        }
        // Who held no host must be there when one comes free, so that pause stays short.
        let before = match what {
            GivesBack::Hosts => self.given_back.min(5),
            GivesBack::Quota => 0,
        };
        let pause = (GIVEN_BACK_MIN * (1 << before)).min(GIVEN_BACK_MAX);
        // Two jobs that gave way to each other must not come back at the same moment.
        let jitter = pause.mul_f64((random % 1_000) as f64 / 1_000.0);
        self.given_back_until = Some(now + pause + jitter);
        self.given_back += u32::from(what == GivesBack::Hosts);
        true
    }

    /// Begins the pause of a job that backs off. Pods that end together count once: the job backs off
    /// anew only when its pause is over.
    pub(super) fn back_off(&mut self, now: Timestamp) {
        if self.backs_off_until.is_some_and(|until| now < until) {
            return;
        }
        let pause = (BACK_OFF_MIN * (1 << self.back_offs.min(9))).min(BACK_OFF_MAX);
        self.backs_off_until = Some(now + pause);
        self.back_offs += 1;
    }

    /// The end of the later pause.
    pub(super) fn until(&self) -> Option<Timestamp> {
        self.given_back_until.max(self.backs_off_until)
    }

    #[cfg(test)]
    pub(super) fn back_offs(&self) -> u32 {
        self.back_offs
    }
}
