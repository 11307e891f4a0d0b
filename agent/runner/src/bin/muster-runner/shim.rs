//! `muster-shim`: a process between torchrun and one rank. It exists because torchrun hides how a
//! rank ended, and because a rank lives on when torchrun itself is killed.
//!
//! The shim starts the real program, hands its output to the runner, passes signals on, reports its
//! exact end and then ends the same way. The program sees its usual environment. A shim that loses
//! its runner kills everything below it, so no orphans remain.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use muster_runner::procfs::Stat;
use muster_runner::wire::{Exit, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};
use rustix::thread::CpuSet;

use crate::rank_env::OVER_RESTARTS;
use crate::rank_link::{OWN_END, RankLink, STOPPED};
use crate::ranks::{Hear, More, Say, Told};
use crate::sys::{self, Child};
use crate::tree::{self, Reaped};
use crate::{affinity, keeper, tell, time};

/// A link of this name, in the runner's directory, makes the runner's binary a shim.
pub(crate) const NAME: &str = "muster-shim";

/// The real interpreter. If it is unset, the first argument is the program.
const PROGRAM: &str = "MUSTER_SHIM_PROGRAM";
/// A JSON array of options that come before torchrun's arguments.
const ARGS: &str = "MUSTER_SHIM_ARGS";
/// The runner's directory.
const DIR: &str = "MUSTER_SHIM_DIR";

/// Signals that are passed on to the program.
pub(crate) const PASSED: [i32; 6] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// The longest path of an error file that is told. A line to the runner must not get too long.
const ERROR_FILE_MAX: usize = 1024;

/// How long the runner may take to write an exit down. It syncs once, which takes less than this
/// even on a busy disk.
const ACK: Duration = Duration::from_secs(5);

pub(crate) fn run(args: Vec<OsString>) -> ExitCode {
    let exit = match prepare(args).and_then(Shim::run) {
        Ok(exit) => exit,
        Err(wrong) => {
            say!("muster-shim: {wrong}");
            return ExitCode::FAILURE;
        }
    };
    match exit {
        Exit::Code { code } => ExitCode::from(code as u8),
        Exit::Signal { signal, .. } => sys::end_by(signal),
    }
}

struct Shim {
    runner: RankLink,
    signals: OwnedFd,
    program: Command,
    /// The program's stderr. The shim writes to it if the program cannot be started.
    stderr: Option<OwnedFd>,
    /// torchrun (torch 2.4 and later) gives its processes their own sessions and signals their
    /// groups. Older versions signal single processes.
    leads: bool,
    /// A TERM has been passed on.
    termed: bool,
    /// When to pass on torchrun's TERM.
    term_at: Option<Duration>,
    /// The runner has told the rank to end. It says when torchrun may see the end.
    told: bool,
    cpus: Option<CpuSet>,
}

fn prepare(args: Vec<OsString>) -> Result<Shim, String> {
    let number = |name: &str| -> Result<u32, String> {
        let text = std::env::var(name).map_err(|_| format!("{name} is not set"))?;
        text.parse()
            .map_err(|_| format!("{name}={text:?} is not a rank"))
    };
    let (rank, local_rank) = (number("RANK")?, number("LOCAL_RANK")?);
    let dir = std::env::var_os(DIR).ok_or_else(|| format!("{DIR} is not set"))?;
    let mut program = command(args)?;

    let signals = [&PASSED[..], &[libc::SIGCHLD]].concat();
    let signals = sys::signal_fd(&signals).map_err(|e| format!("signals: {e}"))?;
    let me = rustix::process::getpid();
    // Descendants that the program leaves behind become children of the shim, which can kill them
    // when the runner is lost.
    rustix::process::set_child_subreaper(Some(me)).map_err(|e| format!("subreaper: {e}"))?;

    let mut runner = RankLink::connect(Path::new(&dir))?;
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| format!("pipe: {e}"));
    let ((out_read, out_write), (err_read, err_write)) = (pipe()?, pipe()?);
    let hello = Say::Hello {
        v: VERSION,
        rank,
        local_rank,
        pid: me.as_raw_nonzero().get(),
    };
    if !runner.hello(&hello, &[out_read.as_fd(), err_read.as_fd()])? {
        return Err(STOPPED.into());
    }
    let stderr = Some(err_write.try_clone().map_err(|e| format!("pipe: {e}"))?);
    program
        .stdout(Stdio::from(out_write))
        .stderr(Stdio::from(err_write));
    let leads = rustix::process::getpgrp() == me;
    let cpus = std::env::var(affinity::NAME)
        .ok()
        .and_then(|lists| affinity::of(&lists, local_rank));
    Ok(Shim {
        runner,
        signals,
        program,
        stderr,
        leads,
        termed: false,
        term_at: None,
        told: false,
        cpus,
    })
}

