//! Runners on the machine that the agent is on, as processes of the same kernel and the same user.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use muster_runner::{Record, RunnerIdentity, alive, connect, held};
use tokio::{net::UnixStream, process::Command};

use super::{Asked, RunnerHost};
use crate::sweep::{Left, Remains};

/// How long a runner may take to become ready. It needs milliseconds; a disk that takes this long
/// to sync two small files is broken.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// The runner's exit status when its directory is taken.
const TAKEN: i32 = 3;

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
        Box::pin(start(&self.runner, dir))
    }

    fn reach(&self, dir: &Path) -> io::Result<UnixStream> {
        let stream = connect(dir)?;
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream)
    }

    fn lives(&self, dir: &Path, runner: Option<&RunnerIdentity>) -> bool {
        runner.map_or_else(|| held(dir), alive)
    }

    fn sweep<'a>(&'a self, remains: &'a Remains<'a>) -> Asked<'a, io::Result<Left>> {
        Box::pin(async { remains.kill_all() })
    }

    fn memory(&self, dir: &Path) -> Option<u64> {
        let runner = Record::read(dir).ok()?.runner?.pid;
        let launchers = children(runner)?;
        let copies = launchers
            .iter()
            .filter_map(|pid| children(*pid))
            .flatten()
            .collect::<Vec<_>>();
        let kib = |pid: &i32| {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
            rollup.lines().find_map(|line| {
                line.strip_prefix("Pss:")?
                    .trim()
                    .strip_suffix(" kB")?
                    .trim()
                    .parse::<u64>()
                    .ok()
            })
        };
        Some(launchers.iter().chain(&copies).filter_map(kib).sum::<u64>() * 1_024)
    }
}

/// Starts a runner and returns once it can be talked to. The runner leaves this process's session
/// and outlives it.
async fn start(runner: &Path, dir: &Path) -> Result<(), String> {
    let mut command = Command::new(runner);
    command
        .args(["hold", "--dir"])
        .arg(dir)
        .env_clear()
        .current_dir("/");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command
        .spawn()
        .map_err(|e| format!("{}: {e}", runner.display()))?;
    let output = match tokio::time::timeout(READY_TIMEOUT, child.wait_with_output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(e)) => return Err(format!("{}: {e}", runner.display())),
        Err(_) => {
            return Err(format!(
                "{} was not ready within {} s",
                runner.display(),
                READY_TIMEOUT.as_secs()
            ));
        }
    };
    // "Taken" is as good: an earlier agent started this runner just before it was killed.
    if output.status.success() || output.status.code() == Some(TAKEN) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said
        .trim()
        .strip_prefix("muster-runner: ")
        .unwrap_or(said.trim())
        .to_owned();
    Err(if said.is_empty() {
        output.status.to_string()
    } else {
        said
    })
}

fn children(pid: i32) -> Option<Vec<i32>> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Some(
        children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect(),
    )
}
