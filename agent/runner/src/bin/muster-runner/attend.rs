//! `muster-ranks`: replaces torchrun in the lanes without one, and stands for all ranks of a node.
//!
//! It either starts the ranks itself (`start`) or takes them over from the launcher that has forked
//! them (`adopt`). To hand them over, the launcher executes this program in its own process: its
//! children stay its children, and its memory is freed. To the runner, this program is the shim of
//! every rank. Like torchrun, it passes signals on, ends the other ranks when one has failed, and
//! exits with 1 after any failure. Unlike torchrun, it lets the others end by themselves first
//! ([`OWN_END`]), and does not wait for other nodes at the end.
//! torchrun must wait because one of the torchruns serves the TCPStore; our runner serves it.
//!
//! A rank that is restartable ends nobody else when it fails. It waits until the runner orders its
//! next attempt, or until all ranks are told to end. This program never restarts it by itself.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use muster_runner::procfs::Stat;
use muster_runner::wire::{Exit, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use crate::rank_link::{OWN_END, RankLink, STOPPED};
use crate::ranks::Say;
use crate::sys::{self, Child};
use crate::{affinity, shim, tell, time, tree};

/// A link of this name, in the runner's directory, makes the runner's binary this program.
pub(crate) const NAME: &str = "muster-ranks";

/// How long the other ranks of a node have to end when one has failed. The value is torchrun's
/// (`LocalElasticAgent`, `PContext.close`).
const TERM_GRACE: Duration = Duration::from_secs(30);

/// How long the runner may take to write the last exit down. It syncs once, which takes less than
/// this even on a busy disk.
const ACK: Duration = Duration::from_secs(5);

/// The runner answers a rank's hello, its start and its end.
const ANSWERS: u32 = 3;

/// The orders of `start`. Its second argument is the number of a descriptor that holds them.
#[derive(Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) ranks: Vec<RankOrder>,
}

/// The program of one rank.
#[derive(Serialize, Deserialize)]
pub(crate) struct RankOrder {
    pub(crate) rank: u32,
    pub(crate) local: u32,
    pub(crate) command: Vec<String>,
    pub(crate) cwd: PathBuf,
    /// The complete environment.
    pub(crate) env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) restartable: bool,
}

/// One rank that the launcher hands over. The second argument of `adopt` is a JSON list of them.
#[derive(Deserialize)]
struct Handed {
    rank: u32,
    pid: i32,
    /// The rank's connection to the runner. Hello was said and answered on it, and start was said.
    fd: i32,
}

struct Rank {
    rank: u32,
    pid: i32,
    link: RankLink,
    exit: Option<Exit>,
    /// What starts the rank again, if it is restartable.
    order: Option<RankOrder>,
}

impl Rank {
    fn failed(&self) -> bool {
        self.exit.is_some_and(|exit| !exit.success())
    }
}

pub(crate) fn run(args: Vec<OsString>) -> ExitCode {
    let texts: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let signals = [&shim::PASSED[..], &[libc::SIGCHLD]].concat();
    let outcome = sys::signal_fd(&signals)
        .map_err(|e| format!("signals: {e}"))
        .and_then(|signals| {
            let ranks = match texts[..] {
                ["start", fd] => start(fd)?,
                ["adopt", handed] => adopt(handed)?,
                _ => return Err("is run by muster-runner alone".to_owned()),
            };
            Attendant {
                signals,
                ranks,
                termed: false,
                term_at: None,
                kill_at: None,
            }
            .attend()
        });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // This process ends now, and the kernel kills the ranks with it.
        Err(wrong) => {
            say!("{NAME}: {wrong}");
            ExitCode::FAILURE
        }
    }
}

fn adopt(handed: &str) -> Result<Vec<Rank>, String> {
    let handed: Vec<Handed> =
        serde_json::from_str(handed).map_err(|e| format!("what the launcher hands over: {e}"))?;
    let rank = |Handed { rank, pid, fd }| Rank {
        rank,
        pid,
        link: RankLink::adopt(inherited(fd), 1),
        exit: None,
        order: None,
    };
    Ok(handed.into_iter().map(rank).collect())
}

/// Takes a descriptor that the parent left open for this process. Each is named once.
fn inherited<T: From<OwnedFd>>(fd: i32) -> T {
    let fd = sys::inherited(fd);
    // Close it on exec: the ranks have no use for it.
    let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
    T::from(fd)
}

fn start(fd: &str) -> Result<Vec<Rank>, String> {
    let mut file: File = inherited(fd.parse().map_err(|e| format!("{fd:?}: {e}"))?);
    let orders: Orders = file
        .rewind()
        .and_then(|()| Ok(serde_json::from_reader(&file)?))
        .map_err(|e| format!("orders: {e}"))?;
    let start = |order| start_rank(order)?.ok_or_else(|| STOPPED.into());
    orders.ranks.into_iter().map(start).collect()
}

