//! When to glance again. Between two looks, a thread glances at the few things that change without
//! any event and matter at once. If one of them has changed, the thread looks. So a change is known
//! within a second, without the cost of a look every second.
//!
//! Nobody knows beforehand how long a driver takes to answer. A slow glance is made less often, so
//! it never uses more than its share of a processor. If that share is too small, a change is
//! noticed later, at the latest by the next look.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A glancing thread may use one part in this many of a core. Two such threads and the looks stay
/// below 0.5 %.
const SHARE: u32 = 800;
/// A glance may take one part in this many of the time. Most of that time it sleeps in a driver,
/// where it may keep others waiting.
const SHARE_OF_TIME: u32 = 20;

/// Time between glances.
pub(super) struct Glances {
    every: Duration,
    begun: (Duration, Instant),
    pause: Duration,
}

impl Glances {
    pub(super) fn new(every: Duration) -> Self {
        Self {
            every,
            begun: (Duration::ZERO, Instant::now()),
            pause: every,
        }
    }

    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    pub(super) fn begin(&mut self) {
        self.begun = (used(), Instant::now());
    }

    pub(super) fn end(&mut self) {
        let (used_before, begun) = self.begun;
        self.pause = after(
            self.every,
            used().saturating_sub(used_before),
            begun.elapsed(),
        );
    }

    /// Notes that a look was made. The next glance comes sooner, because a slow driver may be fast
    /// again.
    pub(super) fn looked(&mut self) {
        self.pause = self.every.max(self.pause / 2);
    }
}

fn after(every: Duration, worked: Duration, took: Duration) -> Duration {
    every.max(worked * SHARE).max(took * SHARE_OF_TIME)
}

/// Processor time of this thread, including the kernel's work for it.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_is_asked_for_less_often() {
        let every = Duration::from_millis(500);
        let ms = Duration::from_millis;
        assert_eq!(after(every, Duration::from_micros(600), ms(1)), every);
        assert_eq!(after(every, ms(5), ms(5)), ms(4_000), "it works");
        assert_eq!(after(every, ms(0), ms(100)), ms(2_000), "it waits");
    }

    #[test]
    fn one_slow_answer_is_forgotten() {
        let mut glances = Glances::new(Duration::from_millis(500));
        glances.pause = Duration::from_secs(40);
        (0..7).for_each(|_| glances.looked());
        assert_eq!(glances.pause(), Duration::from_millis(500));
    }
}
