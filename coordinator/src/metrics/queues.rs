//! The operator's queues: their quotas, and what their jobs hold. A queue counts those below it, as `muster get queues` does.

use std::sync::Arc;

use muster_core::fleet::{queue_views, queues::Queues, view::JobView};

use super::{catalogue::Family, text::Page};

pub(super) fn put(page: &mut Page, queues: &Queues, jobs: &[Arc<JobView>]) {
    if queues.is_empty() {
        return;
    }
    for queue in queue_views(queues, jobs.iter().map(|job| &job.record)) {
        let name = queue.name.as_str();
        page.put(Family::QueueQuota, &[name], queue.quota);
        page.put(Family::QueueHeld, &[name], queue.held);
        if let Some(available) = queue.available {
            page.put(Family::QueueAvailable, &[name], available);
        }
        page.put(Family::QueueJobs, &[name, "holding"], queue.jobs);
        page.put(Family::QueueJobs, &[name, "waiting"], queue.waiting);
    }
}
