//! Processes of this machine, identified so that no other process can be meant, and whole trees of
//! them.
//!
//! A signal goes through a pidfd that was checked against the start time, so it cannot hit a
//! process that got the pid later.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

/// Identifies one process for ever: a pid is used again, but (boot, pid, start time) is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// Clock ticks since boot.
    #[serde(alias = "start_time")]
    pub(crate) start_time: u64,
    #[serde(alias = "boot_id")]
    pub(crate) boot_id: String,
}

impl Identity {
    pub(crate) fn of(pid: i32) -> io::Result<Identity> {
        Ok(Identity {
            pid,
            start_time: Stat::of(pid)?.start_time,
            boot_id: boot_id()?,
        })
    }

    /// Whether it was a process of this machine, since it was started.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot_id)
    }

    /// Whether exactly this process lives. A zombie does not live: it only waits for its parent.
    pub(crate) fn is_alive(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot_id)
            && Stat::of(self.pid)
                .is_ok_and(|stat| stat.start_time == self.start_time && stat.is_alive())
    }

    /// Sends a signal if exactly this process lives.
    pub(crate) fn signal(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return;
        };
        // Open the descriptor before the check: it means the same process from here on.
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        if self.is_alive() {
            // Fails only if the process has ended meanwhile or belongs to another user. It then
            // stays, and is reported as left.
            let _ = pidfd_send_signal(&handle, signal);
        }
    }
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// What `/proc/PID/stat` says (proc(5)).
#[derive(Clone, Copy, Debug)]
struct Stat {
    state: u8,
    parent: i32,
    threads: u32,
    start_time: u64,
}

impl Stat {
    fn of(pid: i32) -> io::Result<Stat> {
        let text = fs::read(format!("/proc/{pid}/stat"))?;
        Stat::parse(&text)
            .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is not as proc(5) says")))
    }

    fn parse(text: &[u8]) -> Option<Stat> {
        // The name stands in brackets and may contain brackets, so the fields count from the last
        // one.
        let end = text.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&text[end + 1..]).ok()?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // Fields 3, 4, 20 and 22 of proc(5).
        Some(Stat {
            state: fields.first()?.bytes().next()?,
            parent: fields.get(1)?.parse().ok()?,
            threads: fields.get(17)?.parse().ok()?,
            start_time: fields.get(19)?.parse().ok()?,
        })
    }

    /// The state is that of the first thread. If other threads live longer, they still hold the
    /// process's sockets and files.
    fn is_alive(self) -> bool {
        !matches!(self.state, b'Z' | b'X') || self.threads > 1
    }
}

/// The variable that names a daemon's directory in its environment. Daemons do not pass it on.
pub(crate) const MARK: &str = "MUSTER_LOCAL_PART";
/// Variables that name the runner's directory in the environment of the programs that it starts. A
/// rank has none of them: it is found as a descendant.
const RUN_MARKS: [&str; 2] = ["MUSTER_SHIM_DIR", "PYTHON_EXEC"];
/// The program that names its directory on its command line.
const RUNNER: &str = "muster-runner";

/// All living processes that carry the mark of a directory at or below `dir`, the known ones, and
/// all their descendants.
pub(crate) fn tree(dir: &Path, known: &[Identity]) -> BTreeSet<Identity> {
    let Ok(boot) = boot_id() else {
        return BTreeSet::new();
    };
    let all = all_processes();
    let ours = |pid: i32, stat: &Stat| {
        known
            .iter()
            .any(|one| one.pid == pid && one.start_time == stat.start_time && one.boot_id == boot)
            || is_marked(pid, dir)
    };
    let roots: BTreeSet<i32> = all
        .iter()
        .filter(|(pid, stat)| ours(**pid, stat))
        .map(|(pid, _)| *pid)
        .collect();
    living(&all, &boot, with_descendants(&all, roots))
}

/// All living descendants of these processes, without the processes themselves.
pub(crate) fn descendants(known: &[Identity]) -> BTreeSet<Identity> {
    let Ok(boot) = boot_id() else {
        return BTreeSet::new();
    };
    let all = all_processes();
    let is_known = |pid: &i32| known.iter().any(|one| one.pid == *pid);
    let roots = known
        .iter()
        .filter(|one| one.is_alive())
        .map(|one| one.pid)
        .collect();
    let below = with_descendants(&all, roots)
        .into_iter()
        .filter(|pid| !is_known(pid))
        .collect();
    living(&all, &boot, below)
}

