//! How an agent asks about workers that are in another container of its pod.
//!
//! Both containers mount one volume. `muster-runner pod`, the init process of the workers'
//! container, listens on a socket in that volume and answers from inside: about its own processes
//! and its own files. One JSON object per line, an answer for each question, version 1. Both sides
//! ignore unknown fields, and an unknown question is answered with an error. The init process keeps
//! no state, so every question may be asked again.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    RunnerIdentity,
    folder::Folder,
    place::{Program, READY_TIMEOUT, TreeUsage, Wanted},
    socket,
};

/// The socket, in the shared volume.
pub const SOCKET: &str = "pod.sock";
/// This file exists from the moment the workers' container is told to end, as when its pod is
/// deleted. Its content says why, for the user. The next container removes it.
pub const LEAVING: &str = "leaving";
/// Why such a container starts nothing any more. The coordinator knows this text.
pub const ENDS: &str = "the workers' container was told to end";
/// The directory of all runs, in the shared volume.
pub const RUNS: &str = "runs";

/// The longest line. A question may carry a whole environment.
pub const LINE_MAX: u64 = 4 << 20;

/// How long an answer may take that needs no program and no other file system than the kernel's.
const ANSWER: Duration = Duration::from_secs(20);
/// How long the init process may take to look at itself. It is asked every few seconds.
const LOOK: Duration = Duration::from_secs(2);
/// How much later than the end of a program its answer may come.
const MARGIN: Duration = Duration::from_secs(10);

/// What can be asked. Paths are those of the workers' container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Question {
    /// Answered by [`Look`].
    Look,
    /// Starts the runner of a directory; answered by nothing, once the runner can be reached.
    Start { dir: PathBuf },
    /// Whether the runner of a directory lives, as a boolean.
    Lives {
        dir: PathBuf,
        runner: Option<RunnerIdentity>,
    },
    /// Kills what a runner that is gone has left; answered by [`Left`](crate::place::Left).
    Sweep {
        dir: PathBuf,
        was: Option<PathBuf>,
        runner: Option<RunnerIdentity>,
        /// The runner lives and does not obey: it is killed too. An older container kills all but
        /// the runner.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        with_runner: bool,
    },
    /// The memory that a launcher takes, in bytes, or null.
    Memory { dir: PathBuf },
    /// The path of the program that starts the ranks.
    Find { wanted: Wanted },
    /// Runs a program; answered by [`Output`](crate::place::Output).
    Run { program: Program },
    /// When each of these files was written, or null.
    Modified { files: Vec<PathBuf> },
    /// What each of these processes uses, with all that descends from it; answered by [`Used`].
    Usage { pids: Vec<i32> },
    /// Stops what lives, and ends the container. Its last words say why.
    End { why: String },
    /// The files that match a pattern, each with a number that changes when it is written.
    Saved { dir: PathBuf, pattern: String },
}

/// What only the workers' container knows of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// The environment of its init process, from which every worker's environment is made. `PWD` is the
    /// directory in which the image's programs start.
    pub env: BTreeMap<String, String>,
    /// Version and commit of its runner.
    pub version: String,
}

/// The answer: one of the two.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What processes of the workers' container use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Those that were asked about and live.
    pub trees: Vec<TreeUsage>,
    /// The init process, with everything in its container.
    pub all: TreeUsage,
}

/// When a file was written, as it travels.
pub type Written = Option<SystemTime>;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nothing is known: the container may be down, or about to come up.
    #[error("the workers' container does not answer")]
    Unreached(#[source] io::Error),
    /// The container's own word, for the user.
    #[error("{0}")]
    Refused(String),
}

/// Asks the init process whose socket is in `volume`, and waits for its answer.
pub fn ask<T: DeserializeOwned>(volume: &Path, question: &Question) -> Result<T, AskError> {
    let answer = exchange(volume, question).map_err(AskError::Unreached)?;
    match answer.error {
        Some(error) => Err(AskError::Refused(error)),
        None => serde_json::from_value(answer.ok.unwrap_or_default())
            .map_err(|e| AskError::Unreached(e.into())),
    }
}

/// The process that serves `volume`: the init process of the container, by its number in the PID namespace of
/// whoever asks.
///
/// # Errors
/// `ConnectionRefused` or `NotFound`: there is none.
pub fn served_by(volume: &Path) -> io::Result<i32> {
    let stream = Folder::trusted(volume)?.connect(SOCKET, socket::PATIENCE)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    Ok(peer.pid.as_raw_nonzero().get())
}

fn exchange(volume: &Path, question: &Question) -> io::Result<Answer> {
    let patience = match question {
        Question::Run { program } => program.patience() + MARGIN,
        Question::Start { .. } => READY_TIMEOUT + MARGIN,
        Question::Look => LOOK,
        _ => ANSWER,
    };
    let mut stream = Folder::trusted(volume)?.connect(SOCKET, socket::PATIENCE)?;
    stream.set_write_timeout(Some(ANSWER))?;
    stream.set_read_timeout(Some(patience))?;
    let mut line = serde_json::to_vec(question)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut line)?;
    if !line.ends_with('\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}
