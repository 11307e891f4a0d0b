//! Connects to a runner's sockets through a directory path of any length.
//!
//! A socket address holds 108 bytes of path. A path through `/proc/self/fd/N/` is always short
//! enough.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

pub const CONTROL: &str = "control.sock";
pub const RANKS: &str = "ranks.sock";

/// Connects to the control socket of the runner in `dir`.
pub fn connect(dir: &Path) -> io::Result<UnixStream> {
    connect_to(dir, CONTROL)
}

/// Connects to the socket `name` in `dir`.
pub fn connect_to(dir: &Path, name: &str) -> io::Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = File::options()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(dir)?;
    UnixStream::connect(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
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
