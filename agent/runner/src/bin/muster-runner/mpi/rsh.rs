//! `muster-rsh HOST WORDS...`: runs words on the host of another member, as `ssh` would. MPI's launchers
//! call it, and scripts that call `ssh` or `rsh` themselves.
//!
//! It forwards the three standard streams and signals, and exits with the code of the command; with 255,
//! like ssh, if the host is gone or is none of this job. Its options are ssh's, and it needs none of
//! them.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use muster_runner::wire::{HostSpec, LauncherSpec, MpiSpec};
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt;

use super::channel::{self, End, HELLO, Kind, MAX, Opener, Sealer};
use crate::{shim, sys};

/// Links of these names make the runner's binary this program.
pub(crate) const NAMES: [&str; 3] = [NAME, "ssh", "rsh"];
const NAME: &str = "muster-rsh";

/// ssh's code for its own failures.
const FAILED: u8 = 255;

/// How long a host may take to take a connection and to answer its beginning.
const CONNECT: Duration = Duration::from_secs(10);

/// A host that is silent for half a minute is asked every five seconds, and gone after three of them.
const QUIET: Duration = Duration::from_secs(30);
const ASK: Duration = Duration::from_secs(5);
const ASKS: u32 = 3;

/// No more input is read while so much waits to be sent.
const UNSENT_MAX: usize = 64 << 10;

/// ssh's options that take a value (OpenSSH 10, ssh(1)).
const WITH_VALUE: &[u8] = b"BbcDEeFIiJLlmOoPpQRSWw";

pub(crate) fn run(name: &str, args: Vec<OsString>) -> ExitCode {
    match attempt(name, args) {
        Ok(code) => ExitCode::from(code),
        Err(wrong) => {
            say!("{name}: {wrong}");
            ExitCode::from(FAILED)
        }
    }
}

/// What the words of a call ask for.
#[derive(Debug, PartialEq)]
struct Asked {
    host: String,
    /// The command for a shell.
    command: Vec<u8>,
    /// Standard input is not read (`-n`).
    no_input: bool,
}

fn attempt(name: &str, args: Vec<OsString>) -> Result<u8, String> {
    let (dir, launcher) = match super::part()? {
        (dir, MpiSpec::Launcher(launcher)) => (dir, launcher),
        _ => return Err("only the launcher of the job starts programs on other hosts".into()),
    };
    super::unasked::asks(&dir);
    let asked = read(&args)?;
    let Some(host) = find(&launcher, &asked.host) else {
        if name != NAME {
            elsewhere(name, &args, &dir);
        }
        let names: Vec<&str> = launcher.hosts.iter().map(|host| &*host.name).collect();
        let known = match names.len() {
            0..=16 => names.join(", "),
            n => format!("{}, ... ({n} in all)", names[..16].join(", ")),
        };
        return Err(format!("{:?} is no host of this job: {known}", asked.host));
    };
    if asked.command.is_empty() {
        return Err("there is no command to run; a shell for people is not offered".into());
    }
    let gone = |why: String| format!("{} is gone: {why}", host.name);
    let connection = Connection::open(host).map_err(|why| format!("{}: {why}", host.name))?;
    let ended = forward(connection, &asked).map_err(gone)?;
    ended.map_err(|why| format!("{} refuses: {why}", host.name))
}

/// Reads a call as ssh would.
fn read(args: &[OsString]) -> Result<Asked, String> {
    let mut words = args.iter();
    let (mut host, mut no_input) = (None, false);
    let mut rest: Vec<&OsStr> = Vec::new();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        match bytes
            .strip_prefix(b"-")
            .filter(|options| !options.is_empty())
        {
            Some(b"-") => {}
            // ssh reads options after the host, too, up to the first word of the command.
            Some(options) => {
                no_input |= options.contains(&b'n');
                // `-p22` has its value, `-p` takes the next word.
                if let Some(at) = options.iter().position(|c| WITH_VALUE.contains(c))
                    && at + 1 == options.len()
                {
                    words
                        .next()
                        .ok_or_else(|| format!("{word:?} needs a value"))?;
                }
            }
            _ if host.is_none() => host = Some(word.to_string_lossy().into_owned()),
            _ => {
                rest.push(word);
                rest.extend(words.by_ref().map(OsString::as_os_str));
            }
        }
    }
    let host = host.ok_or("a host is missing")?;
    Ok(Asked {
        host: host.rsplit('@').next().unwrap_or_default().to_owned(),
        command: rest.join(OsStr::new(" ")).into_vec(),
        no_input,
    })
}

