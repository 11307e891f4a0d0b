//! One log of a run as a stream of whole lines, across its rotations. `rank-0.log` is being
//! written. `rank-0.log.N` is an older part of it, which ends at byte N of the log as a whole.
//!
//! The runner rotates by renaming. A reader keeps its file open, reads it to its end and continues
//! with the file that begins there. Every byte keeps its position for ever, so a reader knows how
//! much it has missed, and another reader can continue from the same place.

use std::{
    io::{self, SeekFrom},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use muster_runner::record;
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
};

use super::tail::Tail;

/// Bytes of one chunk: four of the runner's longest lines, and small compared with a message.
pub(super) const CHUNK: usize = 64 << 10;

pub(super) struct RunLog {
    dir: PathBuf,
    name: String,
    /// All bytes before this position are read.
    at: u64,
    open: Option<Part>,
    /// Bytes that are read but not yet a whole line. They begin at `at`.
    partial: Vec<u8>,
    opened: bool,
}

/// One file of a log.
struct Part {
    file: File,
    start: u64,
    /// Nothing more is written to this file.
    full: bool,
}

/// The result of one read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// Byte for byte as the runner wrote them, without their newlines. Empty if nothing more is
    /// written yet.
    pub(super) lines: Vec<Vec<u8>>,
    /// Where the log continues after them.
    pub(super) at: u64,
    /// How many bytes before them were removed before they were read.
    pub(super) lost: u64,
}

