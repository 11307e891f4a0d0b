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
    sync::Arc,
};

use muster_core::{
    fleet::{
        Change, Cordon, Event, NodeRecord, Tombstone,
        commit::{RecordKey, Version, Versions},
        job::JobRecord,
    },
    id::{Generation, JobName, JobUid, NodeEpoch, Term},
    node_report::NodeReport,
    run::RunId,
    spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument},
    time::Timestamp,
};

use super::{
    Loaded, Store, StoreError,
    memory::MemoryStore,
    redb::{FileError, RedbStore},
};
use crate::kept::FLEET_MAX;

mod damage;

pub(crate) fn job(number: u64) -> JobRecord {
    let document = JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: format!("job-{number}"),
            namespace: None,
        },
        spec: SpecDocument {
            args: vec!["train.py".into()],
            ..SpecDocument::default()
        },
    };
    let (name, spec) = document.check().unwrap();
    JobRecord::submitted(
        JobUid::from(format!("uid-{number:06}")),
        name,
        spec,
        String::new(),
        Timestamp(number),
    )
}

fn node(name: &str) -> NodeRecord {
    NodeRecord {
        name: name.into(),
        epoch: NodeEpoch(3),
        boot_id: "boot".into(),
        first_seen: Timestamp(1),
        gone: false,
        gone_since: None,
        cordon: Some(Cordon {
            by: "ann".into(),
            reason: "fan".into(),
            at: Timestamp(2),
            jobs: Vec::new(),
        }),
        pod_of: None,
        hold_off: None,
        ended: None,
        overruled: None,
        told_excluded: None,
        marks: Vec::new(),
        halt: None,
    }
}

pub(crate) fn event(sequence: u64) -> Event {
    Event {
        sequence,
        at: Timestamp(sequence),
        warning: false,
        reason: "Submitted".into(),
        message: format!("event {sequence}"),
        job: None,
        node: Some("a".into()),
        generation: None,
        actor: None,
    }
}

fn tombstone(number: u64) -> Change {
    bury(Tombstone {
        run: RunId {
            job: job(number).uid,
            generation: Generation(3),
        },
        nodes: vec!["a".into()],
        deleted: Timestamp(9),
    })
}

fn bury(tombstone: Tombstone) -> Change {
    Change::PutTombstone(Box::new(tombstone))
}

pub(crate) fn put(job: JobRecord) -> Change {
    Change::PutJob(Box::new(job))
}

fn said(sequence: u64) -> Change {
    Change::Event(Box::new(event(sequence)))
}

/// A store with the versions of its records, as a coordinator has them.
pub(crate) struct Writer<S> {
    pub(crate) store: S,
    versions: Versions,
}

impl<S: Store> Writer<S> {
    pub(crate) fn new(mut store: S) -> Self {
        let known = store.load().unwrap().versions;
        let term = store.next_term(Term(0)).unwrap();
        Self {
            store,
            versions: Versions::loaded(term, known),
        }
    }

    pub(crate) fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let writes = self.versions.writes(changes.to_vec());
        self.store.commit(&writes)
    }
}

fn file_error(error: &StoreError) -> &FileError {
    let StoreError::Unusable(error) = error else {
        panic!("{error:?}")
    };
    error.downcast_ref().unwrap()
}

