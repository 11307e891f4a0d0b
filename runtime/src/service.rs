//! What a service manager hears of this process: that it serves, that it ends, and that it is
//! alive (sd_notify(3)). Nobody is told without NOTIFY_SOCKET in the environment.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::ticker::ticker;

/// The process serves. A unit of `Type=notify` counts as started from now on.
pub fn ready() {
    tell(NotifyState::Ready);
}

/// The process ends because it was told to.
pub fn stopping() {
    tell(NotifyState::Stopping);
}

/// Tells that the process is alive as often as its unit's `WatchdogSec=` asks for, each time after
/// `answered` has returned. Returns at the shutdown, or at once where nobody asks.
pub async fn watch<F: Future<Output = ()>>(answered: impl Fn() -> F, shutdown: CancellationToken) {
    if let Some(limit) = sd_notify::watchdog_enabled() {
        let told = tell_each(pause(limit), answered, || tell(NotifyState::Watchdog));
        shutdown.run_until_cancelled(told).await;
    }
}

async fn tell_each<F: Future<Output = ()>>(
    pause: Duration,
    answered: impl Fn() -> F,
    tell: impl Fn(),
) {
    let mut due = ticker(pause);
    loop {
        due.tick().await;
        answered().await;
        tell();
    }
}

/// Three messages fit into the limit, so that a late one does no harm.
fn pause(limit: Duration) -> Duration {
    (limit / 3).max(Duration::from_millis(1))
}

fn tell(state: NotifyState<'_>) {
    let what = format!("{state:?}");
    if let Err(e) = sd_notify::notify(&[state]) {
        warn!("systemd cannot be told {what}: {e}");
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future};

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_that_decides_nothing_is_not_called_alive() {
        let (second, told) = (Duration::from_secs(1), Cell::new(0));
        let tell = || told.set(told.get() + 1);
        let _ = timeout(
            19 * second / 2,
            tell_each(second, || future::ready(()), tell),
        )
        .await;
        assert_eq!(told.take(), 9);
        let _ = timeout(19 * second / 2, tell_each(second, future::pending, tell)).await;
        assert_eq!(told.take(), 0);
    }
}
