//! The members of one generation, in node rank order. They are sealed: made once, and shared by all
//! copies of the record. A lookup by name is fast.
//!
//! Each of the 1,000 nodes of a large job may cause a look at the job, and the job's record is
//! copied whenever it may change. Neither may take 1,000 steps.

use std::{fmt, net::IpAddr, ops::Deref, slice, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::NodeName;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    pub node: NodeName,
    /// The node's boot when the generation was opened. A later boot proves this member's processes
    /// dead.
    pub boot_id: String,
    pub gpus: Vec<String>,
    /// All addresses of the node when the generation was opened. Empty: it does not tell them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
}

#[derive(Clone)]
pub struct Members(Arc<Sealed>);

struct Sealed {
    in_rank_order: Box<[Member]>,
    /// Node ranks, sorted by the names of their nodes.
    by_name: Box<[u32]>,
}

impl Members {
    /// The node rank of the member on this node.
    pub fn rank_of(&self, node: &NodeName) -> Option<u32> {
        let Sealed {
            in_rank_order,
            by_name,
        } = &*self.0;
        let at = by_name
            .binary_search_by(|rank| in_rank_order[*rank as usize].node.cmp(node))
            .ok()?;
        Some(by_name[at])
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
        Self(Arc::new(Sealed {
            in_rank_order,
            by_name,
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
    fn equal_by_content_and_not_by_set() {
        assert_eq!(members(&["a", "b"]), members(&["a", "b"]));
        assert_ne!(members(&["a", "b"]), members(&["b", "a"]));
    }
}
