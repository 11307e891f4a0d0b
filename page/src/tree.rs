//! The operator's queues as a tree: what pages and the command line show of quotas.

use std::collections::HashMap;

use muster_proto::v1::Queue;

/// One queue, and where it stands.
#[derive(Clone, Copy, Debug)]
pub struct Branch<'q> {
    pub queue: &'q Queue,
    /// How many queues are above it.
    pub depth: usize,
}

/// All queues in the order in which they were answered: each behind its parent.
pub fn tree(all: &[Queue]) -> Vec<Branch<'_>> {
    let mut depths: HashMap<&str, usize> = HashMap::new();
    let mut tree = Vec::with_capacity(all.len());
    for queue in all {
        let depth = depths.get(&*queue.parent).map_or(0, |above| above + 1);
        depths.insert(&queue.name, depth);
        tree.push(Branch { queue, depth });
    }
    tree
}

impl Branch<'_> {
    /// GPUs that it holds beyond its quota.
    pub fn borrowed(&self) -> u32 {
        self.queue.held.saturating_sub(self.queue.quota)
    }

    /// What its jobs could have besides, by the quotas alone. A dash: queues below it have the jobs.
    pub fn available(&self) -> String {
        crate::words::or_dash(self.queue.available)
    }
}
