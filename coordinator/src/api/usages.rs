//! The last usage of each node, in memory only. It is shown with its age, and the coordinator
//! decides nothing by it: neither the engine nor the store gets it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use muster_core::{
    id::NodeName,
    time::Timestamp,
    usage::{RankUsage, Usage},
};
use muster_proto::{convert::usage::usage_to_wire, v1};

/// Below this number of nodes, the nodes that are gone are not removed.
const MANY: usize = 1_024;

/// One usage of an agent, and when it arrived by this coordinator's clock.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) at: Timestamp,
    pub(crate) usage: Usage,
}

/// Sessions write it, and requests for a node or a job read it. Nobody waits for a change, and
/// nobody holds the lock for longer than one look into the map.
#[derive(Debug, Default)]
pub(crate) struct Usages {
    known: Mutex<Latest>,
}

#[derive(Debug, Default)]
struct Latest {
    by_node: BTreeMap<NodeName, Arc<Known>>,
    /// How many nodes were left after the last removal of those that are gone.
    left: usize,
}

impl Usages {
    /// Asks `exists` about every node whenever the number of nodes has doubled. So the nodes that
    /// are gone never take more room than the others.
    pub(crate) fn put(
        &self,
        node: NodeName,
        at: Timestamp,
        usage: Usage,
        exists: impl Fn(&NodeName) -> bool,
    ) {
        let mut latest = self.latest();
        latest.by_node.insert(node, Arc::new(Known { at, usage }));
        if latest.by_node.len() > MANY.max(2 * latest.left) {
            latest.by_node.retain(|node, _| exists(node));
            latest.left = latest.by_node.len();
        }
    }

    pub(crate) fn get(&self, node: &NodeName) -> Option<Arc<Known>> {
        self.latest().by_node.get(node).cloned()
    }

    /// Adds a node's last usage.
    pub(crate) fn of_node(&self, mut node: v1::Node) -> v1::Node {
        if let Some(known) = self.get(&NodeName::from(node.name.as_str())) {
            node.usage = Some(usage_to_wire(&known.usage));
            node.usage_unix_us = known.at.0;
        }
        node
    }

    /// Adds the last usage of a job's living ranks.
    pub(crate) fn of_job(&self, mut job: v1::Job) -> v1::Job {
        let Some(status) = &mut job.status else {
            return job;
        };
        let mut nodes: BTreeMap<String, Option<Arc<Known>>> = BTreeMap::new();
        for rank in status
            .ranks
            .iter_mut()
            .filter(|rank| matches!(rank.state.as_str(), "running" | "joining"))
        {
            let look = || self.get(&NodeName::from(rank.node.as_str()));
            let Some(known) = nodes.entry(rank.node.clone()).or_insert_with(look) else {
                continue;
            };
            let of_rank = |used: &&RankUsage| {
                used.rank == rank.rank
                    && used.run.generation.0 == status.generation
                    && used.run.job.as_str() == job.uid
            };
            if let Some(used) = known.usage.ranks.iter().find(of_rank) {
                (rank.memory_bytes, rank.cpu_milli) = (Some(used.memory_bytes), used.cpu_milli);
                rank.usage_unix_us = known.at.0;
            }
        }
        job
    }

    fn latest(&self) -> std::sync::MutexGuard<'_, Latest> {
        // A thread that panicked under the lock has left out one entry at most.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use muster_core::{
        id::{Generation, JobUid},
        run::RunId,
    };

    use super::*;

    #[test]
    fn only_ranks_that_live_in_this_generation_have_a_usage() {
        let usages = Usages::default();
        let run = |generation| RunId {
            job: JobUid::from("u"),
            generation: Generation(generation),
        };
        let used = |generation, rank, memory_bytes| RankUsage {
            run: run(generation),
            rank,
            memory_bytes,
            cpu_milli: None,
        };
        let look = Usage {
            ranks: vec![used(1, 0, 1), used(2, 0, 2), used(2, 1, 3)],
            ..Usage::default()
        };
        usages.put("n1".into(), Timestamp(7), look, |_| true);
        let rank = |rank: u32, node: &str, state: &str| v1::RankStatus {
            rank,
            node: node.into(),
            state: state.into(),
            ..Default::default()
        };
        let ranks = vec![
            rank(0, "n1", "running"),
            rank(1, "n1", "exit code 1"),
            rank(2, "n1", "joining"),
            rank(3, "n2", "running"),
        ];
        let status = Some(v1::JobStatus {
            generation: 2,
            ranks,
            ..Default::default()
        });
        let job = usages.of_job(v1::Job {
            uid: "u".into(),
            status,
            ..Default::default()
        });
        let shown: Vec<_> = job
            .status
            .unwrap()
            .ranks
            .iter()
            .map(|rank| (rank.memory_bytes, rank.usage_unix_us))
            .collect();
        assert_eq!(shown, [(Some(2), 7), (None, 0), (None, 0), (None, 0)]);
    }

    #[test]
    fn nodes_that_are_gone_are_forgotten() {
        let usages = Usages::default();
        let name = |i: usize| NodeName::from(format!("n{i:05}"));
        let exists = |node: &NodeName| node.as_str() >= "n20000";
        for i in 0..20_100 {
            usages.put(name(i), Timestamp(1), Usage::default(), exists);
        }
        assert!(
            usages.latest().by_node.len() <= MANY,
            "{}",
            usages.latest().by_node.len()
        );
        assert!(usages.get(&name(20_050)).is_some() && usages.get(&name(0)).is_none());
    }
}
