//! Which certificates each name has been given, in `issued/`, one file for each name: a name that
//! was given out is not given again without being asked for, and a change of the authority must not
//! end while somebody can show only a certificate of the old one.
//!
//! A certificate is known by the hash of its key. When one is shown that was got in place of others,
//! nobody needs those any more. A host has one certificate at a time. A user may have one on each of
//! several machines, so there only the ones count that it was renewed from.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use muster_rpc::{
    identity::{Kind, Principal},
    tls::Pin,
};
use serde::{Deserialize, Serialize};

use super::files::{TrustError, read, remove, write_json};

/// A user that has logged in on this many machines within a month is a program that should keep its
/// credentials. Of more certificates the oldest are forgotten.
const CERTIFICATES_MAX: usize = 256;

/// What a name has been given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// Also a certificate that was issued before certificates were recorded, by the first authority.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unrecorded: bool,
    #[serde(default)]
    certificates: Vec<Certificate>,
}

/// A certificate that was issued and has not been replaced, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Certificate {
    /// The hash of its key.
    pub(super) key: Pin,
    pub(super) authority: Pin,
    /// Microseconds since the Unix epoch.
    pub(super) issued_us: u64,
    pub(super) not_after_us: u64,
    /// The certificate that it was got for. `None`: a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) instead: Option<Pin>,
}

/// The authorities while one takes the place of the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) next: Pin,
    /// No certificate that was issued before certificates were recorded is valid after this.
    /// Microseconds since the Unix epoch.
    pub(super) unrecorded_until_us: u64,
}

impl Record {
    fn add(&mut self, new: Certificate, now_us: u64) {
        self.certificates.retain(|old| old.not_after_us > now_us);
        self.certificates.push(new);
        let over = self.certificates.len().saturating_sub(CERTIFICATES_MAX);
        self.certificates.drain(..over);
    }

    /// The certificate with this key was shown. Forgets those that it replaces, and says whether
    /// there were any.
    fn shown(&mut self, kind: Kind, key: Pin) -> bool {
        let before = self.clone();
        let find = |all: &[Certificate], key| all.iter().find(|one| one.key == key).cloned();
        let Some(shown) = find(&self.certificates, key) else {
            return false;
        };
        match kind {
            Kind::Host => {
                self.unrecorded = false;
                self.certificates.retain(|other| {
                    other.key == key || (other.issued_us, other.key) > (shown.issued_us, key)
                });
            }
            Kind::User => {
                // The chain of certificates that it was renewed from.
                let mut replaced = BTreeSet::new();
                let mut older = shown.instead;
                while let Some(one) = older.filter(|one| replaced.insert(*one)) {
                    match find(&self.certificates, one) {
                        Some(found) => older = found.instead,
                        // It is older than this record.
                        None => {
                            self.unrecorded = false;
                            older = None;
                        }
                    }
                }
                // A renewal whose answer was lost was got for the same certificate.
                let gone = |other: &Certificate| {
                    replaced.contains(&other.key)
                        || other.instead.is_some_and(|from| replaced.contains(&from))
                };
                self.certificates
                    .retain(|other| other.key == key || !gone(other));
            }
        }
        for certificate in &mut self.certificates {
            certificate.instead = certificate.instead.filter(|_| certificate.key != key);
        }
        *self != before
    }

    /// Until when somebody may be able to show only a certificate of another authority than the next
    /// one. `None`: nobody.
    pub(super) fn needs_old(&self, change: Change, now_us: u64) -> Option<u64> {
        let unrecorded = self.unrecorded.then_some(change.unrecorded_until_us);
        let old = self.certificates.iter();
        let old = old.filter(|certificate| certificate.authority != change.next);
        old.map(|certificate| certificate.not_after_us)
            .chain(unrecorded)
            .filter(|until_us| *until_us > now_us)
            .max()
    }
}

/// The records of a trust folder.
#[derive(Debug)]
pub(super) struct Issued {
    folder: PathBuf,
    /// Only the coordinator writes records, so nobody outside this process is waited for.
    one_at_a_time: Mutex<()>,
}

impl Issued {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.join("issued"),
            one_at_a_time: Mutex::new(()),
        }
    }

    /// Whether the name has had a certificate.
    pub(super) fn is_taken(&self, principal: &Principal) -> bool {
        self.path(principal).exists()
    }

    /// Notes a certificate, which is issued after that.
    pub(super) fn add(
        &self,
        principal: &Principal,
        new: Certificate,
        now_us: u64,
    ) -> Result<(), TrustError> {
        let _one = self.one_at_a_time();
        let path = self.path(principal);
        let mut record = read_record(&path)?.unwrap_or_default();
        record.add(new, now_us);
        write_json(&path, &record)
    }

    /// Forgets a certificate that nobody was given. `is_new`: the name had had none before.
    pub(super) fn take_back(
        &self,
        principal: &Principal,
        key: Pin,
        is_new: bool,
    ) -> Result<(), TrustError> {
        let _one = self.one_at_a_time();
        let path = self.path(principal);
        let Some(mut record) = read_record(&path)? else {
            return Ok(());
        };
        record.certificates.retain(|one| one.key != key);
        match is_new && record.certificates.is_empty() {
            true => remove(&path),
            false => write_json(&path, &record),
        }
    }

    /// Notes that this certificate was shown.
    pub(super) fn shown(&self, principal: &Principal, key: Pin) -> Result<(), TrustError> {
        let _one = self.one_at_a_time();
        let path = self.path(principal);
        let Some(mut record) = read_record(&path)? else {
            return Ok(());
        };
        if record.shown(principal.kind, key) {
            write_json(&path, &record)?;
        }
        Ok(())
    }

    fn one_at_a_time(&self) -> std::sync::MutexGuard<'_, ()> {
        let lock = self.one_at_a_time.lock();
        lock.unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, principal: &Principal) -> PathBuf {
        self.folder.join(principal.to_string().replace('/', "-"))
    }

    /// Every name that was given out, with its record.
    pub(super) fn all(&self) -> Result<BTreeMap<Principal, Record>, TrustError> {
        let failed = |why| TrustError::File {
            path: self.folder.clone(),
            why,
        };
        let entries = match fs::read_dir(&self.folder) {
            // No name was ever given out.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            entries => entries.map_err(failed)?,
        };
        let mut all = BTreeMap::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let principal = name
                .to_str()
                .and_then(|name| name.replacen('-', "/", 1).parse().ok());
            let Some(principal) = principal else {
                continue;
            };
            if let Some(record) = read_record(&self.folder.join(&name))? {
                all.insert(principal, record);
            }
        }
        Ok(all)
    }
}

fn read_record(path: &Path) -> Result<Option<Record>, TrustError> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    // Earlier versions wrote only when the name was given out.
    if text.trim().parse::<u64>().is_ok() {
        return Ok(Some(Record {
            unrecorded: true,
            certificates: Vec::new(),
        }));
    }
    let record = serde_json::from_str(&text).map_err(|e| TrustError::Malformed {
        path: path.to_owned(),
        why: e.to_string(),
    })?;
    Ok(Some(record))
}

#[cfg(test)]
mod tests;
