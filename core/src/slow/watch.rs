//! Whether a lateness lasts.
//!
//! A rank is *suspected* from the first look that finds it late, and *slow* once that has lasted. One look that does not find it
//! changes nothing, because looks are short. Two in a row end a suspicion, and three a slowness.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Late, SlowRank,
    kept::{NAMED_MAX, Slow},
};
use crate::{
    id::{Generation, NodeName},
    time::Timestamp,
};

/// So many looks in a row must not find a rank that is suspected, or slow.
const LEAVES: (u32, u32) = (2, 3);

/// What is remembered of one generation. It is lost with the coordinator, and begins anew.
#[derive(Debug, Default)]
pub struct Watch {
    generation: Option<Generation>,
    look: u64,
    suspects: BTreeMap<u32, Suspect>,
}

#[derive(Debug)]
struct Suspect {
    node: NodeName,
    since: Timestamp,
    missed: u32,
    /// The waits and steps that were found so far: how many, and their sums.
    found: (u32, Duration, Duration),
    is_slow: bool,
}

/// What a look has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    pub begins: Vec<SlowRank>,
    pub ends: Vec<SlowRank>,
}

impl Watch {
    /// Whether this look is newer than those that are known.
    pub fn is_new(&self, generation: Generation, look: u64) -> bool {
        self.generation != Some(generation) || look > self.look
    }