/// The real program with its arguments. Its environment is torchrun's, without our variables and
/// with the values that torchrun keeps over restarts.
fn command(args: Vec<OsString>) -> Result<Command, String> {
    let mut args = args.into_iter();
    let first = match std::env::var(ARGS) {
        Ok(text) => {
            serde_json::from_str::<Vec<String>>(&text).map_err(|e| format!("{ARGS}: {e}"))?
        }
        Err(_) => Vec::new(),
    };
    let program = std::env::var_os(PROGRAM).or_else(|| args.next());
    let mut command = Command::new(
        program.ok_or_else(|| format!("{PROGRAM} is not set and there is no argument"))?,
    );
    command.args(first).args(args);
    for name in [PROGRAM, ARGS, DIR, "PYTHON_EXEC"] {
        command.env_remove(name);
    }
    for (name, source) in OVER_RESTARTS {
        if let Some(value) = std::env::var_os(source) {
            command.env(name, value);
        }
    }
    Ok(command)
}

impl Shim {
    fn run(mut self) -> Result<Exit, String> {
        // The time is taken before the fork, so that no output is older than its process.
        let at_us = time::boot_us();
        let pid = match sys::spawn(
            &mut self.program,
            Child {
                session: self.leads,
                cpus: self.cpus,
                ..Child::default()
            },
        ) {
            Ok(pid) => pid,
            Err(e) => return self.not_started(&e),
        };
        // The write ends must belong to the program alone, or its output would never end.
        self.program = Command::new("");
        self.stderr = None;
        let raw = pid.as_raw_nonzero().get();
        let start_time = Stat::of(raw).map_or(0, |s| s.start_time);
        let started = Told {
            say: Say::Started {
                pid: raw,
                start_time,
                at_us,
            },
            more: More {
                error_file: std::env::var("TORCHELASTIC_ERROR_FILE")
                    .ok()
                    .filter(|file| file.len() <= ERROR_FILE_MAX),
            },
        };
        let exit = match self.runner.tell(&started).and_then(|()| self.attend(pid)) {
            Ok(exit) => exit,
            Err(lost) => {
                self.kill_everything();
                return Err(lost);
            }
        };
        let _ = self.runner.say(&Say::Exited {
            exit,
            at_us: time::boot_us(),
        });
        self.wait_for_ack();
        Ok(exit)
    }

    /// Runs until the program has ended.
    fn attend(&mut self, pid: Pid) -> Result<Exit, String> {
        loop {
            let now = time::boot();
            if self.term_at.is_some_and(|at| now >= at) {
                self.term_at = None;
                self.pass(pid, libc::SIGTERM);
            }
            let until = self.term_at.map(|at| at.saturating_sub(now));
            let (signals, runner) = wait(&self.signals, Some(&self.runner.stream), until);
            if signals {
                while let Some(signal) = sys::next_signal(&self.signals) {
                    match signal {
                        libc::SIGCHLD => {
                            if let Some(exit) = reap(pid) {
                                return Ok(exit);
                            }
                        }
                        // torchrun ends the others when one rank has failed. For a stop the runner
                        // says the same over its connection.
                        libc::SIGTERM => {
                            self.term_at.get_or_insert_with(|| time::boot() + OWN_END);
                        }
                        signal => self.pass(pid, signal),
                    }
                }
            }
            if runner {
                for hear in self.runner.hear()? {
                    if let Some(error) = hear.error {
                        return Err(error);
                    }
                    if let Some(signal) = hear.signal {
                        self.told |= signal == libc::SIGTERM;
                        self.pass(pid, signal);
                    }
                }
            }
        }
    }

