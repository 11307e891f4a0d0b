//! Starts the rank of a restartable member again: passes the order on to the attendant, and takes the
//! new attempt's output.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use muster_runner::record;
use muster_runner::wire::{Refusal, RefusalKind};

use super::Runner;
use crate::group::Rank;
use crate::poll::{Interest, Source};
use crate::{time, why};

impl Runner {
    /// Orders attempt `attempt` of a rank, if it was not ordered before.
    pub(super) fn restart(
        &mut self,
        rank: u32,
        attempt: u32,
        now: Duration,
    ) -> Result<(), Refusal> {
        if self.group.spec.is_some() {
            // The machine may have slept past it.
            self.mind_fence(now);
        }
        if !self.group.must_restart(rank, attempt)? {
            return Ok(());
        }
        if !self.ranks.restart(rank) {
            let text = "the process that stands for the ranks is gone, so this worker group ends";
            return Err(Refusal::new(RefusalKind::Stopped, text));
        }
        // From now on the exit before does not say how the rank is. A runner that is killed says
        // nothing else of it.
        self.state
            .new_exits
            .extend(self.group.restart_ordered(rank));
        say!(
            "{} rank {rank}: attempt {attempt} was ordered",
            time::stamp()
        );
        Ok(())
    }

    /// Takes the output of a rank that has said hello.
    pub(super) fn take_rank(
        &mut self,
        rank: u32,
        local_rank: u32,
        stdout: OwnedFd,
        stderr: OwnedFd,
    ) -> io::Result<()> {
        let Some(entry) = self.group.ranks.get_mut(&rank) else {
            let output = self.take_output(rank + 1, &record::rank_log(rank), stdout, stderr)?;
            let place = self.group.expected().and_then(|all| all.place(rank));
            let files = place.map(why::Files::of).unwrap_or_default();
            let rank_entry = Rank::new(local_rank, output, files);
            self.group.ranks.insert(rank, rank_entry);
            return Ok(());
        };
        // A process that the attempt before has left behind may hold them open.
        entry.output.open().for_each(|(_, fd)| self.poll.remove(fd));
        entry.begin_again(rank, stdout, stderr, &time::stamp())?;
        for (side, fd) in entry.output.open() {
            self.poll
                .add(fd, Source::Stream(rank + 1, side), Interest::Read)?;
        }
        Ok(())
    }
}
