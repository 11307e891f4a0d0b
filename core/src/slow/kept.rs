//! What is kept of slow ranks, with their generation.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{id::NodeName, time::Timestamp};

/// How many ranks are named. A few names help, a thousand do not.
pub(super) const NAMED_MAX: usize = 8;

/// The ranks of a generation that make the others wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Slow {
    /// Those that cost most come first, at most 8.
    pub ranks: Vec<SlowRank>,
}

/// One of them, as it was when it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlowRank {
    pub rank: u32,
    pub node: NodeName,
    /// Since when it has been so.
    pub since: Timestamp,
    /// How long each step waits for it.
    pub wait: Duration,
    /// How long a step takes with this wait.
    pub step: Duration,
    /// What its node reports that may be the cause. Empty: nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
}

impl SlowRank {
    /// How many times as long a step is as it would be without the wait, in hundredths.
    pub fn times_percent(&self) -> u64 {
        times_percent(self.wait, self.step)
    }

    /// `rank 3 on n1: each step waits 0.03 s for it (1.6 x)`.
    pub fn sentence(&self) -> String {
        let ms = self.wait.as_millis();
        // Two digits that mean something.
        let wait = match ms {
            0..100 => format!("{:.3}", self.wait.as_secs_f64()),
            _ => format!("{:.2}", self.wait.as_secs_f64()),
        };
        let times = self.times_percent();
        let (whole, tenth) = (times / 100, times % 100 / 10);
        let causes = match self.causes.as_slice() {
            [] => String::new(),
            causes => format!("; its node reports: {}", causes.join("; ")),
        };
        format!(
            "rank {} on {}: each step waits {wait} s for it ({whole}.{tenth} x){causes}",
            self.rank, self.node
        )
    }
}

/// How many times as long a step is as it would be without the wait, in hundredths.
pub(super) fn times_percent(wait: Duration, step: Duration) -> u64 {
    let without = step.saturating_sub(wait).as_micros().max(1);
    u64::try_from(step.as_micros() * 100 / without).unwrap_or(u64::MAX)
}
