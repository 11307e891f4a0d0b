//! The two clocks. Both count microseconds, and neither ever runs backwards within a process.
//!
//! The code that asks for a decision reads a [`Clock`] and passes the number on. Rules never see
//! the clock itself.
//!
//! Both use `CLOCK_BOOTTIME`, which includes the time while a machine is suspended.
//! `CLOCK_MONOTONIC`, and with it `std::time::Instant`, stops then. With it, a coordinator on a
//! laptop that slept would not know that it was away, and would blame the nodes whose connections
//! have gone. With boot time it sees the jump and listens again as after a start. No clock of a
//! virtual machine counts the time while its host has paused it.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The source of `now`.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// Unix time, read once at the start and continued by the time since boot. A step of the wall
    /// clock (NTP, an operator) cannot make a whole fleet look silent.
    Unix { at_start_us: u64, started_us: u64 },
    /// Time since boot, including suspends (`CLOCK_BOOTTIME`). It is the same for every process of
    /// one boot, so the stamps of a runner and an agent agree however often the agent restarts.
    Boot,
}

impl Clock {
    /// Unix time, but not before `floor_us`, the latest time that the caller has stored. If the
    /// wall clock was set back between two starts, new records must still come after old ones.
    pub fn unix(floor_us: u64) -> Self {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| micros(since.as_micros()));
        Clock::Unix {
            at_start_us: wall.max(floor_us),
            started_us: boottime_us(),
        }
    }

    pub fn now_us(&self) -> u64 {
        self.at(boottime_us())
    }

    /// The clock's value when the machine has been up for this long, including suspends.
    fn at(&self, boottime_us: u64) -> u64 {
        match self {
            Clock::Unix {
                at_start_us,
                started_us,
            } => at_start_us.saturating_add(boottime_us.saturating_sub(*started_us)),
            Clock::Boot => boottime_us,
        }
    }
}

fn boottime_us() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000
        + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000
}

fn micros(us: u128) -> u64 {
    u64::try_from(us).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_holds_and_time_goes_on_from_there() {
        let far = 9_000_000_000_000_000;
        let clock = Clock::unix(far);
        let first = clock.now_us();
        assert!((far..far + 60_000_000).contains(&first), "{first}");
        assert!(clock.now_us() >= first);
        assert!(Clock::unix(0).now_us() < far);
    }

    #[test]
    fn a_night_with_the_lid_closed_is_seen() {
        const NIGHT_US: u64 = 8 * 3_600 * 1_000_000;
        let clock = Clock::unix(0);
        let Clock::Unix {
            at_start_us,
            started_us,
        } = clock
        else {
            unreachable!()
        };
        assert_eq!(clock.at(started_us + NIGHT_US), at_start_us + NIGHT_US);
        assert_eq!(clock.at(0), at_start_us, "it never runs backwards");
        // All clocks of a process agree on how much time has passed.
        let (unix, boot) = (clock.now_us(), Clock::Boot.now_us());
        assert!(boot.abs_diff(unix - at_start_us + started_us) < 1_000_000);
    }

    #[test]
    fn boot_time_is_the_kernels() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let ours = Clock::Boot.now_us() as f64 / 1e6;
        assert!((ours - seconds).abs() < 5.0, "{ours} vs {seconds}");
    }
}
