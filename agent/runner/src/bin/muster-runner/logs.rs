//! One log file of bounded size.
//!
//! A log never waits for its reader and never takes more than twice its cap on disk. A full file is
//! renamed to `NAME.END`, and the previous one is removed. END is the position at which the file
//! ends in the log as a whole. So every byte keeps its position for ever, and a late reader knows
//! how much it has missed.
//!
//! When a write fails (disk full), the log drops whole lines, because the worker must go on. Once
//! it can write again, the log itself says how many bytes are missing.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use muster_runner::{Folder, cri::OURS, record};
use rustix::fs::{AtFlags, Dir};

/// The most bytes of one write. It is below the smallest cap, so that a write always fits a fresh
/// file.
const MAX_WRITE: usize = 64 << 10;
/// Room for the line that says how much is missing, with the text of any system error.
const NOTE: usize = 512;

/// A log file inside a directory that is held open.
pub(crate) struct Log {
    dir: OwnedFd,
    name: String,
    file: File,
    /// Where this file begins in the log as a whole.
    start: u64,
    size: u64,
    cap: u64,
    /// Lines that are not written yet. It is emptied before each turn ends.
    out: Vec<u8>,
    missing: Option<Missing>,
    /// The file ends in the middle of a line that could be neither completed nor removed.
    torn: bool,
}

/// What was dropped since the last successful write.
struct Missing {
    bytes: u64,
    why: io::Error,
}

impl Log {
    pub(crate) fn open(dir: &OwnedFd, name: &str, cap: u64) -> io::Result<Self> {
        let dir = dir.try_clone()?;
        let file = open_append(&dir, name)?;
        let size = file.metadata()?.len();
        let start = last_end(&dir, name)?;
        Ok(Self {
            dir,
            name: name.to_owned(),
            file,
            start,
            size,
            cap,
            out: Vec::new(),
            missing: None,
            torn: false,
        })
    }

    /// Takes one line, in two parts. [`Self::flush`] writes it.
    pub(crate) fn line(&mut self, stamp: &str, stream: &str, tag: &str, text: [&[u8]; 2]) {
        // 43 bytes: the stamp has 30, the stream 6, the tag up to 3, three spaces and a newline.
        if self.out.len() + text[0].len() + text[1].len() + 43 > MAX_WRITE {
            self.flush();
        }
        for part in [
            stamp.as_bytes(),
            b" ",
            stream.as_bytes(),
            b" ",
            tag.as_bytes(),
            b" ",
            text[0],
            text[1],
            b"\n",
        ] {
            self.out.extend_from_slice(part);
        }
    }

    /// Writes the lines taken so far. The runner calls this once per turn.
    pub(crate) fn flush(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let out = std::mem::take(&mut self.out);
        if let Err((dropped, why)) = self.write(&out) {
            match &mut self.missing {
                Some(missing) => missing.bytes += dropped,
                None => {
                    say!(
                        "{} {}: output is dropped: {why}",
                        crate::time::stamp(),
                        self.name
                    );
                    self.missing = Some(Missing {
                        bytes: dropped,
                        why,
                    });
                }
            }
        }
        self.out = out;
        self.out.clear();
    }

    /// Writes all lines, or says how many bytes were dropped, and why.
    fn write(&mut self, lines: &[u8]) -> Result<(), (u64, io::Error)> {
        let all = lines.len() as u64;
        let note = if self.missing.is_some() { NOTE } else { 0 };
        self.rotate_if_full(lines.len() + note)
            .map_err(|e| (all, e))?;
        if let Some(Missing { bytes, why }) = &self.missing {
            // The note gets the stamp of the first line that can be written again.
            let stamp =
                String::from_utf8_lossy(lines.split(|b| *b == b' ').next().unwrap_or_default())
                    .into_owned();
            let torn = if self.torn { "\n" } else { "" };
            let note = format!(
                "{torn}{stamp} stderr {OURS} [muster] {bytes} bytes of this log are missing here: {why}\n"
            );
            self.append(note.as_bytes()).map_err(|(_, e)| (all, e))?;
            (self.missing, self.torn) = (None, false);
        }
        self.append(lines).map_err(|(kept, e)| (all - kept, e))
    }

