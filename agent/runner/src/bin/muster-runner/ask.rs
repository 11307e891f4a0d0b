//! `muster-runner ask`: runs one short program of a user, as the question to a job's interpreter, and
//! tells what it has printed.
//!
//! Two processes of this program stand above the user's. The lower one reads what the program prints,
//! within bounds, ends everything that the program has started, and answers when nothing of it lives.
//! The upper one, its parent, does what a [`keeper`] does: if the lower one is killed, it ends what is
//! left. Both are subreapers, so no process escapes by leaving its parent, its session or its
//! environment. Both end everything when nobody waits any more, which the end of the input tells.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use muster_runner::place::{DIE_TIMEOUT, OUTPUT_MAX, Output, PRINTED_MAX, Program, Said};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::PipeFlags;

use crate::sys::{self, Child, Fork};
use crate::tree::{self, Reaped};
use crate::{keeper, time};

/// The longest request: a whole environment and a program's arguments.
const REQUEST_MAX: u64 = 4 << 20;
/// The gap between two rounds of killing.
const KILL_GAP: Duration = Duration::from_millis(20);
/// Bytes of one read.
const CHUNK: usize = 64 << 10;

pub(crate) fn run() -> ExitCode {
    sys::close_inherited(3);
    match begin() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tell(&Said {
                output: None,
                error: Some(e.to_string()),
            });
            ExitCode::FAILURE
        }
    }
}

fn begin() -> io::Result<()> {
    let program = request()?;
    // The lower process sees by this that the upper one is gone.
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    match keeper::fork()? {
        Fork::Parent => {
            drop(read);
            let outcome = keep();
            drop(write);
            outcome
        }
        Fork::Child => {
            drop(write);
            answer(&program, &read)
        }
    }
}

/// The program that standard input describes, in one line of JSON.
fn request() -> io::Result<Program> {
    let mut line = Vec::new();
    let mut byte = [0];
    // Nothing behind the line may be read: the rest of the input is for the upper process.
    let mut input = io::stdin().lock().take(REQUEST_MAX);
    while line.last() != Some(&b'\n') {
        match input.read(&mut byte)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => line.push(byte[0]),
        }
    }
    Ok(serde_json::from_slice(&line)?)
}

fn tell(said: &Said) {
    let line = serde_json::to_vec(said).unwrap_or_default();
    // Nobody reads it if nobody waits any more.
    let _ = io::stdout().write_all(&line);
    let _ = io::stdout().flush();
}

/// The upper process.
fn keep() -> io::Result<()> {
    let signals = sys::signal_fd(&[libc::SIGCHLD])?;
    // The answer is the lower one's, and ends with it.
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    loop {
        // While the lower one lives, it is the only child.
        if !matches!(tree::reap(), Reaped::Living) {
            break;
        }
        let input = rustix::stdio::stdin();
        let mut fds =
            [signals.as_fd(), input].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        wait(&mut fds, None)?;
        let is_over = !fds[1].revents().is_empty();
        while sys::next_signal(&signals).is_some() {}
        if is_over {
            break;
        }
    }
    keeper::end_descendants(&signals);
    Ok(())
}

