//! One look at all processes below the runner, for everybody who needs it.

use std::time::Duration;

use muster_runner::procfs::Stat;

use super::Runner;

impl Runner {
    /// Lets the register look while there is something to list, and whoever else needs what it finds.
    pub(super) fn mind_register(&mut self, now: Duration) -> Option<Duration> {
        let Self {
            group,
            register,
            state,
            ..
        } = self;
        let lives = group.launcher.is_some() && group.dead.is_none();
        let mut look = |all: &[Stat]| {
            state.urgent |= group.look_below(all);
            state.changed |= group.look_movement(all, now);
        };
        lives.then(|| register.mind(now, &mut look))
    }
}
