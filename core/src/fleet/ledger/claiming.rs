//! Finds the claims: goes through the jobs that wait, each queue strictly in its order.
//!
//! A job larger than what is left of its quota may borrow the rest, and it then uses the quota as well. So those behind it in
//! its queue are looked at only when it is known whether it does. Whoever need not borrow comes before all that would: first
//! each queue is followed up to the first of its jobs that must borrow, and then these are asked.
//!
//! One behind a job that may not borrow enough may turn out to need no loan when others have borrowed what it then claims.
//! These cannot begin, and must not hold up their own queues. So all is found out anew, and those that were found late claim
//! first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Claim, LOOKED_MAX};
use crate::{
    fleet::{
        queues::{QueueId, Queues, Usage},
        reservations::{RESERVING_MAX, Waiting},
        settle_order::Rank,
    },
    id::JobUid,
};

/// A job that waits, with the queue whose quota it would use.
#[derive(Clone, Copy)]
struct Asking<'w> {
    rank: &'w Rank,
    waiting: &'w Waiting,
    queue: QueueId,
    need: u32,
}

/// How many claims of one kind were found, and whether there may be more.
#[derive(Default)]
struct Found {
    /// Those that would start.
    starting: usize,
    looked: usize,
    /// The least that was refused, by queue: whoever needs as much is refused, too, since less is left.
    refused: BTreeMap<QueueId, u32>,
}

impl Found {
    fn is_full(&self) -> bool {
        self.starting == RESERVING_MAX || self.looked == LOOKED_MAX
    }

    /// Whether a job may have what it needs of what is `left`.
    fn fits(&mut self, asking: Asking<'_>, left: impl FnOnce() -> u32) -> bool {
        let least = self.refused.entry(asking.queue).or_insert(u32::MAX);
        let fits = asking.need < *least && asking.need <= left();
        if !fits {
            *least = asking.need.min(*least);
        }
        fits
    }
}

/// The claims of those that wait, in their order. `coming`: what all jobs will hold. `would_start`: whether a job would start on
/// an empty fleet.
pub(super) fn claims<'w>(
    queues: &Queues,
    coming: &Usage,
    waiting: impl Iterator<Item = (&'w Rank, &'w Waiting)> + Clone,
    need: impl Fn(&JobUid) -> u32,
    would_start: impl Fn(&JobUid) -> bool,
) -> Vec<Claim> {
    let mut lenders = BTreeSet::new();
    loop {
        let claiming = Claiming::new(queues, coming.clone(), &would_start);
        let (claims, late) = claiming.of(waiting.clone(), &need, &lenders);
        let all_may = || {
            claims
                .iter()
                .all(|claim| may_begin(claim, &claims, queues, coming))
        };
        if late.is_empty() || all_may() {
            return claims;
        }
        // There is at least one more each time, and no more than claim without borrowing.
        lenders.extend(late);
    }
}

/// Whether a job may still borrow what it needs, beside those that come before it.
fn may_begin(claim: &Claim, all: &[Claim], queues: &Queues, coming: &Usage) -> bool {
    let Some(queue) = claim.queue.filter(|_| claim.would_start && !claim.entitled) else {
        return true;
    };
    let mut usage = coming.clone();
    let before = all.iter().filter(|other| other.would_start);
    let before = before
        .filter(|other| other.uid != claim.uid && (other.entitled || other.rank < claim.rank));
    for (of, need) in before.filter_map(|other| Some((other.queue?, other.need))) {
        if queues.top(of) == queues.top(queue) {
            usage.add(of, need);
        }
    }
    claim.need <= queues.available(queue, &usage)
}

struct Claiming<'q, S> {
    queues: &'q Queues,
    /// What all jobs will hold, with those that claim.
    usage: Usage,
    /// Whether a job would start on an empty fleet.
    would_start: S,
    entitled: Found,
    borrowing: Found,
    without_gpus: usize,
    claims: Vec<Claim>,
}

impl<'q, S: Fn(&JobUid) -> bool> Claiming<'q, S> {
    fn new(queues: &'q Queues, usage: Usage, would_start: S) -> Self {
        Self {
            queues,
            usage,
            would_start,
            entitled: Found::default(),
            borrowing: Found::default(),
            without_gpus: 0,
            claims: Vec::new(),
        }
    }

