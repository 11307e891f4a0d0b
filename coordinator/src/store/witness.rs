//! `STATE/last-commit`: the number of the last commit, noted beside the store, so that a store that
//! has fallen behind is noticed.
//!
//! One bit in the store's header says which of two states is the newer one, and after a crash
//! nothing in the file contradicts that bit. So the number of commits is noted here as well: after
//! each commit, before anybody is answered, and without a sync of its own. The note survives the
//! process. After a power cut it may be older than the store, which is no sign of damage, but never
//! newer. It also shows that somebody restored an old copy of the store alone.

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

/// Always has the same length, so that it can be overwritten in place.
#[derive(Serialize, Deserialize)]
struct Note {
    commit: String,
}

impl Witness {
    /// Opens or makes the note of a state directory. Returns the last commit that it knows of.
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
            // A power cut may have torn the note. It is only a second opinion: the store has
            // checksums of its own.
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
