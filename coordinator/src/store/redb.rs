//! The embedded store: `STATE/muster.redb`, one crash-safe file of the [`redb`] crate.
//!
//! It has one table each for `meta`, `jobs`, `nodes`, `reports` and `events`. Values are JSON, so
//! that a person can read a copy of the file with any redb tool. A new file is made under another
//! name and renamed when it is complete. So `muster.redb` is never half-made, and one that cannot
//! be read is damaged and is refused. `STATE/lock` keeps out a second coordinator as long as the
//! first one lives.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ::redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition,
    WriteTransaction,
};
use muster_core::{
    fleet::{Change, Event, NodeRecord, Stored, job::JobRecord},
    id::{JobUid, NodeName, Term},
    node_report::NodeReport,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{failpoint::failpoint, kept::Kept};

use super::{
    Leadership, Loaded, Store, StoreError, deleted,
    witness::{self, Witness},
};

pub const FILE_NAME: &str = "muster.redb";
const NEW_NAME: &str = "muster.redb.new";
const LOCK_NAME: &str = "lock";

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const JOBS: TableDefinition<&str, &[u8]> = TableDefinition::new("jobs");
const NODES: TableDefinition<&str, &[u8]> = TableDefinition::new("nodes");
/// Apart from `nodes`: the report of a node with eight GPUs has some 13 KiB, and no decision waits
/// until it is on the disk.
const REPORTS: TableDefinition<&str, &[u8]> = TableDefinition::new("reports");
const EVENTS: TableDefinition<u64, &[u8]> = TableDefinition::new("events");

const META_FORMAT: &str = "format";
const META_TERM: &str = "term";
const META_LAST_EVENT: &str = "last_event";
/// The number of commits so far, to compare with the [`Witness`].
const META_COMMITS: &str = "commits";

/// Must grow when a record's shape changes so that an older build would misread it.
const FORMAT: u64 = 2;

/// How long to wait for the lock. A coordinator that was killed holds it until the kernel has
/// removed the process and any child that it had just forked.
const LEAVING: Duration = Duration::from_secs(1);

/// redb's page cache. All data is in memory anyway and only writes use the cache; the largest
/// commit is a generation of some 100 KiB.
const CACHE_BYTES: usize = 4 << 20;

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
        let unusable = |source| StoreError::Directory {
            path: directory.to_owned(),
            source,
        };
        if directory.exists() && !directory.is_dir() {
            return Err(unusable(io::ErrorKind::NotADirectory.into()));
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
            return Err(StoreError::Behind {
                path,
                found,
                known,
                witness: directory.join(witness::FILE_NAME),
            });
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
    fn still_holds(&self) -> bool {
        true
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
            };
            for entry in read
                .open_table(JOBS)
                .map_err(|e| damaged(path, e))?
                .iter()
                .map_err(|e| damaged(path, e))?
            {
                let (uid, value) = entry.map_err(|e| damaged(path, e))?;
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
                loaded
                    .fleet
                    .nodes
                    .push(parse::<NodeRecord>(path, value.value(), || {
                        format!("node {}", name.value())
                    })?);
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
        term.map_err(|source| StoreError::Write {
            path: self.path.clone(),
            source: Box::new(source),
        })
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.apply(changes).map_err(|source| StoreError::Write {
            path: self.path.clone(),
            source: Box::new(source),
        })
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
        keep().map_err(|source| StoreError::Write {
            path: self.path.clone(),
            source: Box::new(source),
        })
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

    fn apply(&mut self, changes: &[Change]) -> Result<(), ::redb::Error> {
        let transaction = self.begin()?;
        // If the commit fails, the process ends, and `kept` with it.
        let kept = &mut self.kept;
        {
            let mut meta = transaction.open_table(META)?;
            let mut jobs = transaction.open_table(JOBS)?;
            let mut nodes = transaction.open_table(NODES)?;
            let mut reports = transaction.open_table(REPORTS)?;
            let mut events = transaction.open_table(EVENTS)?;
            for change in changes {
                match change {
                    Change::PutJob(job) => {
                        drop(jobs.insert(job.uid.as_str(), json(job).as_slice())?)
                    }
                    Change::DeleteJob(uid) => drop(jobs.remove(uid.as_str())?),
                    Change::PutNode(node) => {
                        drop(nodes.insert(node.name.as_str(), json(node).as_slice())?)
                    }
                    Change::DeleteNode(name) => {
                        nodes.remove(name.as_str())?;
                        reports.remove(name.as_str())?;
                    }
                    Change::Event(event) => {
                        kept.add(event);
                        events.insert(event.sequence, json(event).as_slice())?;
                        meta.insert(META_LAST_EVENT, event.sequence)?;
                    }
                }
            }
            // The event that tells of a deletion is committed together with it.
            deleted(changes).for_each(|uid| kept.release(uid));
            for number in kept.take_dropped() {
                events.remove(number)?;
            }
        }
        self.finish(transaction)
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

/// Keeps every other coordinator out of this directory until the returned file is closed.
fn lock(directory: &Path) -> Result<File, StoreError> {
    let unusable = |source| StoreError::Directory {
        path: directory.to_owned(),
        source,
    };
    let path = directory.join(LOCK_NAME);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(unusable)?;
    let begun = Instant::now();
    let mut locked = file.try_lock();
    while matches!(locked, Err(TryLockError::WouldBlock)) && begun.elapsed() < LEAVING {
        thread::sleep(LEAVING / 50);
        locked = file.try_lock();
    }
    match locked {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            let pid = file
                .read_to_string(&mut owner)
                .ok()
                .map(|_| owner.trim().to_owned())
                .filter(|pid| !pid.is_empty());
            return Err(StoreError::InUse {
                path: directory.to_owned(),
                pid,
            });
        }
        Err(TryLockError::Error(source)) => return Err(unusable(source)),
    }
    file.set_len(0).map_err(unusable)?;
    writeln!(file, "{}", std::process::id()).map_err(unusable)?;
    Ok(file)
}

/// Makes an empty store file. A crash on the way leaves only `muster.redb.new`, which the next
/// start replaces.
fn create(directory: &Path) -> Result<(), StoreError> {
    let unusable = |source| StoreError::Directory {
        path: directory.to_owned(),
        source,
    };
    let (new, path) = (directory.join(NEW_NAME), directory.join(FILE_NAME));
    match fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(unusable(e)),
        _ => {}
    }
    let fill = || -> Result<(), ::redb::Error> {
        let database = Database::create(&new)?;
        let transaction = database.begin_write()?;
        transaction.open_table(META)?.insert(META_FORMAT, FORMAT)?;
        transaction.open_table(JOBS)?;
        transaction.open_table(NODES)?;
        transaction.open_table(REPORTS)?;
        transaction.open_table(EVENTS)?;
        transaction.commit()?;
        Ok(database.close()?)
    };
    fill().map_err(|source| StoreError::Write {
        path: new.clone(),
        source: Box::new(source),
    })?;
    fs::rename(&new, &path).map_err(unusable)?;
    // Without this sync a power cut may undo the rename, and lose the first term with it.
    File::open(directory)
        .and_then(|dir| dir.sync_all())
        .map_err(unusable)
}

fn open_existing(path: &Path) -> Result<Database, StoreError> {
    let database = reading(path, || {
        // redb trusts a file that was closed cleanly. This check reads the whole file, some 100 MB
        // at most, and finds damage from outside.
        let mut builder = Builder::new();
        builder
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(true);
        #[cfg(test)]
        let opened = crate::failpoint::tests::open(&builder, path);
        #[cfg(not(test))]
        let opened = builder.open(path);
        opened.map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::InUse {
                path: path.parent().unwrap_or(path).to_owned(),
                pid: None,
            },
            error => damaged(path, error),
        })
    })?;
    let format = reading(path, || {
        let meta = database
            .begin_read()
            .map_err(|e| damaged(path, e))?
            .open_table(META)
            .map_err(|e| damaged(path, e))?;
        let format = meta
            .get(META_FORMAT)
            .map_err(|e| damaged(path, e))?
            .map(|value| value.value());
        format.ok_or_else(|| damaged(path, "it names no format"))
    })?;
    if format != FORMAT {
        return Err(StoreError::Format {
            path: path.to_owned(),
            found: format,
            known: FORMAT,
        });
    }
    Ok(database)
}

fn commits(database: &Database, path: &Path) -> Result<u64, StoreError> {
    reading(path, || {
        let meta = database
            .begin_read()
            .map_err(|e| damaged(path, e))?
            .open_table(META)
            .map_err(|e| damaged(path, e))?;
        Ok(meta
            .get(META_COMMITS)
            .map_err(|e| damaged(path, e))?
            .map_or(0, |value| value.value()))
    })
}

/// Runs a read of the file. redb returns errors for damage that it looks for, and panics on some
/// other damage.
fn reading<T>(path: &Path, read: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(damaged(path, "its contents contradict each other")))
}

fn damaged(path: &Path, what: impl ToString) -> StoreError {
    StoreError::Damaged {
        path: path.to_owned(),
        what: what.to_string(),
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
        path: path.to_owned(),
        what: what(),
        source,
    })
}