impl RunLog {
    pub(super) fn new(path: PathBuf) -> Self {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let dir = path.parent().map(PathBuf::from).unwrap_or_default();
        Self {
            dir,
            name,
            at: 0,
            open: None,
            partial: Vec::new(),
            opened: false,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a file existed, even an empty one.
    pub(super) fn is_open(&self) -> bool {
        self.opened
    }

    /// Where the next line begins.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Moves the reader to a position that an earlier read gave.
    pub(super) fn seek(&mut self, at: u64) {
        (self.at, self.open) = (at, None);
        self.partial.clear();
    }

    /// Moves the reader before the last `tail` lines.
    pub(super) async fn seek_tail(&mut self, tail: u32) -> io::Result<()> {
        let mut parts = self.parts().await?;
        self.opened = !parts.is_empty();
        self.seek(parts.first().map_or(0, |part| part.start));
        let mut search = Tail::new(u64::from(tail));
        for part in parts.iter_mut().rev() {
            if let Some(start) = search.look(&mut part.file).await? {
                self.seek(part.start + start);
                break;
            }
        }
        Ok(())
    }

    /// The next whole lines.
    pub(super) async fn next_lines(&mut self) -> io::Result<Lines> {
        let mut lost = 0;
        loop {
            if self.open.is_none() {
                let Some(missed) = self.open_next().await? else {
                    return Ok(Lines {
                        lines: Vec::new(),
                        at: self.at,
                        lost,
                    });
                };
                lost += missed;
            }
            let Some(part) = &mut self.open else { continue };
            let mut chunk = Vec::with_capacity(CHUNK);
            (&mut part.file)
                .take(CHUNK as u64)
                .read_to_end(&mut chunk)
                .await?;
            if !chunk.is_empty() {
                self.partial.append(&mut chunk);
                let lines = match self.whole_lines() {
                    // No runner writes such a line, so the file is damaged. It is shown in pieces
                    // and never held as a whole.
                    lines if lines.is_empty() && self.partial.len() >= CHUNK => {
                        vec![self.take(self.partial.len())]
                    }
                    lines => lines,
                };
                if !lines.is_empty() {
                    return Ok(Lines {
                        lines,
                        at: self.at,
                        lost,
                    });
                }
                continue;
            }
            if part.full {
                self.open = None;
                if !self.partial.is_empty() {
                    // The runner never splits a line over two files, so this file is damaged.
                    let lines = vec![self.take(self.partial.len())];
                    return Ok(Lines {
                        lines,
                        at: self.at,
                        lost,
                    });
                }
            } else if is_replaced(&part.file, &self.dir, &self.name, self.at).await? {
                // The file is read once more: its last lines may have been written after the read
                // that reached its end.
                part.full = true;
            } else {
                return Ok(Lines {
                    lines: Vec::new(),
                    at: self.at,
                    lost,
                });
            }
        }
    }

    /// Opens the part that contains `at`, or the first part after it. Returns how many bytes no
    /// longer exist. `None`: there is no such part yet.
    async fn open_next(&mut self) -> io::Result<Option<u64>> {
        let mut missed = 0;
        for mut part in self.parts().await? {
            let end = part.start + part.file.metadata().await?.len();
            if part.full && end <= self.at {
                continue;
            }
            if part.start > self.at {
                missed = part.start - self.at;
                self.at = part.start;
            }
            part.file
                .seek(SeekFrom::Start(self.at - part.start))
                .await?;
            (self.open, self.opened) = (Some(part), true);
            return Ok(Some(missed));
        }
        Ok(None)
    }

    /// All existing parts, the oldest first.
    async fn parts(&self) -> io::Result<Vec<Part>> {
        let mut ends = full_ends(&self.dir, &self.name).await?;
        loop {
            let newest = open(&self.dir.join(&self.name)).await?;
            let now = full_ends(&self.dir, &self.name).await?;
            if now != ends {
                // A rename came between the two looks, so it is unclear which part the open file
                // is.
                ends = now;
                continue;
            }
            let (mut parts, mut start) = (Vec::new(), 0);
            for &end in &ends {
                // The part may have been removed since the look. The next part still begins where
                // this one ended.
                start = end;
                if let Some(file) =
                    open(&self.dir.join(record::rotated_log(&self.name, end))).await?
                {
                    let len = file.metadata().await?.len();
                    parts.push(Part {
                        file,
                        start: end.saturating_sub(len),
                        full: true,
                    });
                    // Older runners did not know where a part ends, and named it 1.
                    start = end.max(len);
                }
            }
            parts.extend(newest.map(|file| Part {
                file,
                start,
                full: false,
            }));
            return Ok(parts);
        }
    }

    fn whole_lines(&mut self) -> Vec<Vec<u8>> {
        let Some(last) = self.partial.iter().rposition(|b| *b == b'\n') else {
            return Vec::new();
        };
        let rest = self.partial.split_off(last + 1);
        let lines = std::mem::replace(&mut self.partial, rest);
        self.at += lines.len() as u64;
        lines[..last]
            .split(|b| *b == b'\n')
            .map(<[u8]>::to_vec)
            .collect()
    }

    fn take(&mut self, bytes: usize) -> Vec<u8> {
        self.at += bytes as u64;
        self.partial.drain(..bytes).collect()
    }
}

/// The positions at which the full parts end, in ascending order.
async fn full_ends(dir: &Path, name: &str) -> io::Result<Vec<u64>> {
    let mut files = match tokio::fs::read_dir(dir).await {
        Ok(files) => files,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut ends = Vec::new();
    while let Some(file) = files.next_entry().await? {
        ends.extend(record::rotated_end(
            name,
            &file.file_name().to_string_lossy(),
        ));
    }
    ends.sort_unstable();
    Ok(ends)
}

/// Whether the runner no longer writes to this file. Everything before `at` has been read from it.
async fn is_replaced(file: &File, dir: &Path, name: &str, at: u64) -> io::Result<bool> {
    let here = file.metadata().await?;
    match tokio::fs::metadata(dir.join(name)).await {
        Ok(there) => Ok((here.dev(), here.ino()) != (there.dev(), there.ino())),
        // The log was purged, or is between two names. The next part may never come, for want of
        // room.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(full_ends(dir, name)
            .await?
            .last()
            .is_some_and(|end| *end > at)),
        Err(e) => Err(e),
    }
}

async fn open(path: &PathBuf) -> io::Result<Option<File>> {
    match File::open(path).await {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    fn log() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-0.log");
        (dir, path)
    }

    async fn all(log: &mut RunLog) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let more = log.next_lines().await.unwrap();
            if more.lines.is_empty() {
                return lines;
            }
            lines.extend(more.lines.into_iter().map(text));
        }
    }

    fn text(line: Vec<u8>) -> String {
        String::from_utf8_lossy(&line).into_owned()
    }

    /// Rotates the log as the runner does.
    fn rotate(path: &Path, start: &mut u64) {
        let end = *start + fs::metadata(path).unwrap().len();
        fs::rename(
            path,
            path.with_file_name(record::rotated_log("rank-0.log", end)),
        )
        .unwrap();
        let _ = fs::remove_file(path.with_file_name(record::rotated_log("rank-0.log", *start)));
        *start = end;
    }

