//! Hands the news of a turn to those who want them. A job that asks for somebody to whom the operator has opened nothing is
//! refused; one that was accepted before is told.

use std::sync::Arc;

use crate::{
    fleet::{
        event_log::EventLog,
        job::JobRecord,
        notify::{Notice, Outbox},
        output::Refusal,
        state::Fleet,
    },
    time::Timestamp,
};

impl Fleet {
    /// Whether the job asks to tell only those whom the operator has opened to jobs.
    pub(crate) fn may_ask_to_tell(&self, job: &JobRecord) -> Result<(), Refusal> {
        match self.policy.notify.refuses(&job.spec.notify) {
            Some((field, message)) => Err(Refusal::Invalid { field, message }),
            None => Ok(()),
        }
    }

    /// Returns the outbox, if it must be stored.
    pub(crate) fn tell(
        &mut self,
        news: Vec<Notice>,
        events: &mut EventLog,
        now: Timestamp,
    ) -> Option<Arc<Outbox>> {
        let rules = &self.policy.notify;
        for notice in news {
            let job = notice.uid.as_ref().and_then(|uid| self.jobs.get(uid));
            let notify = job.map_or(&[][..], |job| &job.spec.notify);
            let closed = self.outgoing.add(rules, notify, notice, now);
            let Some(job) = job.filter(|_| !closed.is_empty()) else {
                continue;
            };
            if self.outgoing.tells_closed(&job.uid) {
                let names: Vec<&str> = closed.iter().map(String::as_str).collect();
                let message = format!(
                    "{} will not notify {}: the operator no longer allows it",
                    job.name,
                    names.join(", ")
                );
                let event = events.warn("NotNotified", message);
                event.of_job(&job.uid, &job.name);
            }
        }
        self.outgoing.altered(rules, now)
    }
}
