//! The files of the trail: `audit.jsonl` grows to its bound and becomes `audit.1.jsonl`, in place of
//! the one before.
//!
//! The coordinator and the commands on its machine append, one at a time: each holds `lock` while it
//! writes. Nothing is synced. So an entry survives the end of every process, but not always a power
//! cut, and the store's commits never wait behind a sync of the trail. A line that a crash cut short
//! stays alone in its line, and readers leave it out.

use std::{
    collections::VecDeque,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::PathBuf,
};

use super::{Options, entry::Entry};

/// Longer lines are not ours.
const LINE_MAX: u64 = 16 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    file_bytes: u64,
}

impl Files {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            folder: options.folder.clone(),
            file_bytes: options.file_bytes,
        }
    }

    /// Appends all entries or none. The disk may be slow.
    pub(super) fn append(&self, entries: &[Entry]) -> io::Result<()> {
        let mut text = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut text, entry)?;
            text.push(b'\n');
        }
        self.make_folder()?;
        let lock = self.lock_file()?;
        lock.lock()?;
        let (file, length) = self.open_last(text.len() as u64)?;
        if length > 0 && !ends_a_line(&file, length)? {
            text.insert(0, b'\n');
        }
        (&file).write_all(&text).inspect_err(|_| {
            // Part of it may be there, and counts as lost. If it cannot be taken back, readers
            // leave out what is not whole.
            let _ = file.set_len(length);
        })
    }

    /// The file to append to and its length, with room for so many bytes.
    fn open_last(&self, bytes: u64) -> io::Result<(File, u64)> {
        let path = self.path("audit.jsonl");
        let open = || {
            OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .mode(0o600)
                .open(&path)
        };
        let file = open()?;
        let length = file.metadata()?.len();
        if length == 0 || length + bytes <= self.file_bytes {
            return Ok((file, length));
        }
        fs::rename(&path, self.path("audit.1.jsonl"))?;
        Ok((open()?, 0))
    }

    /// The entries that are not older than `since_us`, oldest first; of those the newest `most`.
    pub(crate) fn read(&self, since_us: u64, most: usize) -> io::Result<Vec<Entry>> {
        let mut kept = VecDeque::new();
        for file in self.open_all()? {
            let mut lines = BufReader::new(file);
            let mut line = Vec::new();
            loop {
                line.clear();
                if (&mut lines).take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
                    break;
                }
                let Ok(entry) = serde_json::from_slice::<Entry>(&line) else {
                    continue;
                };
                if entry.at_us < since_us {
                    continue;
                }
                if kept.len() == most {
                    kept.pop_front();
                }
                if most > 0 {
                    kept.push_back(entry);
                }
            }
        }
        Ok(kept.into())
    }

    /// The files that are there, the older one first. Nobody changes their names meanwhile.
    fn open_all(&self) -> io::Result<Vec<File>> {
        let lock = match self.lock_file() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            lock => lock?,
        };
        lock.lock_shared()?;
        let mut files = Vec::new();
        for name in ["audit.1.jsonl", "audit.jsonl"] {
            match File::open(self.path(name)) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                file => files.push(file?),
            }
        }
        Ok(files)
    }

    fn make_folder(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        }
    }

    /// The program that writes the trail locks this file. The lock ends with the program.
    fn lock_file(&self) -> io::Result<File> {
        let path = self.path("lock");
        OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Whether nothing was cut short at the end.
fn ends_a_line(file: &File, length: u64) -> io::Result<bool> {
    let mut last = [0];
    file.read_exact_at(&mut last, length - 1)?;
    Ok(last == *b"\n")
}
