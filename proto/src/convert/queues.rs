//! The operator's queues, as users see them.

use muster_core::fleet::{fair_share::Share, view::QueueView};

use crate::v1;

pub fn queue(view: &QueueView) -> v1::Queue {
    v1::Queue {
        name: view.name.clone(),
        parent: view.parent.clone().unwrap_or_default(),
        quota: view.quota,
        borrowing_limit: view.borrowing_limit,
        lending_limit: view.lending_limit,
        max_priority: view.max_priority,
        namespaces: view.namespaces.clone(),
        held: view.held,
        available: view.available,
        jobs: view.jobs,
        waiting: view.waiting,
    }
}

pub fn share(share: &Share) -> v1::Share {
    v1::Share {
        queue: share.queue.clone().unwrap_or_default(),
        namespace: share.namespace.clone().unwrap_or_default(),
        user: share.user.clone(),
        gpu_seconds: share.used,
        weight: share.weight,
        place: share.place,
    }
}
