//! What every command gets: the global flags, and the two outputs. Data goes to stdout, everything
//! else to stderr.

use std::{
    cell::Cell,
    fmt::Display,
    io::{self, IsTerminal, Write},
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
    /// The last line on the terminal is a live one. The next text replaces it.
    live: Cell<bool>,
}

/// Moves to the beginning of the line and clears it (ECMA-48: CR, EL).
const CLEAR_LINE: &str = "\r\x1b[K";
/// A text between these two is cut at the width of the terminal instead of going on in the next
/// line (DECAWM).
const CUT: (&str, &str) = ("\x1b[?7l", "\x1b[?7h");

/// The endpoint of a coordinator that was started by hand with its default flags.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7070";

impl Context {
    pub(crate) fn new(globals: Globals) -> Context {
        Context {
            globals,
            live: Cell::new(false),
        }
    }

    /// Writes data. The text brings its own line ends.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        self.clear_live();
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(Failure::output)
    }

    /// Tells something to the person at the terminal, unless they asked for quiet.
    pub(crate) fn say(&self, text: impl Display) {
        if !self.globals.quiet {
            self.warn(text);
        }
    }

    /// Tells something that the person must see also with `--quiet`.
    pub(crate) fn warn(&self, text: impl Display) {
        self.clear_live();
        // If stderr is closed, nobody can be told of the error.
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// Whether to show progress as one line that changes: stderr is a terminal that can do it.
    pub(crate) fn has_live_line(&self) -> bool {
        !self.globals.quiet
            && io::stderr().is_terminal()
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
    }

    /// Shows the text in place of the previous live line.
    pub(crate) fn say_live(&self, text: &str) {
        let _ = write!(io::stderr().lock(), "{CLEAR_LINE}{}{text}{}", CUT.0, CUT.1);
        self.live.set(true);
    }

    fn clear_live(&self) {
        if self.live.take() {
            let _ = write!(io::stderr().lock(), "{CLEAR_LINE}");
        }
    }

    pub(crate) fn format(&self) -> Format {
        self.globals.output.unwrap_or(Format::Table)
    }

    /// The namespace of a request about one job.
    pub(crate) fn namespace(&self) -> String {
        self.globals
            .namespace
            .clone()
            .unwrap_or_else(|| muster_core::spec::DEFAULT_NAMESPACE.into())
    }

    /// `--server`, else the local cluster if one is up, else the default port.
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

    /// `None`: no limit.
    fn request_timeout(&self) -> Option<Duration> {
        (self.globals.request_timeout > Duration::ZERO).then_some(self.globals.request_timeout)
    }
}

/// Microseconds since the Unix epoch.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
