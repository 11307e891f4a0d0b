//! Opens a state directory: keeps other coordinators out, makes the store's file if there is none,
//! and checks the whole file.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use ::redb::{Builder, Database, DatabaseError, ReadableDatabase};

use super::{
    error::{FileError, damaged, reading, unwritten},
    tables::{
        EVENTS, FORMAT, HISTORY, JOBS, META, META_COMMITS, META_FORMAT, NODES, OUTBOX, REPORTS,
        TOMBSTONES, VERSIONS,
    },
};
use crate::store::StoreError;

pub(super) const FILE_NAME: &str = "muster.redb";
pub(super) const NEW_NAME: &str = "muster.redb.new";
pub(super) const LOCK_NAME: &str = "lock";

/// How long to wait for the lock. A coordinator that was killed holds it until the kernel has
/// removed the process and any child that it had just forked.
const LEAVING: Duration = Duration::from_secs(1);

/// redb's page cache. All data is in memory anyway and only writes use the cache; the largest
/// commit is a generation of some 100 KiB.
const CACHE_BYTES: usize = 4 << 20;

/// Keeps every other coordinator out of this directory until the returned file is closed.
pub(super) fn lock(directory: &Path) -> Result<File, FileError> {
    let unusable = |source| FileError::Directory {
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
            return Err(FileError::InUse {
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
pub(super) fn create(directory: &Path) -> Result<(), StoreError> {
    let unusable = |source| FileError::Directory {
        path: directory.to_owned(),
        source,
    };
    let (new, path) = (directory.join(NEW_NAME), directory.join(FILE_NAME));
    match fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(unusable(e).into()),
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
        transaction.open_table(TOMBSTONES)?;
        transaction.open_table(HISTORY)?;
        transaction.open_table(OUTBOX)?;
        transaction.open_table(VERSIONS)?;
        transaction.commit()?;
        Ok(database.close()?)
    };
    fill().map_err(|source: ::redb::Error| unwritten(&new, source))?;
    fs::rename(&new, &path).map_err(unusable)?;
    // Without this sync a power cut may undo the rename, and lose the first term with it.
    File::open(directory)
        .and_then(|dir| dir.sync_all())
        .map_err(unusable)?;
    Ok(())
}

pub(super) fn open_existing(path: &Path) -> Result<Database, StoreError> {
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
            DatabaseError::DatabaseAlreadyOpen => FileError::InUse {
                path: path.parent().unwrap_or(path).to_owned(),
                pid: None,
            }
            .into(),
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
        return Err(FileError::Format {
            path: path.to_owned(),
            found: format,
            known: FORMAT,
        }
        .into());
    }
    Ok(database)
}

pub(super) fn commits(database: &Database, path: &Path) -> Result<u64, StoreError> {
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
