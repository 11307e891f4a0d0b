//! One log file of bounded size, and what turns bytes of a pipe into its lines.
//!
//! A log never blocks on its reader, never holds more than one piece of a line per stream in memory and never takes
//! more than twice its cap on disk: a full file becomes `NAME.1`, replacing the one before. A write that fails (disk
//! full) drops the text, for the worker must go on.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use muster_runner::cri::MAX_TEXT;
use rustix::fs::{Mode, OFlags};

/// Most bytes of one write: below the smallest cap, so that a write always fits a fresh file.
const MAX_WRITE: usize = 64 << 10;

/// A log file inside a directory that is held open.
pub(crate) struct Log {
    dir: OwnedFd,
    name: String,
    file: File,
    size: u64,
    cap: u64,
    /// Bytes not yet written; emptied before each turn ends.
    out: Vec<u8>,
    /// The first failed write since the last good one, said once in the runner's log.
    failed: bool,
}

impl Log {
    pub(crate) fn open(dir: &OwnedFd, name: &str, cap: u64) -> io::Result<Self> {
        let dir = dir.try_clone()?;
        let file = open_append(&dir, name)?;
        let size = file.metadata()?.len();
        Ok(Self { dir, name: name.to_owned(), file, size, cap, out: Vec::new(), failed: false })
    }

    fn line(&mut self, stamp: &str, stream: &str, tag: &str, text: &[u8]) {
        // Stamp 30, stream 6, tag 1, three spaces and a newline.
        if self.out.len() + text.len() + 41 > MAX_WRITE {
            self.flush();
        }
        for part in [stamp.as_bytes(), b" ", stream.as_bytes(), b" ", tag.as_bytes(), b" ", text, b"\n"] {
            self.out.extend_from_slice(part);
        }
    }

    /// Writes what [`Lines`] has left; called once per turn.
    pub(crate) fn flush(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let written = self.rotate_if_full().and_then(|()| self.file.write_all(&self.out));
        match written {
            Ok(()) => {
                self.size += self.out.len() as u64;
                self.failed = false;
            }
            Err(e) if !self.failed => {
                eprintln!("{} {}: output is dropped: {e}", crate::time::stamp(), self.name);
                self.failed = true;
            }
            Err(_) => {}
        }
        self.out.clear();
    }

    fn rotate_if_full(&mut self) -> io::Result<()> {
        if self.size + self.out.len() as u64 <= self.cap {
            return Ok(());
        }
        rustix::fs::renameat(&self.dir, &self.name, &self.dir, format!("{}.1", self.name))?;
        self.file = open_append(&self.dir, &self.name)?;
        self.size = 0;
        Ok(())
    }

    /// Gives the buffer's memory back between bursts.
    pub(crate) fn rest(&mut self) {
        self.out = Vec::new();
    }
}

/// A job may be able to write into its node's file system, so a link in place of a log is never followed.
fn open_append(dir: &OwnedFd, name: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?))
}

/// Cuts the bytes of one stream into lines, pieces of at most 16 KiB where a line is longer.
pub(crate) struct Lines {
    stream: &'static str,
    held: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(stream: &'static str) -> Self {
        Self { stream, held: Vec::new() }
    }

    /// Writes all whole lines of `bytes` to `log` and shows each, without its newline, to `on_line`.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], stamp: &str, log: &mut Log, mut on_line: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            let room = MAX_TEXT - self.held.len();
            let window = &bytes[..bytes.len().min(room + 1)];
            match window.iter().position(|b| *b == b'\n') {
                Some(end) => {
                    self.emit(&bytes[..end], "F", stamp, log, &mut on_line);
                    bytes = &bytes[end + 1..];
                }
                None if bytes.len() > room => {
                    self.emit(&bytes[..room], "P", stamp, log, &mut on_line);
                    bytes = &bytes[room..];
                }
                None => {
                    self.held.extend_from_slice(bytes);
                    return;
                }
            }
        }
    }

    /// The stream has ended: what is left is a line without a newline.
    pub(crate) fn end(&mut self, stamp: &str, log: &mut Log, mut on_line: impl FnMut(&[u8])) {
        if !self.held.is_empty() {
            self.emit(&[], "F", stamp, log, &mut on_line);
        }
    }

    /// The start of a line that has not ended yet.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.held
    }

    fn emit(&mut self, text: &[u8], tag: &str, stamp: &str, log: &mut Log, on_line: &mut impl FnMut(&[u8])) {
        if self.held.is_empty() {
            log.line(stamp, self.stream, tag, text);
            on_line(text);
            return;
        }
        self.held.extend_from_slice(text);
        log.line(stamp, self.stream, tag, &self.held);
        on_line(&self.held);
        self.held = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn open(dir: &Path, cap: u64) -> Log {
        let fd = OwnedFd::from(File::open(dir).unwrap());
        Log::open(&fd, "rank-0.log", cap).unwrap()
    }

    /// Feeds `text` in pieces of `piece` bytes; returns the log file and the lines shown.
    fn fed(text: &[u8], piece: usize) -> (String, Vec<Vec<u8>>) {
        let dir = tempfile::tempdir().unwrap();
        let mut log = open(dir.path(), 1 << 30);
        let (mut lines, mut shown) = (Lines::new("stdout"), Vec::new());
        for bytes in text.chunks(piece) {
            lines.feed(bytes, "T", &mut log, |l| shown.push(l.to_vec()));
        }
        lines.end("T", &mut log, |l| shown.push(l.to_vec()));
        log.flush();
        (std::fs::read_to_string(dir.path().join("rank-0.log")).unwrap(), shown)
    }

    #[test]
    fn lines_do_not_depend_on_how_the_bytes_arrive() {
        let long = "x".repeat(MAX_TEXT);
        let text = format!("one\n\n{long}\n{long}y\nlast");
        let expected =
            format!("T stdout F one\nT stdout F \nT stdout F {long}\nT stdout P {long}\nT stdout F y\nT stdout F last\n");
        for piece in [1, 2, 7, 4096, MAX_TEXT - 1, MAX_TEXT, MAX_TEXT + 1, 1 << 20] {
            let (log, shown) = fed(text.as_bytes(), piece);
            assert!(log == expected, "pieces of {piece}");
            assert_eq!(shown.len(), 6, "pieces of {piece}");
        }
    }

    #[test]
    fn a_full_log_becomes_dot_one_and_no_line_is_lost_between_them() {
        let dir = tempfile::tempdir().unwrap();
        let cap = muster_runner::wire::MIN_LOG_BYTES;
        let mut log = open(dir.path(), cap);
        let mut lines = Lines::new("stderr");
        for n in 0..20_000 {
            lines.feed(format!("line {n}\n").as_bytes(), "T", &mut log, |_| ());
        }
        log.flush();
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let (older, newer) = (read("rank-0.log.1"), read("rank-0.log"));
        assert!(older.len() as u64 <= cap && newer.len() as u64 <= cap);
        let all = older + &newer;
        let numbers: Vec<u32> = all.lines().map(|l| l.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert!(numbers.windows(2).all(|w| w[1] == w[0] + 1), "a gap");
        assert_eq!(numbers.last(), Some(&19_999));
    }

    #[test]
    fn a_link_in_place_of_a_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", dir.path().join("rank-0.log")).unwrap();
        let fd = OwnedFd::from(File::open(dir.path()).unwrap());
        assert_eq!(Log::open(&fd, "rank-0.log", 1 << 20).err().unwrap().raw_os_error(), Some(libc::ELOOP));
    }
}
