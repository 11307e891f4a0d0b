//! Runners in another container of the agent's pod. That container's init process answers for its
//! processes and files ([`muster_runner::pod`]). The volume with the runs is mounted at the same
//! path in both containers.
//!
//! While the container is down or comes up, nothing is known. A runner in it then counts as living,
//! until the container is there and says otherwise.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use muster_runner::{
    RunnerIdentity, connect,
    place::{Left, Output, Program, Remains, Wanted},
    pod::{self, Question},
};
use muster_runtime::chain::chain;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::{Asked, RunnerHost};

/// The container with the workers.
#[derive(Debug)]
pub(crate) struct PodHost {
    volume: PathBuf,
}

impl PodHost {
    pub(crate) fn new(volume: PathBuf) -> Self {
        Self { volume }
    }

    fn ask<T: DeserializeOwned>(&self, question: &Question) -> Result<T, String> {
        pod::ask(&self.volume, question).map_err(|e| chain(&e))
    }

    /// Asks on a thread for calls that may block.
    fn ask_apart<T: DeserializeOwned + Send + 'static>(
        &self,
        question: Question,
    ) -> Asked<'_, Result<T, String>> {
        let volume = self.volume.clone();
        Box::pin(async move {
            let ask = move || pod::ask(&volume, &question).map_err(|e| chain(&e));
            let answer = tokio::task::spawn_blocking(ask).await;
            answer.unwrap_or_else(|e| Err(e.to_string()))
        })
    }
}

impl RunnerHost for PodHost {
    fn start<'a>(&'a self, dir: &'a Path) -> Asked<'a, Result<(), String>> {
        self.ask_apart(Question::Start { dir: dir.into() })
    }

    fn reach(&self, dir: &Path) -> io::Result<UnixStream> {
        let stream = connect(dir)?;
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream)
    }

    fn lives<'a>(&'a self, dir: &'a Path, runner: Option<&'a RunnerIdentity>) -> Asked<'a, bool> {
        let answer = self.ask_apart(Question::Lives {
            dir: dir.into(),
            runner: runner.cloned(),
        });
        Box::pin(async { answer.await.unwrap_or(true) })
    }

    fn sweep<'a>(&'a self, remains: &'a Remains<'a>) -> Asked<'a, io::Result<Left>> {
        let answer = self.ask_apart(Question::Sweep {
            dir: remains.dir.into(),
            was: remains.was.clone(),
            runner: remains.runner.cloned(),
            with_runner: remains.with_runner,
        });
        Box::pin(async { answer.await.map_err(io::Error::other) })
    }

    fn retire(&self, last_words: String) -> Asked<'_, Result<(), String>> {
        self.ask_apart(Question::End { why: last_words })
    }

    fn memory(&self, dir: &Path) -> Option<u64> {
        self.ask(&Question::Memory { dir: dir.into() })
            .ok()
            .flatten()
    }

    fn find(&self, wanted: &Wanted) -> Result<PathBuf, String> {
        self.ask(&Question::Find {
            wanted: wanted.clone(),
        })
    }

    fn run<'a>(&'a self, program: &'a Program) -> Asked<'a, Result<Output, String>> {
        self.ask_apart(Question::Run {
            program: program.clone(),
        })
    }

    fn modified(&self, files: &[PathBuf]) -> Vec<Option<SystemTime>> {
        let question = Question::Modified {
            files: files.to_vec(),
        };
        self.ask(&question)
            .unwrap_or_else(|_| vec![None; files.len()])
    }

    fn saved(&self, dir: &Path, pattern: &str) -> Option<BTreeMap<PathBuf, u64>> {
        let question = Question::Saved {
            dir: dir.into(),
            pattern: pattern.into(),
        };
        self.ask(&question).ok()
    }
}

#[cfg(test)]
mod tests {
    use muster_core::run::CONTAINER_GOES;
    use muster_runner::pod::{AskError, ENDS};

    #[test]
    fn the_coordinator_knows_by_the_reason_that_a_container_goes() {
        let gone = AskError::Unreached(std::io::ErrorKind::ConnectionRefused.into());
        assert_eq!(CONTAINER_GOES, [ENDS, &gone.to_string()]);
    }
}