/// The host that a name means: its whole name, or without the job's name, or with a domain behind it,
/// or its address if no other has it.
fn find<'a>(launcher: &'a LauncherSpec, asked: &str) -> Option<&'a HostSpec> {
    let of_name = |asked: &str| {
        let member = format!("-{asked}");
        let mut hosts = launcher.hosts.iter();
        hosts.find(|host| host.name == asked || host.name.ends_with(&member) && is_member(asked))
    };
    let of_address = || {
        let address = |host: &&HostSpec| {
            let at = host.at.parse::<SocketAddr>();
            at.is_ok_and(|at| at.ip().to_string() == asked)
        };
        let mut hosts = launcher.hosts.iter().filter(address);
        hosts.next().filter(|_| hosts.next().is_none())
    };
    let short = || of_name(asked.split_once('.')?.0);
    of_name(asked).or_else(of_address).or_else(short)
}

/// Whether this is a member's name without its job's: `worker-3`.
fn is_member(name: &str) -> bool {
    let parts = name.split_once('-');
    parts.is_some_and(|(role, index)| !role.is_empty() && index.parse::<u32>().is_ok())
}

/// Becomes the program of this name that comes after our own on the PATH, if there is one. A launcher's
/// script may have other uses for ssh.
fn elsewhere(name: &str, args: &[OsString], dir: &Path) {
    let own = dir.join(super::BIN);
    let path = std::env::var_os("PATH").unwrap_or_default();
    for folder in std::env::split_paths(&path).filter(|folder| *folder != own) {
        let program = folder.join(name);
        if program.is_file() {
            let _ = Command::new(program).args(args).exec();
        }
    }
}

/// A connection to a host's lender, as a blocking one.
pub(crate) struct Connection {
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
    /// Frames that the stream has not taken yet. Only a command's connection has any.
    unsent: Vec<u8>,
    /// The other end takes nothing more. What it has said before can still be read.
    deaf: bool,
}

impl Connection {
    pub(crate) fn open(host: &HostSpec) -> Result<Self, String> {
        let at: SocketAddr = host.at.parse().map_err(|e| format!("{:?}: {e}", host.at))?;
        let text = |e: io::Error| match e.kind() {
            io::ErrorKind::WouldBlock => "it does not answer".to_owned(),
            _ => e.to_string(),
        };
        let mut stream = TcpStream::connect_timeout(&at, CONNECT).map_err(text)?;
        keep_alive(&stream).map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        stream.set_read_timeout(Some(CONNECT)).map_err(text)?;
        let own = channel::hello()?;
        let mut theirs = [0; HELLO];
        stream.write_all(&own).map_err(text)?;
        stream.read_exact(&mut theirs).map_err(text)?;
        stream.set_read_timeout(None).map_err(text)?;
        let (sealer, opener) = channel::open(End::Launcher, &host.key, &own, &theirs)?;
        Ok(Self {
            stream,
            sealer,
            opener,
            unsent: Vec::new(),
            deaf: false,
        })
    }

    /// Says this as soon as the stream takes it.
    fn queue(&mut self, kind: Kind, content: &[u8]) {
        let frame = self.sealer.seal(kind, content);
        self.unsent.extend(frame);
    }

    /// Sends as much as the stream takes now.
    fn flush(&mut self) {
        while !self.unsent.is_empty() && !self.deaf {
            match self.stream.write(&self.unsent) {
                Ok(n) if n > 0 => drop(self.unsent.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => self.deaf = true,
            }
        }
        if self.deaf {
            self.unsent.clear();
        }
    }

    pub(crate) fn say(&mut self, kind: Kind, content: &[u8]) -> Result<(), String> {
        let frame = self.sealer.seal(kind, content);
        self.stream.write_all(&frame).map_err(|e| e.to_string())
    }

    /// Waits for the next frame.
    pub(crate) fn hear(&mut self) -> Result<(Kind, Vec<u8>), String> {
        loop {
            if let Some(frame) = self.opener.next()? {
                return Ok(frame);
            }
            self.read()?;
        }
    }

    fn read(&mut self) -> Result<(), String> {
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err("it has closed the connection".into()),
            Ok(n) => {
                self.opener.feed(&bytes[..n]);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(e.to_string()),
        }
    }
}

/// Makes the kernel notice a host that has vanished without a word.
pub(super) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, QUIET)?;
    sockopt::set_tcp_keepintvl(stream, ASK)?;
    sockopt::set_tcp_keepcnt(stream, ASKS)?;
    // The same for a host to which something was sent that it does not confirm.
    let limit = QUIET + ASK * ASKS;
    sockopt::set_tcp_user_timeout(stream, limit.as_millis() as u32)?;
    Ok(())
}

