//! A port of this machine that leads to the coordinator's pod, for as long as one command runs.
//!
//! kubectl forwards it to one pod and ends with that. Then it is started again with the same port, so
//! that commands that follow something find the next pod there.

use std::{
    env,
    ffi::OsString,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    time::Duration,
};

use clap::Args;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines, copy, sink},
    process::{Child, ChildStdout},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{Kubectl, SERVICE};
use crate::fail::Failure;

/// Name of the hidden command that ties a program to this one.
pub(crate) const BOUND: &str = "__bound";

/// The coordinator's port.
const PORT: u16 = 7070;
/// The pause before a forward that has ended is started again.
const AGAIN: Duration = Duration::from_millis(500);
/// The longest error of kubectl that is told.
const ERROR_MAX: u64 = 4096;

#[derive(Debug, Args)]
pub(crate) struct Bound {
    /// The program that it must not outlive
    starter: i32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Executes the given program, which ends when its starter does, however that ends.
pub(crate) fn bound(args: &Bound) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|error| Failure::request(format!("ask for a signal: {error}")))?;
    // It may have ended before it could be asked for.
    if getppid() != Pid::from_raw(args.starter) {
        return Ok(());
    }
    let (program, rest) = args
        .words
        .split_first()
        .ok_or_else(|| Failure::usage("which program?"))?;
    let error = Command::new(program).args(rest).exec();
    Err(Failure::request(format!("{}: {error}", program.display())))
}

pub(crate) struct Forward {
    port: u16,
    kept: JoinHandle<()>,
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.kept.abort();
    }
}

/// kubectl while it forwards.
struct Running {
    /// Killed when it is dropped.
    _child: Child,
    port: u16,
    /// It prints a line for each connection.
    lines: Lines<BufReader<ChildStdout>>,
}

impl Forward {
    pub(crate) async fn open(kubectl: &Kubectl) -> Result<Self, Failure> {
        let first = start(kubectl, 0).await.map_err(Failure::Unreachable)?;
        let (port, kubectl) = (first.port, kubectl.clone());
        let kept = tokio::spawn(async move {
            let mut running = Some(first);
            loop {
                if let Some(mut now) = running.take() {
                    while let Ok(Some(_)) = now.lines.next_line().await {}
                }
                sleep(AGAIN).await;
                running = start(&kubectl, port).await.ok();
            }
        });
        Ok(Self { port, kept })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// `port`: 0 takes any that is free.
async fn start(kubectl: &Kubectl, port: u16) -> Result<Running, String> {
    let failed = |e: std::io::Error| format!("kubectl port-forward: {e}");
    let namespace = &kubectl.entry.system_namespace;
    let (service, ports) = (format!("svc/{SERVICE}"), format!("{port}:{PORT}"));
    let plain = kubectl.command(&[
        "port-forward",
        "-n",
        namespace,
        "--address=127.0.0.1",
        &service,
        &ports,
    ]);
    let mut command = tokio::process::Command::new(env::current_exe().map_err(failed)?);
    command
        .arg(BOUND)
        .arg(std::process::id().to_string())
        .arg(plain.get_program())
        .args(plain.get_args());
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let (output, error) = (child.stdout.take(), child.stderr.take());
    let mut lines = BufReader::new(output.expect("it was asked for")).lines();
    let first = lines.next_line();
    let first = match kubectl.timeout {
        None => first.await,
        Some(limit) => timeout(limit, first)
            .await
            .map_err(|_| format!("kubectl port-forward does nothing within {limit:?}"))?,
    };
    let first = first.map_err(failed)?;
    let mut error = error.expect("it was asked for");
    if let Some(port) = first.as_deref().and_then(port_of) {
        // It must not wait for a reader. The error of a call says that the coordinator is away.
        tokio::spawn(async move { copy(&mut error, &mut sink()).await });
        return Ok(Running {
            _child: child,
            port,
            lines,
        });
    }
    let _ = child.start_kill();
    let mut said = String::new();
    // If reading fails, the part that was read is shown.
    let _ = error.take(ERROR_MAX).read_to_string(&mut said).await;
    Err(format!("kubectl port-forward: {}", said.trim()))
}

/// From `Forwarding from 127.0.0.1:41234 -> 7070`.
fn port_of(line: &str) -> Option<u16> {
    let rest = line.strip_prefix("Forwarding from 127.0.0.1:")?;
    rest.split(' ').next()?.parse().ok()
}
