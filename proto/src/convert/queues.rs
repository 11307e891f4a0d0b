//! The operator's queues, as users see them.

use muster_core::fleet::view::QueueView;

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
