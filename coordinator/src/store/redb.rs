//! The embedded store: `STATE/muster.redb`, one crash-safe file of the [`redb`] crate.
//!
//! It has one table each for `meta`, `jobs`, `nodes`, `reports`, `tombstones`, `history`,
//! `events`, and the `versions` of all but reports, history and events. Records are JSON, so that a person can read a copy of the file with any redb tool. All
//! writes of a commit are one transaction. A new file is made under another
//! name and renamed when it is complete. So `muster.redb` is never half-made, and one that cannot
//! be read is damaged and is refused. `STATE/lock` keeps out a second coordinator as long as the
//! first one lives.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use ::redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, TableError, WriteTransaction,
};
use muster_core::{
    fleet::{
        Change, Event, NodeRecord, Stored, Tombstone,
        commit::{RecordKey, Version, Write},
        history::HistoryRecord,
        job::JobRecord,
        notify::Outbox,
    },
    id::{JobUid, NodeName, Term},
    node_report::NodeReport,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::failpoint::failpoint;
use muster_handle::kept::Kept;

use super::{
    Conflict, Lead, Leadership, Loaded, Store, StoreError, compare, deleted,
    witness::{self, Witness},
};

mod error;
mod open;
mod tables;

pub use error::FileError;
use error::{damaged, reading, unwritten};
use open::{FILE_NAME, LOCK_NAME, commits, create, lock, open_existing};
use tables::{
    EVENTS, HISTORY, JOBS, META, META_COMMITS, META_LAST_EVENT, META_TERM, NODES, OUTBOX, REPORTS,
    TOMBSTONES, VERSIONS,
};

/// The open store of a state directory.
#[derive(Debug)]
pub struct RedbStore {
    database: Database,
    path: PathBuf,
    witness: Witness,
    kept: Kept,
    /// Held, not read. The kernel releases it when the process ends, for whatever reason.
    _lock: File,
}

impl RedbStore {
    /// Opens the store of a state directory. Makes both if they do not exist.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let unusable = |source| FileError::Directory {
            path: directory.to_owned(),
            source,
        };
        if directory.exists() && !directory.is_dir() {
            return Err(unusable(io::ErrorKind::NotADirectory.into()).into());
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(unusable)?;
        let lock = lock(directory)?;
        let path = directory.join(FILE_NAME);
        if !path.try_exists().map_err(unusable)? {
            create(directory)?;
        }
        let database = open_existing(&path)?;
        let found = commits(&database, &path)?;
        let (witness, known) = Witness::open(directory).map_err(unusable)?;
        for name in [FILE_NAME, LOCK_NAME, witness::FILE_NAME] {
            // The store holds the jobs' environment. The directory may be an older one, or made by
            // an operator.
            fs::set_permissions(directory.join(name), fs::Permissions::from_mode(0o600))
                .map_err(unusable)?;
        }
        if let Some(known) = known.filter(|known| *known > found) {
            return Err(FileError::Behind {
                path,
                found,
                known,
                witness: directory.join(witness::FILE_NAME),
            }
            .into());
        }
        Ok(Self {
            database,
            path,
            witness,
            kept: Kept::default(),
            _lock: lock,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Leadership for RedbStore {
    /// The lock keeps every other coordinator out for as long as this process lives.
    fn lead(&self) -> Lead {
        Lead::for_life()
    }
}

impl Store for RedbStore {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        let (database, path) = (&self.database, self.path.as_path());
        let loaded = reading(path, || {
            let read = database.begin_read().map_err(|e| damaged(path, e))?;
            let meta = read.open_table(META).map_err(|e| damaged(path, e))?;
            let last_event = meta
                .get(META_LAST_EVENT)
                .map_err(|e| damaged(path, e))?
                .map_or(0, |value| value.value());

            let mut loaded = Loaded {
                fleet: Stored {
                    last_event,
                    ..Stored::default()
                },
                events: Vec::new(),
                versions: Vec::new(),
            };
            let versions = versions(&read, path)?;
            let version = |key: RecordKey| {
                let known = versions.get(&key.to_string()).copied();
                (key, known.unwrap_or_default())
            };
            for entry in read
                .open_table(JOBS)
                .map_err(|e| damaged(path, e))?
                .iter()
                .map_err(|e| damaged(path, e))?
            {
                let (uid, value) = entry.map_err(|e| damaged(path, e))?;
                let key = RecordKey::Job(uid.value().into());
                loaded.versions.push(version(key));
                loaded
                    .fleet
                    .jobs
                    .push(parse::<JobRecord>(path, value.value(), || {
                        format!("job {}", uid.value())
                    })?);
            }
            for entry in read
                .open_table(NODES)
                .map_err(|e| damaged(path, e))?
                .iter()
                .map_err(|e| damaged(path, e))?
            {
                let (name, value) = entry.map_err(|e| damaged(path, e))?;
                let key = RecordKey::Node(name.value().into());
                loaded.versions.push(version(key));
                loaded
                    .fleet
                    .nodes
                    .push(parse::<NodeRecord>(path, value.value(), || {
                        format!("node {}", name.value())
                    })?);
            }
            for (uid, tombstone) in tombstones(&read, path)? {
                loaded
                    .versions
                    .push(version(RecordKey::Tombstone(uid.as_str().into())));
                loaded.fleet.tombstones.push(tombstone);
            }
            loaded.fleet.history = history(&read, path)?;
            if let Some(outbox) = outbox(&read, path)? {
                loaded.versions.push(version(RecordKey::Outbox));
                loaded.fleet.outbox = outbox;
            }
            for entry in read
                .open_table(REPORTS)
                .map_err(|e| damaged(path, e))?
                .iter()
                .map_err(|e| damaged(path, e))?
            {
                let (name, value) = entry.map_err(|e| damaged(path, e))?;
                let report = parse::<NodeReport>(path, value.value(), || {
                    format!("report of node {}", name.value())
                })?;
                loaded.fleet.reports.push((name.value().into(), report));
            }
            for entry in read
                .open_table(EVENTS)
                .map_err(|e| damaged(path, e))?
                .iter()
                .map_err(|e| damaged(path, e))?
            {
                let (sequence, value) = entry.map_err(|e| damaged(path, e))?;
                loaded.events.push(parse::<Event>(path, value.value(), || {
                    format!("event {}", sequence.value())
                })?);
            }
            Ok(loaded)
        })?;
        let jobs: BTreeSet<&JobUid> = loaded.fleet.jobs.iter().map(|job| &job.uid).collect();
        self.kept = Kept::of(&loaded.events, |uid| jobs.contains(uid));
        Ok(loaded)
    }

    fn next_term(&mut self, at_least: Term) -> Result<Term, StoreError> {
        let term = self.write(|tables| {
            let before = Term(tables.get(META_TERM)?.map_or(0, |value| value.value()));
            let term = before.next().max(at_least);
            tables.insert(META_TERM, term.0)?;
            Ok(term)
        });
        term.map_err(|source| unwritten(&self.path, source))
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        let mut commit = || {
            let transaction = self.begin()?;
            let conflict = self.apply(&transaction, writes)?;
            if conflict.is_ok() {
                self.finish(transaction)?;
            }
            // A transaction that is not finished has changed nothing.
            Ok(conflict)
        };
        let result = commit();
        result.map_err(|source| unwritten(&self.path, source))??;
        Ok(())
    }

    fn keep_reports(&mut self, reports: &[(NodeName, Arc<NodeReport>)]) -> Result<(), StoreError> {
        let keep = || {
            let transaction = self.begin()?;
            {
                let mut table = transaction.open_table(REPORTS)?;
                for (name, report) in reports {
                    table.insert(name.as_str(), json(&**report).as_slice())?;
                }
            }
            self.finish(transaction)
        };
        keep().map_err(|source| unwritten(&self.path, source))
    }
}

impl RedbStore {
    /// Begins a transaction that is on the disk when `commit()` returns. Two phases cost 0.3 ms
    /// more. With one phase, nobody could tell after a crash whether the last transaction was
    /// finished: a single flipped bit in it would bring back the state before it without an error.
    fn begin(&self) -> Result<WriteTransaction, ::redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_two_phase_commit(true);
        Ok(transaction)
    }

    fn apply(
        &mut self,
        transaction: &WriteTransaction,
        writes: &[Write],
    ) -> Result<Result<(), Conflict>, ::redb::Error> {
        // If the commit fails, the process ends, and `kept` with it.
        let kept = &mut self.kept;
        let mut meta = transaction.open_table(META)?;
        let mut jobs = transaction.open_table(JOBS)?;
        let mut nodes = transaction.open_table(NODES)?;
        let mut reports = transaction.open_table(REPORTS)?;
        let mut events = transaction.open_table(EVENTS)?;
        let mut tombstones = transaction.open_table(TOMBSTONES)?;
        let mut history = transaction.open_table(HISTORY)?;
        let mut outbox = transaction.open_table(OUTBOX)?;
        let mut versions = transaction.open_table(VERSIONS)?;
        for write in writes {
            let key = write.key().to_string();
            let exists = match &write.change {
                Change::PutJob(job) => jobs.get(job.uid.as_str())?.is_some(),
                Change::DeleteJob(uid) => jobs.get(uid.as_str())?.is_some(),
                Change::PutNode(node) => nodes.get(node.name.as_str())?.is_some(),
                Change::DeleteNode(name) => nodes.get(name.as_str())?.is_some(),
                Change::PutTombstone(tombstone) => {
                    tombstones.get(tombstone.run.job.as_str())?.is_some()
                }
                Change::DeleteTombstone(uid) => tombstones.get(uid.as_str())?.is_some(),
                Change::PutHistory(record) => history.get(record.number)?.is_some(),
                Change::DropHistory(_) => false,
                Change::PutOutbox(_) => outbox.get(())?.is_some(),
                Change::Event(event) => events.get(event.sequence)?.is_some(),
            };
            let known = versions.get(key.as_str())?.map(|value| value.value());
            let found = exists.then(|| known.map_or(Version::default(), version));
            if let Err(conflict) = compare(write, found) {
                return Ok(Err(conflict));
            }
            match &write.change {
                Change::PutJob(job) => {
                    drop(jobs.insert(job.uid.as_str(), json(&**job).as_slice())?)
                }
                Change::DeleteJob(uid) => drop(jobs.remove(uid.as_str())?),
                Change::PutNode(node) => {
                    drop(nodes.insert(node.name.as_str(), json(&**node).as_slice())?)
                }
                Change::DeleteNode(name) => {
                    nodes.remove(name.as_str())?;
                    reports.remove(name.as_str())?;
                }
                Change::PutTombstone(tombstone) => {
                    let uid = tombstone.run.job.as_str();
                    drop(tombstones.insert(uid, json(&**tombstone).as_slice())?)
                }
                Change::DeleteTombstone(uid) => drop(tombstones.remove(uid.as_str())?),
                Change::PutHistory(record) => {
                    drop(history.insert(record.number, json(&**record).as_slice())?)
                }
                Change::DropHistory(number) => history.retain_in(..=*number, |_, _| false)?,
                Change::PutOutbox(record) => drop(outbox.insert((), json(&**record).as_slice())?),
                Change::Event(event) => {
                    kept.add(event);
                    events.insert(event.sequence, json(&**event).as_slice())?;
                    meta.insert(META_LAST_EVENT, event.sequence)?;
                }
            }
            let Version {
                term,
                write: number,
            } = write.becomes;
            match &write.change {
                change if !change.has_version() => {}
                change if change.deletes() => drop(versions.remove(key.as_str())?),
                _ => drop(versions.insert(key.as_str(), (term.0, number))?),
            }
        }
        // The event that tells of a deletion is committed together with it.
        deleted(writes).for_each(|uid| kept.release(uid));
        for number in kept.take_dropped() {
            events.remove(number)?;
        }
        Ok(Ok(()))
    }

    /// Counts the commit, commits, and notes the count beside the store.
    fn finish(&self, transaction: WriteTransaction) -> Result<(), ::redb::Error> {
        let number = {
            let mut meta = transaction.open_table(META)?;
            let number = meta.get(META_COMMITS)?.map_or(0, |value| value.value()) + 1;
            meta.insert(META_COMMITS, number)?;
            number
        };
        failpoint!("before the store's commit");
        transaction.commit()?;
        failpoint!("after the store's commit");
        self.witness.note(number);
        Ok(())
    }

    fn write<T>(
        &self,
        change: impl FnOnce(&mut ::redb::Table<&str, u64>) -> Result<T, ::redb::Error>,
    ) -> Result<T, ::redb::Error> {
        let transaction = self.begin()?;
        let value = change(&mut transaction.open_table(META)?)?;
        self.finish(transaction)?;
        Ok(value)
    }
}

/// What is remembered of deleted jobs, by their uid.
fn tombstones(read: &ReadTransaction, path: &Path) -> Result<Vec<(String, Tombstone)>, StoreError> {
    let table = match read.open_table(TOMBSTONES) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        table => table.map_err(|e| damaged(path, e))?,
    };
    table
        .iter()
        .map_err(|e| damaged(path, e))?
        .map(|entry| {
            let (uid, value) = entry.map_err(|e| damaged(path, e))?;
            let what = || format!("tombstone of job {}", uid.value());
            let tombstone = parse(path, value.value(), what)?;
            Ok((uid.value().to_owned(), tombstone))
        })
        .collect()
}

/// What is left of jobs that are over, in the order of numbers.
fn history(read: &ReadTransaction, path: &Path) -> Result<Vec<Arc<HistoryRecord>>, StoreError> {
    let table = match read.open_table(HISTORY) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        table => table.map_err(|e| damaged(path, e))?,
    };
    table
        .iter()
        .map_err(|e| damaged(path, e))?
        .map(|entry| {
            let (number, value) = entry.map_err(|e| damaged(path, e))?;
            let what = || format!("history record {}", number.value());
            Ok(Arc::new(parse::<HistoryRecord>(path, value.value(), what)?))
        })
        .collect()
}

