//! Where the runners are. Everything that touches a runner's processes goes through [`RunnerHost`]:
//! starting a runner, finding one that lives, and sweeping up what a killed one left.
//!
//! A run's directory is not part of it: agent and runner share that directory wherever the runner
//! is, and the runner's records in it are the same.

use std::{fmt, io, path::Path, pin::Pin};

use muster_runner::RunnerIdentity;
use tokio::net::UnixStream;

use crate::sweep::{Left, Remains};

mod local;

pub(crate) use local::LocalHost;

/// An answer that may take long.
pub(crate) type Asked<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The place where this node's runners live. [`LocalHost`] is the machine that the agent itself is
/// on.
pub(crate) trait RunnerHost: fmt::Debug + Send + Sync {
    /// Starts a runner for `dir`, which holds its `hold.json`, and returns once it can be reached.
    /// The runner outlives the agent. It is no error if a runner has taken `dir` already: an
    /// earlier agent started it. The error is for the user.
    fn start<'a>(&'a self, dir: &'a Path) -> Asked<'a, Result<(), String>>;

    /// Connects to the control socket of the runner in `dir`. An error does not mean that the
    /// runner is gone.
    fn reach(&self, dir: &Path) -> io::Result<UnixStream>;

    /// Whether the runner of `dir` lives. Without its identity, which may be damaged: whether any
    /// runner lives there. Once the answer was no for an identity, it stays no.
    fn lives(&self, dir: &Path, runner: Option<&RunnerIdentity>) -> bool;

    /// Kills what a runner that is gone has left, and says what that was. The caller asks again
    /// until the answer is [`Left::Nothing`], which is a proof. After an error nothing is known.
    fn sweep<'a>(&'a self, remains: &'a Remains<'a>) -> Asked<'a, io::Result<Left>>;

    /// The memory in bytes that the launcher below the runner in `dir` takes with its copies, as
    /// proportional set size (Pss), because ranks share its pages. None if it is gone.
    fn memory(&self, dir: &Path) -> Option<u64>;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    type Lives = Box<dyn Fn(&Path) -> bool + Send + Sync>;
    type Sweep = Box<dyn Fn() -> io::Result<Left> + Send + Sync>;

    /// A host without any process. It answers as a test says.
    pub(crate) struct Elsewhere {
        pub(crate) lives: Lives,
        pub(crate) sweep: Sweep,
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

        fn lives(&self, dir: &Path, _: Option<&RunnerIdentity>) -> bool {
            (self.lives)(dir)
        }

        fn sweep<'a>(&'a self, _: &'a Remains<'a>) -> Asked<'a, io::Result<Left>> {
            Box::pin(async { (self.sweep)() })
        }

        fn memory(&self, _: &Path) -> Option<u64> {
            None
        }
    }
}
