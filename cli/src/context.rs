//! What every command is given: the global flags, and the two ways to talk. Data goes to stdout, everything else to stderr.

use std::{
    fmt::Display,
    io::{self, Write},
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    args::{Format, Globals},
    connect::Client,
    fail::Failure,
    local,
};

pub(crate) struct Context {
    pub(crate) globals: Globals,
}

/// The endpoint of a coordinator started by hand with its default flags.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7070";

impl Context {
    /// Writes data. The text brings its own line ends.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
    }

    /// Says something to the person at the terminal, unless they asked for quiet.
    pub(crate) fn say(&self, text: impl Display) {
        if !self.globals.quiet {
            self.warn(text);
        }
    }

    /// Says something that must be seen also with `--quiet`.
    pub(crate) fn warn(&self, text: impl Display) {
        // A closed stderr leaves nobody to complain to.
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    pub(crate) fn format(&self) -> Format {
        self.globals.output.unwrap_or(Format::Table)
    }

    /// The namespace that requests about one job mean.
    pub(crate) fn namespace(&self) -> String {
        self.globals.namespace.clone().unwrap_or_else(|| muster_core::spec::DEFAULT_NAMESPACE.into())
    }

    /// `--server`, else the local cluster that is up, else the default port.
    pub(crate) fn server(&self) -> String {
        match &self.globals.server {
            Some(server) => server.clone(),
            None => local::endpoint_of(&self.local_dir()).unwrap_or_else(|| DEFAULT_SERVER.into()),
        }
    }

    pub(crate) fn local_dir(&self) -> PathBuf {
        self.globals.dir.clone().unwrap_or_else(local::default_dir)
    }

    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        Client::connect(&self.server(), self.request_timeout()).await
    }

    /// `None`: wait for ever.
    fn request_timeout(&self) -> Option<Duration> {
        (self.globals.request_timeout > Duration::ZERO).then_some(self.globals.request_timeout)
    }
}

/// Microseconds since the Unix epoch.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
