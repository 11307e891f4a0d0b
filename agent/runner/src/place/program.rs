//! Short programs: the question to a job's interpreter, and the start of a runner.
//!
//! An interpreter belongs to a user, as does everything that it starts (`sitecustomize`, a wrapper in
//! shell). So it runs below `muster-runner ask`, which ends all of it and proves that. The runner is
//! our own program, and is meant to go on.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::user::Become;
use crate::open_files;

/// How long a runner may take to become ready. It needs milliseconds; a disk that takes this long
/// to sync two small files is broken.
pub const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// The runner's exit status when its directory is taken.
pub const TAKEN: i32 = 3;

/// The most that is kept of each of a program's two streams.
pub const OUTPUT_MAX: usize = 64 << 10;
/// A program that prints more than this is ended: it does not answer a question.
pub const PRINTED_MAX: usize = 16 << 20;
/// The longest answer of `muster-runner ask`: both streams, in JSON.
pub const SAID_MAX: u64 = 16 * OUTPUT_MAX as u64;
/// How long what a program has left may take to die, after the program's own time.
pub const DIE_TIMEOUT: Duration = Duration::from_secs(5);
/// How much later than the end of that time an answer may come.
const SAID_MARGIN: Duration = Duration::from_secs(10);
/// What `muster-runner` is called with to run a program.
pub const ASK: &str = "ask";

/// A program that ends by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// All variables that it gets.
    pub env: BTreeMap<String, String>,
    pub dir: PathBuf,
    pub timeout_ms: u64,
}

/// What a program has said until its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    pub stdout: String,
    pub stderr: String,
    /// None: it was ended by a signal.
    pub code: Option<i32>,
}

impl Program {
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .env_clear()
            .envs(&self.env)
            .current_dir(&self.dir)
            .stdin(Stdio::null());
        command
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// The same program of ours, as another user.
    #[must_use]
    pub fn as_user(mut self, user: &Become) -> Self {
        self.args.splice(0..0, user.args());
        self
    }

    /// The error of a program that could not be started.
    pub fn not_started(&self, e: &io::Error) -> String {
        format!("{} cannot be started: {e}", self.program.display())
    }

    /// The error of a program that has not ended in time.
    pub fn too_slow(&self) -> String {
        format!(
            "{} did not answer within {} s",
            self.program.display(),
            self.timeout().as_secs()
        )
    }

    /// The start of a runner for `dir`. It ends as soon as the runner, which goes on in the
    /// background, can be talked to.
    pub fn runner(runner: &Path, dir: &Path) -> Self {
        Self {
            program: runner.to_owned(),
            args: vec![
                "hold".to_owned(),
                "--dir".to_owned(),
                dir.to_string_lossy().into_owned(),
            ],
            env: told(),
            dir: "/".into(),
            timeout_ms: u64::try_from(READY_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// What `muster-runner ask` says of the program that it has run: one of the two.
#[derive(Debug, Serialize, Deserialize)]
pub struct Said {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Program {
    /// The line by which `muster-runner ask` learns what to run. The end of its input means that
    /// nobody waits for the program any more.
    pub fn request(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("a program has only text keys");
        line.push(b'\n');
        line
    }

    /// `muster-runner ask` with pipes for the question and the answer, as another user if one is given. The
    /// end of the first ends all.
    pub fn asker(runner: &Path, user: Option<&Become>) -> Command {
        let mut command = Command::new(runner);
        command
            .args(user.map(Become::args).unwrap_or_default())
            .arg(ASK)
            .env_clear()
            .envs(open_files::told())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }

    /// The error of an asker that could not be started.
    pub fn not_asked(runner: &Path, e: &io::Error) -> String {
        format!("{} cannot be started: {e}", runner.display())
    }

    /// How long `muster-runner ask` may take in all.
    pub fn patience(&self) -> Duration {
        self.timeout() + DIE_TIMEOUT + SAID_MARGIN
    }

    /// What `muster-runner ask` has said.
    pub fn answer(&self, line: &[u8]) -> Result<Output, String> {
        let lost = || format!("{}: its runner was ended", self.program.display());
        let said: Said = serde_json::from_slice(line).map_err(|_| lost())?;
        match (said.output, said.error) {
            (Some(output), None) => Ok(output),
            (_, Some(error)) => Err(error),
            (None, None) => Err(lost()),
        }
    }
}

fn told() -> BTreeMap<String, String> {
    let told = open_files::told().into_iter();
    told.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Runs a user's program below `muster-runner ask`. When this returns, nothing of it lives, or the
/// error says what does.
pub fn ask(runner: &Path, program: &Program) -> Result<Output, String> {
    let mut child = Program::asker(runner, None)
        .spawn()
        .map_err(|e| Program::not_asked(runner, &e))?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        unreachable!("both streams are pipes")
    };
    // Open until the answer is there.
    let told = input.write_all(&program.request());
    let mut heard = Vec::new();
    let read = told.and_then(|()| read_to_end(output, &mut heard, SAID_MAX, program.patience()));
    drop(input);
    match read {
        Ok(true) => {
            let _ = child.wait();
            program.answer(&heard)
        }
        // It ends by itself, once what it kills has ended.
        Ok(false) => Err(program.too_slow()),
        Err(e) => Err(format!("{}: {e}", program.program.display())),
    }
}

/// Reads a stream to its end. False: it is longer than `most`, or the time was over before that.
pub(crate) fn read_to_end(
    mut stream: impl Read + AsFd,
    heard: &mut Vec<u8>,
    most: u64,
    patience: Duration,
) -> io::Result<bool> {
    let until = Instant::now() + patience;
    let mut buffer = [0; 4_096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || heard.len() as u64 > most {
            return Ok(false);
        }
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&stream, PollFlags::IN)], timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) | Ok(0) => continue,
            result => result?,
        };
        match stream.read(&mut buffer)? {
            0 => return Ok(true),
            read => heard.extend_from_slice(&buffer[..read]),
        }
    }
}

/// Runs a program of ours until it and all that it has started have closed their output.
fn run(program: &Program) -> Result<Output, String> {
    let until = Instant::now() + program.timeout();
    let mut child = program
        .command()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| program.not_started(&e))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut heard = [Vec::new(), Vec::new()];
    let read = match (stdout, stderr) {
        (Some(stdout), Some(stderr)) => read_both(stdout, stderr, &mut heard, until),
        _ => unreachable!("both streams are pipes"),
    };
    if !matches!(read, Ok(true)) {
        let _ = child.kill();
    }
    let status = child.wait();
    match read {
        Ok(true) => {}
        Ok(false) => return Err(program.too_slow()),
        Err(e) => return Err(format!("{}: {e}", program.program.display())),
    }
    let status = status.map_err(|e| format!("{}: {e}", program.program.display()))?;
    let [stdout, stderr] = heard.map(|text| String::from_utf8_lossy(&text).into_owned());
    Ok(Output {
        stdout,
        stderr,
        code: status.code(),
    })
}

