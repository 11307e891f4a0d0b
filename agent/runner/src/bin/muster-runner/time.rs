//! The clocks: boot time for every comparison, wall time for log lines only, and the time that this
//! thread has worked.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Time since boot, including sleep. It never jumps.
pub(crate) fn boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The processor time of this thread. It stands still while others work.
pub(crate) fn of_thread() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Boot time in microseconds, as the wire carries it.
pub(crate) fn boot_us() -> u64 {
    micros(boot())
}

/// The wall clock time of a moment since boot, by the two clocks as they are now.
pub(crate) fn wall(at: Duration) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(boot().saturating_sub(at)).unwrap_or(now)
}

pub(crate) fn micros(at: Duration) -> u64 {
    at.as_micros() as u64
}

/// The wall clock time that begins a log line.
pub(crate) fn stamp() -> String {
    let now = clock_gettime(ClockId::Realtime);
    muster_runner::cri::stamp(now.tv_sec.max(0) as u64, now.tv_nsec as u32)
}