fn with_descendants(all: &BTreeMap<i32, Stat>, mut found: BTreeSet<i32>) -> BTreeSet<i32> {
    loop {
        let is_new = |pid: &i32, stat: &Stat| found.contains(&stat.parent) && !found.contains(pid);
        let below: Vec<i32> = all
            .iter()
            .filter(|(pid, stat)| is_new(pid, stat))
            .map(|(pid, _)| *pid)
            .collect();
        if below.is_empty() {
            return found;
        }
        found.extend(below);
    }
}

fn living(all: &BTreeMap<i32, Stat>, boot: &str, pids: BTreeSet<i32>) -> BTreeSet<Identity> {
    let stats = pids.into_iter().filter_map(|pid| {
        all.get(&pid)
            .filter(|stat| stat.is_alive())
            .map(|stat| (pid, stat.start_time))
    });
    stats
        .map(|(pid, start_time)| Identity {
            pid,
            start_time,
            boot_id: boot.to_owned(),
        })
        .collect()
}

fn all_processes() -> BTreeMap<i32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return BTreeMap::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    // A process that ends meanwhile is left out.
    pids.filter_map(|pid| Some((pid, Stat::of(pid).ok()?)))
        .collect()
}

fn is_marked(pid: i32, dir: &Path) -> bool {
    // Another user's process cannot be read, and cannot be ours.
    let words = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let is_below = |path: &[u8]| Path::new(OsStr::from_bytes(path)).starts_with(dir);
    let environ = words("environ");
    let has_mark = environ.split(|byte| *byte == 0).any(|variable| {
        let mut parts = variable.splitn(2, |byte| *byte == b'=');
        let (name, value) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        (name == MARK.as_bytes() || RUN_MARKS.iter().any(|mark| name == mark.as_bytes()))
            && is_below(value)
    });
    let cmdline = words("cmdline");
    let mut cmdline = cmdline.split(|byte| *byte == 0);
    let is_runner = cmdline
        .next()
        .is_some_and(|program| Path::new(OsStr::from_bytes(program)).ends_with(RUNNER));
    // A runner that has not written its record yet is found only by its command line.
    has_mark || (is_runner && cmdline.any(is_below))
}

/// How long SIGKILL may take. A process that waits in the kernel for a disk ends late, but it ends.
pub(crate) const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two looks at processes that are about to end or stop, which takes microseconds
/// to milliseconds.
const LOOK: Duration = Duration::from_millis(5);

/// Kills whole trees at one moment. It freezes the processes that `find` returns, and asks `find`
/// again until there are no new ones. Returns how many were killed, or those that are left.
pub(crate) async fn cut(
    find: impl Fn() -> BTreeSet<Identity>,
) -> Result<usize, BTreeSet<Identity>> {
    let mut frozen: BTreeSet<Identity> = BTreeSet::new();
    loop {
        let new: BTreeSet<Identity> = find().difference(&frozen).cloned().collect();
        if new.is_empty() {
            break;
        }
        for process in &new {
            process.signal(Signal::STOP);
        }
        // A fork that has begun completes before the stop takes effect, so another look is useful
        // only after the stop.
        let until = Instant::now() + Duration::from_secs(1);
        while new.iter().any(is_on_its_feet) && Instant::now() < until {
            sleep(LOOK).await;
        }
        frozen.extend(new);
    }
    for process in &frozen {
        process.signal(Signal::KILL);
    }
    let left = wait_gone(frozen.clone(), KILL_TIMEOUT).await;
    if left.is_empty() {
        Ok(frozen.len())
    } else {
        Err(left)
    }
}

/// Whether it lives, and is neither stopped nor traced.
fn is_on_its_feet(process: &Identity) -> bool {
    Stat::of(process.pid).is_ok_and(|stat| {
        stat.start_time == process.start_time && !matches!(stat.state, b'T' | b't' | b'Z' | b'X')
    })
}

/// Waits until all of these are gone. Returns those that were not gone in time.
pub(crate) async fn wait_gone(
    mut processes: BTreeSet<Identity>,
    timeout: Duration,
) -> BTreeSet<Identity> {
    let until = Instant::now() + timeout;
    loop {
        processes.retain(Identity::is_alive);
        if processes.is_empty() || Instant::now() >= until {
            return processes;
        }
        sleep(LOOK).await;
    }
}

/// `4711 (python3), 4712 (sh)`
pub(crate) fn named(processes: &BTreeSet<Identity>) -> String {
    let one = |process: &Identity| {
        let name = fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
        format!("{} ({})", process.pid, name.trim())
    };
    processes.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
