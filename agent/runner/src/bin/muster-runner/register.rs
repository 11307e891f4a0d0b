//! Keeps `descendants.json` true while the runner lives. A rank is in it from its start. For what else
//! lives, it looks at a modest pace and soon after a rank's start, and writes when something has changed.
//!
//! The list misses a process that leaves its parent, its session and its environment between two
//! looks. A faster pace would cost too much, because a look reads a file for each process of the
//! machine.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use muster_runner::descendants::{Descendant, Descendants, MAX};
use muster_runner::procfs::Stat;
use muster_runner::record::DESCENDANTS;
use muster_runner::wire::VERSION;

use crate::{time, tree};

/// The gap between two looks. A data set's loader process lives longer than this.
const GAP: Duration = Duration::from_secs(1);

/// How soon after the start of a rank to look for what it has started. Ranks start in bursts, and a look
/// takes 20 ms on a machine with thousands of processes.
const HURRY: Duration = Duration::from_millis(50);

/// Looks take at most one part in this many of the runner's time, even on a machine with many
/// processes. Those after the start of a rank come on top.
const SHARE: u32 = 100;

pub(crate) struct Register {
    list: Descendants,
    /// The list on disk equals this one.
    written: bool,
    /// The last write failed, and the log says so.
    failed: bool,
    /// A rank was added since the last write.
    added: bool,
    next: Duration,
}

impl Register {
    /// Writes an empty list into the current directory, for the runner of this boot.
    pub(crate) fn begin(boot_id: &str) -> io::Result<Self> {
        let list = Descendants {
            v: VERSION,
            boot_id: boot_id.to_owned(),
            ..Descendants::default()
        };
        list.write(Path::new("."))?;
        Ok(Self {
            list,
            written: true,
            failed: false,
            added: false,
            next: Duration::ZERO,
        })
    }

    /// Adds a rank that has just started, and brings the next look forward.
    pub(crate) fn started(&mut self, pid: i32, now: Duration) {
        if let (Ok(rank), Ok(own)) = (Stat::of(pid), own()) {
            self.add(&rank, own.session);
        }
        self.next = self.next.min(now + HURRY);
    }

    /// Looks if it is time, writes what has changed, and returns when to look next. `show` gets all
    /// processes that a look has found.
    pub(crate) fn mind(&mut self, now: Duration, show: impl FnOnce(&[Stat])) -> Duration {
        let is_time = now >= self.next;
        // After a failed look the list may lack what lives, so a rank alone does not bring the file back.
        if !is_time && (!self.added || self.failed) {
            return self.next;
        }
        let outcome = match is_time {
            true => self.look(show),
            false => Ok(()),
        };
        let outcome = outcome.and_then(|()| self.write());
        if let Err(e) = &outcome {
            self.written = false;
            // The file may list less than what lives now.
            let _ = fs::remove_file(DESCENDANTS);
            if !self.failed {
                say!("{} {DESCENDANTS}: {e}", time::stamp());
            }
        }
        self.failed = outcome.is_err();
        self.added = false;
        if is_time {
            self.next = time::boot() + gap(time::boot().saturating_sub(now));
        }
        self.next
    }

    fn look(&mut self, show: impl FnOnce(&[Stat])) -> io::Result<()> {
        let (all, own) = (tree::descendants()?, own()?);
        show(&all);
        self.note(all, own.session);
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        if !self.written {
            self.list.write(Path::new("."))?;
            self.written = true;
        }
        Ok(())
    }

    fn add(&mut self, rank: &Stat, own_session: i32) {
        let rank = entry(rank, own_session);
        let processes = &mut self.list.processes;
        if let Err(at) = processes.binary_search(&rank) {
            processes.insert(at, rank);
            self.list.cut |= processes.len() > MAX;
            processes.truncate(MAX);
            (self.added, self.written) = (true, false);
        }
    }

    fn note(&mut self, all: Vec<Stat>, own_session: i32) {
        let entries = all.iter().map(|stat| entry(stat, own_session));
        let mut processes: Vec<Descendant> = entries.collect();
        processes.sort_unstable();
        let cut = processes.len() > MAX;
        processes.truncate(MAX);
        self.written &= self.list.processes == processes && self.list.cut == cut;
        (self.list.processes, self.list.cut) = (processes, cut);
    }
}

/// This process. Its session is 0 for PID 1, because it lies outside its namespace.
fn own() -> io::Result<Stat> {
    Stat::of(std::process::id() as i32)
}

fn entry(stat: &Stat, own_session: i32) -> Descendant {
    Descendant {
        pid: stat.pid,
        start_time: stat.start_time,
        session: match stat.session == own_session {
            true => 0,
            false => stat.session,
        },
    }
}

/// The gap until the next look, after a look that took this long.
fn gap(took: Duration) -> Duration {
    GAP.max(took * SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register() -> Register {
        Register {
            list: Descendants::default(),
            written: true,
            failed: false,
            added: false,
            next: Duration::ZERO,
        }
    }

    fn stat(pid: i32, session: i32) -> Stat {
        Stat {
            pid,
            state: b'S',
            ppid: 1,
            session,
            threads: 1,
            start_time: 5,
        }
    }

    #[test]
    fn only_a_change_is_written() {
        let mut register = register();
        register.note(vec![stat(7, 7), stat(6, 3)], 3);
        assert!(!std::mem::replace(&mut register.written, true));
        let noted: Vec<_> = register
            .list
            .processes
            .iter()
            .map(|p| (p.pid, p.session))
            .collect();
        assert_eq!(
            noted,
            [(6, 0), (7, 7)],
            "the runner's own session is left out"
        );
        register.note(vec![stat(6, 3), stat(7, 7)], 3);
        assert!(register.written);
        register.note(vec![stat(6, 3)], 3);
        assert!(!register.written);
    }

    #[test]
    fn more_than_are_listed_are_said_to_be_more() {
        let mut register = register();
        register.note((1..=MAX as i32 + 1).map(|pid| stat(pid, pid)).collect(), 0);
        assert_eq!(
            (register.list.processes.len(), register.list.cut),
            (MAX, true)
        );
        register.note(vec![stat(1, 1)], 0);
        assert!(!register.list.cut);
    }

    #[test]
    fn looks_take_a_hundredth_of_the_time() {
        assert_eq!(gap(Duration::from_millis(2)), GAP);
        assert_eq!(gap(Duration::from_millis(40)), Duration::from_secs(4));
    }

    #[test]
    fn a_rank_is_listed_when_it_starts_and_looked_below_soon_after() {
        let mut register = register();
        register.note(vec![stat(6, 3), stat(9, 3)], 3);
        (register.written, register.next) = (true, Duration::from_secs(11));
        register.add(&stat(7, 7), 3);
        let pids: Vec<i32> = register.list.processes.iter().map(|p| p.pid).collect();
        assert_eq!(pids, [6, 7, 9]);
        assert!(register.added && !register.written);
        (register.added, register.written) = (false, true);
        register.add(&stat(7, 7), 3);
        assert!(!register.added && register.written, "it is there already");
        // A burst is looked for once. Nobody has this pid.
        for (at, next) in [(10_001, 10_051), (10_020, 10_051), (10_000, 10_050)] {
            register.started(-1, Duration::from_millis(at));
            assert_eq!(register.next, Duration::from_millis(next));
        }
    }
}
