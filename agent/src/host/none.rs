//! No place for runners: the agent only looks at its node. Nothing is ever started, whatever a coordinator
//! asks. So such an agent may run as root. It begins without any run, so nothing is left to sweep up.

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

use super::{Asked, RunnerHost};

#[derive(Debug)]
pub(crate) struct NoHost;

fn refusal<T>() -> Result<T, String> {
    Err("this agent only looks at its node, and starts nothing (--senses-only)".to_owned())
}

impl RunnerHost for NoHost {
    fn start<'a>(&'a self, _: &'a Path) -> Asked<'a, Result<(), String>> {
        Box::pin(async { refusal() })
    }

    fn reach(&self, _: &Path) -> io::Result<UnixStream> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn lives<'a>(&'a self, _: &'a Path, _: Option<&'a RunnerIdentity>) -> Asked<'a, bool> {
        Box::pin(async { false })
    }

    fn sweep<'a>(&'a self, _: &'a Remains<'a>) -> Asked<'a, io::Result<Left>> {
        Box::pin(async { Ok(Left::Nothing) })
    }

    fn retire(&self, _: String) -> Asked<'_, Result<(), String>> {
        Box::pin(async { refusal() })
    }

    fn memory(&self, _: &Path) -> Option<u64> {
        None
    }

    fn find(&self, _: &Wanted) -> Result<PathBuf, String> {
        refusal()
    }

    fn run<'a>(&'a self, _: &'a Program) -> Asked<'a, Result<Output, String>> {
        Box::pin(async { refusal() })
    }

    fn modified(&self, files: &[PathBuf]) -> Vec<Option<SystemTime>> {
        vec![None; files.len()]
    }

    fn saved(&self, _: &Path, _: &str) -> Option<BTreeMap<PathBuf, u64>> {
        None
    }
}
