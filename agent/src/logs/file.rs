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

use muster_runner::{Folder, record};
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
};

use super::tail::Tail;

/// Bytes of one chunk: four of the runner's longest lines, and small compared with a message.
pub(super) const CHUNK: usize = 64 << 10;
/// The longest file of a log. A runner begins the next one after 64 MiB; a job can put one without end
/// in its place, in which nobody would ever find the last lines.
const PART_MAX: u64 = 1 << 30;
/// How many full parts of a log are looked at, the newest. A runner keeps one, and a second while it
/// rotates; each that is looked at is open.
const PARTS_MAX: usize = 4;
/// How many files the folder of a run's logs may have. 256 ranks with two full parts each have 800.
const FILES_MAX: usize = 10_000;

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
            let newest = open(&self.dir, self.name.clone()).await?;
            let now = full_ends(&self.dir, &self.name).await?;
            if now != ends {
                // A rename came between the two looks, so it is unclear which part the open file
                // is.
                ends = now;
                continue;
            }
            let (mut parts, mut start) = (Vec::new(), 0);
            for &end in &ends {
                // The part may have been removed since the look, or a job has put something else in its
                // place. The next part still begins where this one ended.
                start = end;
                let part = match open(&self.dir, record::rotated_log(&self.name, end)).await {
                    Err(e) if e.kind() == io::ErrorKind::InvalidData => None,
                    part => part?,
                };
                if let Some(file) = part {
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

/// The positions at which the newest full parts end, in ascending order.
async fn full_ends(dir: &Path, name: &str) -> io::Result<Vec<u64>> {
    let Some(files) = of_logs(dir, |logs| logs.names(FILES_MAX)).await? else {
        return Ok(Vec::new());
    };
    let mut ends: Vec<u64> = { files.iter() }
        .filter_map(|file| record::rotated_end(name, &file.to_string_lossy()))
        .collect();
    ends.sort_unstable();
    Ok(ends.split_off(ends.len().saturating_sub(PARTS_MAX)))
}

/// Whether the runner no longer writes to this file. Everything before `at` has been read from it.
async fn is_replaced(file: &File, dir: &Path, name: &str, at: u64) -> io::Result<bool> {
    let here = file.metadata().await?;
    let newest = name.to_owned();
    match of_logs(dir, move |logs| logs.about(newest)).await? {
        Some(there) => Ok((here.dev(), here.ino()) != (there.dev(), there.ino())),
        // The log was purged, or is between two names. The next part may never come, for want of
        // room.
        None => Ok(full_ends(dir, name)
            .await?
            .last()
            .is_some_and(|end| *end > at)),
    }
}

async fn open(dir: &Path, name: String) -> io::Result<Option<File>> {
    let part = move |logs: &Folder| {
        let file = logs.open(name)?;
        match file.metadata()?.len() > PART_MAX {
            true => {
                let why = format!("has more than {PART_MAX} bytes, so it is no log");
                Err(io::Error::new(io::ErrorKind::InvalidData, why))
            }
            false => Ok(file),
        }
    };
    Ok(of_logs(dir, part).await?.map(File::from_std))
}

/// Does something with the folder of a run's logs, on a thread for calls that may wait for a disk. None:
/// it is not there.
async fn of_logs<T: Send + 'static>(
    dir: &Path,
    look: impl FnOnce(&Folder) -> io::Result<T> + Send + 'static,
) -> io::Result<Option<T>> {
    let (Some(run), Some(logs)) = (dir.parent(), dir.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let (run, logs) = (run.to_owned(), logs.to_owned());
    let looked = move || look(&Folder::of_run(&run)?.below(logs)?);
    match tokio::task::spawn_blocking(looked).await? {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests;
