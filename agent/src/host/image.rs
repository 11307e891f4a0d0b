//! Runners in the container of a job that runs in an image. Its first process starts them and answers for the files
//! that they see. It shares the PID namespace with the agent, so all else is as for any runner of this machine:
//! whether it lives, what a killed one has left, and the proof that nothing of it lives.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use muster_runner::{
    RunnerIdentity,
    place::{Left, Output, Program, Remains, Wanted},
};
use tokio::net::UnixStream;

use super::{Asked, LocalHost, PodHost, RunnerHost};

#[derive(Debug)]
pub(crate) struct ImageHost {
    machine: LocalHost,
    inside: PodHost,
}

impl ImageHost {
    /// The container whose first process serves this directory.
    pub(crate) fn new(runner: PathBuf, volume: PathBuf) -> Self {
        Self {
            machine: LocalHost::new(runner),
            inside: PodHost::new(volume),
        }
    }
}

impl RunnerHost for ImageHost {
    fn start<'a>(&'a self, dir: &'a Path) -> Asked<'a, Result<(), String>> {
        self.inside.start(dir)
    }

    fn reach(&self, dir: &Path) -> io::Result<UnixStream> {
        self.machine.reach(dir)
    }

    fn lives<'a>(&'a self, dir: &'a Path, runner: Option<&'a RunnerIdentity>) -> Asked<'a, bool> {
        self.machine.lives(dir, runner)
    }

    fn sweep<'a>(&'a self, remains: &'a Remains<'a>) -> Asked<'a, io::Result<Left>> {
        self.machine.sweep(remains)
    }

    fn retire(&self, last_words: String) -> Asked<'_, Result<(), String>> {
        self.machine.retire(last_words)
    }

    fn memory(&self, dir: &Path) -> Option<u64> {
        self.machine.memory(dir)
    }

    fn find(&self, wanted: &Wanted) -> Result<PathBuf, String> {
        self.inside.find(wanted)
    }

    fn run<'a>(&'a self, program: &'a Program) -> Asked<'a, Result<Output, String>> {
        self.inside.run(program)
    }

    fn modified(&self, files: &[PathBuf]) -> Vec<Option<SystemTime>> {
        self.inside.modified(files)
    }

    fn saved(&self, dir: &Path, pattern: &str) -> Option<BTreeMap<PathBuf, u64>> {
        self.inside.saved(dir, pattern)
    }
}
