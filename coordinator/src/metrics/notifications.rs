//! What waits to be sent to people, and what came of the attempts.

use muster_core::{fleet::notify::Outbox, time::Timestamp};

use super::{catalogue::Family, text::Page};
use crate::notify::Desk;

pub(super) fn put(page: &mut Page, desk: &Desk, outbox: &Outbox, now: Timestamp) {
    for receiver in desk.receivers() {
        let name = receiver.name.as_str();
        let [own, of_jobs] = [false, true].map(|of_jobs| desk.figures(name, of_jobs));
        // A mailbox that a job has named may be full for a day, and that is no reason to wake the operator.
        let waiting = outbox.of(name, false);
        let oldest = waiting.clone().map(|message| message.first).min();
        let oldest = oldest.map_or(0.0, |at| now.since(at).as_secs_f64());
        let dropped = outbox.dropped.get(name).copied().unwrap_or_default();
        page.put(
            Family::NotificationsWaiting,
            &[name],
            waiting.count() as u64,
        );
        page.put(Family::NotificationsOldest, &[name], oldest);
        page.put(Family::NotificationsDropped, &[name], dropped);
        let dropped = outbox.dropped_of_jobs.get(name).copied();
        page.put(
            Family::NotificationsOfJobsDropped,
            &[name],
            dropped.unwrap_or_default(),
        );
        page.put(
            Family::Notifications,
            &[name, "delivered"],
            own.delivered + of_jobs.delivered,
        );
        page.put(
            Family::Notifications,
            &[name, "failed"],
            own.failed + of_jobs.failed,
        );
    }
}
