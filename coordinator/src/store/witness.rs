//! `STATE/last-commit`: the number of the last commit, beside the store, so that a store that has
//! fallen behind it is noticed.
//!
//! One bit of the store's header says which of two states is the newer one, and nothing in the file
//! contradicts it after a crash. So the number of commits is noted here too, after each commit and
//! before anybody is answered, without a sync of its own: the note survives the process, and after
//! a power cut it is at most older than the store, which says nothing. It also notices an old copy
//! of the store that was put back alone.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tracing::warn;

pub(super) const FILE_NAME: &str = "last-commit";

#[derive(Debug)]
pub(super) struct Witness {
    file: File,
    path: PathBuf,
}

/// Always of the same length, so that it is overwritten where it lies.
#[derive(Serialize, Deserialize)]
struct Note {
    commit: String,
}

impl Witness {
    /// Opens or makes the note of a state directory, and gives the last commit it knows of.
    pub(super) fn open(directory: &Path) -> io::Result<(Self, Option<u64>)> {
        let path = directory.join(FILE_NAME);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)?;
        let text = std::fs::read(&path)?;
        let known = read(&text);
        if known.is_none() && !text.is_empty() {
            // Torn by a power cut, perhaps: it is a second opinion, and the store has checksums of
            // its own.
            warn!(path = %path.display(), "cannot be read and is written anew; whether the store is behind it cannot be told this time");
            file.set_len(0)?;
        }
        Ok((Self { file, path }, known))
    }

    pub(super) fn note(&self, commit: u64) {
        let note = serde_json::to_vec(&Note {
            commit: format!("{commit:020}"),
        })
        .expect("a text serializes");
        if let Err(e) = self.file.write_all_at(&muster_sealed::seal(note), 0) {
            // The commit itself is on the disk.
            warn!(path = %self.path.display(), "the last commit cannot be noted: {e}");
        }
    }
}

fn read(text: &[u8]) -> Option<u64> {
    let note: Note = serde_json::from_slice(muster_sealed::open(text).ok()?).ok()?;
    note.commit.parse().ok()
}
