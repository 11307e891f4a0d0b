//! `muster-lend`: the only process that Muster starts in a member that lends its node. It runs the
//! commands of the job's launcher, and of nobody else.
//!
//! A command runs in a session of its own, in this member's directory and environment. It ends when its
//! launcher is gone, as under sshd. This process ends only by a stop, or when something fell: a rank
//! below it ended badly, the daemon above ranks was killed, or the launcher's connection broke while a
//! rank ran. Then it ends in the same way, so the end of the rank is the end that the runner reports. A
//! launcher that ends well may end before its daemons, but not before its ranks. What happened after a
//! stop, or to a command whose launcher is gone, is nobody's fall.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command as Process, ExitCode, Stdio};
use std::time::Duration;

use muster_runner::wire::{Exit, LenderSpec, MpiSpec};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};

use super::channel::Kind;
use super::client::{Client, HELD_MAX, Heard};
use super::ranks::Ranks;
use crate::sys::{self, Child};
use crate::tree::{self, Reaped};
use crate::{shim, time};

/// A link of this name, in the run's directory, makes the runner's binary this program.
pub(crate) const NAME: &str = "muster-lend";

/// How many connections there may be. A launcher has one for each daemon, and a few more for scripts.
const CLIENTS_MAX: usize = 256;

/// So many reads empty a pipe. Linux gives it 64 KiB, and a read here takes 16.
const PIPE_READS: usize = 5;

/// How long a client may take to show that it has the key.
const PROVE: Duration = Duration::from_secs(10);

/// How long the port may still be taken by the agent, which kept it free until now.
const BIND: Duration = Duration::from_secs(5);

pub(crate) fn run() -> ExitCode {
    let outcome = super::part().and_then(|(dir, part)| match part {
        MpiSpec::Lender(lender) => Lender::begin(&lender, &dir)?.lend(),
        MpiSpec::Launcher(_) => Err("this member is the launcher".into()),
    });
    match outcome {
        Ok(Exit::Code { code }) => ExitCode::from(code as u8),
        Ok(Exit::Signal { signal, .. }) => sys::end_by(signal),
        Err(wrong) => {
            say!("{NAME}: {wrong}");
            ExitCode::FAILURE
        }
    }
}

/// A command that the launcher asked for.
struct Command {
    /// The connection that asked. None: it is gone, or has been told the end.
    client: Option<u32>,
    /// The launcher has signalled it, or is gone. How it ends says nothing about this node.
    ending: bool,
    input: Option<File>,
    /// Input that the pipe has not taken yet.
    held: Vec<u8>,
    input_ends: bool,
    /// Standard output and standard error, until their ends.
    streams: [Option<File>; 2],
    /// It has ended. Something that it left behind still has its streams.
    left: bool,
}

struct Lender {
    key: String,
    signals: OwnedFd,
    listener: TcpListener,
    clients: BTreeMap<u32, Client>,
    next: u32,
    /// By pid. A command stays until its streams have ended.
    commands: BTreeMap<i32, Command>,
    ranks: Ranks,
    look: Option<Duration>,
    stopping: bool,
    /// How this process shall end.
    fell: Option<Exit>,
}

/// What a descriptor belongs to.
#[derive(Clone, Copy)]
enum Source {
    Signals,
    Listener,
    Client(u32),
    Input(i32),
    Stream(i32, usize),
    Rank(usize),
}

