//! Points in time, which the caller passes in. This crate has no clock.

use std::{fmt, ops, time::Duration};

use serde::{Deserialize, Serialize};

/// Microseconds on the caller's clock, which never runs backwards within one process. The
/// coordinator's clock starts at the Unix epoch, so that records keep their meaning across
/// restarts. An agent's clock starts at boot.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl ops::Add<Duration> for Timestamp {
    type Output = Timestamp;
    fn add(self, by: Duration) -> Timestamp {
        Timestamp(
            self.0
                .saturating_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)),
        )
    }
}

impl ops::Sub<Duration> for Timestamp {
    type Output = Timestamp;
    fn sub(self, by: Duration) -> Timestamp {
        Timestamp(
            self.0
                .saturating_sub(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)),
        )
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