/// Reads both streams to their ends. False: the time was over before that.
fn read_both(
    stdout: impl Read + AsFd,
    stderr: impl Read + AsFd,
    heard: &mut [Vec<u8>; 2],
    until: Instant,
) -> io::Result<bool> {
    let (mut out, mut err) = (Some(stdout), Some(stderr));
    let [heard_out, heard_err] = heard;
    while out.is_some() || err.is_some() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let fds = [out.as_ref().map(AsFd::as_fd), err.as_ref().map(AsFd::as_fd)];
        let mut polled: Vec<PollFd<'_>> = fds
            .iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut polled, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) | Ok(0) => continue,
            result => result?,
        };
        let mut ready = polled.iter().map(|fd| !fd.revents().is_empty());
        let out_ready = out.is_some() && ready.next().unwrap_or_default();
        let err_ready = err.is_some() && ready.next().unwrap_or_default();
        drop(polled);
        if out_ready {
            read_some(&mut out, heard_out)?;
        }
        if err_ready {
            read_some(&mut err, heard_err)?;
        }
    }
    Ok(true)
}

fn read_some(stream: &mut Option<impl Read>, heard: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; 4_096];
    let Some(open) = stream else {
        return Ok(());
    };
    match open.read(&mut buffer)? {
        0 => *stream = None,
        read => {
            let room = OUTPUT_MAX.saturating_sub(heard.len()).min(read);
            heard.extend_from_slice(&buffer[..room]);
        }
    }
    Ok(())
}

/// Starts a runner for `dir`, and returns once it can be talked to.
pub fn start(runner: &Path, dir: &Path) -> Result<(), String> {
    started(&run(&Program::runner(runner, dir))?)
}

/// What a runner's start has said. "Taken" is as good as started: an earlier agent started this
/// runner just before it was killed.
pub fn started(output: &Output) -> Result<(), String> {
    if matches!(output.code, Some(0 | TAKEN)) {
        return Ok(());
    }
    let said = output.stderr.trim();
    let said = said.strip_prefix("muster-runner: ").unwrap_or(said);
    Err(if !said.is_empty() {
        said.to_owned()
    } else if let Some(code) = output.code {
        format!("the runner ended with exit status {code}")
    } else {
        "the runner was ended by a signal".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, timeout_ms: u64) -> Program {
        Program {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
            dir: "/".into(),
            timeout_ms,
        }
    }

    #[test]
    fn both_streams_are_heard_to_their_ends() {
        let output = run(&shell("echo $A; pwd >&2; exit 4", 60_000)).unwrap();
        let expected = Output {
            stdout: "1\n".into(),
            stderr: "/\n".into(),
            code: Some(4),
        };
        assert_eq!(output, expected);
        // More than a pipe holds, on either stream.
        let flood = run(&shell(
            "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2",
            60_000,
        ))
        .unwrap();
        assert_eq!(
            (flood.stdout.len(), flood.stderr.len(), flood.code),
            (OUTPUT_MAX, OUTPUT_MAX, Some(0))
        );
    }

    #[test]
    fn what_hangs_or_is_missing_is_told() {
        let slow = run(&shell("exec sleep 600", 50)).unwrap_err();
        assert_eq!(slow, "/bin/sh did not answer within 0 s");
        let gone = Program {
            program: "/no/such".into(),
            ..shell("", 1_000)
        };
        let gone = run(&gone).unwrap_err();
        assert!(
            gone.starts_with("/no/such cannot be started: No such file"),
            "{gone}"
        );
        let refused = Output {
            stdout: String::new(),
            stderr: "muster-runner: no\n".into(),
            code: Some(1),
        };
        assert_eq!(started(&refused), Err("no".into()));
    }
}