fn wait(fds: &mut [PollFd<'_>], until: Option<Duration>) -> io::Result<()> {
    let left = until.map(|until| until.saturating_sub(time::boot()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// The lower process: runs the program, and answers when nothing of it lives.
fn answer(program: &Program, keeper: &OwnedFd) -> io::Result<()> {
    let signals = sys::signal_fd(&[libc::SIGCHLD])?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let ran = run_program(program, keeper, &signals);
    let left = end(&signals)?;
    let said = match ran {
        Ok(_) if !left.is_empty() => Err(format!(
            "{} has left processes that cannot be killed: {left:?}",
            program.program.display()
        )),
        ran => ran,
    };
    let (output, error) = match said {
        Ok(output) => (Some(output), None),
        Err(error) => (None, Some(error)),
    };
    tell(&Said { output, error });
    if !left.is_empty() {
        keeper::end_descendants(&signals);
    }
    Ok(())
}

/// Kills everything below this process. Returns what still lives when its time to die is over.
fn end(signals: &OwnedFd) -> io::Result<Vec<i32>> {
    let until = time::boot() + DIE_TIMEOUT;
    loop {
        loop {
            match tree::reap() {
                Reaped::Ended(..) => {}
                Reaped::Living => break,
                Reaped::NoChild => return Ok(Vec::new()),
            }
        }
        tree::kill_descendants()?;
        if time::boot() >= until {
            return Ok(tree::descendants()?.iter().map(|stat| stat.pid).collect());
        }
        let mut fds = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        wait(&mut fds, Some(time::boot() + KILL_GAP))?;
        while sys::next_signal(signals).is_some() {}
    }
}

/// Runs the program until it ends by itself. What it has started need not end.
fn run_program(program: &Program, keeper: &OwnedFd, signals: &OwnedFd) -> Result<Output, String> {
    let until = time::boot() + program.timeout();
    let trouble = |e: io::Error| format!("{}: {e}", program.program.display());
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| trouble(e.into()));
    let ((out, stdout), (err, stderr)) = (pipe()?, pipe()?);
    let mut command = program.command();
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let pid = sys::spawn(&mut command, Child::default()).map_err(|e| program.not_started(&e))?;
    // It holds the ends that are written to.
    drop(command);
    let mut streams = [Some(Stream::new(out)), Some(Stream::new(err))];
    let mut heard = [Vec::new(), Vec::new()];
    let mut printed = 0;
    let mut status = None;
    while status.is_none() {
        let open = streams.each_ref().map(|s| s.as_ref().map(|s| s.0.as_fd()));
        let mut fds: Vec<PollFd<'_>> = [Some(signals.as_fd()), Some(keeper.as_fd())]
            .into_iter()
            .chain(open)
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        wait(&mut fds, Some(until)).map_err(trouble)?;
        let is_alone = !fds[1].revents().is_empty();
        drop(fds);
        while sys::next_signal(signals).is_some() {}
        while let Reaped::Ended(ended, how) = tree::reap() {
            if ended == pid.as_raw_nonzero().get() {
                status = Some(how);
            }
        }
        // What the program wrote before its end is in the pipes by now.
        for (stream, heard) in streams.iter_mut().zip(&mut heard) {
            printed += read(stream, heard);
        }
        if is_alone {
            return Err("nobody waits for it any more".into());
        }
        if printed > PRINTED_MAX {
            return Err(format!(
                "{} printed more than {} MiB and did not end",
                program.program.display(),
                PRINTED_MAX >> 20
            ));
        }
        if status.is_none() && time::boot() >= until {
            return Err(program.too_slow());
        }
    }
    let [stdout, stderr] = heard.map(|text| String::from_utf8_lossy(&text).into_owned());
    Ok(Output {
        stdout,
        stderr,
        code: status.and_then(|status| status.exit_status()),
    })
}

/// The end of a pipe that is read from, which never waits.
struct Stream(OwnedFd);

impl Stream {
    fn new(fd: OwnedFd) -> Self {
        let _ = rustix::io::ioctl_fionbio(&fd, true);
        Self(fd)
    }
}

/// Reads what is in a pipe now, at most as much as a pipe holds, and keeps the beginning. Returns how
/// much it was.
fn read(stream: &mut Option<Stream>, heard: &mut Vec<u8>) -> usize {
    let mut buffer = vec![0; CHUNK];
    let mut all = 0;
    for _ in 0..16 {
        let Some(Stream(fd)) = stream else { break };
        match rustix::io::read(fd, &mut buffer[..]) {
            Err(rustix::io::Errno::AGAIN) => break,
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) | Err(_) => *stream = None,
            Ok(read) => {
                let room = OUTPUT_MAX.saturating_sub(heard.len()).min(read);
                heard.extend_from_slice(&buffer[..room]);
                all += read;
            }
        }
    }
    all
}
