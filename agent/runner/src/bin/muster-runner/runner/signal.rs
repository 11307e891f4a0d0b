//! A signal that somebody sends to a rank. It goes to the rank's own process only: a stop of the group
//! is another thing, and is not done here.

use muster_runner::{
    procfs,
    wire::{Refusal, RefusalKind},
};
use rustix::process::Signal;

use super::Runner;
use crate::time;

impl Runner {
    pub(super) fn signal_rank(&self, rank: u32, signal: i32) -> Result<(), Refusal> {
        let not_now = |why: &str| {
            let text = format!("rank {rank} {why}");
            Refusal::new(RefusalKind::Conflict, text)
        };
        let Some(named) = Signal::from_named_raw(signal) else {
            let text = format!("signal: {signal} is none of this system");
            return Err(Refusal::new(RefusalKind::Invalid, text));
        };
        let known = self.group.ranks.get(&rank);
        let process = known.and_then(|known| known.process.as_ref());
        let Some(process) = process else {
            return Err(not_now("has not started yet"));
        };
        if process.end.is_some() {
            return Err(not_now("has ended"));
        }
        procfs::signal(process.pid, process.start_time, named)
            .map_err(|e| not_now(&format!("cannot be reached: {e}")))?;
        say!("{} rank {rank}: signal {signal} was sent", time::stamp());
        Ok(())
    }
}