impl Lender {
    fn begin(spec: &LenderSpec, dir: &Path) -> Result<Self, String> {
        let at: SocketAddr = spec
            .listen
            .parse()
            .map_err(|e| format!("{:?}: {e}", spec.listen))?;
        let own = at.ip().to_string();
        super::take_name(NAME, spec.own_name.as_deref(), Some(&own), dir);
        let signals = [&shim::PASSED[..], &[libc::SIGCHLD]].concat();
        let signals = sys::signal_fd(&signals).map_err(|e| format!("signals: {e}"))?;
        // Daemons leave their session and their parent. They become children of this process.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|e| format!("subreaper: {e}"))?;
        let listener = bind(at).map_err(|e| format!("listen at {at}: {e}"))?;
        listener
            .set_nonblocking(true)
            .map_err(|e| format!("listen at {at}: {e}"))?;
        Ok(Self {
            key: spec.key.clone(),
            signals,
            listener,
            clients: BTreeMap::new(),
            next: 0,
            commands: BTreeMap::new(),
            ranks: Ranks::default(),
            look: None,
            stopping: false,
            fell: None,
        })
    }

    /// Runs until it is told to end, or something fell. Returns how this process shall end.
    fn lend(mut self) -> Result<Exit, String> {
        loop {
            for source in self.wait() {
                match source {
                    Source::Signals => self.hear_signals(),
                    Source::Listener => self.accept(),
                    Source::Client(id) => self.hear(id),
                    Source::Input(pid) => self.feed(pid),
                    Source::Stream(pid, side) => drop(self.pass(pid, side)),
                    // After one has ended, the places of the others have changed.
                    Source::Rank(at) => {
                        self.rank_ended(at);
                        break;
                    }
                }
            }
            let now = time::boot();
            if self.look.is_some_and(|at| at <= now) {
                self.look = self.ranks.look(now);
            }
            self.clients.retain(|_, client| {
                client.flush();
                !client.is_over() && (client.proven() || now < client.since + PROVE)
            });
            self.mind_the_gone();
            if let Some(exit) = self.fell {
                return Ok(exit);
            }
            if self.stopping && matches!(self.reap(), Reaped::NoChild) {
                return Ok(Exit::Signal {
                    signal: libc::SIGTERM,
                    core: false,
                });
            }
        }
    }

