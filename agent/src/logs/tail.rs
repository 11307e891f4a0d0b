//! Searches a log backwards through its parts for its last lines. Pieces of a line count as one
//! line.

use std::io::{self, SeekFrom};

use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
};

use super::file::CHUNK;

/// The position of the tag in a line of the CRI format, after 30 bytes of time and 6 of the
/// stream's name. The tag `P` means that the line does not end here.
const TAG: usize = 38;

pub(super) struct Tail {
    wanted: u64,
    /// How many lines end behind the current place.
    found: u64,
    /// An unfinished line was seen. It counts as a line.
    open: bool,
}

impl Tail {
    pub(super) fn new(wanted: u64) -> Self {
        Self {
            wanted,
            found: 0,
            open: false,
        }
    }

    /// Where in this file the last `wanted` lines begin, if they do.
    pub(super) async fn look(&mut self, file: &mut File) -> io::Result<Option<u64>> {
        let mut end = file.metadata().await?.len();
        if self.wanted == 0 {
            return Ok(Some(end));
        }
        // `behind` starts with the beginning of the line that is being examined, because its tag
        // may lie behind the block.
        let mut behind = Vec::new();
        let mut next = end;
        while end > 0 {
            let start = end.saturating_sub(CHUNK as u64);
            let mut block = vec![0; (end - start) as usize];
            file.seek(SeekFrom::Start(start)).await?;
            file.read_exact(&mut block).await?;
            block.extend_from_slice(&behind);
            let last = (end - start) as usize;
            // Each newline except the file's last one is followed by the beginning of a line.
            for at in (0..last).rev().filter(|at| block[*at] == b'\n') {
                let begins = start + at as u64 + 1;
                if begins < next && self.begins_before(&block[at + 1..]) {
                    return Ok(Some(next));
                }
                next = begins;
            }
            block.truncate(TAG + 1);
            (behind, end) = (block, start);
        }
        Ok((next > 0 && self.begins_before(&behind)).then_some(next))
    }

    /// Takes one more line. True if as many lines as wanted come after it.
    fn begins_before(&mut self, line: &[u8]) -> bool {
        if line.get(TAG) == Some(&b'P') {
            self.open |= self.found == 0;
            return false;
        }
        if self.found + u64::from(self.open) >= self.wanted {
            return true;
        }
        self.found += 1;
        false
    }
}
