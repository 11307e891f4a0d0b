//! Runners on the machine that the agent is on, as processes of the same kernel and the same user.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::SystemTime,
};

use muster_runner::{
    RunnerIdentity, alive, connect, held,
    place::{self, Become, Left, OUTPUT_MAX, Output, Program, Remains, SAID_MAX, Wanted},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::Command,
};

use super::{Asked, RunnerHost};

/// The agent's own machine.
#[derive(Debug)]
pub(crate) struct LocalHost {
    /// The runner's program.
    runner: PathBuf,
}

impl LocalHost {
    pub(crate) fn new(runner: PathBuf) -> Self {
        Self { runner }
    }
}

impl RunnerHost for LocalHost {
    fn start<'a>(&'a self, dir: &'a Path) -> Asked<'a, Result<(), String>> {
        Box::pin(async move {
            let said = run(&Program::runner(&self.runner, dir)).await?;
            place::started(&said)
        })
    }

    fn reach(&self, dir: &Path) -> io::Result<UnixStream> {
        let stream = connect(dir)?;
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream)
    }

    fn lives<'a>(&'a self, dir: &'a Path, runner: Option<&'a RunnerIdentity>) -> Asked<'a, bool> {
        Box::pin(async move { runner.map_or_else(|| held(dir), alive) })
    }

    fn sweep<'a>(&'a self, remains: &'a Remains<'a>) -> Asked<'a, io::Result<Left>> {
        Box::pin(async { remains.kill_all() })
    }

    fn retire(&self, _: String) -> Asked<'_, Result<(), String>> {
        // Only worker pods are told to.
        Box::pin(async { Err("this node is no pod".to_owned()) })
    }

    fn memory(&self, dir: &Path) -> Option<u64> {
        place::memory(dir)
    }

    fn find(&self, wanted: &Wanted) -> Result<PathBuf, String> {
        place::find(wanted)
    }

    fn run<'a>(&'a self, program: &'a Program) -> Asked<'a, Result<Output, String>> {
        Box::pin(ask(&self.runner, program, None))
    }

    fn modified(&self, files: &[PathBuf]) -> Vec<Option<SystemTime>> {
        files.iter().map(|file| place::modified(file)).collect()
    }

    fn saved(&self, dir: &Path, pattern: &str) -> Option<BTreeMap<PathBuf, u64>> {
        Some(place::saved(dir, pattern))
    }
}

/// Runs a user's program as [`place::ask`] does. It ends with all that it has started when nobody waits
/// for it any more, because its input ends then. `user`: as whom.
pub(super) async fn ask(
    runner: &Path,
    program: &Program,
    user: Option<&Become>,
) -> Result<Output, String> {
    let trouble = |e: io::Error| format!("{}: {e}", program.program.display());
    let mut child = Command::from(Program::asker(runner, user))
        .spawn()
        .map_err(|e| Program::not_asked(runner, &e))?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        unreachable!("both streams are pipes")
    };
    let exchange = async {
        input.write_all(&program.request()).await?;
        let mut heard = Vec::new();
        output.take(SAID_MAX).read_to_end(&mut heard).await?;
        io::Result::Ok(heard)
    };
    match tokio::time::timeout(program.patience(), exchange).await {
        Ok(Ok(heard)) => program.answer(&heard),
        Ok(Err(e)) => Err(trouble(e)),
        Err(_) => Err(program.too_slow()),
    }
}

/// Runs a program of ours, and ends it when nobody waits for it any more.
pub(super) async fn run(program: &Program) -> Result<Output, String> {
    let trouble = |e: io::Error| format!("{}: {e}", program.program.display());
    let mut child = Command::from(program.command())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| program.not_started(&e))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // Whatever it is that was started, it does not fill this process's memory.
    let whole = async {
        let (stdout, stderr) = tokio::join!(beginning(stdout), beginning(stderr));
        io::Result::Ok((stdout?, stderr?, child.wait().await?))
    };
    match tokio::time::timeout(program.timeout(), whole).await {
        Ok(Ok((stdout, stderr, status))) => Ok(Output {
            stdout,
            stderr,
            code: status.code(),
        }),
        Ok(Err(e)) => Err(trouble(e)),
        Err(_) => Err(program.too_slow()),
    }
}

/// The beginning of what a stream says. Whoever says more gets an error.
async fn beginning(stream: Option<impl AsyncRead + Unpin>) -> io::Result<String> {
    let mut heard = Vec::new();
    if let Some(stream) = stream {
        stream
            .take(OUTPUT_MAX as u64)
            .read_to_end(&mut heard)
            .await?;
    }
    Ok(String::from_utf8_lossy(&heard).into_owned())
}