    fn wait(&self) -> Vec<Source> {
        let now = time::boot();
        let unproven = self.clients.values().filter(|client| !client.proven());
        let due = unproven.map(|client| client.since + PROVE).min();
        let until = [due, self.look].into_iter().flatten().min();
        let timeout = until.map(|at| at.saturating_sub(now)).map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut sources: Vec<(Source, BorrowedFd<'_>, PollFlags)> = vec![
            (Source::Signals, self.signals.as_fd(), PollFlags::IN),
            (Source::Listener, self.listener.as_fd(), PollFlags::IN),
        ];
        for (id, client) in &self.clients {
            let full = self
                .commands
                .values()
                .any(|command| command.client == Some(*id) && command.held.len() >= HELD_MAX);
            let mut flags = match full {
                true => PollFlags::empty(),
                false => PollFlags::IN,
            };
            if client.has_unsent() {
                flags |= PollFlags::OUT;
            }
            sources.push((Source::Client(*id), client.as_fd(), flags));
        }
        for (pid, command) in &self.commands {
            if let Some(input) = command.input.as_ref().filter(|_| !command.held.is_empty()) {
                sources.push((Source::Input(*pid), input.as_fd(), PollFlags::OUT));
            }
            let client = command.client.and_then(|id| self.clients.get(&id));
            if client.is_some_and(Client::is_full) {
                continue;
            }
            for (side, stream) in command.streams.iter().enumerate() {
                if let Some(stream) = stream {
                    sources.push((Source::Stream(*pid, side), stream.as_fd(), PollFlags::IN));
                }
            }
        }
        for (at, rank) in self.ranks.living.iter().enumerate() {
            sources.push((Source::Rank(at), rank.fd.as_fd(), PollFlags::IN));
        }
        let fds = sources.iter().map(|(_, fd, flags)| PollFd::new(fd, *flags));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        let ready = fds.iter().zip(&sources);
        ready
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, (source, _, _))| *source)
            .collect()
    }

    fn hear_signals(&mut self) {
        while let Some(signal) = sys::next_signal(&self.signals) {
            match signal {
                libc::SIGCHLD => drop(self.reap()),
                libc::SIGUSR1 | libc::SIGUSR2 => {}
                // The launcher is told to end as well, and ends its ranks.
                _ => {
                    self.stopping = true;
                    self.tell_the_left();
                }
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() >= CLIENTS_MAX {
                // Strangers must not keep the launcher out.
                let unproven = self.clients.iter().filter(|(_, client)| !client.proven());
                let oldest = unproven.min_by_key(|(_, client)| client.since);
                let Some(oldest) = oldest.map(|(id, _)| *id) else {
                    continue;
                };
                self.clients.remove(&oldest);
            }
            if let Ok(client) = Client::new(stream, time::boot()) {
                self.clients.insert(self.next, client);
                self.next = self.next.wrapping_add(1);
            }
        }
    }

    /// Reads what a client says, and does it.
    fn hear(&mut self, id: u32) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        for heard in client.read(&self.key) {
            match heard {
                Heard::Frame(Kind::Ping, _) => self.tell(id, Kind::Here, b""),
                Heard::Frame(Kind::Run, text) => self.start(id, text),
                Heard::Frame(Kind::Input, bytes) => {
                    if let Some((pid, command)) = self.command_of(id) {
                        command.input_ends |= bytes.is_empty();
                        command.held.extend(bytes);
                        self.feed(pid);
                    }
                }
                Heard::Frame(Kind::Signal, number) => {
                    let number = number.first().copied().unwrap_or(0);
                    if let Some((pid, command)) = self.command_of(id) {
                        // Others are not meant to end anything.
                        let ends = [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGHUP];
                        command.ending |= ends.contains(&number.into());
                        signal(pid, number.into());
                    }
                }
                Heard::Frame(..) => {}
                Heard::Stranger(why) => say!("{NAME}: a connection is refused: {why}"),
            }
        }
    }

    fn tell(&mut self, id: u32, kind: Kind, content: &[u8]) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.say(kind, content);
        }
    }

    fn command_of(&mut self, id: u32) -> Option<(i32, &mut Command)> {
        let mut commands = self.commands.iter_mut();
        let (pid, command) = commands.find(|(_, command)| command.client == Some(id))?;
        Some((*pid, command))
    }

    fn start(&mut self, id: u32, text: Vec<u8>) {
        if self.stopping || self.command_of(id).is_some() {
            return self.refuse(
                id,
                "this member is being stopped, or runs a command already",
            );
        }
        match spawn(text) {
            Ok((pid, mut command)) => {
                command.client = Some(id);
                self.commands.insert(pid, command);
                let now = time::boot();
                self.ranks.hurry(now);
                self.look = Some(now);
            }
            Err(why) => self.refuse(id, &format!("/bin/sh: {why}")),
        }
    }

    fn refuse(&mut self, id: u32, why: &str) {
        self.tell(id, Kind::Refused, why.as_bytes());
        if let Some(client) = self.clients.get_mut(&id) {
            client.finish();
        }
    }

    /// Gives a command what it may read.
    fn feed(&mut self, pid: i32) {
        let Some(command) = self.commands.get_mut(&pid) else {
            return;
        };
        if let Some(input) = &command.input {
            match rustix::io::write(input, &command.held) {
                Ok(n) => drop(command.held.drain(..n)),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                // It reads no more.
                Err(_) => (command.input, command.held) = (None, Vec::new()),
            }
        } else {
            command.held.clear();
        }
        if command.held.is_empty() && command.input_ends {
            command.input = None;
        }
    }

    /// Passes on what a command has written, up to 16 KiB. False: there is nothing now.
    fn pass(&mut self, pid: i32, side: usize) -> bool {
        let Some(command) = self.commands.get_mut(&pid) else {
            return false;
        };
        let Some(stream) = &command.streams[side] else {
            return false;
        };
        let mut bytes = [0; 16 << 10];
        match rustix::io::read(stream, &mut bytes) {
            Ok(0) => command.streams[side] = None,
            Ok(n) => {
                let kind = [Kind::Output, Kind::Errors][side];
                match command.client {
                    Some(client) => self.tell(client, kind, &bytes[..n]),
                    // A daemon that outlives its start writes into this member's own log.
                    None if side == 0 => drop(io::stdout().write_all(&bytes[..n])),
                    None => drop(io::stderr().write_all(&bytes[..n])),
                }
                return true;
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => command.streams[side] = None,
        }
        false
    }

    /// Ends the commands whose launcher is gone, and forgets those that are over.
    fn mind_the_gone(&mut self) {
        self.commands
            .retain(|_, command| !command.left || command.streams.iter().any(Option::is_some));
        let is_gone = |client: u32| !self.clients.contains_key(&client);
        let gone = self.commands.iter();
        let gone = gone.filter(|(_, command)| command.client.is_some_and(is_gone));
        let gone: Vec<i32> = gone.map(|(pid, _)| *pid).collect();
        if gone.is_empty() {
            return;
        }
        // What had ended before, counts as such; and a rank may be new.
        for at in (0..self.ranks.living.len()).rev() {
            if self.ranks.living[at].has_ended() {
                self.rank_ended(at);
            }
        }
        self.look = self.ranks.look(time::boot());
        for pid in gone {
            let rank = self.ranks.living.iter().find(|rank| rank.root == pid);
            let above = rank.map(|rank| format!("{} (pid {})", rank.name, rank.pid));
            let Some(command) = self.commands.get_mut(&pid) else {
                continue;
            };
            let was_ending = std::mem::replace(&mut command.ending, true);
            (command.client, command.input) = (None, None);
            signal(pid, libc::SIGHUP);
            if let Some(rank) = above.filter(|_| !was_ending) {
                let exit = Exit::Signal {
                    signal: libc::SIGHUP,
                    core: false,
                };
                self.fall(
                    &format!("the launcher's connection broke above {rank}"),
                    exit,
                );
            }
        }
        if self.stopping {
            self.tell_the_left();
        }
    }

    /// Tells the ranks that have no launcher any more that this member is being stopped. The others are
    /// told by their launcher.
    fn tell_the_left(&mut self) {
        let own = std::process::id() as i32;
        for rank in self.ranks.living.iter_mut().filter(|rank| !rank.told) {
            let root = self.commands.get(&rank.root);
            let left = root.is_some_and(|command| command.client.is_none());
            if left || rank.parent() == Some(own) {
                rank.told = true;
                let _ = rustix::process::pidfd_send_signal(&rank.fd, Signal::TERM);
            }
        }
    }

    fn reap(&mut self) -> Reaped {
        loop {
            let (pid, status) = match tree::reap() {
                Reaped::Ended(pid, status) => (pid, status),
                other => return other,
            };
            let exit = tree::exit_of(status);
            self.look = self.look.or_else(|| Some(time::boot()));
            let ending = self
                .commands
                .get(&pid)
                .is_some_and(|command| command.ending);
            if self.ranks.had(pid)
                && !ending
                && let Some(signal) = killed_by(exit)
            {
                let exit = Exit::Signal {
                    signal,
                    core: false,
                };
                self.fall(
                    &format!("the daemon above the MPI ranks {}", words(exit)),
                    exit,
                );
            }
            self.command_ended(pid, exit);
        }
    }

    fn command_ended(&mut self, pid: i32, exit: Exit) {
        // All that it wrote itself is in the pipes now. Something that it left behind may write on and
        // on, so no more is read than pipes hold.
        for side in 0..2 {
            let _ = (0..PIPE_READS).take_while(|_| self.pass(pid, side)).count();
        }
        let Some(command) = self.commands.remove(&pid) else {
            return;
        };
        if let Some(id) = command.client {
            self.tell(id, Kind::Exited, &[code(exit)]);
            if let Some(client) = self.clients.get_mut(&id) {
                client.finish();
            }
        }
        if command.streams.iter().any(Option::is_some) {
            // Something that it left behind still writes. No process gets this pid as long as its
            // session is not empty.
            let rest = Command {
                client: None,
                input: None,
                held: Vec::new(),
                left: true,
                ..command
            };
            self.commands.insert(pid, rest);
        }
    }

    fn rank_ended(&mut self, at: usize) {
        let Some((rank, exit)) = self.ranks.ended(at) else {
            return;
        };
        let root = self.commands.get(&rank.root);
        if root.is_some_and(|command| command.ending) {
            return;
        }
        let name = format!("{} (pid {})", rank.name, rank.pid);
        match exit {
            Some(exit) if exit.success() => {}
            Some(exit) => self.fall(&format!("{name} {}", words(exit)), exit),
            None => say!("{NAME}: {name} has ended; this kernel does not tell how"),
        }
    }

    /// The node does not do what the launcher wants of it any more. The first reason counts.
    fn fall(&mut self, why: &str, exit: Exit) {
        if !self.stopping && self.fell.is_none() {
            say!("{NAME}: {why}");
            self.fell = Some(exit);
        }
    }
}