/// What every store must do. `reopen` ends the store as the death of its process would, and opens
/// it again.
fn suite<S: Store>(mut store: S, reopen: impl Fn(S) -> S) {
    assert_eq!(
        store.load().unwrap(),
        Loaded::default(),
        "a new store is empty"
    );
    assert_eq!(store.next_term(Term(0)).unwrap(), Term(1));
    assert_eq!(store.next_term(Term(0)).unwrap(), Term(2));
    assert_eq!(store.next_term(Term(40)).unwrap(), Term(40));

    let mut writer = Writer::new(store);
    writer.commit(&[]).unwrap();
    writer
        .commit(&[
            put(job(1)),
            put(job(2)),
            Change::PutNode(Box::new(node("a"))),
            said(1),
        ])
        .unwrap();
    let mut changed = job(2);
    changed.message = "changed".into();
    writer
        .commit(&[
            tombstone(1),
            tombstone(9),
            Change::DeleteJob(job(1).uid),
            put(changed.clone()),
            Change::PutNode(Box::new(node("b"))),
            said(2),
        ])
        .unwrap();
    let report = |slots| {
        Arc::new(NodeReport {
            slots,
            ..NodeReport::default()
        })
    };
    writer
        .store
        .keep_reports(&[("a".into(), report(1)), ("b".into(), report(2))])
        .unwrap();
    writer
        .store
        .keep_reports(&[("b".into(), report(3))])
        .unwrap();
    writer
        .commit(&[
            Change::DeleteNode("a".into()),
            Change::DeleteNode("never-there".into()),
            Change::DeleteTombstone(job(9).uid),
        ])
        .unwrap();

    store = reopen(writer.store);
    let loaded = store.load().unwrap();
    assert_eq!(loaded.fleet.jobs, [changed]);
    let keys: Vec<RecordKey> = loaded.versions.into_iter().map(|(key, _)| key).collect();
    assert_eq!(
        keys,
        [
            RecordKey::Job(job(2).uid),
            RecordKey::Node("b".into()),
            RecordKey::Tombstone(job(1).uid)
        ]
    );
    assert_eq!(loaded.fleet.nodes, [node("b")]);
    let stored: Vec<Change> = loaded.fleet.tombstones.into_iter().map(bury).collect();
    assert_eq!(stored, [tombstone(1)]);
    assert_eq!(
        loaded.fleet.reports,
        [("b".into(), (*report(3)).clone())],
        "and none of a deleted node"
    );
    assert_eq!(loaded.fleet.last_event, 2);
    assert_eq!(loaded.events, [event(1), event(2)]);
    assert_eq!(
        store.next_term(Term(0)).unwrap(),
        Term(42),
        "terms go on over a restart"
    );

    let of_job = |sequence| {
        let named = (
            job(2).uid,
            JobName {
                namespace: "default".into(),
                name: "job".into(),
            },
        );
        Change::Event(Box::new(Event {
            job: Some(named),
            ..event(sequence)
        }))
    };
    let mut writer = Writer::new(store);
    writer.commit(&[of_job(3)]).unwrap();
    let most = FLEET_MAX as u64;
    let many: Vec<Change> = (4..=most + 6).map(said).collect();
    writer.commit(&many).unwrap();
    store = reopen(writer.store);
    let loaded = store.load().unwrap();
    let numbers: Vec<u64> = loaded.events.iter().map(|event| event.sequence).collect();
    assert_eq!(
        (numbers.len() as u64, &numbers[..2]),
        (most + 1, &[3, 7][..]),
        "the oldest of the fleet's made room, the job's did not"
    );
    assert_eq!(loaded.fleet.last_event, most + 6);
    let mut writer = Writer::new(store);
    writer
        .commit(&[Change::DeleteJob(job(2).uid), of_job(most + 7)])
        .unwrap();
    store = reopen(writer.store);
    let numbers: Vec<u64> = store
        .load()
        .unwrap()
        .events
        .iter()
        .map(|event| event.sequence)
        .collect();
    assert_eq!(
        (numbers.len() as u64, numbers[0]),
        (most, 8),
        "a deleted job's events are the fleet's, also the one that tells of it"
    );

    another_writer_is_noticed(store);
}

/// Two coordinators that both believe to decide. The second has loaded what the first wrote.
fn another_writer_is_noticed(store: impl Store) {
    let mut first = Writer::new(store);
    let put_node = || Change::PutNode(Box::new(node("c")));
    first.commit(&[put(job(7)), put_node()]).unwrap();
    let mut second = Writer {
        versions: Versions::loaded(Term(99), first.store.load().unwrap().versions),
        store: first.store,
    };
    let mut other = job(7);
    other.message = "by the second".into();
    second.commit(&[put(other.clone())]).unwrap();
    second
        .commit(&[Change::DeleteNode("c".into()), put_node()])
        .unwrap();
    first.store = second.store;

    let refused = [
        (put(job(7)), "job uid-000007", "99.1"),
        (Change::DeleteJob(job(7).uid), "job uid-000007", "99.1"),
        (put_node(), "node c", "99.3"),
    ];
    for (change, record, version) in refused {
        let mut deposed = Writer {
            versions: first.versions.clone(),
            store: first.store,
        };
        let error = deposed.commit(&[change]).unwrap_err();
        assert!(matches!(error, StoreError::Conflict(_)), "{error:?}");
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("{record} was written by another: "))
                && text.ends_with(&format!("the store has version {version}")),
            "{text}"
        );
        first.store = deposed.store;
    }
    // A record that the first does not know, and an event that is told already.
    let last = first.store.load().unwrap().fleet.last_event;
    let mut unknown = Writer {
        versions: Versions::loaded(Term(1), []),
        store: first.store,
    };
    for change in [put(job(7)), said(last)] {
        let error = unknown.commit(&[change]).unwrap_err();
        assert!(matches!(error, StoreError::Conflict(_)), "{error:?}");
    }
    let loaded = unknown.store.load().unwrap();
    assert!(loaded.fleet.jobs.contains(&other), "nothing was changed");
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
