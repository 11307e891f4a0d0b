//! How long to wait before dialling again: exponential with full jitter, capped (Brooker,
//! "Exponential Backoff And Jitter", 2015), with two changes for a fleet behind one coordinator.
//!
//! The first retry comes after 50 to 250 ms, so that a coordinator that only restarts sees all its
//! agents again within a second. And only a session that was *useful* for a while resets the count
//! of failures, because a coordinator that accepts and drops connections must not be dialled at
//! full speed for ever.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// The shortest wait before any retry, the first included. Full jitter alone could draw zero.
pub const FIRST_MIN: Duration = Duration::from_millis(50);
pub const FIRST_MAX: Duration = Duration::from_millis(250);
/// 2,000 agents retry at a mean of half the cap, so 800 dials per second reach a coordinator that
/// comes back. One of them costs it well below a millisecond.
pub const CAP: Duration = Duration::from_secs(5);
/// A session that lasted this long was useful.
pub const USEFUL: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Backoff {
    cap: Duration,
    useful: Duration,
    failures: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(CAP, USEFUL)
    }
}

impl Backoff {
    pub fn new(cap: Duration, useful: Duration) -> Self {
        Self {
            cap,
            useful,
            failures: 0,
        }
    }

    /// How long to wait after an attempt whose session lasted `lasted` (zero if there was none).
    /// `random` is any uniformly drawn number ([`entropy`]).
    pub fn after(&mut self, lasted: Duration, random: u64) -> Duration {
        if lasted >= self.useful {
            self.failures = 0;
        }
        // The ceiling doubles with each retry, starting at the first retry's. 2^30 times 250 ms
        // exceeds any cap.
        let ceiling = FIRST_MAX
            .saturating_mul(1 << self.failures.min(30))
            .min(self.cap)
            .max(FIRST_MIN);
        self.failures = self.failures.saturating_add(1);
        let room_us = (ceiling - FIRST_MIN).as_micros() as u64;
        FIRST_MIN + Duration::from_micros(random % (room_us + 1))
    }
}

/// A random number for jitter, not for secrets. std seeds its hash maps from the operating system.
pub fn entropy() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least and the most of many draws.
    fn range(backoff: &Backoff, lasted: Duration) -> (Duration, Duration) {
        let draws: Vec<_> = (0..20_000)
            .map(|i: u64| {
                backoff
                    .clone()
                    .after(lasted, i.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            })
            .collect();
        (*draws.iter().min().unwrap(), *draws.iter().max().unwrap())
    }

    #[test]
    fn the_first_retry_is_soon_and_later_ones_spread_to_the_cap() {
        let mut backoff = Backoff::default();
        for ceiling_ms in [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000] {
            let (low, high) = range(&backoff, Duration::ZERO);
            assert!(
                low >= FIRST_MIN && low < FIRST_MIN + Duration::from_millis(5),
                "{low:?}"
            );
            assert!(
                high <= Duration::from_millis(ceiling_ms)
                    && high > Duration::from_millis(ceiling_ms * 9 / 10),
                "{high:?}"
            );
            backoff.after(Duration::ZERO, 0);
        }
    }

    #[test]
    fn only_a_useful_session_resets() {
        let mut backoff = Backoff::default();
        for _ in 0..10 {
            backoff.after(Duration::from_secs(9), 0);
        }
        assert!(range(&backoff, Duration::from_secs(9)).1 > Duration::from_secs(4));
        assert!(range(&backoff, USEFUL).1 <= FIRST_MAX);
    }

    #[test]
    fn never_overflows() {
        let mut backoff = Backoff {
            cap: Duration::MAX,
            useful: USEFUL,
            failures: u32::MAX,
        };
        assert!(backoff.after(Duration::ZERO, u64::MAX) >= FIRST_MIN);
    }

    #[test]
    fn entropy_differs() {
        assert_ne!(entropy(), entropy());
    }
}