/// Listens at an address whose port the agent has kept until now.
fn bind(at: SocketAddr) -> io::Result<TcpListener> {
    let until = time::boot() + BIND;
    loop {
        match TcpListener::bind(at) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && time::boot() < until => {
                let _ = rustix::thread::nanosleep(&Timespec {
                    tv_sec: 0,
                    tv_nsec: 20_000_000,
                });
            }
            other => return other,
        }
    }
}

fn spawn(text: Vec<u8>) -> Result<(i32, Command), String> {
    let pipe = || {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        Ok((File::from(read), File::from(write)))
    };
    let pipes = || Ok([pipe()?, pipe()?, pipe()?]);
    let [(input, to_input), (output, from), (errors, errors_from)] =
        pipes().map_err(|e: rustix::io::Errno| format!("pipe: {e}"))?;
    for end in [&to_input, &output, &errors] {
        rustix::io::ioctl_fionbio(end, true).map_err(|e| format!("pipe: {e}"))?;
    }
    let mut shell = Process::new("/bin/sh");
    shell
        .arg("-c")
        .arg(std::ffi::OsString::from_vec(text))
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(from))
        .stderr(Stdio::from(errors_from));
    let child = Child {
        session: true,
        ..Child::default()
    };
    let pid = sys::spawn(&mut shell, child).map_err(|e| e.to_string())?;
    let command = Command {
        client: None,
        ending: false,
        input: Some(to_input),
        held: Vec::new(),
        input_ends: false,
        streams: [Some(output), Some(errors)],
        left: false,
    };
    Ok((pid.as_raw_nonzero().get(), command))
}

/// Signals the process group of a command.
fn signal(pid: i32, signal: i32) {
    if let (Some(pid), Some(signal)) = (Pid::from_raw(pid), Signal::from_named_raw(signal)) {
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

/// The code by which a shell tells an end.
fn code(exit: Exit) -> u8 {
    match exit {
        Exit::Code { code } => code as u8,
        Exit::Signal { signal, .. } => (128 + signal) as u8,
    }
}

/// The signal that ended a process, or the last command of a shell.
fn killed_by(exit: Exit) -> Option<i32> {
    match exit {
        Exit::Signal { signal, .. } => Some(signal),
        Exit::Code { code } => Some(code - 128).filter(|signal| (1..=64).contains(signal)),
    }
}

fn words(exit: Exit) -> String {
    match exit {
        Exit::Code { code } => format!("ended with exit code {code}"),
        Exit::Signal { signal, .. } => format!("was killed by signal {signal}"),
    }
}
