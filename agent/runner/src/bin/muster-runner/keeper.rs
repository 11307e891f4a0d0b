//! The keeper: the runner's parent, which does nothing while the runner lives.
//!
//! When the runner has ended, whatever it ended by, the kernel gives all its descendants to the
//! keeper, which is a subreaper too. The keeper kills them until it has no child left, writes that
//! down (`swept.json`) and ends. So a killed runner's worker group is proven dead as strictly as
//! one that the runner has ended itself: nothing escapes by leaving its parent, its session or its
//! environment.
//!
//! PID 1 needs none: the kernel kills all of its namespace with it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use muster_runner::record::{self, Swept};
use muster_runner::wire::VERSION;
use muster_runner::{RunnerIdentity, procfs};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::sys::{self, Fork};
use crate::tree::{self, Reaped};
use crate::{shim, time};

/// As `ps` and `pkill` know it: whoever kills all runners by their name leaves the keepers.
const NAME: &std::ffi::CStr = c"muster-keeper";

/// The name under which a launcher executes this binary as the keeper of a runner that it has
/// forked.
pub(crate) const PROGRAM: &str = "muster-keeper";

/// Gap between two rounds of killing, as the runner's own.
const KILL_GAP: Duration = Duration::from_millis(20);

/// Makes the calling process a keeper; the child it forks is to become the runner.
pub(crate) fn fork() -> io::Result<Fork> {
    // Before the fork, so that there is no moment without it.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let side = sys::fork()?;
    if let Fork::Child = side {
        // A signal to the keeper's process group is not the runner's.
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
    // The runner is the only child for as long as it lives.
    while let Reaped::Living = tree::reap() {
        wait(&signals, None);
    }
    end_descendants(&signals);
    let here = Path::new(".");
    // A runner that was refused the directory leaves the records of the one that holds it alone.
    let mine = RunnerIdentity::read(here).is_ok_and(|runner| {
        runner
            .and_then(|r| r.keeper)
            .is_some_and(|k| k.pid == own_pid())
    });
    if !mine || here.join(record::OUTCOME).exists() {
        return Ok(());
    }
    let swept = Swept {
        v: VERSION,
        boot_id: procfs::boot_id()?,
        at_us: time::boot_us(),
    };
    match record::write_atomic(here, record::SWEPT, &swept) {
        // The directory has been removed: nobody wants to know any more.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

fn own_pid() -> i32 {
    std::process::id() as i32
}

/// Kills everything below this process, until it has no child left.
pub(crate) fn end_descendants(signals: &OwnedFd) {
    loop {
        let _ = tree::kill_descendants();
        loop {
            match tree::reap() {
                Reaped::Ended(..) => {}
                Reaped::Living => break,
                Reaped::NoChild => return,
            }
        }
        wait(signals, Some(KILL_GAP));
    }
}

/// Until a signal comes, which is then forgotten, or the time is over.
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
