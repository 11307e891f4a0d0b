//! One rank's log as a stream of whole lines, over its rotation: `rank-0.log.1` is the older half, `rank-0.log` the newer.
//!
//! The runner rotates by renaming; whoever reads keeps the file it has open, reads it to its end and goes on with the new one.

use std::{
    ffi::OsString,
    io::{self, SeekFrom},
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
};

/// Bytes of one chunk: four of the longest lines the runner writes, and small beside a message.
const CHUNK: usize = 64 << 10;

pub(super) struct RankLog {
    path: PathBuf,
    /// Files still to be read, the older one first.
    open: Vec<File>,
    opened: bool,
    /// Read, but not yet a whole line.
    partial: Vec<u8>,
}

impl RankLog {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, open: Vec::new(), opened: false, partial: Vec::new() }
    }

    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether there was a file, be it empty.
    pub(super) fn is_open(&self) -> bool {
        self.opened
    }

    /// Places the reading before the last `tail` lines, or before everything. False: there is no file yet.
    pub(super) async fn seek(&mut self, tail: Option<u32>) -> io::Result<bool> {
        let newer = open(&self.path).await?;
        let older = open(&self.older()).await?;
        self.open = older.into_iter().chain(newer).collect();
        self.opened = !self.open.is_empty();
        if let Some(tail) = tail {
            let mut wanted = u64::from(tail);
            for at in (0..self.open.len()).rev() {
                let (start, found) = start_of_last(&mut self.open[at], wanted).await?;
                self.open[at].seek(SeekFrom::Start(start)).await?;
                if found >= wanted {
                    self.open.drain(..at);
                    break;
                }
                wanted -= found;
            }
        }
        Ok(self.opened)
    }

    fn older(&self) -> PathBuf {
        let mut name = OsString::from(self.path.as_os_str());
        name.push(".1");
        name.into()
    }

    /// The next whole lines; none if nothing more is written yet.
    pub(super) async fn next_lines(&mut self) -> io::Result<Vec<String>> {
        loop {
            if self.open.is_empty() {
                match open(&self.path).await? {
                    Some(file) => self.open.push(file),
                    None => return Ok(Vec::new()),
                }
                self.opened = true;
            }
            let mut chunk = Vec::with_capacity(CHUNK);
            (&mut self.open[0]).take(CHUNK as u64).read_to_end(&mut chunk).await?;
            if !chunk.is_empty() {
                self.partial.append(&mut chunk);
                let lines = self.whole_lines();
                if !lines.is_empty() {
                    return Ok(lines);
                }
                if self.partial.len() >= CHUNK {
                    // No runner has written such a line: the file is damaged. It is shown in pieces, and never held as a whole.
                    let piece = std::mem::take(&mut self.partial);
                    return Ok(vec![String::from_utf8_lossy(&piece).into_owned()]);
                }
                continue;
            }
            if self.open.len() > 1 || self.is_rotated().await? {
                self.open.remove(0);
                continue;
            }
            return Ok(Vec::new());
        }
    }

    /// Whether the file at hand, read to its end, is no longer the one that is written.
    async fn is_rotated(&self) -> io::Result<bool> {
        let here = self.open[0].metadata().await?;
        match tokio::fs::metadata(&self.path).await {
            Ok(there) => Ok((here.dev(), here.ino()) != (there.dev(), there.ino())),
            // Between two names, or purged.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn whole_lines(&mut self) -> Vec<String> {
        let Some(last) = self.partial.iter().rposition(|b| *b == b'\n') else { return Vec::new() };
        let rest = self.partial.split_off(last + 1);
        let lines = std::mem::replace(&mut self.partial, rest);
        lines[..last].split(|b| *b == b'\n').map(|line| String::from_utf8_lossy(line).into_owned()).collect()
    }
}

