//! The nodes of one generation in the order of their ranks, each with its share: the members that it
//! holds. They are sealed: made once, and shared by all copies of the record. A lookup by name is fast.
//!
//! Members are numbered from 0 in the order of the job's roles. Where each node holds one member, its
//! number is the node's rank, and nothing else is said of it. Where members share nodes, each share
//! lists its seats. Nodes are then in the order of their lowest numbers.
//!
//! Each of the 1,000 nodes of a large job may cause a look at the job, and the job's record is
//! copied whenever it may change. Neither may take 1,000 steps.

use std::{borrow::Cow, collections::BTreeSet, fmt, net::IpAddr, ops::Deref, slice, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::NodeName;

/// One node's share of a generation. All of it is one run: it starts, stops and is proven dead
/// together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    pub node: NodeName,
    /// The node's boot when the generation was opened. A later boot proves this share's processes
    /// dead.
    pub boot_id: String,
    /// The GPUs of all its members.
    pub gpus: Vec<String>,
    /// All addresses of the node when the generation was opened. Empty: it does not tell them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The members that the node holds, by number. Empty: no node of this generation holds more than
    /// one member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<Seat>,
}

/// One member's part of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seat {
    /// The member's number in the generation.
    pub number: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
}

impl Member {
    /// How many members of the generation the node holds.
    pub fn size(&self) -> u32 {
        self.seats.len().max(1) as u32
    }
}

impl Member {
    /// Forgets what matters only while its processes may live: the boot, the GPUs and the addresses.
    /// They are nine tenths of a share's bytes.
    fn forget_details(&mut self) {
        (self.boot_id, self.gpus) = Default::default();
        self.addresses = Vec::new();
        self.seats
            .iter_mut()
            .for_each(|seat| seat.gpus = Vec::new());
    }

    fn has_details(&self) -> bool {
        !self.boot_id.is_empty()
    }
}

/// How many members these shares hold.
pub(crate) fn size(gang: &[Member]) -> u32 {
    gang.iter().map(Member::size).sum()
}

#[derive(Clone)]
pub struct Members(Arc<Sealed>);

struct Sealed {
    in_rank_order: Box<[Member]>,
    /// Node ranks, sorted by the names of their nodes.
    by_name: Box<[u32]>,
    /// The node rank of each member, by its number. Empty: it is the same number.
    by_number: Box<[u32]>,
}

impl Members {
    /// The node rank of the member on this node.
    pub fn rank_of(&self, node: &NodeName) -> Option<u32> {
        let Sealed {
            in_rank_order,
            by_name,
            ..
        } = &*self.0;
        let at = by_name
            .binary_search_by(|rank| in_rank_order[*rank as usize].node.cmp(node))
            .ok()?;
        Some(by_name[at])
    }

    /// Forgets of these nodes what matters only while a member's processes may live.
    pub(crate) fn forget_details(&mut self, dead: &BTreeSet<NodeName>) {
        let is_due = |share: &&Member| share.has_details() && dead.contains(&share.node);
        if !self.iter().any(|share| is_due(&share)) {
            return;
        }
        let mut shares = self.to_vec();
        let due = shares.iter_mut().filter(|share| is_due(&&**share));
        due.for_each(Member::forget_details);
        *self = shares.into();
    }

    /// How many members the generation has, over all nodes.
    pub fn size(&self) -> u32 {
        match self.0.by_number.is_empty() {
            true => self.0.in_rank_order.len() as u32,
            false => self.0.by_number.len() as u32,
        }
    }

    /// The share that holds the member with this number.
    pub fn holder(&self, number: u32) -> Option<&Member> {
        let rank = match self.0.by_number.is_empty() {
            true => number,
            false => *self.0.by_number.get(number as usize)?,
        };
        self.get(rank as usize)
    }

    /// The members that the node with this rank holds, by number.
    pub fn seats(&self, node_rank: u32) -> Cow<'_, [Seat]> {
        match self.get(node_rank as usize) {
            None => Cow::Borrowed(&[]),
            Some(share) if share.seats.is_empty() => Cow::Owned(vec![Seat {
                number: node_rank,
                gpus: share.gpus.clone(),
            }]),
            Some(share) => Cow::Borrowed(&share.seats),
        }
    }
}

