//! Clocks that nobody can trust: a coordinator's wall clock may be hours off at its start, and
//! every clock runs a little too fast or too slow. Within one process none runs backwards, and a
//! coordinator's never starts before what it has stored, as in production.

use std::time::Duration;

use muster_core::time::Timestamp;

use crate::{fault::Fault, world::World};

const MILLION: i128 = 1_000_000;

/// A process's clock, as a function of the world's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The world's time at which it was set, and to what.
    born: Timestamp,
    set: Timestamp,
    /// Parts in a million it is too fast.
    ppm: i32,
}

impl Clock {
    pub(crate) fn new(born: Timestamp, set: Timestamp, ppm: i32) -> Self {
        Self { born, set, ppm }
    }

    /// What it shows at this moment of the world.
    pub(crate) fn at(&self, now: Timestamp) -> Timestamp {
        let elapsed = i128::from(now.0.saturating_sub(self.born.0));
        let shown = elapsed * (MILLION + i128::from(self.ppm)) / MILLION;
        Timestamp(self.set.0 + shown as u64)
    }

    /// The moment of the world at which it will show this, a little later rather than earlier.
    pub(crate) fn when(&self, shown: Timestamp) -> Timestamp {
        let ahead = i128::from(shown.0.saturating_sub(self.set.0));
        let elapsed = ahead * MILLION / (MILLION + i128::from(self.ppm));
        Timestamp(self.born.0 + elapsed as u64 + u64::from(self.ppm != 0))
    }
}

impl World {
    pub(crate) fn drift(&mut self) -> i32 {
        if self.plan.has(Fault::ClockDrift) {
            self.rng.range(0, 20_000) as i32 - 10_000
        } else {
            0
        }
    }

    /// The clock of a coordinator that starts now.
    pub(crate) fn coordinator_clock(&mut self) -> Clock {
        let mut wall = self.now;
        if self.plan.has(Fault::ClockJump) && self.rng.percent(30) {
            let off = Duration::from_millis(self.rng.range(0, 7_200_000));
            wall = if self.rng.percent(50) {
                wall + off
            } else {
                wall - off
            };
            self.count(Fault::ClockJump);
        }
        let ppm = self.drift();
        if ppm != 0 {
            self.count(Fault::ClockDrift);
        }
        Clock::new(self.now, wall.max(self.store.latest), ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let clock = Clock::new(Timestamp(1_000), Timestamp(5_000_000), 10_000);
        assert_eq!(clock.at(Timestamp(1_001_000)), Timestamp(6_010_000));
        for shown in [5_000_000, 5_123_457, 9_999_999] {
            let when = clock.when(Timestamp(shown));
            let back = clock.at(when).0;
            assert!((shown..shown + 3).contains(&back), "{shown} {back}");
        }
    }
}
