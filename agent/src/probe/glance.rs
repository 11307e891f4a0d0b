//! When to glance again. Between two looks a thread glances at the little that changes without any event and matters at once; if it is other than
//! it was, the thread looks. So a change is known within a second, and nobody pays for a look a second.
//!
//! What a driver takes for its answers is nobody's to know beforehand. A glance that takes long is made less often: it never has more than its share
//! of a processor, and where that share is too small, a change is known later, with the next look at the latest.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// One glancing thread's: two of them, and the looks, stay below 0.5 % of a core.
const SHARE: u32 = 800;

/// Time between glances.
pub(super) struct Glances {
    every: Duration,
    begun: Duration,
    pause: Duration,
}

impl Glances {
    pub(super) fn new(every: Duration) -> Self {
        Self { every, begun: Duration::ZERO, pause: every }
    }

    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    pub(super) fn begin(&mut self) {
        self.begun = used();
    }

    pub(super) fn end(&mut self) {
        self.pause = after(self.every, used().saturating_sub(self.begun));
    }
}

fn after(every: Duration, took: Duration) -> Duration {
    every.max(took * SHARE)
}

/// Processor time of this thread, the kernel's for it included.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_is_asked_for_less_often() {
        let every = Duration::from_millis(500);
        assert_eq!(after(every, Duration::from_micros(600)), every);
        assert_eq!(after(every, Duration::from_millis(5)), Duration::from_secs(4));
    }
}
