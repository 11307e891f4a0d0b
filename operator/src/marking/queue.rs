//! Which objects are to be looked at, when, and in which order.
//!
//! Each node whose object lacks something is here once, with the moment of its next attempt. It
//! stays until its view lacks nothing any more.

use std::{collections::BTreeMap, time::Duration};

use muster_core::id::NodeName;
use tokio::time::Instant;

use super::failing::{Failing, News, Why};

/// Objects in one round, so that each lasts about a second.
const ROUND: usize = 20;

/// After this time an object that should have been written is looked at again: somebody may have
/// undone the write before anybody saw it.
const AGAIN: Duration = Duration::from_secs(10);

/// What one attempt came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// The object is gone, or nobody can be asked about it any more.
    Gone,
    Failed(Why),
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    due: BTreeMap<NodeName, Instant>,
    failing: Failing,
}

impl Queue {
    /// There is news of this node. Its object is looked at now if it `lacks` something, unless a
    /// write has failed: then it waits for its next attempt.
    pub(super) fn hear(&mut self, name: &NodeName, lacks: bool, now: Instant) {
        match lacks {
            true if self.failing.has(name) => {}
            true => drop(self.due.insert(name.clone(), now)),
            false => drop(self.due.remove(name)),
        }
    }

    /// Keeps the nodes that are still there.
    pub(super) fn retain(&mut self, is_there: impl Fn(&NodeName) -> bool) {
        self.due.retain(|name, _| is_there(name));
        self.failing.retain(|name| self.due.contains_key(name));
    }

    /// The moment of the next attempt.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    /// The nodes of the next round. Those with a cordon to set or to lift come first, because a new
    /// one must not wait long. Of the others, those come first that have not failed, and then those
    /// that wait longest.
    pub(super) fn round(&self, now: Instant, urgent: impl Fn(&NodeName) -> bool) -> Vec<NodeName> {
        let ready = self.due.iter().filter(|(_, at)| **at <= now);
        let mut ready: Vec<_> = ready
            .map(|(name, at)| (!urgent(name), self.failing.has(name), *at, name))
            .collect();
        ready.sort_unstable();
        let names = ready.into_iter().map(|(.., name)| name.clone());
        names.take(ROUND).collect()
    }

    pub(super) fn take_down(&mut self, name: NodeName, outcome: Outcome, now: Instant) {
        let free = match outcome {
            Outcome::Done => {
                self.due.insert(name.clone(), now + AGAIN);
                self.failing.answered(&name)
            }
            Outcome::Gone => {
                self.due.remove(&name);
                self.failing.answered(&name)
            }
            Outcome::Failed(why) => {
                let (pause, free) = self.failing.failed(name.clone(), why);
                self.due.insert(name, now + pause);
                free
            }
        };
        for name in free {
            self.due.insert(name, now);
        }
    }

    /// What people are to hear now.
    pub(super) fn news(&mut self) -> Option<News> {
        self.failing.news()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<NodeName> {
        names.iter().map(|name| (*name).into()).collect()
    }

    fn queue(all: &[&str], now: Instant) -> Queue {
        let mut queue = Queue::default();
        names(all)
            .iter()
            .for_each(|name| queue.hear(name, true, now));
        queue
    }

    fn away() -> Outcome {
        Outcome::Failed(Why::Away("no route".into()))
    }

    fn later(now: Instant, ms: u64) -> Instant {
        now + Duration::from_millis(ms)
    }

    #[test]
    fn cordons_go_first_and_failures_last_and_others_wait_their_turn() {
        let now = Instant::now();
        let mut queue = queue(&["a", "c", "d", "z"], now);
        queue.hear(&"b".into(), true, later(now, 300));
        queue.take_down("a".into(), away(), now);
        let urgent = |name: &NodeName| ["d", "z"].contains(&name.as_str());
        let round = |at| queue.round(at, urgent);
        assert_eq!(round(now), names(&["d", "z", "c"]), "in their time only");
        let soon = later(now, 400);
        assert_eq!(round(soon), names(&["d", "z", "c", "b", "a"]));
        assert_eq!(queue.next(), Some(now));
    }

    #[test]
    fn a_round_is_short_so_that_a_new_cordon_need_not_wait() {
        let now = Instant::now();
        let mut queue = Queue::default();
        for number in 0..100 {
            queue.hear(&format!("n{number:03}").as_str().into(), true, now);
        }
        assert_eq!(queue.round(now, |_| false).len(), ROUND);
        queue.hear(&"z".into(), true, later(now, 5));
        let round = queue.round(later(now, 5), |name| name.as_str() == "z");
        assert_eq!(round[0].as_str(), "z");
    }

    #[test]
    fn what_was_written_is_looked_at_again_until_its_view_says_so() {
        let now = Instant::now();
        let mut queue = queue(&["a", "b"], now);
        queue.take_down("a".into(), Outcome::Done, now);
        queue.take_down("b".into(), Outcome::Gone, now);
        assert_eq!(queue.round(later(now, 9_999), |_| false), []);
        assert_eq!(queue.round(now + AGAIN, |_| false), names(&["a"]));
        queue.hear(&"a".into(), false, now);
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn a_node_that_fails_waits_whatever_is_heard_of_it_until_the_server_is_back() {
        let now = Instant::now();
        let mut queue = queue(&["a", "b"], now);
        for _ in 0..20 {
            queue.take_down("a".into(), away(), now);
        }
        queue.hear(&"a".into(), true, now);
        assert_eq!(queue.round(later(now, 9_999), |_| true), names(&["b"]));
        assert!(queue.news().is_some());
        queue.take_down("b".into(), Outcome::Done, now);
        assert_eq!(queue.round(now, |_| true), names(&["a"]));
    }

    #[test]
    fn nodes_that_are_struck_off_are_forgotten() {
        let now = Instant::now();
        let mut queue = queue(&["a", "b"], now);
        queue.take_down("a".into(), Outcome::Failed(Why::Refused("no".into())), now);
        assert!(matches!(queue.news(), Some(News::Fail { .. })));
        queue.retain(|name| name.as_str() == "b");
        assert_eq!(queue.round(later(now, 99_999), |_| false), names(&["b"]));
        assert_eq!(queue.news(), Some(News::Over));
    }
}