/// The node rank of each member, by number. Numbers that do not count up from 0 are nobody's: such a
/// record was damaged, and every member then counts as one of the node with its number.
fn by_number(in_rank_order: &[Member]) -> Box<[u32]> {
    let ranks = (0..).zip(in_rank_order);
    let mut numbers: Vec<(u32, u32)> = ranks
        .flat_map(|(rank, share)| share.seats.iter().map(move |seat| (seat.number, rank)))
        .collect();
    numbers.sort_unstable();
    let whole = (0..).zip(&numbers).all(|(n, (number, _))| n == *number);
    match whole {
        true => numbers.into_iter().map(|(_, rank)| rank).collect(),
        false => Box::default(),
    }
}

impl From<Vec<Member>> for Members {
    fn from(members: Vec<Member>) -> Self {
        let in_rank_order = members.into_boxed_slice();
        let mut by_name: Box<[u32]> = (0..in_rank_order.len() as u32).collect();
        by_name.sort_by(|a, b| {
            in_rank_order[*a as usize]
                .node
                .cmp(&in_rank_order[*b as usize].node)
        });
        let by_number = by_number(&in_rank_order);
        Self(Arc::new(Sealed {
            in_rank_order,
            by_name,
            by_number,
        }))
    }
}

impl Deref for Members {
    type Target = [Member];

    fn deref(&self) -> &[Member] {
        &self.0.in_rank_order
    }
}

impl<'a> IntoIterator for &'a Members {
    type Item = &'a Member;
    type IntoIter = slice::Iter<'a, Member>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for Members {
    /// Copies of one record share their members, and most comparisons are between copies.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.in_rank_order == other.0.in_rank_order
    }
}

impl Eq for Members {}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.in_rank_order.fmt(f)
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.in_rank_order.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Member>::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(names: &[&str]) -> Members {
        let member = |name: &&str| Member {
            node: NodeName::from(*name),
            boot_id: "boot".into(),
            gpus: Vec::new(),
            addresses: Vec::new(),
            seats: Vec::new(),
        };
        names.iter().map(member).collect::<Vec<_>>().into()
    }

    #[test]
    fn everybody_is_found_by_name_whatever_the_order_of_ranks() {
        let names = ["c", "a", "d", "b"];
        let members = members(&names);
        for (rank, name) in names.iter().enumerate() {
            assert_eq!(
                members.rank_of(&NodeName::from(*name)),
                Some(rank as u32),
                "{name}"
            );
            assert_eq!(members[rank].node.as_str(), *name);
        }
        assert_eq!(members.rank_of(&NodeName::from("e")), None);
        assert_eq!(
            Members::from(Vec::new()).rank_of(&NodeName::from("a")),
            None
        );
    }

    #[test]
    fn members_that_share_nodes_are_found_by_number() {
        let seats = |numbers: &[u32]| {
            let seat = |number: &u32| Seat {
                number: *number,
                gpus: vec![format!("g{number}")],
            };
            numbers.iter().map(seat).collect::<Vec<_>>()
        };
        let mut shares = members(&["b", "a"]).to_vec();
        (shares[0].seats, shares[1].seats) = (seats(&[0, 2, 3]), seats(&[1]));
        let shared = Members::from(shares.clone());
        assert_eq!((shared.len(), shared.size()), (2, 4));
        let holders: Vec<&str> = (0..4)
            .map(|number| shared.holder(number).unwrap().node.as_str())
            .collect();
        assert_eq!(holders, ["b", "a", "b", "b"]);
        assert!(shared.holder(4).is_none() && shared.seats(2).is_empty());
        assert_eq!(*shared.seats(1), seats(&[1]));
        // A generation of an older coordinator says nothing of seats.
        let alone = members(&["c", "d"]);
        assert_eq!((alone.size(), alone.seats(1)[0].number), (2, 1));
        assert_eq!(alone.holder(1).unwrap().node.as_str(), "d");
        let text = serde_json::to_string(&alone).unwrap();
        assert!(!text.contains("seats"), "{text}");
        assert_eq!(serde_json::from_str::<Members>(&text).unwrap(), alone);
        let text = serde_json::to_string(&shared).unwrap();
        assert_eq!(serde_json::from_str::<Members>(&text).unwrap().size(), 4);
    }

    #[test]
    fn equal_by_content_and_not_by_set() {
        assert_eq!(members(&["a", "b"]), members(&["a", "b"]));
        assert_ne!(members(&["a", "b"]), members(&["b", "a"]));
    }
}
