//! Whether the agent has a session with its coordinator, as a file that a probe can look for:
//! `muster-agent ready`. A pod is ready while its node can get work.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use tokio::sync::watch;
use tracing::warn;

/// In the state directory.
const FILE: &str = "in-session";

/// When the file is written again after a failure, as on a disk that was full. Probes look every few
/// seconds.
const AGAIN: Duration = Duration::from_secs(1);

/// `muster-agent ready`: succeeds while the agent of this machine has a session with its coordinator.
#[derive(Debug, Parser)]
#[command(
    name = "muster-agent ready",
    about = "Succeeds while the agent has a session with its coordinator"
)]
pub struct Ready {
    /// Folder of the agent's state, as the agent has it
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR")]
    state_dir: PathBuf,
    /// The command itself
    #[arg(hide = true)]
    command: Option<String>,
}

impl Ready {
    pub fn run(self) -> ExitCode {
        let file = self.state_dir.join(FILE);
        if file.exists() {
            return ExitCode::SUCCESS;
        }
        eprintln!("muster-agent: no session with the coordinator; the agent's log says why");
        ExitCode::FAILURE
    }
}

/// Keeps the file as `in_session` says, until its sender is gone.
pub(crate) async fn follow(state_dir: PathBuf, in_session: watch::Receiver<bool>) {
    let file = state_dir.join(FILE);
    keep_up(in_session, move |is_there| keep(&file, is_there)).await;
}

/// At most one write is under way, and it may hang with its disk. One that failed is made again.
async fn keep_up<Keep>(mut in_session: watch::Receiver<bool>, keep: Keep)
where
    Keep: Fn(bool) -> io::Result<()> + Clone + Send + 'static,
{
    let mut told = false;
    loop {
        let (is_there, keep) = (*in_session.borrow_and_update(), keep.clone());
        let kept = tokio::task::spawn_blocking(move || keep(is_there)).await;
        let failed = match kept {
            Ok(Err(why)) => Some(why),
            _ => None,
        };
        if let Some(why) = failed.as_ref().filter(|_| !told) {
            warn!("whether there is a session cannot be noted for probes: {why}");
        }
        told = failed.is_some();
        let changed = match told {
            true => tokio::time::timeout(AGAIN, in_session.changed()).await,
            false => Ok(in_session.changed().await),
        };
        if let Ok(Err(_)) = changed {
            return;
        }
    }
}

/// A file that an earlier process has left says nothing.
fn keep(file: &Path, is_there: bool) -> io::Result<()> {
    match is_there {
        true => {
            let mut options = fs::File::options();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(file).map(drop)
        }
        false => match fs::remove_file(file) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use super::*;

    #[tokio::test]
    async fn the_file_is_there_while_there_is_a_session() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        fs::write(&file, "").unwrap();
        let (session, in_session) = watch::channel(false);
        let followed = follow(folder.path().to_owned(), in_session);
        let until = |there: bool| {
            let file = file.clone();
            async move {
                while file.exists() != there {
                    tokio::task::yield_now().await;
                }
            }
        };
        let look = async {
            // One that an earlier agent has left.
            until(false).await;
            session.send_replace(true);
            until(true).await;
            session.send_replace(false);
            until(false).await;
            drop(session);
        };
        tokio::join!(followed, look);
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_written_is_written_again() {
        let (session, in_session) = watch::channel(true);
        let (tries, mut tried) = tokio::sync::mpsc::channel(2);
        let is_first = Arc::new(AtomicBool::new(true));
        let keep = move |is_there| {
            tries.try_send(is_there).unwrap();
            match is_first.swap(false, Ordering::Relaxed) {
                true => Err(io::Error::other("no space is left")),
                false => Ok(()),
            }
        };
        let look = async {
            assert_eq!(tried.recv().await, Some(true));
            assert_eq!(tried.recv().await, Some(true));
            drop(session);
        };
        tokio::join!(keep_up(in_session, keep), look);
        assert_eq!(tried.recv().await, None, "it was written");
    }
}
