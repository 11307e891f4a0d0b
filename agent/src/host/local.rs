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
    place::{self, Left, Output, Program, Remains, Wanted},
};
use tokio::{net::UnixStream, process::Command};

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
        Box::pin(run(program))
    }

    fn modified(&self, files: &[PathBuf]) -> Vec<Option<SystemTime>> {
        files.iter().map(|file| place::modified(file)).collect()
    }

    fn saved(&self, dir: &Path, pattern: &str) -> Option<BTreeMap<PathBuf, u64>> {
        Some(place::saved(dir, pattern))
    }
}

/// Runs a program as [`place::run`] does, but ends it when nobody waits for it any more.
async fn run(program: &Program) -> Result<Output, String> {
    let mut command = Command::from(program.command());
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    match tokio::time::timeout(program.timeout(), command.output()).await {
        Ok(Ok(output)) => Ok(Output {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code(),
        }),
        Ok(Err(e)) => Err(program.not_started(&e)),
        Err(_) => Err(program.too_slow()),
    }
}
