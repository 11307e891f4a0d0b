//! How a group ends: when it must be killed, killing until nothing lives, the proof, and the
//! outcome on disk.

use std::io;
use std::path::Path;
use std::time::Duration;

use muster_runner::procfs::Stat;
use muster_runner::record;
use muster_runner::wire::{Phase, ProofKind};
use rustix::process::Signal;

use super::{DISK_GAP, Runner};
use crate::group::Kill;
use crate::{time, tree};

/// The gap between two rounds of killing. A killed process ends in about a millisecond, and SIGCHLD
/// also wakes the runner.
const KILL_GAP: Duration = Duration::from_millis(20);

/// For this long the kill of the cgroup is enough. After that, processes that have left the cgroup are
/// searched for.
const CGROUP_ALONE: Duration = Duration::from_millis(100);

/// A process that still lives this long after its kill waits in the kernel. It needs a person or a
/// reboot. The value is from the design.
const STUCK_AFTER: Duration = Duration::from_secs(60);

impl Runner {
    /// Brings the group nearer to its end where that is due. Returns when to look again.
    pub(super) fn advance(&mut self, now: Duration) -> Option<Duration> {
        let started = matches!(self.group.phase(), Phase::Running | Phase::Stopping);
        let fence = if started { self.mind_fence(now) } else { None };
        [self.bring_nearer(now), fence].into_iter().flatten().min()
    }

    fn bring_nearer(&mut self, now: Duration) -> Option<Duration> {
        match self.group.phase() {
            Phase::Dead => return self.write_outcome(now),
            Phase::Holding => return None,
            Phase::Running | Phase::Stopping => {}
        }
        if self.never_started() {
            // Nothing of the group was started. What a launcher has left is ended all the same.
            return match self.proof(now) {
                Some(_) => {
                    self.die(now, ProofKind::Reaped);
                    self.write_outcome(now)
                }
                None => {
                    let since = *self.group.killing.get_or_insert(now);
                    Some(self.kill(now, since))
                }
            };
        }
        if self
            .group
            .launcher
            .as_ref()
            .is_none_or(|l| l.process.end.is_some())
        {
            if let Some(how) = self.proof(now) {
                self.die(now, how);
                return self.write_outcome(now);
            }
            self.term_the_rest();
        }
        let (awaited, look) = self.mind_leftovers(now);
        if self.group.stop.is_some() && self.group.all_ended() {
            self.tell_launcher();
        }
        let again = if self.group.killing.is_some() {
            None
        } else {
            match self.group.must_kill(now, awaited) {
                Ok(why) => {
                    if why == Kill::GraceOver {
                        let overdue = self.overdue();
                        self.group.grace_is_over(&overdue);
                    }
                    self.begin_killing(now, why.reason());
                    None
                }
                Err(again) => again,
            }
        };
        match self.group.killing {
            Some(since) => Some(self.kill(now, since)),
            None => [again, look].into_iter().flatten().min(),
        }
    }

    /// The proof that nothing lives. A subreaper without a child has no descendant, because no
    /// process can leave its tree.
    fn proof(&mut self, now: Duration) -> Option<ProofKind> {
        if !self.reap(now) && !tree::has_only_chains().unwrap_or(false) {
            return None;
        }
        match &self.cgroup {
            None => Some(ProofKind::Reaped),
            Some(cgroup) => match cgroup.empty() {
                Ok(true) => Some(ProofKind::Cgroup),
                Ok(false) => None,
                // The directory is gone, so no process can be in it.
                Err(e) if e.kind() == io::ErrorKind::NotFound => Some(ProofKind::Reaped),
                Err(_) => None,
            },
        }
    }

    /// A launcher that is not torchrun may end early during a stop and leave children without TERM.
    /// This sends TERM to them.
    fn term_the_rest(&mut self) {
        if self.group.stop.is_none()
            || !self.group.ranks.is_empty()
            || self.state.launcher_gone_termed
        {
            return;
        }
        self.state.launcher_gone_termed = true;
        for stat in tree::descendants().unwrap_or_default() {
            tree::send(&stat, Signal::TERM);
        }
    }

    fn begin_killing(&mut self, now: Duration, why: &str) {
        self.group.killing = Some(now);
        self.state.next_kill = now;
        self.state.urgent = true;
        // A kill without a requested stop still records a reason and a time.
        if self.group.stop.is_none() {
            self.group.ask_stop(now, Duration::ZERO, why);
        }
        if let Some(stop) = &mut self.group.stop {
            stop.killed = Some(now);
        }
        // Known processes come first. A process of hundreds of megabytes takes tens of milliseconds
        // to end, and the search for the others takes as long.
        self.group.living().for_each(|(pid, start_time)| {
            tree::send(
                &Stat {
                    pid,
                    start_time,
                    state: 0,
                    ppid: 0,
                    session: 0,
                    threads: 1,
                },
                Signal::KILL,
            );
        });
    }

    fn kill(&mut self, now: Duration, since: Duration) -> Duration {
        if now >= self.state.next_kill {
            let at_first = now.saturating_sub(since) < CGROUP_ALONE;
            if let Err(e) = tree::kill_all(self.cgroup.as_ref(), at_first) {
                say!("{} kill: {e}", time::stamp());
            }
            self.state.next_kill = now + KILL_GAP;
            if now.saturating_sub(since) >= STUCK_AFTER {
                self.state.next_kill = now + Duration::from_secs(1);
                let mut stuck: Vec<i32> = tree::descendants()
                    .unwrap_or_default()
                    .iter()
                    .map(|s| s.pid)
                    .collect();
                stuck.sort_unstable();
                if stuck != self.group.stuck {
                    say!("{} killed and still alive: {stuck:?}", time::stamp());
                    self.group.stuck = stuck;
                    self.state.urgent = true;
                }
            }
        }
        self.state.next_kill
    }

    fn die(&mut self, now: Duration, how: ProofKind) {
        // The last lines of the shims are still in their sockets.
        for id in self.ranks.connections() {
            self.hear_shim(id, now);
        }
        let outputs = self.group.launcher.iter_mut().map(|l| &mut l.output);
        let stamp = time::stamp();
        for output in outputs.chain(self.group.ranks.values_mut().map(|r| &mut r.output)) {
            for fd in output.drain(&mut self.state.buffer, &mut self.search, now, &stamp) {
                self.poll.remove(fd);
            }
            output.open().for_each(|(_, fd)| self.poll.remove(fd));
            output.close(&stamp);
        }
        self.state.new_exits.extend(self.group.die(now, how));
        self.state.lonely_since = now;
        self.state.urgent = true;
        self.cgroup = None;
    }

    fn write_outcome(&mut self, now: Duration) -> Option<Duration> {
        if self.state.outcome_written {
            return None;
        }
        if now >= self.state.next_outcome {
            // Exits come before the outcome, because the runner may go once the outcome is written.
            self.state.next_exits = self.state.next_exits.map(|at| at.min(now));
            self.write_exits(now);
            match record::write_atomic(Path::new("."), record::OUTCOME, &self.status(now)) {
                Ok(()) => {
                    self.state.outcome_written = true;
                    return None;
                }
                Err(e) => say!("{} {}: {e}", time::stamp(), record::OUTCOME),
            }
            self.state.next_outcome = now + DISK_GAP;
        }
        Some(self.state.next_outcome)
    }

    /// Whether a stop came before the start: nothing was started, and nothing will be.
    fn never_started(&self) -> bool {
        self.group.launcher.is_none() && self.group.stop.is_some() && self.group.dead.is_none()
    }
}