/// Runs the command and forwards until it has ended. Returns its code, or why the host refuses it. The
/// error says why the host is gone.
fn forward(mut connection: Connection, asked: &Asked) -> Result<Result<u8, String>, String> {
    let signals = sys::signal_fd(&shim::PASSED).map_err(|e| format!("signals: {e}"))?;
    if asked.command.len() > MAX {
        return Err(format!("the command has more than {MAX} bytes"));
    }
    // A command may write more than it has read, so neither end may wait for the other to read.
    connection
        .stream
        .set_nonblocking(true)
        .map_err(|e| e.to_string())?;
    connection.queue(Kind::Run, &asked.command);
    let mut input = match asked.no_input {
        true => None,
        false => stdin(),
    };
    if input.is_none() {
        connection.queue(Kind::Input, b"");
    }
    loop {
        while let Some((kind, content)) = connection.opener.next()? {
            match kind {
                // Whoever reads the output may be gone. The command goes on, as under ssh.
                Kind::Output => drop(
                    io::stdout()
                        .write_all(&content)
                        .and_then(|()| io::stdout().flush()),
                ),
                Kind::Errors => drop(io::stderr().write_all(&content)),
                Kind::Exited => {
                    let code = content.first().copied();
                    return code.map(Ok).ok_or("it tells no code".into());
                }
                Kind::Refused => return Ok(Err(String::from_utf8_lossy(&content).into_owned())),
                _ => {}
            }
        }
        connection.flush();
        let room = connection.unsent.len() < UNSENT_MAX;
        let typing = input.as_ref().filter(|_| room);
        let (signalled, heard, typed) = wait(&signals, &connection, typing);
        if signalled {
            while let Some(signal) = sys::next_signal(&signals) {
                connection.queue(Kind::Signal, &[signal as u8]);
            }
        }
        if heard {
            connection.read()?;
        }
        if typed && let Some(open) = &input {
            let mut bytes = [0; 16 << 10];
            let n = rustix::io::read(open, &mut bytes).unwrap_or(0);
            connection.queue(Kind::Input, &bytes[..n]);
            if n == 0 {
                input = None;
            }
        }
    }
}

/// Standard input, if it is open.
fn stdin() -> Option<OwnedFd> {
    io::stdin().as_fd().try_clone_to_owned().ok()
}

/// Waits until one of them can be read, or the connection takes more. Returns which.
fn wait(signals: &OwnedFd, connection: &Connection, input: Option<&OwnedFd>) -> (bool, bool, bool) {
    let mut of_stream = PollFlags::IN;
    if !connection.unsent.is_empty() {
        of_stream |= PollFlags::OUT;
    }
    let mut fds = vec![
        PollFd::new(signals, PollFlags::IN),
        PollFd::new(&connection.stream, of_stream),
    ];
    fds.extend(input.map(|input| PollFd::new(input, PollFlags::IN)));
    let _ = rustix::event::poll(&mut fds, None);
    let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
    (ready(0), ready(1), ready(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> Result<(String, String, bool), String> {
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        let Asked {
            host,
            command,
            no_input,
        } = read(&words)?;
        Ok((host, String::from_utf8(command).unwrap(), no_input))
    }

    #[test]
    fn a_call_is_read_as_ssh_reads_it() {
        let of = |host: &str, command: &str, no_input| {
            Ok((host.to_owned(), command.to_owned(), no_input))
        };
        assert_eq!(
            asked(&["w", "orted", "-mca", "a b"]),
            of("w", "orted -mca a b", false)
        );
        // Open MPI, hydra and Horovod.
        assert_eq!(
            asked(&["-x", "w", " PATH=/x ; orted"]),
            of("w", " PATH=/x ; orted", false)
        );
        assert_eq!(
            asked(&["-o", "A=b", "-p22", "-nx", "-l", "me", "w", "date"]),
            of("w", "date", true)
        );
        assert_eq!(asked(&["me@w", "--", "ls", "-n"]), of("w", "ls -n", false));
        assert_eq!(
            asked(&["w", "-p", "22", "-n", "ls", "-l"]),
            of("w", "ls -l", true)
        );
        assert_eq!(asked(&["w"]), of("w", "", false));
        assert_eq!(asked(&["-x"]), Err("a host is missing".into()));
        assert_eq!(asked(&["-p"]), Err("\"-p\" needs a value".into()));
    }

    #[test]
    fn a_host_has_its_name_with_or_without_the_jobs_and_a_domain() {
        let host = |name: &str, at: &str| HostSpec {
            name: name.into(),
            at: at.into(),
            key: String::new(),
        };
        let launcher = LauncherSpec {
            own_name: None,
            own_address: None,
            hosts: vec![
                host("pi-worker-0", "10.0.0.7:1"),
                host("pi-worker-1", "10.0.0.8:1"),
                host("pi-worker-10", "10.0.0.8:2"),
            ],
            files: Default::default(),
        };
        let found = |asked: &str| find(&launcher, asked).map(|host| &*host.name);
        for name in [
            "pi-worker-0",
            "worker-0",
            "pi-worker-0.pi.default.svc",
            "10.0.0.7",
        ] {
            assert_eq!(found(name), Some("pi-worker-0"), "{name}");
        }
        assert_eq!(found("worker-1"), Some("pi-worker-1"));
        for name in [
            "10.0.0.8",
            "0",
            "1",
            "orker-1",
            "github.com",
            "worker-2",
            "",
        ] {
            assert_eq!(found(name), None, "{name}");
        }
    }
}
