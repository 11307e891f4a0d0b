//! Ranks that make the others wait, as users see them.

use muster_core::slow::SlowRank;

use crate::v1;

pub(super) fn slow_to_wire(slow: &SlowRank) -> v1::SlowRank {
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    v1::SlowRank {
        rank: slow.rank,
        node: slow.node.to_string(),
        since_unix_us: slow.since.0,
        wait_us: micros(slow.wait),
        step_us: micros(slow.step),
        causes: slow.causes.clone(),
        sentence: slow.sentence(),
    }
}
