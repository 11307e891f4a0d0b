//! `muster-runner pod`: the init process of a container that workers live in. It answers the
//! agent's questions from inside ([`muster_runner::pod`]) and reaps what loses its parent. On SIGTERM
//! it stops the workers, each with its job's grace. It starts nothing by itself.
//!
//! Each connection is answered by a process of its own. So this process never waits: not for a
//! file system that hangs, nor for an interpreter that imports.
//!
//! *Serving* → SIGTERM → *leaving*: the agent finds the file `leaving` and tells the coordinator,
//! which ends the job's generation on all nodes together → after [`COORDINATED`] every run that
//! still lives is stopped with its own grace → *ended*, once nothing lives. Kubernetes kills the
//! container if that takes longer than the pod's own grace.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use muster_runner::place::{self, Left, Remains};
use muster_runner::pod::{
    Answer, ENDS, LEAVING, LINE_MAX, Look, Question, RUNS, SOCKET, Used, Written,
};
use muster_runner::wire::{Command, Hold, Request};
use muster_runner::{Folder, RunnerIdentity, alive, connect, kept, procfs, record, socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use crate::sys::{self, Fork};
use crate::tree::{self, Reaped};
use crate::{limits, time, version};

/// How long the coordinator has to end a generation on all of its nodes together, before this node
/// ends its part alone. It takes a round trip and a commit.
const COORDINATED: Duration = Duration::from_secs(2);
/// How many directories of runs are looked at: far more than an agent keeps.
const RUNS_MAX: usize = 1_000_000;
/// Where Kubernetes reads a container's last words, unless the pod's template names another place.
const LAST_WORDS: &str = "/dev/termination-log";
/// The variable that says so then.
const LAST_WORDS_PLACE: &str = "MUSTER_TERMINATION_MESSAGE_PATH";
/// Time between two looks at what still lives, while leaving.
const LOOK: Duration = Duration::from_millis(50);
/// How long a connection may stay without a question, and how long an answer may wait to be read.
const IDLE: Duration = Duration::from_secs(20);

/// Where the image's programs start: this process did.
static IMAGE_DIR: OnceLock<PathBuf> = OnceLock::new();

/// Serves the volume until SIGTERM, and until nothing lives then.
pub(crate) fn run(volume: &Path) -> ExitCode {
    sys::close_inherited(3);
    limits::raise();
    match serve(volume) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say!("muster-runner: {}: {e}", volume.display());
            ExitCode::FAILURE
        }
    }
}

fn serve(volume: &Path) -> io::Result<()> {
    let signals = sys::signal_fd(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT])?;
    // Outside a PID namespace of its own, it must ask for the orphans that PID 1 gets.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    IMAGE_DIR.get_or_init(|| std::env::current_dir().unwrap_or_default());
    std::env::set_current_dir(volume)?;
    let here = Folder::trusted(Path::new("."))?;
    here.make(RUNS)?;
    // An earlier container of this pod was told to end and has ended.
    here.remove(LEAVING)?;
    drop(here);
    let listener = socket::listen(SOCKET)?;
    listener.set_nonblocking(true)?;
    say!(
        "{} muster-runner {} serves {}",
        time::stamp(),
        version(),
        volume.display()
    );
    let mut leaving: Option<Leaving> = None;
    loop {
        wait(&signals, &listener, leaving.is_some())?;
        while let Some(signal) = sys::next_signal(&signals) {
            if signal != libc::SIGCHLD && leaving.is_none() {
                leaving = Some(Leaving::begin());
            }
        }
        while let Reaped::Ended(..) = tree::reap() {}
        if let Some(stream) = accept(&listener) {
            answer_apart(stream);
        }
        if let Some(leaving) = &mut leaving
            && leaving.go_on()
        {
            say!("{} nothing lives any more", time::stamp());
            return Ok(());
        }
    }
}

