//! Where ranks are, for whoever asks. The answer comes when the ranks have answered, or had the time to.

use std::time::Duration;

use muster_runner::wire::{MAX_RANKS, RankStacks, Refusal, RefusalKind, Reply};

use super::Runner;
use crate::inspect::Target;

impl Runner {
    pub(super) fn ask_stacks(
        &mut self,
        ranks: &[u32],
        asker: (u32, u64),
        now: Duration,
    ) -> Result<(), Refusal> {
        if ranks.len() > MAX_RANKS as usize {
            let text = format!("ranks: {} are above {MAX_RANKS}", ranks.len());
            return Err(Refusal::new(RefusalKind::Invalid, text));
        }
        let targets = ranks.iter().map(|rank| self.target(*rank)).collect();
        self.inspector.begin(targets, asker, now, &self.poll)
    }

    fn target(&self, rank: u32) -> Target {
        let known = self.group.ranks.get(&rank);
        let why = match known.map(|known| known.process.as_ref()) {
            Some(Some(process)) if process.end.is_none() => {
                return Target::Living {
                    rank,
                    pid: process.pid,
                    start_time: process.start_time,
                };
            }
            Some(Some(_)) => "it has ended",
            Some(None) | None => "it has not started yet",
        };
        Target::Not(RankStacks {
            rank,
            why: Some(why.to_owned()),
            ..RankStacks::default()
        })
    }

    /// Goes on with the looks at when ranks come to their collectives, while the group is to go on. Returns when to look again.
    fn mind_arrivals(&mut self, now: Duration) -> Option<Duration> {
        let order = self
            .group
            .spec
            .as_ref()
            .and_then(|spec| spec.order.as_ref());
        let asks = order.is_some_and(|order| order.collectives)
            && self.group.stop.is_none()
            && self.group.killing.is_none();
        let ranks: Vec<u32> = match asks {
            true => self.group.living_ranks().collect(),
            false => Vec::new(),
        };
        let (found, next) = self.inspector.mind_arrivals(&ranks, now, &self.poll);
        if let Some(found) = found
            && found != self.group.arrivals
        {
            self.group.arrivals = found;
            self.state.changed = true;
        }
        next
    }

    /// Goes on with what was asked for, and answers what is complete. Returns when to look again.
    pub(super) fn mind_stacks(&mut self, now: Duration) -> Option<Duration> {
        let (answered, next) = self.inspector.mind(now, &self.poll);
        let arrivals = self.mind_arrivals(now);
        let next = [next, arrivals].into_iter().flatten().min();
        if let Some(((client, request), stacks)) = answered {
            self.control.answer(client, &Reply::stacks(request, stacks));
        }
        next
    }
}
