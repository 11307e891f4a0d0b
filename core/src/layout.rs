//! How the members of one generation divide into roles.
//!
//! A generation's members have node ranks from 0. Roles take them in the order of the job's `roles`:
//! with a chief and two workers, node rank 0 is the chief, and 1 and 2 are worker 0 and worker 1. The
//! processes of all members are numbered in the same order, whatever their roles; these numbers are
//! the global ranks.

use serde::{Deserialize, Serialize};

/// One role's share of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleShare {
    pub name: String,
    /// How many members have this role.
    pub members: u32,
    /// Processes of each of them.
    pub procs: u32,
    /// How many ranks MPI's launcher may start on each of them.
    #[serde(default, skip_serializing_if = "is_none")]
    pub slots: u32,
    /// The role serves the others and does not end by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub service: bool,
    /// A process of it that has failed is started again alone, if all others can go on. Each of its
    /// members has one process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarts_alone: bool,
}

fn is_none(slots: &u32) -> bool {
    *slots == 0
}

/// The roles of a generation, in the order of node ranks. Empty for a job without roles, whose members
/// are all alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Layout(pub Vec<RoleShare>);

/// One member's place in a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The position of the role in the layout.
    pub role: usize,
    pub share: &'a RoleShare,
    /// The member's number within its role.
    pub index: u32,
    /// The global rank of the member's first process.
    pub first_rank: u32,
}

impl Layout {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a launcher starts ranks on its members.
    pub fn has_slots(&self) -> bool {
        self.0.iter().any(|share| share.slots > 0)
    }

    /// How many members it has.
    pub fn members(&self) -> u32 {
        self.0.iter().map(|share| share.members).sum()
    }

    /// How many processes all members have.
    pub fn world_size(&self) -> u32 {
        self.0.iter().map(|share| share.members * share.procs).sum()
    }

    /// The place of the member with this node rank. `None`: there is no such member, or there are no
    /// roles.
    pub fn place(&self, node_rank: u32) -> Option<Place<'_>> {
        let (mut before, mut first_rank) = (0, 0);
        for (role, share) in self.0.iter().enumerate() {
            if node_rank < before + share.members {
                let index = node_rank - before;
                return Some(Place {
                    role,
                    share,
                    index,
                    first_rank: first_rank + index * share.procs,
                });
            }
            before += share.members;
            first_rank += share.members * share.procs;
        }
        None
    }

    /// The node rank of the member that has this global rank. `None`: there is no such rank, or there
    /// are no roles.
    pub fn node_rank_of(&self, rank: u32) -> Option<u32> {
        let (mut before, mut first_rank) = (0, 0);
        for share in &self.0 {
            let ranks = share.members * share.procs;
            if rank < first_rank + ranks {
                return Some(before + (rank - first_rank) / share.procs);
            }
            before += share.members;
            first_rank += ranks;
        }
        None
    }

    /// The node rank of the first member of the role at this position.
    pub fn begin(&self, role: usize) -> u32 {
        self.0.iter().take(role).map(|share| share.members).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shares: &[(&str, u32, u32)]) -> Layout {
        let share = |(name, members, procs): &(&str, u32, u32)| RoleShare {
            name: (*name).into(),
            members: *members,
            procs: *procs,
            slots: 0,
            service: false,
            restarts_alone: false,
        };
        Layout(shares.iter().map(share).collect())
    }

    #[test]
    fn roles_take_node_ranks_in_their_order() {
        let layout = layout(&[
            ("chief", 1, 1),
            ("none", 0, 3),
            ("worker", 2, 4),
            ("ps", 2, 1),
        ]);
        assert_eq!((layout.members(), layout.world_size()), (5, 11));
        let place = |node_rank| {
            let place = layout.place(node_rank).unwrap();
            (place.share.name.as_str(), place.index, place.first_rank)
        };
        assert_eq!(
            [0, 1, 2, 3, 4].map(place),
            [
                ("chief", 0, 0),
                ("worker", 0, 1),
                ("worker", 1, 5),
                ("ps", 0, 9),
                ("ps", 1, 10)
            ]
        );
        assert_eq!(layout.place(5), None);
        assert_eq!(layout.begin(3), 3);
    }

    #[test]
    fn every_rank_has_the_member_whose_ranks_begin_before_it() {
        let layout = layout(&[("chief", 1, 1), ("worker", 2, 4), ("ps", 2, 1)]);
        for rank in 0..layout.world_size() {
            let place = layout.place(layout.node_rank_of(rank).unwrap()).unwrap();
            let own = place.first_rank..place.first_rank + place.share.procs;
            assert!(own.contains(&rank), "{rank} in {own:?}");
        }
        assert_eq!(layout.node_rank_of(11), None);
        assert_eq!(Layout::default().node_rank_of(0), None);
    }
}
