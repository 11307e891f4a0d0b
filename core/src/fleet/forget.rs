//! Nodes that are gone for good, and the limit of known nodes.
//!
//! A name is cheap to make up, and autoscaled machines bring new names every day. A node that has
//! been gone for long is forgotten, unless something is undecided about it: workers that are not
//! proven dead, a cordon, or a halt. At the limit, the node that has been gone longest is forgotten
//! at once to make room. If none can be forgotten, a new name is refused.

use std::time::Duration;

use crate::{
    fleet::{changes::Changes, registry::Node, scratch::Scratch, state::Fleet},
    id::NodeName,
    period,
    time::Timestamp,
};

/// How often to look. Names gather over hours, so a minute is soon enough.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How many names one event lists.
const NAMED: usize = 8;

/// When a node became gone, if it may be forgotten.
fn forgettable(node: &Node) -> Option<Timestamp> {
    let free = node.session.is_none() && node.record.cordon.is_none() && node.record.halt.is_none();
    let holds_nothing = node.jobs.is_empty() && node.runs.values().all(|run| run.phase.is_over());
    node.record
        .gone_since
        .filter(|_| node.record.gone && free && holds_nothing)
}

impl Fleet {
    /// Forgets nodes that have been gone for long.
    pub(crate) fn forget_gone(&mut self, scratch: &mut Scratch) {
        let now = scratch.now;
        if now < self.forget_at {
            return;
        }
        self.forget_at = now + LOOK_EVERY;
        // Records from older versions do not say since when a node is gone.
        let undated = |node: &&Node| node.record.gone && node.record.gone_since.is_none();
        let undated: Vec<NodeName> = self
            .nodes
            .iter()
            .filter(undated)
            .map(|node| node.record.name.clone())
            .collect();
        for name in undated {
            scratch.changes.touch_node(&self.nodes, &name);
            if let Some(node) = self.nodes.get_mut(&name) {
                node.record.gone_since = Some(now);
            }
        }
        let after = self.policy.forget_after;
        let old = |node: &&Node| forgettable(node).is_some_and(|since| now.since(since) >= after);
        let old: Vec<NodeName> = self
            .nodes
            .iter()
            .filter(old)
            .map(|node| node.record.name.clone())
            .collect();
        if old.is_empty() {
            return;
        }
        let named: Vec<&str> = old.iter().take(NAMED).map(NodeName::as_str).collect();
        let more = if old.len() > NAMED { ", ..." } else { "" };
        let message = format!(
            "forgotten, gone for {}: {} nodes ({}{more})",
            period::format(after),
            old.len(),
            named.join(", ")
        );
        old.iter()
            .for_each(|name| self.forget_node(name, &mut scratch.changes));
        scratch.events.note("NodesForgotten", message);
    }

    /// Whether there is room for one more node. If need be, forgets the node that has been gone
    /// longest.
    pub(crate) fn has_room(&mut self, scratch: &mut Scratch) -> bool {
        let now = scratch.now;
        if self.nodes.len() < self.policy.nodes_max {
            return true;
        }
        let gone = self
            .nodes
            .iter()
            .filter_map(|node| Some((forgettable(node)?, &node.record.name)));
        let Some((since, name)) = gone.min().map(|(since, name)| (since, name.clone())) else {
            return false;
        };
        let message = format!(
            "{name} forgotten to make room, gone for {}",
            period::format(now.since(since))
        );
        self.forget_node(&name, &mut scratch.changes);
        scratch
            .events
            .note("NodesForgotten", message)
            .on_node(&name);
        true
    }

    fn forget_node(&mut self, name: &NodeName, changes: &mut Changes) {
        changes.touch_node(&self.nodes, name);
        self.nodes.forget(name);
    }
}
