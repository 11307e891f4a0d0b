//! Which nodes a job leaves because ranks there make the others wait (`onSlowRank: replace`), and which it has left.
//!
//! A rank is slow by its node or by its work, and one look at it cannot tell. Moving it can: a rank that is slow again on
//! another node is slow by its *own work*. Then the node is acquitted, and the job does not move for that rank any more.
//!
//! A rank is known by its number. In a world of another size the number means other work, so then a rank may be blamed wrongly, and
//! the job stays where it is.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    SlowRank,
    kept::{NAMED_MAX, Slow},
};
use crate::{id::NodeName, time::Timestamp};

/// A node that was left may be used again after this.
const AWAY: Duration = Duration::from_secs(24 * 3_600);
/// So many nodes are left in that time at most. A job that is slow everywhere would move for ever.
const NODES_MAX: usize = NAMED_MAX;
/// A rank that did well for so long on its new node, and is slow then, is slow for another reason.
const SOON: Duration = Duration::from_secs(3_600);
/// How many ranks are remembered that are slow by their own work.
const OWN_MAX: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Left {
    /// The nodes that were left, the last one last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<LeftNode>,
    /// Ranks that are slow by their own work.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    own: BTreeSet<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeftNode {
    node: NodeName,
    /// The ranks that were slow there.
    ranks: BTreeSet<u32>,
    /// How many times as long a step was for them, in hundredths.
    times_percent: u64,
    /// When it was left.
    at: Timestamp,
}

impl Left {
    pub fn is_nothing(&self) -> bool {
        self.nodes.is_empty() && self.own.is_empty()
    }

    /// The nodes that the job stays away from.
    pub fn nodes(&self, now: Timestamp) -> impl Iterator<Item = &NodeName> {
        let away = self.nodes.iter().filter(move |left| left.is_away(now));
        away.map(|left| &left.node)
    }

    /// The nodes of these ranks, if leaving all of them may help.
    pub fn worth_leaving<'s>(&self, slow: &'s Slow, now: Timestamp) -> BTreeSet<&'s NodeName> {
        // All wait for the slowest, so leaving the others would change little.
        if slow.ranks.iter().any(|one| self.own.contains(&one.rank)) {
            return BTreeSet::new();
        }
        let nodes: BTreeSet<&NodeName> = slow.ranks.iter().map(|one| &one.node).collect();
        let others = self.nodes(now).filter(|node| !nodes.contains(node)).count();
        match others + nodes.len() <= NODES_MAX {
            true => nodes,
            false => BTreeSet::new(),
        }
    }

    /// The generation with these slow ranks is over. The next stays away from their nodes, if that may help.
    pub fn leave(&mut self, slow: &Slow, now: Timestamp) {
        self.nodes.retain(|left| left.is_away(now));
        for node in self.worth_leaving(slow, now) {
            let there = slow.ranks.iter().filter(|one| one.node == *node);
            let times = there.clone().map(SlowRank::times_percent).max();
            let left = LeftNode {
                node: node.clone(),
                ranks: there.map(|one| one.rank).collect(),
                times_percent: times.unwrap_or_default(),
                at: now,
            };
            self.nodes.retain(|known| known.node != left.node);
            self.nodes.push(left);
        }
    }

    /// Whether a job of so many members without these nodes is at least as fast as one of `with` members that all wait for them.
    /// `uses`: whether that one has this node.
    pub fn pays(
        &self,
        without: u32,
        with: u32,
        uses: impl Fn(&NodeName) -> bool,
        now: Timestamp,
    ) -> bool {
        let away = self.nodes.iter().filter(|left| left.is_away(now));
        let used = away.filter(|left| uses(&left.node));
        let times = used.map(|left| left.times_percent).max();
        times.is_none_or(|times| u64::from(without) * times >= u64::from(with) * 100)
    }

    /// Takes that this rank is slow, in a generation that began then. Returns the other node on which it was slow before, if it is so again soon:
    /// then it is its own work, and nodes that were left for such ranks alone are used again.
    pub fn judge(&mut self, slow: &SlowRank, began: Timestamp) -> Option<NodeName> {
        if slow.since.since(began) >= SOON {
            return None;
        }
        let mut before = self.nodes.iter().filter(|left| left.is_away(began));
        let before = before.find(|left| left.node != slow.node && left.ranks.contains(&slow.rank));
        let before = before?.node.clone();
        if self.own.len() < OWN_MAX {
            self.own.insert(slow.rank);
        }
        let own = &self.own;
        self.nodes.retain(|left| !left.ranks.is_subset(own));
        Some(before)
    }
}

