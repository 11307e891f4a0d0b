//! How far a node's clock is from the coordinator's, as exactly as its heartbeats tell.

use std::collections::VecDeque;

use super::Clock;

/// The best of so many answers counts.
const KEPT: usize = 32;
/// Clocks may drift by so many microseconds in a second.
const DRIFT: u64 = 50;

/// The answers of one session.
#[derive(Clone, Debug, Default)]
pub struct Offset {
    /// Each with the moment at which it was heard.
    heard: VecDeque<(u64, Clock)>,
}

impl Offset {
    /// Takes an answer. All times are Unix microseconds: `sent` and `heard` by this node's clock, `stamp` by the
    /// coordinator's. The stamp was made somewhere in between, so in the middle it is wrong by half of the time at most.
    pub fn hear(&mut self, sent: u64, stamp: u64, heard: u64) {
        let Some(took) = heard.checked_sub(sent) else {
            return;
        };
        let signed = |us: u64| i64::try_from(us).unwrap_or(i64::MAX);
        let new = Clock {
            ahead_us: signed(sent + took / 2) - signed(stamp),
            error_us: took.div_ceil(2),
        };
        // One of the two clocks was set.
        let agrees = |old: Clock| {
            old.ahead_us.abs_diff(new.ahead_us) <= old.error_us.saturating_add(new.error_us)
        };
        if !{ self.heard.iter() }.all(|old| agrees(aged(old, heard))) {
            self.heard.clear();
        }
        if self.heard.len() == KEPT {
            self.heard.pop_front();
        }
        self.heard.push_back((heard, new));
    }

    /// What is known best, at this moment of the node's clock.
    pub fn best(&self, now: u64) -> Option<Clock> {
        { self.heard.iter() }
            .map(|heard| aged(heard, now))
            .min_by_key(|clock| clock.error_us)
    }
}

/// What an answer says some time later.
fn aged((heard, clock): &(u64, Clock), now: u64) -> Clock {
    let drift = now.abs_diff(*heard) / 1_000_000 * DRIFT;
    Clock {
        error_us: clock.error_us.saturating_add(drift),
        ..*clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn the_quickest_of_the_last_answers_counts() {
        let mut offset = Offset::default();
        assert_eq!(offset.best(0), None);
        offset.hear(1_000, 500, 1_400);
        offset.hear(2_000, 1_310, 2_020);
        offset.hear(9_000, 7, 8_000);
        let best = Clock {
            ahead_us: 700,
            error_us: 10,
        };
        assert_eq!(offset.best(2_020), Some(best));
        // A quick answer is worth less and less.
        let later = 2_020 + 100 * SECOND;
        assert_eq!(offset.best(later).map(|clock| clock.error_us), Some(5_010));
        for _ in 0..KEPT {
            offset.hear(later, later - 600, later + 200);
        }
        let clock = offset.best(later).unwrap();
        assert_eq!((clock.ahead_us, clock.error_us), (700, 100));
    }

    #[test]
    fn a_clock_that_was_set_is_believed_at_once() {
        let mut offset = Offset::default();
        offset.hear(10 * SECOND, 10 * SECOND, 10 * SECOND + 20);
        offset.hear(11 * SECOND, 15 * SECOND, 11 * SECOND + 400);
        let clock = offset.best(11 * SECOND).unwrap();
        assert_eq!((clock.ahead_us, clock.error_us), (-3_999_800, 200));
    }
}
