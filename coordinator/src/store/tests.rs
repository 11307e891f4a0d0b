//! One test suite for every store, and tests of what only a file can do: be locked, be damaged,
//! survive a kill.
#![allow(
    clippy::disallowed_methods,
    reason = "the kill test starts a process of its own"
)]

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
};

use muster_core::{
    fleet::{
        Change,
        commit::{RecordKey, Version},
    },
    id::Term,
};

pub(crate) use self::suite::*;
use super::{
    Loaded, Store, StoreError,
    memory::MemoryStore,
    redb::{FileError, RedbStore},
};
use muster_handle::kept::FLEET_MAX;

mod damage;
mod suite;

fn file_error(error: &StoreError) -> &FileError {
    let StoreError::Unusable(error) = error else {
        panic!("{error:?}")
    };
    error.downcast_ref().unwrap()
}

#[test]
fn memory_store_keeps_the_contract() {
    suite(MemoryStore::default(), |store| store);
}

#[test]
fn redb_store_keeps_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    suite(RedbStore::open(directory.path()).unwrap(), |store| {
        drop(store);
        RedbStore::open(directory.path()).unwrap()
    });
}

#[test]
fn a_second_coordinator_is_kept_out() {
    let directory = tempfile::tempdir().unwrap();
    let first = RedbStore::open(directory.path()).unwrap();
    let error = RedbStore::open(directory.path()).unwrap_err().to_string();
    let expected = format!(
        "state directory {} is in use by another coordinator (pid {}); two must never share one",
        directory.path().display(),
        std::process::id()
    );
    assert_eq!(error, expected);
    drop(first);
    RedbStore::open(directory.path()).unwrap();
}

#[test]
fn a_directory_that_is_none_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "x").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = RedbStore::open(&path).unwrap_err();
        let directory = matches!(file_error(&error), FileError::Directory { .. });
        assert!(directory, "{error}");
        assert_eq!(
            error.to_string(),
            format!("state directory {} cannot be used", path.display())
        );
    }
}

#[test]
fn a_crash_while_the_file_was_made_leaves_no_trace() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("muster.redb.new"), b"half").unwrap();
    let mut store = RedbStore::open(directory.path()).unwrap();
    assert_eq!(store.next_term(Term(0)).unwrap(), Term(1));
}

#[test]
fn another_format_is_refused_by_its_number() {
    let directory = tempfile::tempdir().unwrap();
    drop(RedbStore::open(directory.path()).unwrap());
    let file = directory.path().join("muster.redb");
    let database = ::redb::Database::open(&file).unwrap();
    let write = database.begin_write().unwrap();
    write
        .open_table(::redb::TableDefinition::<&str, u64>::new("meta"))
        .unwrap()
        .insert("format", 9)
        .unwrap();
    write.commit().unwrap();
    drop(database);
    let error = RedbStore::open(directory.path()).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "store file {} has format 9, this build reads format 2: use the build that wrote it",
            file.display()
        )
    );
}

#[test]
fn a_record_of_another_shape_is_named() {
    let directory = tempfile::tempdir().unwrap();
    drop(RedbStore::open(directory.path()).unwrap());
    let file = directory.path().join("muster.redb");
    let database = ::redb::Database::open(&file).unwrap();
    let write = database.begin_write().unwrap();
    let jobs = ::redb::TableDefinition::<&str, &[u8]>::new("jobs");
    write
        .open_table(jobs)
        .unwrap()
        .insert("uid-1", b"{\"uid\":7}".as_slice())
        .unwrap();
    write.commit().unwrap();
    drop(database);
    let error = RedbStore::open(directory.path())
        .unwrap()
        .load()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "store file {}: job uid-1 cannot be read by this build",
            file.display()
        )
    );
}

/// A file of an older build has no versions, and such a build may change it between two newer ones.
#[test]
fn a_file_without_versions_is_written_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(RedbStore::open(directory.path()).unwrap());
    writer
        .commit(&[put(job(1)), Change::PutNode(Box::new(node("a")))])
        .unwrap();
    drop(writer);
    let file = directory.path().join("muster.redb");
    let database = ::redb::Database::open(&file).unwrap();
    let write = database.begin_write().unwrap();
    let versions = ::redb::TableDefinition::<&str, (u64, u64)>::new("versions");
    assert!(write.delete_table(versions).unwrap());
    write.commit().unwrap();
    drop(database);

    let mut writer = Writer::new(RedbStore::open(directory.path()).unwrap());
    writer
        .commit(&[put(job(1)), Change::DeleteNode("a".into())])
        .unwrap();
    let versions = writer.store.load().unwrap().versions;
    let version = Version {
        term: Term(2),
        write: 1,
    };
    assert_eq!(versions, [(RecordKey::Job(job(1).uid), version)]);
}

