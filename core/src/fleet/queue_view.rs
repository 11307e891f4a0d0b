//! What users see of the operator's queues: their quotas, what their jobs hold, and how many jobs wait. It changes nothing.

use crate::fleet::{
    job::JobRecord,
    ledger::{self, Ledger},
    limits,
    queues::{QueueId, Queues},
    reservations,
    view::QueueView,
};

/// All queues, each behind its parent. Nothing where there are none.
pub fn queue_views<'j>(
    queues: &Queues,
    jobs: impl Iterator<Item = &'j JobRecord> + Clone,
) -> Vec<QueueView> {
    let ledger = Ledger::of(queues, jobs.clone());
    let usage = ledger.usage();
    let mut views: Vec<QueueView> = queues
        .all()
        .map(|(id, queue)| QueueView {
            name: queue.name.clone(),
            parent: queues
                .parent(id)
                .map(|parent| queues.name(parent).to_owned()),
            quota: queues.quota(id),
            borrowing_limit: queue.borrowing_limit,
            lending_limit: queue.lending_limit,
            max_priority: queue.max_priority,
            namespaces: queue.namespaces.iter().cloned().collect(),
            held: usage.of(id),
            available: queues.has_jobs(id).then(|| queues.available(id, usage)),
            jobs: 0,
            waiting: 0,
        })
        .collect();
    let ids: Vec<QueueId> = queues.all().map(|(id, _)| id).collect();
    let at = |id: QueueId| ids.iter().position(|known| *known == id);
    for job in jobs {
        let queue = ledger::queue_of(queues, job).ok().and_then(at);
        let Some(view) = queue.and_then(|at| views.get_mut(at)) else {
            continue;
        };
        view.jobs += u32::from(ledger.held_by(&job.uid) > 0);
        view.waiting += u32::from(reservations::waits_for_room(job) && limits::need(job) > 0);
    }
    // From the bottom up: each stands behind its parent.
    for (child, id) in ids.iter().enumerate().rev() {
        if let Some(parent) = queues.parent(*id).and_then(at) {
            let QueueView {
                held,
                jobs,
                waiting,
                ..
            } = views[child];
            let above = &mut views[parent];
            above.held += held;
            above.jobs += jobs;
            above.waiting += waiting;
        }
    }
    views
}