    fn append(path: &Path, text: &str) {
        fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }

    async fn last(path: &Path, tail: u32) -> Vec<String> {
        let mut log = RunLog::new(path.to_owned());
        log.seek_tail(tail).await.unwrap();
        all(&mut log).await
    }

    #[tokio::test]
    async fn the_last_lines_are_found_over_both_halves() {
        let (_dir, path) = log();
        fs::write(path.with_file_name("rank-0.log.6"), "a\nb\nc\n").unwrap();
        fs::write(&path, "d\ne\n").unwrap();
        for (tail, lines) in [
            (0, ""),
            (1, "e"),
            (2, "de"),
            (3, "cde"),
            (5, "abcde"),
            (99, "abcde"),
        ] {
            assert_eq!(last(&path, tail).await.concat(), lines, "tail {tail}");
        }
        assert_eq!(all(&mut RunLog::new(path.clone())).await.concat(), "abcde");
        // Rename it as older runners did, which did not know where a part ends.
        fs::rename(
            path.with_file_name("rank-0.log.6"),
            path.with_file_name("rank-0.log.1"),
        )
        .unwrap();
        assert_eq!(all(&mut RunLog::new(path.clone())).await.concat(), "abcde");
    }

    #[tokio::test]
    async fn long_files_are_searched_block_by_block() {
        let (_dir, path) = log();
        let lines: Vec<String> = (0..5_000)
            .map(|i| format!("{i} {}", "x".repeat(i % 97)))
            .collect();
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        assert_eq!(last(&path, 4_321).await, lines[5_000 - 4_321..]);
        assert_eq!(last(&path, 5_000).await, lines);
    }

    /// A progress bar is a line with many pieces.
    #[tokio::test]
    async fn the_last_lines_are_whole_ones() {
        let (_dir, path) = log();
        let cri = |tag: &str, text: &str| format!("{:030} stdout {tag} {text}\n", 1);
        let parts = [
            cri("F", "a"),
            cri("P", "b"),
            cri("P", "b"),
            cri("F", "b"),
            cri("F", "c"),
            cri("P", "d"),
            cri("P", "d"),
        ];
        let split = parts[..3].concat();
        fs::write(
            path.with_file_name(record::rotated_log("rank-0.log", split.len() as u64)),
            &split,
        )
        .unwrap();
        fs::write(&path, parts[3..].concat()).unwrap();
        for (tail, pieces) in [(0, 0), (1, 2), (2, 3), (3, 6), (4, 7), (9, 7)] {
            let parts: Vec<&str> = parts[7 - pieces..]
                .iter()
                .map(|line| line.trim_end())
                .collect();
            assert_eq!(last(&path, tail).await, parts, "tail {tail}");
        }
    }

    #[tokio::test]
    async fn follows_over_a_rotation_and_keeps_torn_lines_back() {
        let (_dir, path) = log();
        let mut log = RunLog::new(path.clone());
        log.seek_tail(10).await.unwrap();
        assert_eq!(all(&mut log).await, Vec::<String>::new());
        let (mut start, mut file) = (0, fs::File::create(&path).unwrap());
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(all(&mut log).await, ["one"]);
        file.write_all(b"o\nthree\n").unwrap();
        rotate(&path, &mut start);
        assert_eq!(all(&mut log).await, ["two", "three"]);
        fs::write(&path, "four\n").unwrap();
        assert_eq!(all(&mut log).await, ["four"]);
        assert_eq!(log.at(), 19);
    }

    /// A part may be removed after its name was read. The next part then begins where it ended, and
    /// its bytes are lost.
    #[tokio::test]
    async fn a_part_that_is_removed_while_it_is_looked_for_is_told_as_lost() {
        let (dir, path) = log();
        std::os::unix::fs::symlink(
            dir.path().join("nowhere"),
            path.with_file_name("rank-0.log.8"),
        )
        .unwrap();
        fs::write(&path, "0000001\n").unwrap();
        let lines = RunLog::new(path).next_lines().await.unwrap();
        assert_eq!(
            lines,
            Lines {
                lines: vec![b"0000001".to_vec()],
                at: 16,
                lost: 8
            }
        );
    }