/// What waits to be sent to people.
fn outbox(read: &ReadTransaction, path: &Path) -> Result<Option<Outbox>, StoreError> {
    let table = match read.open_table(OUTBOX) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        table => table.map_err(|e| damaged(path, e))?,
    };
    let row = table.get(()).map_err(|e| damaged(path, e))?;
    row.map(|value| parse(path, value.value(), || "outbox".to_owned()))
        .transpose()
}

/// The version of each record, by its kind and name.
fn versions(read: &ReadTransaction, path: &Path) -> Result<BTreeMap<String, Version>, StoreError> {
    let table = match read.open_table(VERSIONS) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
        table => table.map_err(|e| damaged(path, e))?,
    };
    table
        .iter()
        .map_err(|e| damaged(path, e))?
        .map(|entry| {
            let (key, value) = entry.map_err(|e| damaged(path, e))?;
            Ok((key.value().to_owned(), version(value.value())))
        })
        .collect()
}

fn version((term, write): (u64, u64)) -> Version {
    Version {
        term: Term(term),
        write,
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("records have string keys and no failing serializers")
}

fn parse<T: DeserializeOwned>(
    path: &Path,
    bytes: &[u8],
    what: impl FnOnce() -> String,
) -> Result<T, StoreError> {
    serde_json::from_slice(bytes).map_err(|source| StoreError::Record {
        store: format!("store file {}", path.display()),
        record: what(),
        source: Box::new(source),
    })
}