    /// Appends whole lines. On an error it says how many of their bytes stay in the file.
    fn append(&mut self, lines: &[u8]) -> Result<(), (u64, io::Error)> {
        let mut written = 0;
        let why = loop {
            match self.file.write(&lines[written..]) {
                Ok(n) if n > 0 && written + n == lines.len() => {
                    self.size += lines.len() as u64;
                    return Ok(());
                }
                Ok(0) => break io::Error::from(io::ErrorKind::WriteZero),
                Ok(n) => written += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break e,
            }
        };
        // Keep whole lines, since a reader may have taken them already. It has not taken half a
        // line.
        let mut kept = lines[..written]
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |at| at + 1);
        if kept < written && self.file.set_len(self.size + kept as u64).is_err() {
            (kept, self.torn) = (written, true);
        }
        self.size += kept as u64;
        Err((kept as u64, why))
    }

    fn rotate_if_full(&mut self, more: usize) -> io::Result<()> {
        if self.size + more as u64 <= self.cap {
            return Ok(());
        }
        let end = self.start + self.size;
        match rustix::fs::renameat(
            &self.dir,
            &self.name,
            &self.dir,
            record::rotated_log(&self.name, end),
        ) {
            // An earlier attempt renamed the file and could not open the next one.
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        if self.start > 0 {
            // This comes before the next file is opened, which may need the freed space.
            let _ = rustix::fs::unlinkat(
                &self.dir,
                record::rotated_log(&self.name, self.start),
                AtFlags::empty(),
            );
        }
        self.file = open_append(&self.dir, &self.name)?;
        (self.start, self.size, self.torn) = (end, 0, false);
        Ok(())
    }

    /// Frees the buffer's memory between bursts.
    pub(crate) fn rest(&mut self) {
        self.out = Vec::new();
    }
}

/// Never follows a link in place of a log, nor waits for the reader of a FIFO: a job can put them there.
fn open_append(dir: &OwnedFd, name: &str) -> io::Result<File> {
    Folder::from(dir.try_clone()?).append(name)
}

