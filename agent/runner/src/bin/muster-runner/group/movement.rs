//! Which ranks move, as far as the group can tell.

use std::time::Duration;

use muster_runner::procfs::{Counters, Stat};
use muster_runner::wire::RankStatus;

use super::{Group, Rank};
use crate::movement::Living;

impl Group {
    /// The ranks that live.
    pub(crate) fn living_ranks(&self) -> impl Iterator<Item = u32> {
        let lives = |rank: &Rank| rank.process.as_ref().is_some_and(|p| p.end.is_none());
        let ranks = self.ranks.iter().filter(move |(_, rank)| lives(rank));
        ranks.map(|(number, _)| *number)
    }

    /// Looks whether its ranks move. True: there is news. `all`: every process below the runner.
    pub(crate) fn look_movement(&mut self, all: &[Stat], now: Duration) -> bool {
        let living = self.ranks.iter().filter_map(|(rank, entry)| {
            let process = entry.process.as_ref().filter(|p| p.end.is_none())?;
            Some(Living {
                rank: *rank,
                pid: process.pid,
                bytes: entry.output.bytes,
            })
        });
        let living: Vec<Living> = living.collect();
        self.movement.mind(now, &living, all, Counters::of)
    }

    pub(super) fn with_movement(&self, rank: RankStatus) -> RankStatus {
        let RankStatus {
            rank: number,
            pid,
            log_bytes,
            ..
        } = rank;
        let still = self.movement.status(number, pid, log_bytes);
        RankStatus {
            still: still.filter(|_| rank.exit.is_none()),
            arrivals: self
                .arrivals
                .get(&number)
                .filter(|_| rank.exit.is_none())
                .cloned(),
            ..rank
        }
    }
}
