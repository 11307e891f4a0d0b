//! Periodic work.

use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Ticks every `period`, the first time after one period. A late tick delays the following ones. So
/// after a stall there is one tick, and not a burst of all missed ticks, which is tokio's default.
pub fn ticker(period: Duration) -> Interval {
    let mut interval = interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stall_is_not_made_up_for() {
        let mut ticks = ticker(Duration::from_secs(1));
        let start = Instant::now();
        ticks.tick().await;
        assert_eq!(start.elapsed().as_secs(), 1);
        tokio::time::advance(Duration::from_secs(10)).await;
        ticks.tick().await;
        let after_stall = Instant::now();
        ticks.tick().await;
        assert_eq!(after_stall.elapsed().as_millis(), 1_000);
    }
}
