//! The output of ranks on the standard output of their container, for `kubectl logs`.
//!
//! It never waits: while nobody reads, lines are dropped and counted. The rank's log has them.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// A write of at most this many bytes into a pipe is whole or not at all (PIPE_BUF), so lines of
/// several ranks never mix.
const WHOLE: usize = 4_096;

/// Where one rank's lines go.
pub(crate) struct Mouth {
    out: File,
    prefix: String,
    dropped: u64,
    line: Vec<u8>,
}

impl Mouth {
    /// Opens the file that a container's first process has as its standard output.
    pub(crate) fn open(path: &Path, job: &str, rank: u32) -> io::Result<Self> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC).bits() as i32;
        let out = File::options()
            .append(true)
            .custom_flags(flags)
            .open(path)?;
        Ok(Self {
            out,
            prefix: format!("[{job} rank {rank}] "),
            dropped: 0,
            line: Vec::new(),
        })
    }

    pub(crate) fn say(&mut self, line: &[u8]) {
        if self.dropped > 0 {
            let words = format!("({} lines are only in `muster logs`)", self.dropped);
            if !self.write(words.as_bytes()) {
                self.dropped += 1;
                return;
            }
            self.dropped = 0;
        }
        let room = WHOLE - self.prefix.len().min(WHOLE / 2) - 1;
        let pieces = line.chunks(room).chain(line.is_empty().then_some(line));
        for piece in pieces {
            if !self.write(piece) {
                self.dropped += 1;
                return;
            }
        }
    }

    fn write(&mut self, text: &[u8]) -> bool {
        self.line.clear();
        self.line.extend_from_slice(self.prefix.as_bytes());
        self.line.extend_from_slice(text);
        self.line.push(b'\n');
        self.out
            .write(&self.line)
            .is_ok_and(|n| n == self.line.len())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_reader_that_is_away_costs_lines_and_no_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            &path,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        )
        .unwrap();
        let mut reader = File::options()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(&path)
            .unwrap();
        let mut mouth = Mouth::open(&path, "learn", 3).unwrap();
        mouth.say(b"step 1");
        mouth.say(b"");
        mouth.say(&[b'x'; 5_000]);
        let mut heard = vec![0; 1 << 20];
        let n = reader.read(&mut heard).unwrap();
        let text = String::from_utf8_lossy(&heard[..n]).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["[learn rank 3] step 1", "[learn rank 3] "]);
        assert_eq!(lines.len(), 4, "a long line is cut");
        assert_eq!(text.matches('x').count(), 5_000);
        for _ in 0..2_000 {
            mouth.say(&[b'y'; 1_000]);
        }
        while reader.read(&mut heard).is_ok() {}
        mouth.say(b"step 2");
        let n = reader.read(&mut heard).unwrap();
        let text = String::from_utf8_lossy(&heard[..n]).into_owned();
        assert!(
            text.ends_with("lines are only in `muster logs`)\n[learn rank 3] step 2\n"),
            "{text}"
        );
    }
}
