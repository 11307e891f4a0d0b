//! Where the runners are. Everything that touches their processes, or the files that workers use,
//! goes through [`RunnerHost`]: starting a runner, finding one that lives, sweeping up what a
//! killed one left, and looking for a job's interpreter and script.
//!
//! A run's directory is not part of it: agent and runner share that directory wherever the runner
//! is, and the runner's records in it are the same.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    pin::Pin,
    time::SystemTime,
};

use muster_core::node::account::Account;
use muster_runner::{
    RunnerIdentity,
    place::{Left, Output, Program, Remains, Wanted},
};
use tokio::net::UnixStream;

mod image;
mod local;
mod none;
mod owned;
mod pod;

pub(crate) use image::ImageHost;
pub(crate) use local::LocalHost;
pub(crate) use none::NoHost;
pub(crate) use owned::OwnedHost;
pub(crate) use pod::PodHost;

/// An answer that may take long.
pub(crate) type Asked<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The place where this node's runners live. [`LocalHost`] is the machine that the agent itself is
/// on, [`OwnedHost`] the same for jobs that run as their owners, [`ImageHost`] for a job in an image, [`PodHost`] another
/// container of its pod.
/// With [`NoHost`] there are none. Methods that return no future may block on a disk.
/// Call them on a separate thread.
pub(crate) trait RunnerHost: fmt::Debug + Send + Sync {
    /// Starts a runner for `dir`, which holds its `hold.json`, and returns once it can be reached.
    /// The runner outlives the agent. It is no error if a runner has taken `dir` already: an
    /// earlier agent started it. The error is for the user.
    fn start<'a>(&'a self, dir: &'a Path) -> Asked<'a, Result<(), String>>;

    /// Connects to the control socket of the runner in `dir`. An error does not mean that the
    /// runner is gone.
    fn reach(&self, dir: &Path) -> io::Result<UnixStream>;

    /// Whether the runner of `dir` lives, or may live. If `runner` is None, because its record may be
    /// damaged, this asks whether any runner lives in `dir`. For a known runner a no is final.
    fn lives<'a>(&'a self, dir: &'a Path, runner: Option<&'a RunnerIdentity>) -> Asked<'a, bool>;

    /// Kills what a runner that is gone has left, and says what that was. The caller asks again
    /// until the answer is [`Left::Nothing`], which is a proof. After an error nothing is known.
    fn sweep<'a>(&'a self, remains: &'a Remains<'a>) -> Asked<'a, io::Result<Left>>;

    /// Lets the container of the workers end with these last words, with nothing in it any more. Only a
    /// pod has one.
    fn retire(&self, last_words: String) -> Asked<'_, Result<(), String>>;

    /// The memory in bytes that the launcher of `dir` takes with all its copies, as proportional set
    /// size (Pss), because ranks share its pages. None if it is gone.
    fn memory(&self, dir: &Path) -> Option<u64>;

    /// The path of the program that starts the ranks, or what is missing, for the user.
    fn find(&self, wanted: &Wanted) -> Result<PathBuf, String>;

    /// Runs a short program of a user, and ends everything that it has started before it answers. The
    /// error is for the user.
    fn run<'a>(&'a self, program: &'a Program) -> Asked<'a, Result<Output, String>>;

    /// When each of these files was written. None: it cannot be read, or is not known.
    fn modified(&self, files: &[PathBuf]) -> Vec<Option<SystemTime>>;

    /// The files of a pattern, each with a number that changes when it is written. None: nothing is
    /// known.
    fn saved(&self, dir: &Path, pattern: &str) -> Option<BTreeMap<PathBuf, u64>>;

    /// Makes a directory that the agent has just made, and the files in it, those of whom runners here run
    /// as. Where that is the agent's user, nothing is to be done.
    fn give(&self, dir: &Path) -> io::Result<()> {
        let _ = dir;
        Ok(())
    }

    /// As whom runners here run. None: as the agent's user, or as that of the workers' container.
    fn account(&self) -> Option<&Account> {
        None
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::OnceLock;

    use super::*;

    /// This machine, with a runner that is built if needed: for a test, cargo builds only the
    /// libraries of other packages.
    pub(crate) fn here() -> LocalHost {
        LocalHost::new(runner().to_owned())
    }

    pub(crate) fn runner() -> &'static Path {
        static RUNNER: OnceLock<PathBuf> = OnceLock::new();
        RUNNER.get_or_init(|| {
            let package = [
                "build",
                "--quiet",
                "--package",
                "muster-runner",
                "--bin",
                "muster-runner",
            ];
            let built = std::process::Command::new(env!("CARGO"))
                .args(package)
                .status();
            assert!(built.unwrap().success(), "cargo build of the runner");
            // This test is in the folder `deps` below that of the programs.
            let own = std::env::current_exe().unwrap();
            own.parent().unwrap().with_file_name("muster-runner")
        })
    }

    type Lives = Box<dyn Fn(&Path) -> bool + Send + Sync>;
    type Sweep = Box<dyn Fn() -> io::Result<Left> + Send + Sync>;

    /// A host without any process. It answers as a test says.
    pub(crate) struct Elsewhere {
        pub(crate) lives: Lives,
        pub(crate) sweep: Sweep,
    }

    #[test]
    fn processes_are_looked_for_by_the_mark_that_they_are_given() {
        let given = muster_core::node::torchrun::RUN_DIR;
        assert_eq!(muster_runner::place::RUN_DIR, given);
    }

    impl Default for Elsewhere {
        fn default() -> Self {
            Self {
                lives: Box::new(|_| false),
                sweep: Box::new(|| Ok(Left::Nothing)),
            }
        }
    }

    impl fmt::Debug for Elsewhere {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Elsewhere")
        }
    }

    impl RunnerHost for Elsewhere {
        fn start<'a>(&'a self, _: &'a Path) -> Asked<'a, Result<(), String>> {
            Box::pin(async { Err("nothing is started here".into()) })
        }

        fn reach(&self, _: &Path) -> io::Result<UnixStream> {
            Err(io::ErrorKind::NotConnected.into())
        }

        fn lives<'a>(&'a self, dir: &'a Path, _: Option<&'a RunnerIdentity>) -> Asked<'a, bool> {
            Box::pin(async { (self.lives)(dir) })
        }

        fn sweep<'a>(&'a self, _: &'a Remains<'a>) -> Asked<'a, io::Result<Left>> {
            Box::pin(async { (self.sweep)() })
        }

        fn retire(&self, _: String) -> Asked<'_, Result<(), String>> {
            Box::pin(async { Ok(()) })
        }

        fn memory(&self, _: &Path) -> Option<u64> {
            None
        }

        fn find(&self, _: &Wanted) -> Result<PathBuf, String> {
            Err("nothing is found here".into())
        }

        fn run<'a>(&'a self, _: &'a Program) -> Asked<'a, Result<Output, String>> {
            Box::pin(async { Err("nothing is started here".into()) })
        }

        fn modified(&self, files: &[PathBuf]) -> Vec<Option<SystemTime>> {
            vec![None; files.len()]
        }

        fn saved(&self, _: &Path, _: &str) -> Option<BTreeMap<PathBuf, u64>> {
            None
        }
    }
}
