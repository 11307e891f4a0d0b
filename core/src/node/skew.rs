//! Measures how far this node's wall clock is from the coordinator's, by the answers to its
//! heartbeats. This helps people whose logs otherwise do not fit together; Muster decides nothing
//! by a wall clock.
//!
//! The coordinator stamps its answer after the question was sent and before the answer arrives. If
//! the stamp lies outside these two times of this node's clock, the distance is certainly skew. The
//! duration of the round trip is never counted as skew.

/// The skew that was reported last. It is reported again only after a change, because an answer
/// comes every second.
#[derive(Clone, Debug, Default)]
pub struct Skew {
    told_ms: i64,
}

/// Smaller changes are not reported: round trips differ by milliseconds.
const NEWS_MS: u64 = 250;

impl Skew {
    /// By how many milliseconds this node is ahead (negative: behind), if that is news. All times
    /// are Unix microseconds: `sent` and `heard` by this node's clock, `stamp` by the
    /// coordinator's.
    pub fn hear(&mut self, sent: u64, stamp: u64, heard: u64) -> Option<i64> {
        let apart = match (sent.checked_sub(stamp), stamp.checked_sub(heard)) {
            (Some(ahead), _) => i64::try_from(ahead).unwrap_or(i64::MAX),
            (_, Some(behind)) => -i64::try_from(behind).unwrap_or(i64::MAX),
            (None, None) => 0,
        };
        let apart = apart / 1_000;
        if apart.abs_diff(self.told_ms) < NEWS_MS {
            return None;
        }
        self.told_ms = apart;
        Some(apart)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn what_the_way_may_have_taken_is_no_skew() {
        let mut skew = Skew::default();
        assert_eq!(
            skew.hear(10 * SECOND, 12 * SECOND, 15 * SECOND),
            None,
            "a slow answer"
        );
        assert_eq!(
            skew.hear(20 * SECOND, 17 * SECOND, 21 * SECOND),
            Some(3_000)
        );
        assert_eq!(
            skew.hear(20 * SECOND, 17 * SECOND + 100_000, 21 * SECOND),
            None,
            "no news"
        );
        assert_eq!(
            skew.hear(20 * SECOND, 26 * SECOND, 21 * SECOND),
            Some(-5_000)
        );
        assert_eq!(
            skew.hear(20 * SECOND, 20 * SECOND + 1, 21 * SECOND),
            Some(0),
            "mended"
        );
        assert_eq!(
            skew.hear(0, u64::MAX, 0),
            Some(-9_223_372_036_854_775),
            "whatever a coordinator may say"
        );
    }
}
