//! The worker group as the kernel sees it: a cgroup of its own where one can be made, and all
//! descendants of this process, which is their subreaper. The caller repeats the killing until the
//! proof holds. This module never waits.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub(crate) use muster_runner::procfs::send;
use muster_runner::procfs::{self, Stat};
use muster_runner::{chain, leftovers};
use rustix::process::{Signal, WaitOptions, WaitStatus};

/// How many passes the stop sweep makes. A pass finds what was forked during the previous one.
/// Stopped processes fork no more, so a few passes exhaust even a fork bomb. The next kill, some
/// milliseconds later, finds what is left.
const SWEEPS: usize = 10;

/// A cgroup-v2 directory that holds the group and nothing else. Removed when dropped, which works
/// once it is empty.
pub(crate) struct Cgroup {
    pub(crate) path: PathBuf,
}

impl Cgroup {
    /// Makes a directory below the runner's own cgroup, or says why it cannot.
    pub(crate) fn make(name: &str) -> io::Result<Self> {
        let parent = own_cgroup()?;
        let safe = |c: char| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        };
        let path = parent.join(name.chars().take(100).map(safe).collect::<String>());
        fs::create_dir(&path)?;
        let cgroup = Self { path };
        // The agent's user may be allowed to make the directory and still not to move processes
        // into it.
        cgroup.entrance()?;
        Ok(cgroup)
    }

    /// The file by which a child enters the cgroup.
    pub(crate) fn entrance(&self) -> io::Result<File> {
        File::options()
            .write(true)
            .open(self.path.join("cgroup.procs"))
    }

    pub(crate) fn empty(&self) -> io::Result<bool> {
        leftovers::populated(&self.path).map(|populated| !populated)
    }

    /// Kills all processes in the cgroup, including those that are being forked. Kernels before
    /// 5.14 lack this file.
    fn kill(&self) -> io::Result<()> {
        leftovers::kill(&self.path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// The directory of this process's cgroup-v2 group.
pub(crate) fn own_cgroup() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    parent(&mounts, &own).ok_or_else(|| io::Error::other("no cgroup2 mount holds this process"))
}

/// The same, from the texts of mountinfo and cgroup.
fn parent(mounts: &str, own: &str) -> Option<PathBuf> {
    let own = Path::new(own.lines().find_map(|l| l.strip_prefix("0::"))?);
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        if after.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = before.split(' ').skip(3);
        let (root, mount) = (fields.next()?, fields.next()?);
        Some(Path::new(mount).join(own.strip_prefix(root).ok()?))
    })
}

/// Kills the whole cgroup, and every descendant one by one. If `at_first`, the cgroup alone is enough:
/// the search for descendants reads all processes of the machine.
pub(crate) fn kill_all(cgroup: Option<&Cgroup>, at_first: bool) -> io::Result<()> {
    let killed = cgroup.map(|cgroup| (cgroup, cgroup.kill()));
    match killed {
        Some((_, Ok(()))) if at_first => return Ok(()),
        Some((cgroup, Err(e))) if e.kind() != io::ErrorKind::NotFound => say!(
            "{} {}: cgroup.kill: {e}",
            crate::time::stamp(),
            cgroup.path.display()
        ),
        _ => {}
    }
    kill_descendants()
}

/// Kills every descendant of this process. It first stops all of them, so that none forks while
/// others are killed.
pub(crate) fn kill_descendants() -> io::Result<()> {
    let mut known = Vec::new();
    // A pass reads all of /proc, which takes 20 ms on a machine with thousands of processes.
    let mut living = descendants()?;
    for _ in 0..SWEEPS {
        let fresh = living.iter().filter(|stat| !known.contains(&key(stat)));
        let fresh: Vec<Stat> = fresh.copied().collect();
        if fresh.is_empty() {
            break;
        }
        for stat in fresh {
            send(&stat, Signal::STOP);
            known.push(key(&stat));
        }
        living = descendants()?;
    }
    for stat in &living {
        send(stat, Signal::KILL);
    }
    Ok(())
}

fn key(stat: &Stat) -> (i32, u64) {
    (stat.pid, stat.start_time)
}

/// Whether chains are left alone.
static SPARES_CHAINS: OnceLock<()> = OnceLock::new();

/// Makes this process leave alone the chains that its launcher has forked. Call it in the runner of a
/// launcher, and in the keeper of that runner.
pub(crate) fn spare_chains() {
    let _ = SPARES_CHAINS.set(());
}

