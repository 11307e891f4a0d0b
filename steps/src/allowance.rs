//! How much processor time a job's own pattern may take. Whoever searches with it has other duties,
//! above all to stop the job.

use std::time::Duration;

/// In each window a pattern is tried until it has taken so much: a tenth of one processor.
const WINDOW: Duration = Duration::from_millis(100);
const PER_WINDOW: Duration = Duration::from_millis(10);

/// A line that takes longer is slow. A pattern of a trainer takes less than 0.1 ms.
const SLOW: Duration = Duration::from_millis(20);

/// After so many slow lines more than quick ones the pattern is given up. With the largest pattern
/// they take a second, spread over as many windows.
const SLOW_MAX: u32 = 10;

/// The books of one pattern, over all outputs that are searched for it.
#[derive(Debug, Default)]
pub struct Allowance {
    window: Duration,
    spent: Duration,
    slow: u32,
    given_up: bool,
}

impl Allowance {
    /// Whether the pattern may be tried on another line. `now` counts from any moment.
    pub fn allows(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.window) >= WINDOW {
            (self.window, self.spent) = (now, Duration::ZERO);
        }
        !self.given_up && self.spent < PER_WINDOW
    }

    /// Notes what one line has cost. True: the pattern is given up from now on.
    pub fn spend(&mut self, cost: Duration) -> bool {
        self.spent += cost;
        self.slow = match cost > SLOW {
            true => self.slow + 1,
            false => self.slow.saturating_sub(1),
        };
        self.given_up |= self.slow >= SLOW_MAX;
        self.given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_pattern_gets_a_tenth_of_the_time() {
        let mut allowance = Allowance::default();
        let mut spent = Duration::ZERO;
        for tick in 0..10_000 {
            let now = MS * tick / 10;
            while allowance.allows(now) {
                spent += MS * 3;
                assert!(!allowance.spend(MS * 3), "it is not slow");
            }
        }
        assert_eq!(spent, MS * 3 * 4 * 10, "12 ms in each of ten windows");
    }

    #[test]
    fn a_pattern_that_is_slow_again_and_again_is_given_up() {
        let mut allowance = Allowance::default();
        let mut now = Duration::ZERO;
        for nth in 1..=SLOW_MAX {
            assert!(allowance.allows(now), "{nth}");
            assert_eq!(allowance.spend(SLOW + MS), nth == SLOW_MAX);
            assert!(!allowance.allows(now), "this window's time is over");
            now += WINDOW;
        }
        assert!(!allowance.allows(now + WINDOW * 100));
        // A machine that stood still now and then is no fault of the pattern.
        let mut allowance = Allowance::default();
        for _ in 0..1_000 {
            assert!(!allowance.spend(SLOW + MS));
            assert!(!allowance.spend(MS));
        }
    }
}
