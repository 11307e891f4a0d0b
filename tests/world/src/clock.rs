//! Clocks that cannot be trusted. A coordinator's wall clock may be hours off at its start, and
//! every clock runs a little too fast or too slow. Within one process no clock runs backwards, and
//! a coordinator's clock never starts before the latest stored time, as in production.

use std::time::Duration;

use muster_core::time::Timestamp;

use crate::{fault::Fault, world::World};

const MILLION: i128 = 1_000_000;

/// A process's clock, as a function of the world's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The world's time at which the clock was set, and the time to which it was set.
    born: Timestamp,
    set: Timestamp,
    /// How much too fast it runs, in parts per million.
    ppm: i32,
}

impl Clock {
    pub(crate) fn new(born: Timestamp, set: Timestamp, ppm: i32) -> Self {
        Self { born, set, ppm }
    }

    /// What the clock shows at this moment of the world.
    pub(crate) fn at(&self, now: Timestamp) -> Timestamp {
        let elapsed = i128::from(now.0.saturating_sub(self.born.0));
        let shown = elapsed * (MILLION + i128::from(self.ppm)) / MILLION;
        Timestamp(self.set.0 + shown as u64)
    }

    /// The moment of the world at which the clock will show this time. It is rounded up.
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