impl LeftNode {
    fn is_away(&self, now: Timestamp) -> bool {
        now.since(self.at) < AWAY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(ranks: &[(u32, &str)]) -> Slow {
        let rank = |(rank, node): &(u32, &str)| SlowRank {
            rank: *rank,
            node: NodeName::from(*node),
            since: Timestamp(5),
            wait: Duration::from_millis(30),
            step: Duration::from_millis(80),
            causes: Vec::new(),
        };
        Slow {
            ranks: ranks.iter().map(rank).collect(),
        }
    }

    fn names<'n>(nodes: impl IntoIterator<Item = &'n NodeName>) -> Vec<&'n str> {
        nodes.into_iter().map(NodeName::as_str).collect()
    }

    #[test]
    fn a_node_that_was_left_may_be_used_again_after_a_day() {
        let mut left = Left::default();
        left.leave(&slow(&[(1, "b"), (3, "d"), (2, "b")]), Timestamp(5));
        assert_eq!(names(left.nodes(Timestamp(5))), ["b", "d"]);
        let later = Timestamp(5) + AWAY;
        assert_eq!(names(left.nodes(later)), [""; 0]);
        left.leave(&slow(&[(0, "a")]), later);
        assert_eq!((names(left.nodes(later)), left.nodes.len()), (vec!["a"], 1));
    }

    #[test]
    fn fewer_nodes_pay_if_they_are_quicker_together() {
        let mut left = Left::default();
        left.leave(&slow(&[(1, "b")]), Timestamp(5));
        let pays =
            |without, with| left.pays(without, with, |node| node.as_str() == "b", Timestamp(5));
        assert!(pays(4, 4) && pays(4, 5) && pays(5, 8));
        assert!(!pays(1, 2) && !pays(4, 7), "1.6 times as quick");
        assert!(
            left.pays(1, 2, |_| false, Timestamp(5)),
            "it waits for nobody"
        );
    }

    #[test]
    fn a_rank_that_is_slow_again_elsewhere_acquits_the_node() {
        let mut left = Left::default();
        let now = Timestamp(9);
        left.leave(&slow(&[(1, "b"), (2, "c")]), now);
        let soon = |left: &mut Left, rank, node, after: Duration| {
            let mut slow = slow(&[(rank, node)]);
            slow.ranks[0].since = now + after;
            left.judge(&slow.ranks[0], now)
        };
        let again = |left: &mut Left, rank, node| soon(left, rank, node, SOON / 2);
        assert_eq!(
            again(&mut left, 1, "b"),
            None,
            "the job had to use it again"
        );
        assert_eq!(again(&mut left, 7, "e"), None, "another rank");
        assert_eq!(
            soon(&mut left, 1, "e", SOON),
            None,
            "it did well there at first"
        );
        assert_eq!(names(left.nodes(now)), ["b", "c"]);
        assert_eq!(again(&mut left, 1, "e"), Some(NodeName::from("b")));
        assert_eq!(names(left.nodes(now)), ["c"]);
        let none: [&NodeName; 0] = [];
        assert_eq!(
            names(left.worth_leaving(&slow(&[(1, "e")]), now)),
            names(none)
        );
        let both = slow(&[(1, "e"), (5, "f")]);
        assert_eq!(
            names(left.worth_leaving(&both, now)),
            names(none),
            "all wait for rank 1"
        );
        left.leave(&both, now);
        assert_eq!(names(left.nodes(now)), ["c"]);
        assert_eq!(names(left.worth_leaving(&slow(&[(5, "f")]), now)), ["f"]);
    }

    #[test]
    fn a_job_that_is_slow_everywhere_stays_at_last() {
        let mut left = Left::default();
        let now = Timestamp(5);
        for number in 0..20 {
            left.leave(&slow(&[(number, &format!("n{number:02}"))]), now);
        }
        assert_eq!(left.nodes(now).count(), NODES_MAX);
        let last = slow(&[(90, "n07")]);
        assert_eq!(
            names(left.worth_leaving(&last, now)),
            ["n07"],
            "it counts already"
        );
        let more = slow(&[(91, "x")]);
        assert_eq!(left.worth_leaving(&more, now).len(), 0);
        assert_eq!(names(left.worth_leaving(&more, now + AWAY)), ["x"]);
    }
}