fn wait(signals: &OwnedFd, listener: &UnixListener, leaving: bool) -> io::Result<()> {
    let mut fds =
        [signals.as_fd(), listener.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let timeout = Timespec::try_from(LOOK).ok().filter(|_| leaving);
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// One connection, if one waits. Only this container's user and root may ask.
fn accept(listener: &UnixListener) -> Option<UnixStream> {
    let (stream, _) = listener.accept().ok()?;
    let peer = sys::peer(&stream).ok()?;
    if peer.uid != rustix::process::geteuid().as_raw() && peer.uid != 0 {
        let refused = Err(format!("uid {} may not ask this container", peer.uid));
        let _ = tell(&stream, refused);
        return None;
    }
    Some(stream)
}

/// Answers everything that is asked on one connection, in a process of its own.
fn answer_apart(stream: UnixStream) {
    match sys::fork() {
        Ok(Fork::Parent) => {}
        Ok(Fork::Child) => {
            // This process must wait for its own children itself, and kill them like any other.
            let _ = sys::unblock_signals();
            let _ = answer_all(stream);
            std::process::exit(0);
        }
        Err(e) => {
            let _ = tell(&stream, Err(format!("fork: {e}")));
        }
    }
}

fn answer_all(stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let mut lines = BufReader::new(&stream);
    loop {
        let mut line = String::new();
        (&mut lines).take(LINE_MAX).read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Ok(());
        }
        let answered = match serde_json::from_str(&line) {
            Ok(question) => answer(question),
            Err(e) => Err(format!("not a question that this container knows: {e}")),
        };
        tell(&stream, answered)?;
    }
}

/// Answers one question of standard input on standard output, for an agent that may not look itself: it is
/// root, and this process is the user whose files and processes are meant.
pub(crate) fn answer_one() -> ExitCode {
    sys::close_inherited(3);
    let mut line = String::new();
    let read = io::stdin().lock().take(LINE_MAX).read_line(&mut line);
    let question = read.and_then(|_| Ok(serde_json::from_str(&line)?));
    let answered = match question {
        Ok(
            question @ (Question::Find { .. }
            | Question::Modified { .. }
            | Question::Saved { .. }
            | Question::Sweep { .. }),
        ) => answer(question),
        Ok(_) => Err("only an init process answers that".to_owned()),
        Err(e) => Err(format!("not a question that this program knows: {e}")),
    };
    match in_line(answered).and_then(|line| io::stdout().write_all(&line)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn tell(mut stream: &UnixStream, answered: Result<Value, String>) -> io::Result<()> {
    stream.write_all(&in_line(answered)?)
}

fn in_line(answered: Result<Value, String>) -> io::Result<Vec<u8>> {
    let (ok, error) = match answered {
        Ok(value) => (Some(value), None),
        Err(error) => (None, Some(error)),
    };
    let mut line = serde_json::to_vec(&Answer { ok, error })?;
    line.push(b'\n');
    Ok(line)
}

fn answer(question: Question) -> Result<Value, String> {
    match question {
        Question::Look => value(Look {
            env: own_env(),
            version: version(),
        }),
        Question::Start { dir } => {
            if Path::new(LEAVING).exists() && !muster_runner::held(&dir) {
                return Err(ENDS.into());
            }
            let own = std::env::current_exe().map_err(|e| format!("own program: {e}"))?;
            value(place::start(&own, &dir)?)
        }
        Question::Lives { dir, runner } => value(lives(&dir, runner.as_ref())),
        Question::Sweep {
            dir,
            was,
            runner,
            with_runner,
        } => value(sweep(&dir, was, runner.as_ref(), with_runner)?),
        Question::Memory { dir } => value(place::memory(&dir)),
        Question::Find { wanted } => value(place::find(&wanted)?),
        Question::Run { program } => {
            let own = std::env::current_exe().map_err(|e| format!("own program: {e}"))?;
            value(place::ask(&own, &program)?)
        }
        Question::Modified { files } => {
            let times: Vec<Written> = files.iter().map(|file| place::modified(file)).collect();
            value(times)
        }
        Question::Usage { pids } => value(used(pids)?),
        Question::End { why } => value(end(&why)?),
        Question::Saved { dir, pattern } => value(place::saved(&dir, &pattern)),
    }
}

/// The image's environment, and as `PWD` where its programs start.
fn own_env() -> BTreeMap<String, String> {
    let all = std::env::vars_os();
    let mut env: BTreeMap<String, String> = all
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect();
    if let Some(dir) = IMAGE_DIR.get().and_then(|dir| dir.to_str()) {
        env.insert("PWD".to_owned(), dir.to_owned());
    }
    env
}

fn value(answer: impl serde::Serialize) -> Result<Value, String> {
    serde_json::to_value(answer).map_err(|e| e.to_string())
}

/// This process was forked by the init process for one connection.
fn used(mut pids: Vec<i32>) -> Result<Used, String> {
    let init = rustix::process::getppid().ok_or("the init process is gone")?;
    pids.push(init.as_raw_nonzero().get());
    let mut trees = place::usage(&pids).map_err(|e| format!("/proc: {e}"))?;
    let all = trees.pop().ok_or("the init process is gone")?;
    Ok(Used { trees, all })
}

/// This process was forked by the init process for one connection. It tells that process what
/// Kubernetes would tell it.
fn end(why: &str) -> Result<(), String> {
    let init = rustix::process::getppid().ok_or("the init process is gone")?;
    say_last(why);
    rustix::process::kill_process(init, rustix::process::Signal::TERM).map_err(|e| e.to_string())
}

/// Kubernetes shows it in the container's status. Elsewhere there is no such file.
fn say_last(words: &str) {
    let place = std::env::var_os(LAST_WORDS_PLACE).unwrap_or_else(|| LAST_WORDS.into());
    let file = fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(place);
    if let Ok(mut file) = file {
        let _ = file.write_all(words.as_bytes());
    }
}

fn lives(dir: &Path, runner: Option<&RunnerIdentity>) -> bool {
    runner.map_or_else(|| muster_runner::held(dir), alive)
}

fn sweep(
    dir: &Path,
    was: Option<PathBuf>,
    runner: Option<&RunnerIdentity>,
    with_runner: bool,
) -> Result<Left, String> {
    if runner.is_some_and(is_of_another_namespace) {
        return Ok(Left::Nothing);
    }
    let remains = Remains {
        dir,
        was,
        runner,
        with_runner,
    };
    remains.kill_all().map_err(|e| e.to_string())
}

/// Whether the runner was in a PID namespace whose init process is gone. The kernel has killed
/// everything in it then. This check is valid only in this process, because it is the init process
/// of the workers' container.
fn is_of_another_namespace(runner: &RunnerIdentity) -> bool {
    let init = procfs::Stat::of(1).map(|init| init.start_time).ok();
    let is_init =
        std::process::id() == 1 || rustix::process::getppid().is_some_and(|p| p.is_init());
    is_init && runner.init_start.is_some() && init.is_some() && runner.init_start != init
}

/// The way out.
struct Leaving {
    since: Instant,
    stopped: bool,
}

impl Leaving {
    fn begin() -> Self {
        say!("{} told to end", time::stamp());
        // On a full disk nobody is told, and the workers here still get their grace.
        let note = b"the pod is being deleted or evicted\n";
        if let Err(e) = Folder::trusted(Path::new("."))
            .and_then(|volume| volume.replace_unsynced(LEAVING, note))
        {
            say!("{} {LEAVING}: {e}", time::stamp());
        }
        Self {
            since: Instant::now(),
            stopped: false,
        }
    }

    /// True: nothing lives any more.
    fn go_on(&mut self) -> bool {
        let living = living();
        if living.is_empty() {
            return true;
        }
        if !self.stopped && self.since.elapsed() >= COORDINATED {
            self.stopped = true;
            for dir in &living {
                stop_apart(dir);
            }
        }
        false
    }
}

/// The directories of all runners that hold something that lives, or whose keepers still end what
/// they have left. A runner that has written its outcome is not counted: the agent needs only that
/// file.
fn living() -> Vec<PathBuf> {
    let names = Folder::trusted(Path::new("."))
        .and_then(|here| here.below(RUNS)?.names(RUNS_MAX))
        .inspect_err(|e| say!("{} {RUNS}: {e}", time::stamp()));
    { names.unwrap_or_default().into_iter() }
        .map(|name| Path::new(RUNS).join(name))
        .filter(|dir| !Folder::of_run(dir).is_ok_and(|folder| folder.has(record::OUTCOME)))
        .filter(|dir| match RunnerIdentity::read(dir) {
            Ok(Some(runner)) => alive(&runner) || kept(&runner),
            Ok(None) | Err(_) => muster_runner::held(dir),
        })
        .collect()
}

/// Asks in a process of its own, because a runner that is stuck must not take the time of the others.
fn stop_apart(dir: &Path) {
    match sys::fork() {
        Ok(Fork::Parent) => {}
        Ok(Fork::Child) => {
            if let Err(e) = stop(dir) {
                say!("{} {}: stop: {e}", time::stamp(), dir.display());
            }
            std::process::exit(0);
        }
        Err(e) => say!("{} {}: stop: fork: {e}", time::stamp(), dir.display()),
    }
}

/// Asks a runner to stop its worker group with the job's own grace.
fn stop(dir: &Path) -> io::Result<()> {
    let hold: Option<Hold> = record::json(dir, record::HOLD).map_err(io::Error::other)?;
    let hold = hold.ok_or(io::ErrorKind::NotFound)?;
    let request = Request::new(
        0,
        Command::Stop {
            grace_ms: hold.term_grace_ms,
            reason: "the pod is being deleted or evicted".into(),
        },
    );
    let mut line = serde_json::to_vec(&request)?;
    line.push(b'\n');
    let mut stream = connect(dir)?;
    stream.set_write_timeout(Some(IDLE))?;
    stream.set_read_timeout(Some(IDLE))?;
    stream.write_all(&line)?;
    // The runner has obeyed once it has answered.
    BufReader::new(stream).read_line(&mut String::new())?;
    Ok(())
}
