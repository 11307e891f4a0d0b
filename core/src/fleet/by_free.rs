//! Nodes by how many of their GPUs no job holds, so that a job which needs some does not ask those that have fewer. It is a part of
//! `capacity`, which files each node anew when its count changes. A node without free GPUs is not in it.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::NodeName;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ByFree(BTreeMap<u32, BTreeSet<NodeName>>);

impl ByFree {
    /// The node had so many free, and has so many now.
    pub(crate) fn refile(&mut self, name: &NodeName, before: u32, now: u32) {
        if before == now {
            return;
        }
        if let Some(nodes) = self.0.get_mut(&before) {
            nodes.remove(name);
            if nodes.is_empty() {
                self.0.remove(&before);
            }
        }
        if now > 0 {
            self.0.entry(now).or_default().insert(name.clone());
        }
    }

    /// Under how many free GPUs the node is filed.
    pub(crate) fn of(&self, name: &NodeName) -> Option<u32> {
        let mut all = self.0.iter();
        all.find_map(|(free, nodes)| nodes.contains(name).then_some(*free))
    }

    /// The nodes with at least so many free, those with fewest first, each with all that have as many.
    pub(crate) fn at_least(&self, gpus: u32) -> impl Iterator<Item = &BTreeSet<NodeName>> {
        self.0.range(gpus..).map(|(_, nodes)| nodes)
    }
}
