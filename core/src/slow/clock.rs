//! How far a node's clock is from the coordinator's, as exactly as its heartbeats tell.

use std::collections::VecDeque;

use super::Clock;

/// The best of so many answers counts. Clocks drift by less than 50 us in a second, so older ones say less than a quick answer.
const KEPT: usize = 32;

/// The answers of one session.
#[derive(Clone, Debug, Default)]
pub struct Offset {
    heard: VecDeque<Clock>,
}

impl Offset {
    /// Takes an answer. All times are Unix microseconds: `sent` and `heard` by this node's clock, `stamp` by the
    /// coordinator's. The stamp was made somewhere in between, so in the middle it is wrong by half of the time at most.
    pub fn hear(&mut self, sent: u64, stamp: u64, heard: u64) {
        let Some(took) = heard.checked_sub(sent) else {
            return;
        };
        let signed = |us: u64| i64::try_from(us).unwrap_or(i64::MAX);
        if self.heard.len() == KEPT {
            self.heard.pop_front();
        }
        self.heard.push_back(Clock {
            ahead_us: signed(sent + took / 2) - signed(stamp),
            error_us: took.div_ceil(2),
        });
    }

    /// What is known best.
    pub fn best(&self) -> Option<Clock> {
        { self.heard.iter() }
            .min_by_key(|clock| clock.error_us)
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_of_the_last_answers_counts() {
        let mut offset = Offset::default();
        assert_eq!(offset.best(), None);
        offset.hear(1_000, 500, 1_400);
        offset.hear(2_000, 1_010, 2_020);
        offset.hear(3_000, 9_000, 9_000);
        offset.hear(9_000, 7, 8_000);
        let best = Clock {
            ahead_us: 1_000,
            error_us: 10,
        };
        assert_eq!(offset.best(), Some(best));
        for _ in 0..KEPT {
            offset.hear(50_000, 50_100, 50_200);
        }
        assert_eq!(offset.best().map(|clock| clock.ahead_us), Some(0));
    }
}