/// Where the newest rotated file of a log ends; 0 if there is none.
fn last_end(dir: &OwnedFd, name: &str) -> io::Result<u64> {
    let mut last = 0;
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        last = last.max(
            entry
                .file_name()
                .to_str()
                .ok()
                .and_then(|file| record::rotated_end(name, file))
                .unwrap_or(0),
        );
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const CAP: u64 = muster_runner::wire::MIN_LOG_BYTES;

    fn open(dir: &Path) -> Log {
        let fd = OwnedFd::from(File::open(dir).unwrap());
        Log::open(&fd, "rank-0.log", CAP).unwrap()
    }

    /// The log's files, oldest first. Each has the position where it ends (`None` for the newest)
    /// and its text.
    fn files(dir: &Path) -> Vec<(Option<u64>, String)> {
        let names = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        let mut files: Vec<_> = names
            .map(|name| (record::rotated_end("rank-0.log", &name), text(&name)))
            .collect();
        files.sort_by_key(|(end, _)| end.unwrap_or(u64::MAX));
        files
    }

    fn write(log: &mut Log, numbers: std::ops::Range<u32>) {
        for n in numbers {
            log.line("T", "stderr", "F", [b"line ", n.to_string().as_bytes()]);
        }
        log.flush();
    }

    fn numbers(text: &str) -> Vec<u32> {
        text.lines()
            .map(|l| l.rsplit(' ').next().unwrap().parse().unwrap())
            .collect()
    }

    #[test]
    fn a_full_log_is_renamed_to_where_it_ends_and_no_line_is_lost_between_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = open(dir.path());
        let mut written = 0;
        for n in 0..20 {
            write(&mut log, n * 1_000..(n + 1) * 1_000);
            // A runner that begins again in the same directory continues where the last one
            // stopped.
            drop(log);
            log = open(dir.path());
        }
        for n in 0..20_000 {
            written += format!("T stderr F line {n}\n").len() as u64;
        }
        let files = files(dir.path());
        let [(Some(end), older), (None, newer)] = &files[..] else {
            panic!("{} files", files.len())
        };
        assert!(older.len() as u64 <= CAP && newer.len() as u64 <= CAP);
        assert_eq!(end + newer.len() as u64, written, "the log's length");
        let numbers = numbers(&format!("{older}{newer}"));
        assert!(numbers.windows(2).all(|w| w[1] == w[0] + 1), "a gap");
        assert_eq!(numbers.last(), Some(&19_999));
    }

    #[test]
    fn a_rotation_that_got_stuck_half_way_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = open(dir.path());
        write(&mut log, 0..6_000);
        // This is the state after a rename whose next file could not be opened, because no
        // descriptor or no space was left.
        let end = log.start + log.size;
        std::fs::rename(
            dir.path().join("rank-0.log"),
            dir.path().join(record::rotated_log("rank-0.log", end)),
        )
        .unwrap();
        write(&mut log, 6_000..8_000);
        let files = files(dir.path());
        assert_eq!(files.len(), 2);
        assert_eq!(files[0].0, Some(end));
        assert_eq!(numbers(&files[1].1).last(), Some(&7_999));
    }

    #[test]
    fn what_cannot_be_written_is_said_when_it_can_be_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = open(dir.path());
        write(&mut log, 0..2);
        let good = std::mem::replace(
            &mut log.file,
            File::options().append(true).open("/dev/full").unwrap(),
        );
        write(&mut log, 2..4);
        write(&mut log, 4..6);
        log.file = good;
        write(&mut log, 6..8);
        let text = std::fs::read_to_string(dir.path().join("rank-0.log")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["T stderr F line 0", "T stderr F line 1"]);
        assert_eq!(
            lines[2],
            "T stderr F:M [muster] 72 bytes of this log are missing here: No space left on device (os error 28)"
        );
        assert_eq!(lines[3..], ["T stderr F line 6", "T stderr F line 7"]);
    }

    #[test]
    fn a_write_that_breaks_off_leaves_no_line_glued_to_another() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = open(dir.path());
        // A pipe takes a part of a large write and cannot be truncated.
        let (read, pipe) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let good = std::mem::replace(&mut log.file, File::from(pipe));
        let long = vec![b'x'; 60_000];
        for n in 0..3 {
            log.line("T", "stderr", "F", [&long, &[b'0' + n]]);
        }
        log.flush();
        let mut taken = vec![0; 1 << 20];
        let n = rustix::io::read(&read, &mut taken).unwrap();
        assert!(
            log.torn && log.size == n as u64,
            "a part of a line is there"
        );
        std::fs::write(dir.path().join("rank-0.log"), &taken[..n]).unwrap();
        log.file = good;
        write(&mut log, 7..8);
        let text = std::fs::read_to_string(dir.path().join("rank-0.log")).unwrap();
        let last: Vec<&str> = text.lines().rev().take(2).collect();
        assert_eq!(last[0], "T stderr F line 7");
        assert!(
            last[1].starts_with("T stderr F:M [muster] ")
                && last[1].contains(" bytes of this log are missing here: "),
            "{}",
            last[1]
        );
    }

    #[test]
    fn a_link_in_place_of_a_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", dir.path().join("rank-0.log")).unwrap();
        let fd = OwnedFd::from(File::open(dir.path()).unwrap());
        assert_eq!(
            Log::open(&fd, "rank-0.log", 1 << 20).err().unwrap().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
