//! The dead-man's switch of a job with `fenceAfter`. Its workers live only while the agent says
//! often enough that it heard the coordinator.
//!
//! The agent says when it heard the coordinator, on the clock of this boot, which the runner
//! shares. So it does not matter how long the message took or whether the agent still lives. When
//! no message comes, the runner stops the workers without anybody's help.

use std::time::Duration;

use muster_runner::wire::Hold;

/// Tells the user why workers were stopped, or are not started.
pub(crate) const CLOSED: &str =
    "nothing was heard of the coordinator for longer than the job's fenceAfter";

#[derive(Default)]
pub(crate) struct Fence {
    /// When the coordinator was last heard, according to the agent.
    heard: Option<Duration>,
    /// The fence has closed. It closes only once.
    pub(crate) closed: bool,
}

impl Fence {
    /// Notes that the coordinator was heard at this moment. A moment before the latest known one
    /// changes nothing, and a moment in the future counts as now.
    pub(crate) fn renew(&mut self, heard: Duration, now: Duration) {
        self.heard = self.heard.max(Some(heard.min(now)));
    }

    /// When the workers must stop if no further message comes. None for a job without a fence. If
    /// no message ever came, they must stop immediately.
    pub(crate) fn due(&self, hold: &Hold) -> Option<Duration> {
        let after = Duration::from_millis(hold.fence_after_ms?);
        Some(
            self.heard
                .map_or(Duration::ZERO, |heard| heard.saturating_add(after)),
        )
    }
}
