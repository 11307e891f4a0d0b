//! What every command gets: the global flags, and the two outputs. Data goes to stdout, everything
//! else to stderr.

use std::{
    cell::{Cell, OnceCell},
    fmt::Display,
    io::{self, IsTerminal, Write},
    path::PathBuf,
    time::Duration,
};

use crate::{
    args::{Format, Globals},
    connect::Client,
    contexts::{self, Contexts, Entry},
    fail::Failure,
    local,
    shown::Shown,
    slurm,
};

pub(crate) struct Context {
    pub(crate) globals: Globals,
    target: OnceCell<Target>,
    /// The last line on the terminal is a live one. The next text replaces it.
    live: Cell<bool>,
}

/// A coordinator, and what this user shows to it.
#[derive(Debug)]
struct Target {
    server: String,
    shown: Option<Shown>,
    namespace: Option<String>,
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
            target: OnceCell::new(),
            live: Cell::new(false),
        }
    }

    /// Writes data. The text brings its own line ends.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        self.print_bytes(text.as_bytes())
    }

    /// The same for what need not be a text.
    pub(crate) fn print_bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.clear_live();
        let mut out = io::stdout().lock();
        out.write_all(bytes)
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

    /// The namespace of a request about one job: `--namespace`, else that of the context.
    pub(crate) fn namespace(&self) -> String {
        self.globals
            .namespace
            .clone()
            // An error here is told when the command connects.
            .or_else(|| {
                self.target()
                    .ok()
                    .and_then(|target| target.namespace.clone())
            })
            .unwrap_or_else(|| muster_core::spec::DEFAULT_NAMESPACE.into())
    }

    /// The coordinator to talk to: that of `--server` or `--context`, else that of the allocation of
    /// Slurm in which the command runs, else that of the current context, else the local cluster if one is up, else the default port.
    fn target(&self) -> Result<&Target, Failure> {
        if let Some(target) = self.target.get() {
            return Ok(target);
        }
        let target = self.find_target()?;
        Ok(self.target.get_or_init(|| target))
    }

    fn find_target(&self) -> Result<Target, Failure> {
        let contexts = Contexts::load()?;
        let of = |entry: &Entry| Target {
            server: entry.server.clone(),
            shown: contexts.shown(entry),
            namespace: entry.namespace.clone(),
        };
        let plain = |server: String| Target {
            server,
            shown: None,
            namespace: None,
        };
        if let Some(server) = &self.globals.server {
            return Ok(contexts
                .of_server(server)
                .map_or_else(|| plain(server.clone()), of));
        }
        let here = slurm::context_here();
        let chosen = self.globals.context.as_deref().or(here.as_deref());
        let chosen = chosen.or(contexts.current());
        if let Some(found) = chosen.and_then(slurm::endpoint_of) {
            let (server, credentials) = found?;
            return Ok(Target {
                shown: Some(Shown::Credentials(credentials)),
                ..plain(server)
            });
        }
        match chosen {
            Some(name) if name != contexts::LOCAL => contexts.get(name).map(of),
            _ => Ok(match local::endpoint_of(&self.local_dir()) {
                None => plain(DEFAULT_SERVER.into()),
                Some((server, credentials)) => Target {
                    shown: credentials.map(Shown::Credentials),
                    ..plain(server)
                },
            }),
        }
    }

    /// Whether the nodes see the files that this command sees: those of `muster local` are this machine,
    /// and an allocation of Slurm shares its users' directories.
    pub(crate) fn is_local(&self) -> bool {
        let named = self.globals.context.as_deref();
        if self.globals.server.is_none()
            && (named.is_some_and(slurm::is_context)
                || named.is_none() && slurm::context_here().is_some())
        {
            return true;
        }
        let local = local::endpoint_of(&self.local_dir());
        let target = self.target().ok();
        local.is_some_and(|(server, _)| target.is_some_and(|target| target.server == server))
    }

    pub(crate) fn local_dir(&self) -> PathBuf {
        self.globals.dir.clone().unwrap_or_else(local::default_dir)
    }

    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        let target = self.target()?;
        Client::connect(
            &target.server,
            target.shown.as_ref(),
            self.request_timeout(),
        )
        .await
    }

    /// `None`: no limit.
    pub(crate) fn request_timeout(&self) -> Option<Duration> {
        (self.globals.request_timeout > Duration::ZERO).then_some(self.globals.request_timeout)
    }
}