    /// Takes what one look has found. `seen`: whether it has seen this rank. `known`: who is slow, as people were told. `lasts`: how
    /// long a rank must be late.
    pub fn step(
        &mut self,
        (generation, look): (Generation, u64),
        late: &[Late],
        seen: impl Fn(u32) -> bool,
        known: Option<&Slow>,
        now: Timestamp,
        lasts: Duration,
    ) -> News {
        if self.generation != Some(generation) {
            *self = Self {
                generation: Some(generation),
                ..Self::default()
            };
        }
        self.look = look;
        let known: &[SlowRank] = known.map_or(&[], |known| &known.ranks);
        for slow in known {
            // A coordinator that has just begun.
            let suspect = self.suspects.entry(slow.rank);
            suspect.or_insert_with(|| Suspect {
                node: slow.node.clone(),
                since: slow.since,
                missed: 0,
                found: (0, Duration::ZERO, Duration::ZERO),
                is_slow: true,
            });
        }
        for late in late {
            let suspect = self.suspects.entry(late.rank);
            let suspect = suspect.or_insert_with(|| Suspect {
                node: late.node.clone(),
                since: now,
                missed: 0,
                found: (0, Duration::ZERO, Duration::ZERO),
                is_slow: false,
            });
            let (count, wait, step) = suspect.found;
            suspect.found = (count + 1, wait + late.wait, step + late.step);
            suspect.missed = 0;
        }
        let mut news = News::default();
        self.suspects.retain(|rank, suspect| {
            // Whoever does not answer is not quicker for it.
            if seen(*rank) && !late.iter().any(|late| late.rank == *rank) {
                suspect.missed += 1;
            }
            let most = if suspect.is_slow { LEAVES.1 } else { LEAVES.0 };
            let stays = suspect.missed < most;
            if !stays && suspect.is_slow {
                let told = known.iter().find(|known| known.rank == *rank);
                news.ends.extend(told.cloned());
            }
            stays
        });
        let room = NAMED_MAX.saturating_sub(known.len() - news.ends.len());
        // The worst come first.
        for late in late {
            let Some(suspect) = self.suspects.get_mut(&late.rank) else {
                continue;
            };
            let lasted = now.since(suspect.since) >= lasts;
            if suspect.is_slow || !lasted || news.begins.len() >= room {
                continue;
            }
            suspect.is_slow = true;
            let (count, wait, step) = suspect.found;
            news.begins.push(SlowRank {
                rank: late.rank,
                node: suspect.node.clone(),
                since: suspect.since,
                wait: wait / count.max(1),
                step: step / count.max(1),
                causes: Vec::new(),
            });
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(60);

    fn late(rank: u32) -> Late {
        Late {
            rank,
            node: NodeName::from("n1"),
            wait: Duration::from_millis(30),
            step: Duration::from_millis(80),
        }
    }

    /// Takes looks ten seconds apart, in each of which these ranks are late. Returns the looks with news, with the ranks
    /// that begin and end to be slow.
    fn told(looks: &[&[u32]]) -> Vec<(usize, Vec<u32>, Vec<u32>)> {
        let (mut watch, mut slow, mut told) = (Watch::default(), Slow::default(), Vec::new());
        for (number, ranks) in looks.iter().enumerate() {
            let late: Vec<Late> = ranks.iter().map(|rank| late(*rank)).collect();
            let now = Timestamp(number as u64 * 10_000_000);
            let look = (Generation(1), number as u64 + 1);
            assert!(watch.is_new(look.0, look.1));
            let news = watch.step(look, &late, |_| true, Some(&slow), now, LASTS);
            assert!(!watch.is_new(look.0, look.1));
            let numbers = |all: &[SlowRank]| all.iter().map(|one| one.rank).collect::<Vec<_>>();
            let (begins, ends) = (numbers(&news.begins), numbers(&news.ends));
            slow.ranks.retain(|one| !ends.contains(&one.rank));
            slow.ranks.extend(news.begins);
            if !(begins.is_empty() && ends.is_empty()) {
                told.push((number, begins, ends));
            }
        }
        told
    }

    #[test]
    fn a_rank_is_slow_after_a_minute_and_told_once() {
        assert_eq!(told(&[&[3][..]; 20]), [(6, vec![3], vec![])]);
        assert_eq!(told(&[&[3, 5][..]; 20]), [(6, vec![3, 5], vec![])]);
        assert!(
            told(&[&[3][..]; 6]).is_empty(),
            "fifty seconds are too short"
        );
    }

    #[test]
    fn one_look_without_it_changes_nothing_and_two_do() {
        let mut looks: Vec<&[u32]> = vec![&[3]; 7];
        looks[3] = &[];
        assert_eq!(told(&looks), [(6, vec![3], vec![])]);
        looks[4] = &[];
        assert!(told(&looks).is_empty());
        let hands: Vec<&[u32]> = (0..30).map(|n| [&[1][..], &[2], &[3]][n % 3]).collect();
        assert!(told(&hands).is_empty(), "it goes from rank to rank");
    }

    #[test]
    fn it_ends_after_three_looks() {
        let mut looks: Vec<&[u32]> = vec![&[3]; 8];
        looks.extend([&[][..], &[3], &[], &[], &[], &[]]);
        assert_eq!(told(&looks), [(6, vec![3], vec![]), (12, vec![], vec![3])]);
    }

    #[test]
    fn a_coordinator_that_begins_anew_tells_nothing_twice() {
        let mut slow = Slow::default();
        let now = Timestamp(70_000_000);
        slow.ranks.push(SlowRank {
            rank: 3,
            node: NodeName::from("n1"),
            since: Timestamp(0),
            wait: Duration::from_millis(30),
            step: Duration::from_millis(80),
            causes: Vec::new(),
        });
        let mut watch = Watch::default();
        let mut step = |look, late: &[Late]| {
            let look = (Generation(1), look);
            watch.step(look, late, |_| true, Some(&slow), now + LASTS * 2, LASTS)
        };
        assert_eq!(step(1, &[late(3)]), News::default());
        assert_eq!(step(2, &[]), News::default());
        assert_eq!(step(3, &[]), News::default());
        assert_eq!(step(4, &[]).ends.len(), 1);
    }

    #[test]
    fn the_next_generation_begins_anew_and_few_are_named() {
        let mut watch = Watch::default();
        let at = |seconds: u64| Timestamp(seconds * 1_000_000);
        let all: Vec<Late> = (0..20).map(late).collect();
        watch.step((Generation(1), 5), &all, |_| true, None, at(0), LASTS);
        assert!(watch.is_new(Generation(2), 5));
        let news = watch.step((Generation(2), 5), &all, |_| true, None, at(70), LASTS);
        assert_eq!(news, News::default());
        let news = watch.step((Generation(2), 6), &all, |_| true, None, at(130), LASTS);
        assert_eq!(news.begins.len(), NAMED_MAX);
    }

    #[test]
    fn a_rank_that_is_not_seen_is_no_quicker_for_it() {
        let (mut watch, slow) = (Watch::default(), Slow::default());
        let look = |number| (Generation(1), number);
        let at = |seconds: u64| Timestamp(seconds * 1_000_000);
        watch.step(look(1), &[late(3)], |_| true, Some(&slow), at(0), LASTS);
        for number in 2..7 {
            let seen = |rank| rank != 3;
            let news = watch.step(look(number), &[], seen, Some(&slow), at(number * 10), LASTS);
            assert_eq!(news, News::default());
        }
        let news = watch.step(look(7), &[late(3)], |_| true, Some(&slow), at(70), LASTS);
        assert_eq!(news.begins.len(), 1, "it was suspected all the time");
    }
}