/// The bytes of a store file that is not empty.
fn filled(directory: &Path) -> (Vec<u8>, Loaded) {
    let mut writer = Writer::new(RedbStore::open(directory).unwrap());
    for number in 1..=30 {
        writer
            .commit(&[
                put(job(number)),
                Change::PutNode(Box::new(node("a"))),
                said(number),
            ])
            .unwrap();
    }
    let loaded = writer.store.load().unwrap();
    drop(writer);
    (fs::read(directory.join("muster.redb")).unwrap(), loaded)
}

fn open_and_load(directory: &Path) -> Result<Loaded, StoreError> {
    RedbStore::open(directory).and_then(|mut store| store.load())
}

#[test]
fn a_damaged_file_is_an_error_that_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, _) = filled(directory.path());
    let file = directory.path().join("muster.redb");
    let text = "not a store\n".repeat(1_000);
    let mut garbage_head = whole.clone();
    garbage_head[..512].fill(0x5a);
    let cases: [(&str, &[u8]); 6] = [
        ("empty", b""),
        ("a few bytes", b"redb"),
        ("text", text.as_bytes()),
        ("cut in half", &whole[..whole.len() / 2]),
        ("cut to a page", &whole[..4096]),
        ("garbage at its head", &garbage_head),
    ];
    for (what, bytes) in cases {
        fs::write(&file, bytes).unwrap();
        let error = open_and_load(directory.path()).expect_err(what);
        assert!(
            matches!(file_error(&error), FileError::Damaged { .. }),
            "{what}: {error:?}"
        );
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("store file {} is damaged: ", file.display())),
            "{text}"
        );
        assert!(
            text.contains("Put back a copy of the file; or move it away"),
            "{text}"
        );
        assert_eq!(
            fs::read(&file).unwrap(),
            bytes,
            "{what}: the file must be left as it is"
        );
    }
    fs::write(&file, &whole).unwrap();
    open_and_load(directory.path()).unwrap();
}

const CHILD_DIRECTORY: &str = "MUSTER_TEST_STORE_CHILD";

/// Not a test of its own: [`every_acknowledged_record_survives_a_kill`] kills this process.
#[test]
#[ignore = "started by another test"]
fn child_that_commits_until_it_is_killed() {
    let Some(directory) = std::env::var_os(CHILD_DIRECTORY) else {
        return;
    };
    let mut writer = Writer::new(RedbStore::open(Path::new(&directory)).unwrap());
    let first = writer.store.load().unwrap().fleet.last_event + 1;
    for number in first.. {
        writer.commit(&[put(job(number)), said(number)]).unwrap();
        // Bypasses the test harness's capture of standard output.
        let mut out = std::io::stderr().lock();
        writeln!(out, "stored {number}").unwrap();
    }
}

#[test]
fn every_acknowledged_record_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..6_u32 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "store::tests::child_that_commits_until_it_is_killed",
                "--ignored",
                "--nocapture",
            ])
            .env(CHILD_DIRECTORY, directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut acknowledged = 0;
        for line in lines.by_ref().take(3 + round as usize * 4) {
            acknowledged = number_in(&line.unwrap()).unwrap();
        }
        // Kill it somewhere in the next commit. Each round waits for another amount of work,
        // without a clock.
        std::hint::black_box(
            (0..u64::from(round) * 20_000).fold(0, |sum, i| sum ^ std::hint::black_box(i)),
        );
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines {
            acknowledged = number_in(&line.unwrap()).unwrap_or(acknowledged);
        }

        let loaded = open_and_load(directory.path()).unwrap();
        let stored = loaded.fleet.jobs.len() as u64;
        assert!(acknowledged > 0);
        assert!(
            (acknowledged..=acknowledged + 1).contains(&stored),
            "{acknowledged} acknowledged, {stored} stored"
        );
        assert_eq!(loaded.fleet.last_event, stored, "a transaction is whole");
        assert_eq!(loaded.events.last().unwrap().sequence, stored);
    }
}

fn number_in(line: &str) -> Option<u64> {
    line.strip_prefix("stored ")?.parse().ok()
}
