//! What a job asks of placement: roles, at least one, and how many of their members a node may hold.

use std::cmp::Reverse;

use crate::spec::Multiple;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    pub roles: Vec<RoleDemand>,
    /// How many members to place in all, if there is room.
    pub wanted: u32,
    /// Members of one node. 1: no two share a node.
    pub per_node: u32,
}

/// What the members of one role ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoleDemand {
    pub min: u32,
    pub max: u32,
    /// It has a multiple of so many members, as `min` and `max` are.
    pub multiple: Multiple,
    /// GPUs of each member, all of one node. 0: each takes a slot.
    pub gpus: u32,
    /// Processes of each member.
    pub procs: u32,
}

impl Demand {
    pub(crate) fn min(&self) -> u32 {
        self.roles.iter().map(|role| role.min).sum()
    }

    /// The largest gang that is of use.
    pub(crate) fn most(&self) -> u32 {
        let most = self.wanted.clamp(self.min(), self.max());
        self.counts(most).iter().sum()
    }

    /// Whether all members ask for the same, and each for a node of its own.
    pub(crate) fn is_one_alike_each(&self) -> bool {
        self.per_node == 1 && self.roles.len() == 1
    }

    pub(super) fn max(&self) -> u32 {
        self.roles.iter().map(|role| role.max).sum()
    }

    /// The most GPUs that a member needs.
    pub(super) fn gpus(&self) -> u32 {
        let gpus = self.roles.iter().map(|role| role.gpus);
        gpus.max().unwrap_or_default()
    }

    /// The roles in the order in which they choose: those that need more GPUs first, because fewer nodes can serve them.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.roles.len()).collect();
        order.sort_by_key(|role| (Reverse(self.roles[*role].gpus), *role));
        order
    }

    /// How many members each role has in a gang of this size, as [`crate::spec::JobSpec::layout`] divides it. Every gang has
    /// such counts, so only here members are rounded down to a multiple.
    pub(super) fn counts(&self, size: u32) -> Vec<u32> {
        let mut more = size.saturating_sub(self.min());
        let count = |role: &RoleDemand| {
            let extra = role.multiple.within(more.min(role.max - role.min));
            more -= extra;
            role.min + extra
        };
        self.roles.iter().map(count).collect()
    }

    /// How many GPUs a gang of this size has.
    pub(crate) fn gpus_of(&self, size: u32) -> u32 {
        let counts = self.counts(size);
        let roles = self.roles.iter().zip(counts);
        roles.map(|(role, count)| role.gpus * count).sum()
    }

    /// The word for what its sizes count.
    pub(super) fn unit(&self) -> &'static str {
        match self.per_node {
            1 => "nodes",
            _ => "members",
        }
    }
}