/// All living descendants of this process, without the chains that it spares.
pub(crate) fn descendants() -> io::Result<Vec<Stat>> {
    let spares = SPARES_CHAINS.get().is_some();
    let is_spared = |stat: &Stat| spares && chain::is_head(stat);
    Ok(below(std::process::id() as i32, procfs::all()?, is_spared))
}

/// Whether nothing is left below this process but the chains that it spares. Every child of this
/// process is still listed if it has ended meanwhile, because only this thread reaps it. And whatever
/// is not below the head of a chain is, or descends from, a child that is none.
pub(crate) fn has_only_chains() -> io::Result<bool> {
    if SPARES_CHAINS.get().is_none() {
        return Ok(false);
    }
    let me = std::process::id() as i32;
    let all = procfs::all()?;
    Ok(all
        .iter()
        .filter(|stat| stat.ppid == me)
        .all(chain::is_head))
}

/// Whether `pid` descends from this process.
pub(crate) fn is_descendant(pid: i32) -> bool {
    let me = std::process::id() as i32;
    let mut at = pid;
    // 64 levels are deeper than any real tree. The bound ends a walk that a reused pid makes
    // circular.
    for _ in 0..64 {
        match Stat::of(at) {
            Ok(stat) if stat.ppid == me => return true,
            Ok(stat) if stat.ppid > 1 => at = stat.ppid,
            _ => return false,
        }
    }
    false
}

fn below(root: i32, all: Vec<Stat>, is_spared: impl Fn(&Stat) -> bool) -> Vec<Stat> {
    let mut found: Vec<Stat> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for stat in all.iter().filter(|s| s.ppid == parent && s.pid != root) {
            if found.iter().all(|f| f.pid != stat.pid) && !is_spared(stat) {
                parents.push(stat.pid);
                found.push(*stat);
            }
        }
    }
    found.retain(|stat| !stat.is_dead());
    found
}

/// The state of this process's children.
pub(crate) enum Reaped {
    Ended(i32, WaitStatus),
    /// No child has ended, and some live.
    Living,
    /// There is no child, so every descendant is dead.
    NoChild,
}

/// Reaps one child.
pub(crate) fn reap() -> Reaped {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => return Reaped::Ended(pid.as_raw_nonzero().get(), status),
            Ok(None) => return Reaped::Living,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Reaped::NoChild,
        }
    }
}

/// The wait status in the wire's form.
pub(crate) fn exit_of(status: WaitStatus) -> muster_runner::wire::Exit {
    use muster_runner::wire::Exit;
    // wait(2): bit 0x80 says that a core was dumped.
    match status.terminating_signal() {
        Some(signal) => Exit::Signal {
            signal,
            core: status.as_raw() & 0x80 != 0,
        },
        None => Exit::Code {
            code: status.exit_status().unwrap_or(-1),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_cgroup2_mount_of_every_layout() {
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            parent(hybrid, "9:pids:/\n0::/\n"),
            Some("/sys/fs/cgroup/unified/".into())
        );
        assert_eq!(
            parent(hybrid, "0::/a/b.service\n"),
            Some("/sys/fs/cgroup/unified/a/b.service".into())
        );
        let bound = "30 23 0:26 /pods/x /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        assert_eq!(
            parent(bound, "0::/pods/x/run\n"),
            Some("/sys/fs/cgroup/run".into())
        );
        assert_eq!(parent(bound, "0::/elsewhere\n"), None);
        assert_eq!(parent(hybrid, "9:pids:/\n"), None);
    }

    #[test]
    fn descendants_of_descendants_without_the_dead() {
        let stat = |pid, ppid, state| Stat {
            pid,
            ppid,
            state,
            session: 5,
            threads: 1,
            start_time: 1,
        };
        let all = vec![
            stat(5, 1, b'S'),
            stat(6, 5, b'S'),
            stat(7, 6, b'Z'),
            stat(8, 7, b'R'),
            stat(9, 1, b'S'),
        ];
        let pids = |spared: i32| {
            let found = below(5, all.clone(), |stat| stat.pid == spared);
            let mut pids: Vec<i32> = found.iter().map(|s| s.pid).collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(pids(0), [6, 8]);
        assert_eq!(pids(7), [6], "with all that is below it");
    }
}
