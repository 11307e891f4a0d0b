//! The search for the last lines of a log, backwards through its parts. Pieces of a line count as
//! the line that they belong to.

use std::io::{self, SeekFrom};

use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
};

use super::file::CHUNK;

/// Where in a line of the CRI format its tag stands, after 30 bytes of time and 6 of the stream's
/// name: `P` is not the end of a line.
const TAG: usize = 38;

pub(super) struct Tail {
    wanted: u64,
    /// Lines that end behind the place looked at.
    found: u64,
    /// Something was seen that ends no line: a line that has not ended counts as one.
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
        // Of the line that is looked at, its beginning is at the front of `behind`: its tag may lie
        // behind the block.
        let mut behind = Vec::new();
        let mut next = end;
        while end > 0 {
            let start = end.saturating_sub(CHUNK as u64);
            let mut block = vec![0; (end - start) as usize];
            file.seek(SeekFrom::Start(start)).await?;
            file.read_exact(&mut block).await?;
            block.extend_from_slice(&behind);
            let last = (end - start) as usize;
            // Each newline but the file's last one has the beginning of a line behind it.
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

    /// Takes one more line. True if those behind it are as many as wanted.
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
