//! The MPI ranks below this process, and how they ended.
//!
//! A rank is the child of the launcher's daemon (orted, prted, hydra_pmi_proxy), which reaps it. So a
//! descriptor of the process is opened while it lives. From Linux 6.15 on, it tells how the process
//! ended, also after somebody else has reaped it. Before that, the end is known only if this process
//! looks before the daemon does.
//!
//! A rank is known by the variables that its daemon gives it. A rank that ends before this process has
//! looked is not seen; then the launcher's own end has to tell.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use muster_runner::wire::Exit;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use crate::sys;

/// The variable that numbers a rank, by the one that sets it: Open MPI, MPICH and Intel MPI, and
/// horovodrun without MPI. And what people are told that the process is. The coordinator reads it, too.
const NUMBERED: [(&str, &str); 3] = [
    ("OMPI_COMM_WORLD_RANK", "Open MPI rank"),
    ("PMI_RANK", "MPI rank"),
    ("HOROVOD_RANK", "MPI rank"),
];

/// A daemon is a child or grandchild of the shell that starts it, and a rank is its child.
const DEEPEST: u32 = 6;

/// How soon to look again for new ranks, and how soon once nothing has changed for [`CALM`].
const SOON: Duration = Duration::from_millis(25);
const LATER: Duration = Duration::from_millis(250);
const CALM: Duration = Duration::from_secs(10);

/// How many ranks are watched. A node has at most 256.
const MOST: usize = 1_024;

pub(crate) struct Rank {
    pub(crate) pid: i32,
    /// The child of this process that it descends from.
    pub(crate) root: i32,
    /// The rank as people call it, with the number that its daemon tells: `MPI rank 3`.
    pub(crate) name: String,
    pub(crate) fd: OwnedFd,
    /// It was told that its member is being stopped.
    pub(crate) told: bool,
}

impl Rank {
    /// Whether it has ended, although nobody may have reaped it yet.
    pub(crate) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let now = Timespec::default();
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Its parent now. If its daemon is gone, that is the nearest subreaper.
    pub(crate) fn parent(&self) -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
        parent.parse().ok()
    }
}

#[derive(Default)]
pub(crate) struct Ranks {
    pub(crate) living: Vec<Rank>,
    seen: BTreeSet<i32>,
    /// The children of this process below which there was a rank.
    daemons: BTreeSet<i32>,
    changed: Duration,
}

impl Ranks {
    /// Looks for new ranks below this process. Returns when to look again. `None`: nothing runs.
    pub(crate) fn look(&mut self, now: Duration) -> Option<Duration> {
        let mut parents: Vec<(i32, i32, u32)> = children(std::process::id() as i32)
            .into_iter()
            .map(|child| (child, child, 1))
            .collect();
        if parents.is_empty() {
            self.seen.clear();
            return None;
        }
        let mut found = BTreeMap::new();
        while let Some((pid, root, depth)) = parents.pop() {
            match name(pid) {
                Some(name) => drop(found.insert(pid, (root, name))),
                None if depth < DEEPEST => parents.extend(
                    children(pid)
                        .into_iter()
                        .map(|child| (child, root, depth + 1)),
                ),
                None => {}
            }
        }
        let before = self.seen.len();
        self.seen.retain(|pid| found.contains_key(pid));
        let mut news = self.seen.len() < before;
        for (pid, (root, name)) in found {
            if self.living.len() >= MOST || !self.seen.insert(pid) {
                continue;
            }
            let opened = Pid::from_raw(pid)
                .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
            if let Some(fd) = opened {
                news = true;
                self.daemons.insert(root);
                self.living.push(Rank {
                    pid,
                    root,
                    name,
                    fd,
                    told: false,
                });
            }
        }
        if news || self.changed.is_zero() {
            self.changed = now;
        }
        let gap = match now.saturating_sub(self.changed) < CALM {
            true => SOON,
            false => LATER,
        };
        Some(now + gap)
    }

    /// Whether this child of this process, which has ended, had ranks below it. It is asked once.
    pub(crate) fn had(&mut self, child: i32) -> bool {
        self.daemons.remove(&child)
    }

    /// Looks often again: something was started.
    pub(crate) fn hurry(&mut self, now: Duration) {
        self.changed = now;
    }

    /// The end of a rank whose descriptor is ready. `None`: it is not known yet, because its daemon has
    /// not reaped it.
    pub(crate) fn ended(&mut self, at: usize) -> Option<(Rank, Option<Exit>)> {
        let rank = &self.living[at];
        let exit = match sys::pidfd_exit(&rank.fd) {
            sys::PidfdExit::Known(status) => Some(exit_of(status)),
            sys::PidfdExit::NotReaped => Some(zombie_exit(rank.pid)?),
            sys::PidfdExit::Untold => zombie_exit(rank.pid),
        };
        Some((self.living.remove(at), exit))
    }
}

/// A wait status (`waitpid(2)`) as the wire has it.
fn exit_of(status: i32) -> Exit {
    match status & 0x7f {
        0 => Exit::Code {
            code: status >> 8 & 0xff,
        },
        signal => Exit::Signal {
            signal,
            core: status & 0x80 != 0,
        },
    }
}

/// The end of a process that nobody has reaped, from the last field of its stat file.
fn zombie_exit(pid: i32) -> Option<Exit> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.rsplit_once(')')?.1;
    let mut fields = fields.split_whitespace();
    let is_zombie = fields.next()? == "Z";
    let status = fields.last().filter(|_| is_zombie)?.parse().ok()?;
    Some(exit_of(status))
}

/// The rank that this process is. `None`: it is none.
fn name(pid: i32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    NUMBERED.iter().find_map(|(variable, what)| {
        let number = environment
            .split(|byte| *byte == 0)
            .find_map(|set| set.strip_prefix(variable.as_bytes())?.strip_prefix(b"="))?;
        Some(format!("{what} {}", String::from_utf8_lossy(number)))
    })
}

/// The children of all threads of a process.
fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let of_thread = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.collect::<Vec<i32>>()
    };
    threads.flatten().flat_map(of_thread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_as_waitpid_has_it() {
        assert_eq!(exit_of(0), Exit::Code { code: 0 });
        assert_eq!(exit_of(7 << 8), Exit::Code { code: 7 });
        let killed = |core| Exit::Signal { signal: 9, core };
        assert_eq!((exit_of(9), exit_of(0x89)), (killed(false), killed(true)));
    }

    #[test]
    fn the_end_of_a_process_that_another_has_reaped_is_known() {
        // A shell is the daemon; its child is the rank.
        let mut daemon = std::process::Command::new("/bin/sh")
            .args(["-c", "OMPI_COMM_WORLD_RANK=3 sleep 1000; exit 0"])
            .spawn()
            .unwrap();
        let mut ranks = Ranks::default();
        while ranks.living.is_empty() {
            ranks.look(Duration::from_secs(1));
            std::thread::yield_now();
        }
        let rank = &ranks.living[0];
        assert_eq!(
            (rank.name.as_str(), rank.root),
            ("Open MPI rank 3", daemon.id() as i32)
        );
        rustix::process::kill_process(
            Pid::from_raw(rank.pid).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        daemon.wait().unwrap();
        let (_, exit) = ranks.ended(0).unwrap();
        if exit.is_none() {
            println!("this kernel does not tell how a reaped process ended");
            return;
        }
        let killed = Exit::Signal {
            signal: 9,
            core: false,
        };
        assert_eq!(exit, Some(killed));
    }
}
