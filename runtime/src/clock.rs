//! The two clocks, both in microseconds and neither ever running backwards within a process.
//!
//! A [`Clock`] is read where a decision is asked for and the number handed on; rules never see the
//! clock itself.
//!
//! Both go by `CLOCK_BOOTTIME`, which counts the time a machine is suspended. `CLOCK_MONOTONIC`,
//! and with it `std::time::Instant`, stops meanwhile: a coordinator on a laptop that slept would
//! not know that it was away, and would blame the nodes whose connections have gone. Seeing the
//! jump, it listens again as after a start. No clock of a virtual machine counts the time for which
//! its host has paused it.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Where `now` comes from.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// Unix time, read once at the start and carried on by the time since boot: a step of the wall
    /// clock (NTP, an operator) cannot make a whole fleet look silent.
    Unix { at_start_us: u64, started_us: u64 },
    /// Time since boot, suspend included (`CLOCK_BOOTTIME`): the same for every process of one
    /// boot, so a runner's stamps and an agent's agree however often the agent is restarted.
    Boot,
}

impl Clock {
    /// Unix time, but not before `floor_us`, the latest time the caller has stored: a wall clock
    /// set back between two starts must not put new records before old ones.
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

    /// What it shows when the machine, suspended or not, has been up for so long.
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