/// None: the worker group is being stopped, so the rank was not started.
fn start_rank(order: RankOrder) -> Result<Option<Rank>, String> {
    let rank = order.rank;
    start_process(order).map_err(|e| format!("rank {rank}: {e}"))
}

fn start_process(order: RankOrder) -> Result<Option<Rank>, String> {
    let RankOrder {
        rank,
        local,
        command,
        cwd,
        env,
        ..
    } = &order;
    let (rank, local) = (*rank, *local);
    let (program, args) = command.split_first().ok_or("there is nothing to run")?;
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .envs(env)
        .current_dir(cwd)
        .stdin(Stdio::null());
    let mut link = RankLink::connect(Path::new("."))?;
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| format!("pipe: {e}"));
    let ((out_read, out_write), (err_read, err_write)) = (pipe()?, pipe()?);
    let me = std::process::id() as i32;
    let hello = Say::Hello {
        v: VERSION,
        rank,
        local_rank: local,
        pid: me,
    };
    if !link.hello(&hello, &[out_read.as_fd(), err_read.as_fd()])? {
        return Ok(None);
    }
    let stderr = err_write.try_clone().map_err(|e| format!("pipe: {e}"))?;
    command
        .stdout(Stdio::from(out_write))
        .stderr(Stdio::from(err_write));
    let at_us = time::boot_us();
    let cpus = env
        .get(affinity::NAME)
        .and_then(|lists| affinity::of(lists, local));
    let (pid, exit) = match sys::spawn(
        &mut command,
        Child {
            session: true,
            cpus,
            ..Child::default()
        },
    ) {
        Ok(pid) => {
            let pid = pid.as_raw_nonzero().get();
            let start_time = Stat::of(pid).map_or(0, |s| s.start_time);
            link.say(&Say::Started {
                pid,
                start_time,
                at_us,
            })?;
            (pid, None)
        }
        Err(e) => {
            let exit = shim::say_not_started(&mut link, program, &stderr, &e)?;
            (0, Some(exit))
        }
    };
    Ok(Some(Rank {
        rank,
        pid,
        link,
        exit,
        order: order.restartable.then_some(order),
    }))
}

struct Attendant {
    signals: OwnedFd,
    ranks: Vec<Rank>,
    /// A TERM has been passed on. The runner and the process group both send one for the same stop.
    termed: bool,
    /// When to tell the ranks to end because another rank has failed.
    term_at: Option<Duration>,
    /// When to kill the ranks that were told to end because another rank has failed.
    kill_at: Option<Duration>,
}

impl Attendant {
    /// Runs until all ranks have ended and the runner has written that down. True: all ended well.
    fn attend(mut self) -> Result<bool, String> {
        self.reap()?;
        let ends_all = |rank: &&Rank| rank.failed() && rank.order.is_none();
        let not_started = self.ranks.iter().find(ends_all).and_then(|rank| rank.exit);
        if let Some(exit) = not_started {
            self.one_has_failed(exit);
        }
        let mut give_up = None;
        loop {
            let over = |rank: &Rank| rank.exit.is_some() && !self.waits(rank);
            let over = self.ranks.iter().all(over);
            if over && self.ranks.iter().all(|rank| rank.link.answers >= ANSWERS) {
                break;
            }
            let now = time::boot();
            if over && now >= *give_up.get_or_insert(now + ACK) {
                break;
            }
            if self.term_at.is_some_and(|at| now >= at) {
                (self.term_at, self.kill_at) = (None, Some(now + TERM_GRACE));
                self.tell_to_end();
            }
            if self.kill_at.is_some_and(|at| now >= at) {
                self.kill_at = None;
                self.signal(libc::SIGKILL);
            }
            let until = [self.term_at, self.kill_at, give_up];
            let until = until.into_iter().flatten().min();
            let (signalled, spoken) = self.wait(until.map(|at| at.saturating_sub(now)));
            if signalled {
                while let Some(signal) = sys::next_signal(&self.signals) {
                    match signal {
                        libc::SIGCHLD => self.reap()?,
                        signal => self.pass_on(signal),
                    }
                }
            }
            for at in spoken {
                for hear in self.ranks[at].link.hear()? {
                    if let Some(error) = hear.error {
                        return Err(format!("refused by the runner: {error}"));
                    }
                    if let Some(signal) = hear.signal {
                        self.pass_on(signal);
                    }
                    if hear.restart {
                        self.restart(at)?;
                    }
                }
            }
        }
        Ok(self
            .ranks
            .iter()
            .all(|rank| rank.exit.is_some_and(Exit::success)))
    }