    /// The claims of those that wait, in their order, and who was found to need no loan after others had borrowed. `lenders` claim
    /// first.
    fn of<'w>(
        mut self,
        waiting: impl Iterator<Item = (&'w Rank, &'w Waiting)> + Clone,
        need: impl Fn(&JobUid) -> u32,
        lenders: &BTreeSet<JobUid>,
    ) -> (Vec<Claim>, Vec<JobUid>) {
        if !lenders.is_empty() {
            let are = waiting
                .clone()
                .filter(|(_, one)| lenders.contains(&one.uid));
            for (rank, waiting) in are.take(lenders.len()) {
                if let Some(asking) = self.asking(rank, waiting, &need) {
                    self.claims_its_own(asking);
                }
            }
        }
        let mut late = Vec::new();
        let mut waiting = waiting.filter(|(_, one)| !lenders.contains(&one.uid));
        // In each queue the first job that must borrow, and all behind it.
        let mut behind: BTreeMap<QueueId, VecDeque<Asking<'w>>> = BTreeMap::new();
        while !self.entitled.is_full()
            && let Some((rank, waiting)) = waiting.next()
        {
            let Some(asking) = self.asking(rank, waiting, &need) else {
                continue;
            };
            match behind.get_mut(&asking.queue) {
                Some(behind) => behind.push_back(asking),
                None if self.claims_its_own(asking) => {}
                None => behind.entry(asking.queue).or_default().push_back(asking),
            }
        }
        while !self.borrowing.is_full() {
            let first = behind
                .iter()
                .filter_map(|(queue, behind)| Some((behind.front()?.rank, *queue)));
            let Some((_, queue)) = first.min() else {
                // All that were looked at have been asked.
                let Some((rank, waiting)) = waiting.next() else {
                    break;
                };
                if let Some(asking) = self.asking(rank, waiting, &need) {
                    self.borrows(asking);
                }
                continue;
            };
            let Some(behind) = behind.get_mut(&queue) else {
                break;
            };
            behind.pop_front().into_iter().for_each(|first| {
                self.borrows(first);
            });
            while let Some(next) = behind.front().copied()
                && !self.entitled.is_full()
                && self.claims_its_own(next)
            {
                late.push(next.waiting.uid.clone());
                behind.pop_front();
            }
        }
        self.claims.sort_by(|one, other| one.rank.cmp(&other.rank));
        (self.claims, late)
    }

    /// A job that would use a quota. One that asks for no GPUs needs none and claims at once.
    fn asking<'w>(
        &mut self,
        rank: &'w Rank,
        waiting: &'w Waiting,
        need: impl Fn(&JobUid) -> u32,
    ) -> Option<Asking<'w>> {
        let need = need(&waiting.uid);
        if need == 0 {
            if self.without_gpus < RESERVING_MAX {
                self.without_gpus += 1;
                self.claims.push(Claim {
                    rank: rank.clone(),
                    uid: waiting.uid.clone(),
                    queue: None,
                    need,
                    entitled: false,
                    would_start: false,
                });
            }
            return None;
        }
        let namespace = &waiting.name.namespace;
        let queue = self.queues.of(namespace, waiting.queue.as_deref()).ok()?;
        Some(Asking {
            rank,
            waiting,
            queue,
            need,
        })
    }

    /// Claims what the job need not borrow, if that is enough.
    fn claims_its_own(&mut self, asking: Asking<'_>) -> bool {
        let (queues, usage) = (self.queues, &self.usage);
        let left = || queues.entitled(asking.queue, usage);
        let fits = self.entitled.fits(asking, left);
        if fits {
            self.claim(asking, true);
        }
        fits
    }

    /// Claims what the job needs, if it may borrow so much.
    fn borrows(&mut self, asking: Asking<'_>) {
        let (queues, usage) = (self.queues, &self.usage);
        let left = || queues.available(asking.queue, usage);
        if self.borrowing.fits(asking, left) {
            self.claim(asking, false);
        }
    }

    fn claim(&mut self, asking: Asking<'_>, entitled: bool) {
        // One that no node fits keeps nothing from anybody, and takes nobody's place.
        let would_start = (self.would_start)(&asking.waiting.uid);
        let found = match entitled {
            true => &mut self.entitled,
            false => &mut self.borrowing,
        };
        found.starting += usize::from(would_start);
        found.looked += 1;
        if would_start {
            self.usage.add(asking.queue, asking.need);
        }
        self.claims.push(Claim {
            rank: asking.rank.clone(),
            uid: asking.waiting.uid.clone(),
            queue: Some(asking.queue),
            need: asking.need,
            entitled,
            would_start,
        });
    }
}
