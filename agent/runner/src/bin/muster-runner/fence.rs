//! The dead-man's switch of a job with `fenceAfter`: its workers live as long as somebody says
//! often enough that the coordinator was heard.
//!
//! The agent says when that was, on the clock of this boot, which is this runner's too. So it does
//! not matter how long the word took, nor whether the agent that said it still lives; and while
//! nobody says anything, this runner needs nobody to do what must be done.

use std::time::Duration;

use muster_runner::wire::Hold;

/// Why workers were stopped, or are not started; for the user.
pub(crate) const CLOSED: &str =
    "nothing was heard of the coordinator for longer than the job's fenceAfter";

#[derive(Default)]
pub(crate) struct Fence {
    /// When the coordinator was heard last, as far as the agent has said.
    heard: Option<Duration>,
    /// It has been closed; once is enough.
    pub(crate) closed: bool,
}

impl Fence {
    /// The coordinator was heard at this moment. One that is older than another, or still to come,
    /// gives nobody more time.
    pub(crate) fn renew(&mut self, heard: Duration, now: Duration) {
        self.heard = self.heard.max(Some(heard.min(now)));
    }

    /// When the workers must stop if nothing more is said; none for a job without. Of whom nothing
    /// was ever said: at once.
    pub(crate) fn due(&self, hold: &Hold) -> Option<Duration> {
        let after = Duration::from_millis(hold.fence_after_ms?);
        Some(
            self.heard
                .map_or(Duration::ZERO, |heard| heard.saturating_add(after)),
        )
    }
}
