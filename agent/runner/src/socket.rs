//! Connects to a runner's sockets through a directory path of any length.
//!
//! A socket address holds 108 bytes of path. A path through `/proc/self/fd/` is always short enough.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::fs::Mode;

use crate::folder::Folder;

/// How long a runner may take to make room for a connection. It takes each at once, and whoever asks it
/// must not wait for what only looks like one.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// The same for ranks, of which all of a node come at the same moment.
const RANKS_PATIENCE: Duration = Duration::from_secs(60);

pub const CONTROL: &str = "control.sock";
pub const RANKS: &str = "ranks.sock";

/// Connects to the control socket of the runner in `dir`.
pub fn connect(dir: &Path) -> io::Result<UnixStream> {
    Folder::of_run(dir)?.connect(CONTROL, PATIENCE)
}

/// Connects a rank to the runner in `dir`.
pub fn connect_rank(dir: &Path) -> io::Result<UnixStream> {
    Folder::of_run(dir)?.connect(RANKS, RANKS_PATIENCE)
}

/// Binds `name` in the current directory, for this user alone. A relative name is always short
/// enough. It replaces a socket that an earlier process left, so the caller must hold the
/// directory's lock.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    match std::fs::remove_file(name) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(name);
    rustix::process::umask(before);
    listener
}