async fn open(path: &PathBuf) -> io::Result<Option<File>> {
    match File::open(path).await {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Where the last `wanted` lines begin, and how many there are at most.
async fn start_of_last(file: &mut File, wanted: u64) -> io::Result<(u64, u64)> {
    let mut end = file.metadata().await?.len();
    if wanted == 0 {
        return Ok((end, 0));
    }
    let mut found = 0;
    let mut block = Vec::new();
    // The newline that ends the last line begins no other.
    let mut skip_last = true;
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        block.resize((end - start) as usize, 0);
        file.seek(SeekFrom::Start(start)).await?;
        file.read_exact(&mut block).await?;
        for at in (0..block.len()).rev() {
            if block[at] == b'\n' && !std::mem::take(&mut skip_last) {
                found += 1;
                if found == wanted {
                    return Ok((start + at as u64 + 1, found));
                }
            }
            skip_last = false;
        }
        end = start;
    }
    let any = file.metadata().await?.len() > 0;
    Ok((0, found + u64::from(any)))
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, path::Path};

    use super::*;

    fn log() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-0.log");
        (dir, path)
    }

    async fn all(log: &mut RankLog) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let more = log.next_lines().await.unwrap();
            if more.is_empty() {
                return lines;
            }
            lines.extend(more);
        }
    }

    async fn last(path: &Path, tail: u32) -> Vec<String> {
        let mut log = RankLog::new(path.to_owned());
        log.seek(Some(tail)).await.unwrap();
        all(&mut log).await
    }

    #[tokio::test]
    async fn the_last_lines_are_found_over_both_halves() {
        let (_dir, path) = log();
        fs::write(path.with_file_name("rank-0.log.1"), "a\nb\nc\n").unwrap();
        fs::write(&path, "d\ne\n").unwrap();
        for (tail, lines) in [(0, ""), (1, "e"), (2, "de"), (3, "cde"), (5, "abcde"), (99, "abcde")] {
            assert_eq!(last(&path, tail).await.concat(), lines, "tail {tail}");
        }
        let mut whole = RankLog::new(path.clone());
        assert!(whole.seek(None).await.unwrap());
        assert_eq!(all(&mut whole).await.concat(), "abcde");
    }

    #[tokio::test]
    async fn long_files_are_searched_block_by_block() {
        let (_dir, path) = log();
        let lines: Vec<String> = (0..5_000).map(|i| format!("{i} {}", "x".repeat(i % 97))).collect();
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        assert_eq!(last(&path, 4_321).await, lines[5_000 - 4_321..]);
        assert_eq!(last(&path, 5_000).await, lines);
    }

    #[tokio::test]
    async fn follows_over_a_rotation_and_keeps_torn_lines_back() {
        let (_dir, path) = log();
        let mut log = RankLog::new(path.clone());
        assert!(!log.seek(Some(10)).await.unwrap());
        assert_eq!(all(&mut log).await, Vec::<String>::new());
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(all(&mut log).await, ["one"]);
        file.write_all(b"o\nthree\n").unwrap();
        fs::rename(&path, path.with_file_name("rank-0.log.1")).unwrap();
        assert_eq!(all(&mut log).await, ["two", "three"]);
        file.write_all(b"four\n").unwrap();
        fs::write(&path, "five\n").unwrap();
        assert_eq!(all(&mut log).await, ["four", "five"]);
    }

    /// What a rank wrote has no checksum: a damaged log is shown as it is, but never more of it than there is, and a bound at a time.
    #[tokio::test]
    async fn garbage_is_shown_in_pieces_and_a_cut_shows_what_is_left() {
        let (_dir, path) = log();
        fs::write(&path, vec![0xff; 5 * CHUNK + 7]).unwrap();
        let mut log = RankLog::new(path.clone());
        log.seek(None).await.unwrap();
        let pieces = all(&mut log).await;
        assert!(pieces.len() == 5 && pieces.iter().all(|piece| piece.chars().count() == CHUNK), "{} pieces", pieces.len());

        let text: String = (0..50).map(|i| format!("line {i}\n")).collect();
        for cut in 0..text.len() {
            fs::write(&path, &text[..cut]).unwrap();
            let whole = text[..cut].matches('\n').count();
            let mut log = RankLog::new(path.clone());
            log.seek(None).await.unwrap();
            assert_eq!(all(&mut log).await.len(), whole, "cut at {cut}");
            assert!(last(&path, 3).await.len() <= 3, "cut at {cut}");
        }
        for at in 0..text.len() {
            let mut flipped = text.clone().into_bytes();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, &flipped).unwrap();
            let lines = last(&path, 99).await;
            assert!((49..=51).contains(&lines.len()), "byte {at} flipped: {} lines", lines.len());
        }
    }
}