    /// Whether the rank has failed and may be started again.
    fn waits(&self, rank: &Rank) -> bool {
        !self.termed && rank.order.is_some() && rank.failed()
    }

    /// Starts a rank again by the runner's order, unless all ranks were told to end since.
    fn restart(&mut self, at: usize) -> Result<(), String> {
        if !self.waits(&self.ranks[at]) {
            return Ok(());
        }
        let rank = &mut self.ranks[at];
        // Whoever orders this knows the exit.
        rank.link.answers = ANSWERS;
        if let Some(again) = rank.order.take().map(start_rank).transpose()?.flatten() {
            say!("{NAME}: rank {} is started again", again.rank);
            *rank = again;
        }
        Ok(())
    }

    /// Waits. Returns whether signals are pending, and the indexes of the ranks whose connection
    /// can be read.
    fn wait(&self, timeout: Option<Duration>) -> (bool, Vec<usize>) {
        let timeout = timeout.map(|t| Timespec {
            tv_sec: t.as_secs() as i64,
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        fds.extend(
            self.ranks
                .iter()
                .map(|rank| PollFd::new(&rank.link.stream, PollFlags::IN)),
        );
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        let ready: Vec<usize> = fds
            .iter()
            .enumerate()
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(at, _)| at)
            .collect();
        (
            ready.contains(&0),
            ready
                .into_iter()
                .filter_map(|at| at.checked_sub(1))
                .collect(),
        )
    }

    /// Passes a signal on. A TERM is meant for the rank and not for its helpers, and is passed on once.
    fn pass_on(&mut self, signal: i32) {
        if signal != libc::SIGTERM {
            return self.signal(signal);
        }
        // The runner counts the grace of the stop.
        (self.term_at, self.kill_at) = (None, None);
        self.tell_to_end();
    }

    fn tell_to_end(&mut self) {
        if std::mem::replace(&mut self.termed, true) {
            return;
        }
        let living = self.ranks.iter().filter(|rank| rank.exit.is_none());
        living.for_each(|rank| tell::to_end(rank.pid));
    }

    /// Signals the process group of every living rank. Each rank leads a group.
    fn signal(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else {
            return;
        };
        for pid in self
            .ranks
            .iter()
            .filter(|rank| rank.exit.is_none())
            .filter_map(|rank| Pid::from_raw(rank.pid))
        {
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }

    fn reap(&mut self) -> Result<(), String> {
        while let Some((pid, failed)) = sys::ended_child() {
            let living = |rank: &&mut Rank| rank.pid == pid && rank.exit.is_none();
            let rank = self.ranks.iter_mut().find(living);
            let pid = Pid::from_raw(pid);
            let waits = failed && rank.as_ref().is_some_and(|rank| rank.order.is_some());
            if let Some(group) = pid.filter(|_| waits && !self.termed) {
                // What the rank left behind may hold its port or its GPU.
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            let Ok(Some((_, status))) = rustix::process::waitpid(pid, WaitOptions::NOHANG) else {
                break;
            };
            let Some(rank) = rank else { continue };
            let exit = tree::exit_of(status);
            rank.exit = Some(exit);
            rank.link.say(&Say::Exited {
                exit,
                at_us: time::boot_us(),
            })?;
            if !exit.success() {
                say!(
                    "{NAME}: rank {} (pid {}) ended with {exit:?}",
                    rank.rank,
                    rank.pid
                );
                if rank.order.is_none() && !self.termed {
                    self.one_has_failed(exit);
                }
            }
        }
        Ok(())
    }

    /// A rank that ends with an exit code or by SIGABRT may be a victim: the peer that it lost may end later,
    /// with the error that explains both. A crash or a kill needs no other explanation.
    fn one_has_failed(&mut self, exit: Exit) {
        let may_be_a_victim = match exit {
            Exit::Code { .. } => true,
            Exit::Signal { signal, .. } => signal == libc::SIGABRT,
        };
        let wait = if may_be_a_victim {
            OWN_END
        } else {
            Duration::ZERO
        };
        if self.kill_at.is_none() {
            let at = time::boot() + wait;
            self.term_at = Some(self.term_at.map_or(at, |before| before.min(at)));
        }
    }
}

/// Puts the orders into memory and not on a disk: they hold environments, secrets included.
pub(crate) fn orders_file(orders: &Orders) -> io::Result<OwnedFd> {
    let memory = File::from(rustix::fs::memfd_create(
        NAME,
        rustix::fs::MemfdFlags::CLOEXEC,
    )?);
    serde_json::to_writer(&memory, orders)?;
    Ok(memory.into())
}
