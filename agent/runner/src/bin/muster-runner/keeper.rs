//! The keeper: the runner's parent, which does nothing while the runner lives.
//!
//! The kernel gives the keeper all descendants of the runner when the runner ends in any way, since
//! the keeper is a subreaper too. The keeper kills them until it has no child left, writes that
//! down (`swept.json`) and ends. So the worker group of a killed runner is proven dead as strictly
//! as one that the runner has ended itself: no process escapes by leaving its parent, its session
//! or its environment.
//!
//! A runner that is PID 1 needs no keeper: the kernel kills its whole namespace with it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use muster_runner::record::{self, Swept};
use muster_runner::wire::VERSION;
use muster_runner::{Folder, RunnerIdentity, procfs};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::sys::{self, Fork};
use crate::tree::{self, Reaped};
use crate::{shim, time};

/// The name in `ps` and `pkill`. It differs from the runner's, so that killing all runners by name
/// spares the keepers.
const NAME: &std::ffi::CStr = c"muster-keeper";

/// The name under which the keeper of a runner executes this binary, if a launcher has forked both.
pub(crate) const PROGRAM: &str = "muster-keeper";

/// The gap between two rounds of killing. The runner uses the same.
const KILL_GAP: Duration = Duration::from_millis(20);

/// Forks, and makes the calling process a keeper. The child must become the runner.
pub(crate) fn fork() -> io::Result<Fork> {
    // This comes before the fork, so that the runner is never without a subreaper above it.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let side = sys::fork()?;
    if let Fork::Child = side {
        // In its own session, the runner does not get signals for the keeper's process group.
        rustix::process::setsid()?;
    }
    Ok(side)
}

/// Waits for the runner's end, then ends what is left of its worker group. `dir` is the runner's
/// directory.
pub(crate) fn keep(dir: &Path) -> ExitCode {
    let _ = rustix::thread::set_name(NAME);
    match watch(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say!("{} the runner's keeper: {e}", time::stamp());
            ExitCode::FAILURE
        }
    }
}

fn watch(dir: &Path) -> io::Result<()> {
    let signals = sys::signal_fd(&[&shim::PASSED[..], &[libc::SIGCHLD]].concat())?;
    std::env::set_current_dir(dir)?;
    // While the runner lives, it is the only child.
    while let Reaped::Living = tree::reap() {
        wait(&signals, None);
    }
    end_descendants(&signals);
    let here = Path::new(".");
    // A refused runner leaves alone the records of the runner that holds the directory.
    let mine = RunnerIdentity::read(here).is_ok_and(|runner| {
        runner
            .and_then(|r| r.keeper)
            .is_some_and(|k| k.pid == own_pid())
    });
    if !mine || Folder::trusted(here)?.has(record::OUTCOME) {
        return Ok(());
    }
    let swept = Swept {
        v: VERSION,
        boot_id: procfs::boot_id()?,
        at_us: time::boot_us(),
    };
    match record::write_atomic(here, record::SWEPT, &swept) {
        // The directory has been removed, so the proof is no longer needed.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

fn own_pid() -> i32 {
    std::process::id() as i32
}

/// Kills all descendants of this process until it has no child left.
pub(crate) fn end_descendants(signals: &OwnedFd) {
    loop {
        // Usually nothing is left, and then there is nothing to search for.
        loop {
            match tree::reap() {
                Reaped::Ended(..) => {}
                Reaped::Living => break,
                Reaped::NoChild => return,
            }
        }
        if tree::has_only_chains().unwrap_or(false) {
            return;
        }
        let _ = tree::kill_descendants();
        wait(signals, Some(KILL_GAP));
    }
}

/// Waits until a signal comes or the time is over. It consumes the signal.
fn wait(signals: &OwnedFd, timeout: Option<Duration>) {
    let timeout = timeout.map(|t| Timespec {
        tv_sec: t.as_secs() as i64,
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    let _ = rustix::event::poll(
        &mut [PollFd::new(&signals.as_fd(), PollFlags::IN)],
        timeout.as_ref(),
    );
    while sys::next_signal(signals).is_some() {}
}
