//! Which nodes' reports the store does not have yet. A report says what a node is, at length, and
//! nothing is decided from a stored one: it is written a few at a time between decisions, never
//! with one. Ten thousand nodes that connect at once would otherwise put 130 MB into the commit
//! that all of them wait for.

use std::{collections::BTreeMap, sync::Arc};

use muster_core::{fleet::view::NodeView, id::NodeName, node_report::NodeReport};

/// Written at once, at a tick: under a megabyte for nodes with eight GPUs, some 10 ms with its
/// commit.
const AT_ONCE: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Reports {
    /// As the store has them; shared with the fleet, so that a look at the address nearly always
    /// tells that nothing is new.
    kept: BTreeMap<NodeName, Arc<NodeReport>>,
    /// New since, at most one for each node of the fleet.
    new: BTreeMap<NodeName, Arc<NodeReport>>,
}

impl Reports {
    pub(super) fn loaded(nodes: &[NodeView]) -> Self {
        let kept = nodes
            .iter()
            .map(|node| (node.record.name.clone(), node.report.clone()))
            .collect();
        Self {
            kept,
            new: BTreeMap::new(),
        }
    }

    /// A node has changed; `None`: it is gone, and its report with it.
    pub(super) fn see(&mut self, node: &NodeName, report: Option<&Arc<NodeReport>>) {
        let Some(report) = report else {
            self.kept.remove(node);
            self.new.remove(node);
            return;
        };
        let known = self.new.get(node).or_else(|| self.kept.get(node));
        if known.is_none_or(|known| !Arc::ptr_eq(known, report) && known != report) {
            self.new.insert(node.clone(), report.clone());
        }
    }

    /// What is to be written now; taken as written.
    pub(super) fn take(&mut self) -> Vec<(NodeName, Arc<NodeReport>)> {
        let some: Vec<_> = std::iter::from_fn(|| self.new.pop_first())
            .take(AT_ONCE)
            .collect();
        self.kept.extend(some.iter().cloned());
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(slots: u32) -> Arc<NodeReport> {
        Arc::new(NodeReport {
            slots,
            ..NodeReport::default()
        })
    }

    #[test]
    fn what_is_new_is_written_once_and_a_few_at_a_time() {
        let mut reports = Reports::default();
        let names: Vec<NodeName> = (0..=AT_ONCE)
            .map(|i| format!("n{i:03}").as_str().into())
            .collect();
        names
            .iter()
            .for_each(|name| reports.see(name, Some(&report(1))));
        assert_eq!(reports.take().len(), AT_ONCE);
        assert_eq!(reports.take(), [(names[AT_ONCE].clone(), report(1))]);
        reports.see(&names[0], Some(&report(1)));
        assert_eq!(reports.take(), [], "it says the same");
        reports.see(&names[0], Some(&report(2)));
        reports.see(&names[0], Some(&report(3)));
        reports.see(&names[1], Some(&report(2)));
        reports.see(&names[1], None);
        assert_eq!(
            reports.take(),
            [(names[0].clone(), report(3))],
            "the newest, and none of a node that is gone"
        );
        reports.see(&names[1], Some(&report(1)));
        assert_eq!(reports.take().len(), 1, "a node that comes back is new");
    }
}