    /// A rotation may come between any two looks of a reader. The reader then gets everything, or
    /// is told the exact number of lost bytes.
    #[tokio::test]
    async fn a_reader_beside_a_writer_that_rotates_all_the_time_misses_nothing_unsaid() {
        let (_dir, path) = log();
        let writer = std::thread::spawn({
            let path = path.clone();
            move || {
                let mut start = 0;
                for number in 0..40_000 {
                    append(&path, &format!("{number:07}\n"));
                    if number % 40 == 39 {
                        rotate(&path, &mut start);
                    }
                }
            }
        });
        let mut log = RunLog::new(path.clone());
        let (mut next, mut at) = (0, 0);
        loop {
            let over = writer.is_finished();
            let lines = log.next_lines().await.unwrap();
            next += lines.lost / 8;
            for line in &lines.lines {
                assert_eq!(text(line.clone()).parse::<u64>().unwrap(), next);
                next += 1;
            }
            at += lines.lost + 8 * lines.lines.len() as u64;
            assert_eq!(lines.at, at);
            if over && lines.lines.is_empty() && lines.lost == 0 {
                break;
            }
        }
        assert_eq!(next, 40_000);
        writer.join().unwrap();
    }

    #[tokio::test]
    async fn who_falls_behind_skips_no_more_than_was_overwritten_and_is_told_how_much() {
        let (_dir, path) = log();
        let mut start = 0;
        let mut slow = RunLog::new(path.clone());
        for n in 0..5 {
            append(&path, &format!("{n}a\n{n}b\n"));
            if n == 0 {
                assert_eq!(slow.next_lines().await.unwrap().lines, [b"0a", b"0b"]);
            }
            if n < 4 {
                rotate(&path, &mut start);
            }
        }
        // The runner keeps bytes 18 to 30 of 0 to 30.
        let late = Lines {
            lines: vec![b"3a".to_vec(), b"3b".to_vec()],
            at: 24,
            lost: 12,
        };
        assert_eq!(slow.next_lines().await.unwrap(), late);
        assert_eq!(
            slow.next_lines().await.unwrap(),
            Lines {
                lines: vec![b"4a".to_vec(), b"4b".to_vec()],
                at: 30,
                lost: 0
            }
        );

        for (from, lost, text) in [
            (0, 18, "3a"),
            (6, 12, "3a"),
            (18, 0, "3a"),
            (21, 0, "3b"),
            (24, 0, "4a"),
            (27, 0, "4b"),
        ] {
            let mut again = RunLog::new(path.clone());
            again.seek(from);
            let lines = again.next_lines().await.unwrap();
            assert_eq!(
                (lines.lost, &lines.lines[0][..]),
                (lost, text.as_bytes()),
                "from {from}"
            );
        }
        let mut end = RunLog::new(path.clone());
        end.seek(30);
        assert_eq!(
            end.next_lines().await.unwrap(),
            Lines {
                lines: Vec::new(),
                at: 30,
                lost: 0
            }
        );
        append(&path, "5a\n");
        assert_eq!(all(&mut end).await, ["5a"]);
    }

    /// A rank's output has no checksum. A damaged log is shown as it is, without invented bytes and
    /// at most one chunk at a time.
    #[tokio::test]
    async fn garbage_is_shown_in_pieces_and_a_cut_shows_what_is_left() {
        let (_dir, path) = log();
        fs::write(&path, vec![0xff; 5 * CHUNK + 7]).unwrap();
        let mut log = RunLog::new(path.clone());
        let pieces = all(&mut log).await;
        assert!(
            pieces.len() == 5 && pieces.iter().all(|piece| piece.chars().count() == CHUNK),
            "{} pieces",
            pieces.len()
        );

        let text: String = (0..50).map(|i| format!("line {i}\n")).collect();
        for cut in 0..text.len() {
            fs::write(&path, &text[..cut]).unwrap();
            let whole = text[..cut].matches('\n').count();
            let mut log = RunLog::new(path.clone());
            assert_eq!(all(&mut log).await.len(), whole, "cut at {cut}");
            assert!(last(&path, 3).await.len() <= 3, "cut at {cut}");
        }
        for at in 0..text.len() {
            let mut flipped = text.clone().into_bytes();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, &flipped).unwrap();
            let lines = last(&path, 99).await;
            assert!(
                (49..=51).contains(&lines.len()),
                "byte {at} flipped: {} lines",
                lines.len()
            );
        }
    }
}
