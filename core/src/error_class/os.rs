//! What the kernel says of files and addresses: errors with a number (`errno(3)`), as Python prints them:
//! `OSError: [Errno 28] No space left on device: '/ckpt/7.pt'`. The same number may be about a file or about a
//! socket; then only the path tells. Nobody here looks at the mount behind a path.

use super::ErrorClass;

/// What an error is about.
#[derive(Clone, Copy)]
enum About {
    /// Only files and file systems have it.
    Files,
    /// Files and sockets have it, or a terminal that is gone. It counts with a path.
    FilesWithPath,
    /// A host or its network.
    Hosts,
}

/// Errors whose words the kernel's `strerror` fixes.
const ERRORS: [(&str, About); 11] = [
    ("No space left on device", About::Files),
    ("Disk quota exceeded", About::Files),
    ("Stale file handle", About::Files),
    ("Read-only file system", About::Files),
    ("Input/output error", About::FilesWithPath),
    ("Remote I/O error", About::FilesWithPath),
    // FUSE, and Lustre after an eviction.
    ("Transport endpoint is not connected", About::FilesWithPath),
    (
        "Cannot send after transport endpoint shutdown",
        About::FilesWithPath,
    ),
    ("Connection timed out", About::FilesWithPath),
    ("No route to host", About::Hosts),
    ("Network is unreachable", About::Hosts),
];

/// Files that are memory.
const SHARED_MEMORY: &str = "/dev/shm";
/// Python's semaphores and shared memory are files in `/dev/shm`, and their errors have no path.
const MULTIPROCESSING: &str = "/multiprocessing/";

/// The class of an error of the kernel in this line. `raised_in`: the innermost frame of its exception.
pub(super) fn of_text(error: &str, raised_in: Option<&str>) -> Option<ErrorClass> {
    let (words, about) = ERRORS.iter().find(|(words, _)| error.contains(words))?;
    let path = path_after(error, words);
    let is_shared_memory = match path {
        Some(path) => path.starts_with(SHARED_MEMORY),
        None => raised_in.is_some_and(|frame| frame.contains(MULTIPROCESSING)),
    };
    match (about, path) {
        (About::Hosts, _) => Some(ErrorClass::Network),
        _ if is_shared_memory => Some(ErrorClass::HostMemory),
        // A device is no file system.
        (_, Some(path)) if path.starts_with("/dev/") => None,
        (About::Files, _) | (About::FilesWithPath, Some(_)) => Some(ErrorClass::Storage),
        (About::FilesWithPath, None) => None,
    }
}

/// The path that follows: `: '/a/b'` in Python, ` [/a/b]` in C++.
fn path_after<'a>(error: &'a str, words: &str) -> Option<&'a str> {
    let (_, rest) = error.split_once(words)?;
    let quoted = |open: &str, close: char| rest.strip_prefix(open)?.split(close).next();
    let path = quoted(": '", '\'').or_else(|| quoted(" [", ']'))?;
    path.contains('/').then_some(path)
}
