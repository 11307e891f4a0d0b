//! The next attempt of a rank that has failed: when it may begin, and what is forgotten then. It never
//! begins by itself: the coordinator decides.

use std::io;
use std::os::fd::OwnedFd;

use muster_runner::wire::{ExitRecord, Phase, Refusal, RefusalKind};

use super::{Group, Rank};
use crate::why::Reason;

impl Group {
    /// Whether attempt `attempt` of a rank must be ordered now. False: it was ordered before.
    pub(crate) fn must_restart(&self, rank: u32, attempt: u32) -> Result<bool, Refusal> {
        let no = |kind, text: String| Err(Refusal::new(kind, text));
        if let (Some(spec), Some(expected)) = (&self.spec, self.expected()) {
            if expected.local(rank).is_none() {
                return no(
                    RefusalKind::Invalid,
                    format!("rank: {rank} is not one of {expected}"),
                );
            }
            if !spec.may_restart(rank) {
                return no(
                    RefusalKind::Invalid,
                    format!("rank: {rank} was not started as restartable"),
                );
            }
        }
        let entry = self.ranks.get(&rank);
        let newest = entry.map_or(0, |entry| entry.attempt + u32::from(entry.ordered));
        if (1..=newest).contains(&attempt) {
            return Ok(false);
        }
        match self.phase() {
            Phase::Running => {}
            Phase::Holding => return no(RefusalKind::Conflict, "nothing was started".into()),
            Phase::Stopping | Phase::Dead => {
                let text = "this worker group ends or has ended, and starts nothing more";
                return no(RefusalKind::Stopped, text.into());
            }
        }
        if attempt != newest + 1 {
            let text = format!(
                "attempt: {attempt} is not the next one, which is {}",
                newest + 1
            );
            return no(RefusalKind::Invalid, text);
        }
        let process = entry.and_then(|entry| entry.process.as_ref());
        let state = match process.map(|process| process.end) {
            None => "has not started yet",
            Some(None) => "has not ended",
            Some(Some((exit, _))) if exit.success() => "has ended well",
            Some(Some(_)) if newest > entry.map_or(0, |entry| entry.attempt) => "is being started",
            Some(Some(_)) => return Ok(true),
        };
        no(RefusalKind::Conflict, format!("rank: {rank} {state}"))
    }

    /// Notes that the next attempt of a rank was ordered. Returns the line that says so in the
    /// journal.
    pub(crate) fn restart_ordered(&mut self, rank: u32) -> Option<ExitRecord> {
        let entry = self.ranks.get_mut(&rank)?;
        entry.ordered = true;
        let ended = entry.process.as_ref()?.record(Some(rank), entry.attempt)?;
        Some(ExitRecord {
            restarted: true,
            ..ended
        })
    }
}

impl Rank {
    /// Begins the next attempt, whose output goes on in the same log.
    pub(crate) fn begin_again(
        &mut self,
        rank: u32,
        stdout: OwnedFd,
        stderr: OwnedFd,
        stamp: &str,
    ) -> io::Result<()> {
        let before = self.status(rank);
        self.output.go_on(stdout, stderr, stamp)?;
        (self.before, self.process) = (before, None);
        (self.attempt, self.ordered) = (self.attempt + 1, false);
        (self.tail, self.reason) = (Vec::new(), Reason::default());
        Ok(())
    }
}
