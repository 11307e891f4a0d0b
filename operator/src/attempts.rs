//! One kind of work that may fail, and when it may be tried again.

use std::time::Duration;

use muster_runtime::backoff::{Backoff, USEFUL, entropy};
use tokio::time::Instant;

/// The longest pause before something that failed is tried again. People wait for it.
const RETRY_MAX: Duration = Duration::from_secs(10);

pub(super) struct Attempts {
    backoff: Backoff,
    not_before: Option<Instant>,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(RETRY_MAX, USEFUL),
            not_before: None,
        }
    }
}

impl Attempts {
    /// It has failed. Returns when it may be tried again.
    pub(super) fn failed(&mut self, now: Instant) -> Instant {
        let again = now + self.backoff.after(Duration::ZERO, entropy());
        self.not_before = Some(again);
        again
    }

    /// The error is the time from which it may be tried again.
    pub(super) fn may(&self, now: Instant) -> Result<(), Instant> {
        match self.not_before.filter(|at| *at > now) {
            Some(at) => Err(at),
            None => Ok(()),
        }
    }
}
