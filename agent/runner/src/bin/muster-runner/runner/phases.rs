//! When to look at what the start of the ranks is spent on.

use std::time::Duration;

use super::Runner;
use crate::phases::Here;

impl Runner {
    /// Looks if it is time, or at once because a rank has made its first step. Returns when to look next.
    pub(super) fn mind_phases(&mut self, now: Duration, at_once: bool) -> Option<Duration> {
        if self.group.dead.is_some() {
            return None;
        }
        let (news, next) = self.group.mind_phases(now, at_once, &Here);
        self.state.changed |= news;
        next
    }
}
