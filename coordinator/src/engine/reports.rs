//! Knows which nodes' reports the store does not have yet. A report is long, and the coordinator
//! decides nothing from a stored one. So the engine writes reports between decisions, a few at a
//! time, and never together with a decision. Otherwise ten thousand nodes that connect at once
//! would put 130 MB into the commit that all of them wait for.

use std::{collections::BTreeMap, sync::Arc};

use muster_core::{fleet::view::NodeView, id::NodeName, node_report::NodeReport};

/// Reports in one write, at a tick. For nodes with eight GPUs they are less than a megabyte, and
/// take some 10 ms with the commit.
const AT_ONCE: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Reports {
    /// The reports as the store has them. They are shared with the fleet, so a comparison of
    /// addresses nearly always shows that nothing is new.
    kept: BTreeMap<NodeName, Arc<NodeReport>>,
    /// Reports that the store does not have yet, at most one for each node of the fleet.
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

    /// Takes note of a node that has changed. `None`: the node was deleted, and its report with it.
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

    /// The reports to write now. From here on they count as written.
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