    /// Passes a signal on, but TERM only once. TERM comes from the runner's order, from torchrun
    /// for the same stop, and from torchrun when another rank has failed, in any order. A second
    /// TERM would kill a program that is ending and has already removed its handlers. A TERM is meant
    /// for the rank and not for its helpers.
    fn pass(&mut self, pid: Pid, signal: i32) {
        if signal == libc::SIGTERM {
            if !std::mem::replace(&mut self.termed, true) {
                tell::to_end(pid.as_raw_nonzero().get());
            }
            return;
        }
        let Some(signal) = Signal::from_named_raw(signal) else {
            return;
        };
        let _ = if self.leads {
            rustix::process::kill_process_group(pid, signal)
        } else {
            rustix::process::kill_process(pid, signal)
        };
    }

    fn not_started(mut self, error: &io::Error) -> Result<Exit, String> {
        let stderr = self.stderr.take().expect("kept for this case");
        let exit = say_not_started(
            &mut self.runner,
            &self.program.get_program().to_string_lossy(),
            &stderr,
            error,
        )?;
        drop(stderr);
        self.wait_for_ack();
        Ok(exit)
    }

    /// Waits until the runner has written the exit down, or is gone. In a stop the runner answers when
    /// all ranks have ended: a torchrun that sees one end kills the others after its own grace, which
    /// may be shorter than the job's.
    fn wait_for_ack(&mut self) {
        let until = time::boot() + ACK;
        while self.runner.answers < 3 {
            let left = until.saturating_sub(time::boot());
            if left.is_zero() && !self.told {
                return;
            }
            let limit = (!self.told).then_some(left);
            let (_, runner) = wait(&self.signals, Some(&self.runner.stream), limit);
            while let Some(signal) = sys::next_signal(&self.signals) {
                if signal == libc::SIGCHLD {
                    while let Reaped::Ended(..) = tree::reap() {}
                }
            }
            if runner {
                let Ok(heard) = self.runner.hear() else {
                    return;
                };
                let term = |hear: &Hear| hear.signal == Some(libc::SIGTERM);
                self.told |= heard.iter().any(term);
            }
        }
    }

    /// Kills everything below this process, since the runner is gone.
    fn kill_everything(&self) {
        keeper::end_descendants(&self.signals);
    }
}

/// Reports that a rank's program could not be started. It says what a shell would say, on the
/// rank's stderr and by the exit code.
pub(crate) fn say_not_started(
    runner: &mut RankLink,
    program: &str,
    stderr: &OwnedFd,
    error: &io::Error,
) -> Result<Exit, String> {
    let exit = Exit::Code {
        code: if error.kind() == io::ErrorKind::PermissionDenied {
            126
        } else {
            127
        },
    };
    // The write may fail if nobody reads. The exit code says the same.
    let _ = rustix::io::write(
        stderr,
        format!("muster-shim: {program}: {error}\n").as_bytes(),
    );
    let me = std::process::id() as i32;
    let at_us = time::boot_us();
    let start_time = Stat::of(me).map_or(0, |s| s.start_time);
    runner.say(&Say::Started {
        pid: me,
        start_time,
        at_us,
    })?;
    runner.say(&Say::Exited { exit, at_us })?;
    Ok(exit)
}

/// Waits for a signal or for a line from the runner. Returns which of the two came.
fn wait(signals: &OwnedFd, runner: Option<&UnixStream>, timeout: Option<Duration>) -> (bool, bool) {
    let timeout = timeout.map(|t| Timespec {
        tv_sec: t.as_secs() as i64,
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
    fds.extend(runner.map(|stream| PollFd::new(stream, PollFlags::IN)));
    let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
    (ready(0), ready(1))
}

/// Reaps all processes that have ended. Returns the program's own end.
fn reap(program: Pid) -> Option<Exit> {
    let mut exit = None;
    while let Reaped::Ended(pid, status) = tree::reap() {
        if pid == program.as_raw_nonzero().get() {
            exit = Some(tree::exit_of(status));
        }
    }
    exit
}
