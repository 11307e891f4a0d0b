//! When to glance again. Between two looks a thread glances at the little that changes without any
//! event and matters at once; if it is other than it was, the thread looks. So a change is known
//! within a second, and nobody pays for a look a second.
//!
//! What a driver takes for its answers is nobody's to know beforehand. A glance that takes long is
//! made less often: it never has more than its share of a processor, and where that share is too
//! small, a change is known later, with the next look at the latest.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// One glancing thread's: two of them, and the looks, stay below 0.5 % of a core.
const SHARE: u32 = 800;
/// Of the time a glance takes, most of it asleep in a driver: whom it keeps waiting there is not
/// ours to know.
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

    /// A look was made: what was slow may be so no more, and is tried again sooner.
    pub(super) fn looked(&mut self) {
        self.pause = self.every.max(self.pause / 2);
    }
}

fn after(every: Duration, worked: Duration, took: Duration) -> Duration {
    every.max(worked * SHARE).max(took * SHARE_OF_TIME)
}

/// Processor time of this thread, the kernel's for it included.
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
