//! Damage from outside: cuts and flipped bits anywhere in the store's file. The store answers with
//! an error that says so, or with everything that it held. It never answers with less and never
//! panics.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{Writer, file_error, filled, job, open_and_load, put, said};
use crate::store::{
    Loaded, Store,
    redb::{FileError, RedbStore},
};

/// Random damages for each kind of file. `MUSTER_LONG_DRILL` asks for as many as the project
/// promises.
fn rounds() -> u64 {
    if std::env::var_os("MUSTER_LONG_DRILL").is_some() {
        50_000
    } else {
        300
    }
}

/// The whole file of a store, and its content. It lies in memory if the machine has such a place,
/// because each round opens it again and a disk would take milliseconds for that.
struct Bench {
    directory: tempfile::TempDir,
    whole: Vec<u8>,
    witness: Vec<u8>,
    expected: Loaded,
    random: u64,
}

impl Bench {
    /// Makes the file that a coordinator leaves: one that ended gracefully, or one that was killed.
    fn new(closed: bool) -> Self {
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        }
        .unwrap();
        let (mut whole, mut expected) = filled(directory.path());
        if !closed {
            let mut writer = Writer::new(RedbStore::open(directory.path()).unwrap());
            writer.commit(&[put(job(31)), said(31)]).unwrap();
            writer.commit(&[put(job(32)), said(32)]).unwrap();
            whole = fs::read(directory.path().join("muster.redb")).unwrap();
            expected = writer.store.load().unwrap();
        }
        let witness = fs::read(directory.path().join("last-commit")).unwrap();
        Self {
            directory,
            whole,
            witness,
            expected,
            random: 0x2545_F491_4F6C_DD1D,
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("muster.redb")
    }

    /// Xorshift (Marsaglia 2003), so that the damages are the same every time.
    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % below as u64) as usize
    }

    /// True: the store was refused with a helpful text. False: everything that was written is
    /// there.
    fn is_refused(&self, what: &str) -> bool {
        let error = loop {
            match open_and_load(self.directory.path()) {
                Ok(loaded) => {
                    assert!(
                        loaded == self.expected,
                        "{what}: something else was read, silently"
                    );
                    return false;
                }
                // Another test starts a process. Until that process executes its program, it holds
                // a copy of our lock.
                Err(error) if matches!(file_error(&error), FileError::InUse { .. }) => {
                    std::thread::yield_now()
                }
                Err(error) => break error,
            }
        };
        let text = error.to_string();
        let helps = match file_error(&error) {
            FileError::Damaged { .. } | FileError::Behind { .. } => text.contains("Put back"),
            FileError::Format { .. } => text.contains("use the build that wrote it"),
            FileError::Directory { .. } | FileError::InUse { .. } => false,
        };
        assert!(
            helps && text.contains(self.file().to_str().unwrap()),
            "{what}: {error:?}"
        );
        true
    }

    /// Flips these bits, opens the store, and restores the file.
    fn flip(&self, bits: &[usize]) -> bool {
        let mut damaged = self.whole.clone();
        for bit in bits {
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        let file = File::options().write(true).open(self.file()).unwrap();
        for bit in bits {
            file.write_all_at(&damaged[bit / 8..=bit / 8], (bit / 8) as u64)
                .unwrap();
        }
        let refused = self.is_refused(&format!("bits {bits:?} flipped"));
        // Opening repairs the file, and so writes to it.
        if fs::read(self.file()).unwrap() != self.whole {
            fs::write(self.file(), &self.whole).unwrap();
        }
        fs::write(self.directory.path().join("last-commit"), &self.witness).unwrap();
        refused
    }

    fn everything_once(&mut self) {
        // The header, in which each bit has a meaning of its own: 64 bytes and two slots of 128.
        for bit in 0..320 * 8 {
            self.flip(&[bit]);
        }
        let mut refused = 0;
        for _ in 0..rounds() {
            let count = 1 + self.random(3);
            let bits: Vec<usize> = (0..count)
                .map(|_| self.random(self.whole.len() * 8))
                .collect();
            refused += u64::from(self.flip(&bits));
        }
        assert!(
            refused > rounds() / 20,
            "only {refused} of {} damages were noticed",
            rounds()
        );
    }
}

#[test]
fn no_flipped_bit_of_a_closed_store_is_read_as_something_else() {
    Bench::new(true).everything_once();
}

/// After a crash the last commit must not be mistaken for one that never finished.
#[test]
fn no_flipped_bit_of_a_killed_coordinators_store_is_read_as_something_else() {
    Bench::new(false).everything_once();
}

#[test]
fn a_store_cut_anywhere_is_refused() {
    let mut bench = Bench::new(true);
    let long = std::env::var_os("MUSTER_LONG_DRILL").is_some();
    let cuts: Vec<usize> = if long {
        (0..bench.whole.len()).collect()
    } else {
        (0..200).map(|_| bench.random(bench.whole.len())).collect()
    };
    for cut in cuts {
        fs::write(bench.file(), &bench.whole[..cut]).unwrap();
        // The cut may remove only free space; then the whole content is there.
        bench.is_refused(&format!("cut at {cut}"));
        fs::write(bench.directory.path().join("last-commit"), &bench.witness).unwrap();
    }
}

#[test]
fn an_older_copy_of_the_store_alone_is_refused_and_its_note_is_only_a_second_opinion() {
    let bench = Bench::new(false);
    let (directory, note) = (
        bench.directory.path(),
        bench.directory.path().join("last-commit"),
    );
    let mut writer = Writer::new(RedbStore::open(directory).unwrap());
    writer.commit(&[put(job(33)), said(33)]).unwrap();
    drop(writer);
    fs::write(bench.file(), &bench.whole).unwrap();
    let error = open_and_load(directory).unwrap_err().to_string();
    let expected = format!(
        "store file {} ends with commit 34, but commit 36 was acknowledged: it is damaged, or an old copy was put back. Nothing was \
         changed. Put back the newest copy; or, to go on without what is lost, remove {}",
        bench.file().display(),
        note.display()
    );
    assert_eq!(error, expected);
    fs::remove_file(&note).unwrap();
    assert_eq!(open_and_load(directory).unwrap(), bench.expected);
    // Neither a damaged note nor one that is behind keeps a coordinator from its store.
    for text in [b"".as_slice(), b"garbage", &bench.witness[..10]] {
        fs::write(&note, text).unwrap();
        assert_eq!(open_and_load(directory).unwrap(), bench.expected);
    }
}
