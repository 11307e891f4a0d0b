//! The one order of placement. Each type's derived `Ord` is the policy, field by field from the top.

use std::cmp::Reverse;

use crate::id::NodeName;

/// Where a node stands when a role chooses the next one. Lower is better.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score<'c> {
    /// A role without GPUs could use the node too, and the node holds one member only. This decides only where the gang found no
    /// room otherwise, because it costs more moves.
    pub versatile: bool,
    /// The job has failed there repeatedly. Anything is better than to fail there again.
    pub shunned: bool,
    /// What the job has stays where it is: its data is there, and its neighbours.
    pub change: Change,
    /// Of nodes that the job has, those with the lower ranks stay. 0 for others.
    pub node_rank: u32,
    /// Then what the job likes most.
    pub liking: Reverse<i64>,
    /// Then whole domains, one after the other, so that neighbours in rank order are neighbours in the topology.
    pub domain: u32,
    /// Then the node that holds most of the members that have no place yet: as few nodes as possible.
    pub takes: Reverse<u32>,
    /// Then the node that is left with least, so that whole nodes stay free.
    pub gpus_left: u32,
    pub slots_left: u32,
    /// The name decides ties, so the order in which nodes were heard never matters.
    pub node: &'c NodeName,
}

impl Score<'_> {
    /// Where the node stands in rank order among those that are new to their role.
    pub(super) fn in_rank(&self) -> Self {
        Self {
            versatile: false,
            shunned: false,
            ..self.clone()
        }
    }
}

/// What taking the node for a role would change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// The job has it, and it can keep what it had.
    None,
    /// It is new to the job.
    Newcomer,
    /// It had another role and holds one member only, so that role needs another node.
    OfRole,
}

/// Which of several gangs is taken, as of several kinds of nodes or domains. Greater is better.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Worth {
    /// Every role has its minimum.
    pub complete: bool,
    /// Nodes that the job keeps.
    pub kept: usize,
    pub members: u32,
    /// On as few nodes as possible.
    pub nodes: Reverse<usize>,
}
