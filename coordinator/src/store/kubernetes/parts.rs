//! Records that are larger than an object may be. The record's data is then in several other objects,
//! its *parts*, and its own object names them.
//!
//! The parts are made first, and each has a name that is never used again. So the write of the record's
//! own object, which names its version, still decides alone whether the record is stored. Parts that no
//! record names any more are deleted later. A part that nobody names may belong to a write that is under
//! way, so a coordinator that starts deletes such a part only after [`ORPHAN`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use jiff::Timestamp as WallTime;
use tokio::sync::Notify;
use tracing::info;
use uuid::Uuid;

use super::object::{About, Meta, Object, Spec, Unreadable};

/// The most bytes of data in one object. etcd takes a request of 1.5 MiB, and a proxy before the API
/// server often takes 1 MiB.
const DATA_MAX: usize = 512 << 10;
/// An API server that refuses so little can keep no records.
const DATA_MIN: usize = 16 << 10;
/// No write is under way for so long: its coordinator would have lost the Lease long ago.
const ORPHAN: Duration = Duration::from_secs(3600);

/// What the data of an object begins with whose record is in parts. It is not base64, so a build that
/// knows no parts refuses the record.
const MARK: &str = "parts:";

#[derive(Debug)]
pub(super) struct Parts {
    /// The most bytes of data that the API server was seen to take.
    most: AtomicUsize,
    /// By the name of a record's object.
    of: Mutex<BTreeMap<String, Vec<String>>>,
    /// Parts that no record names any more.
    waste: Mutex<BTreeSet<String>>,
    wasted: Notify,
}

impl Default for Parts {
    fn default() -> Self {
        Self {
            most: AtomicUsize::new(DATA_MAX),
            of: Mutex::default(),
            waste: Mutex::default(),
            wasted: Notify::new(),
        }
    }
}

impl Parts {
    /// The objects that make up this record, with its own object last. One, if it fits.
    pub(super) fn split(&self, spec: &Spec) -> Vec<Spec> {
        let most = self.most.load(Relaxed);
        if spec.data.len() <= most {
            return vec![spec.clone()];
        }
        // The data is base64, so every byte is a character.
        let pieces = spec.data.as_bytes().chunks(most);
        let part = |piece: &[u8]| Spec {
            about: About::Part,
            of: Uuid::now_v7().to_string(),
            version: None,
            data: String::from_utf8_lossy(piece).into_owned(),
        };
        let mut all: Vec<Spec> = pieces.map(part).collect();
        let names: Vec<&str> = all.iter().map(|part| part.of.as_str()).collect();
        all.push(Spec {
            data: format!("{MARK}{}", names.join(",")),
            ..spec.clone()
        });
        all
    }

    /// After a refusal: so much was too large. False: it was little, and less makes no sense.
    pub(super) fn shrink(&self, refused: usize) -> bool {
        let before = self.most.load(Relaxed);
        // Of very many parts the names alone are too large, and less makes them more.
        if refused <= DATA_MIN || before <= DATA_MIN {
            return false;
        }
        let most = before.min(refused);
        self.most.store((most / 2).max(DATA_MIN), Relaxed);
        true
    }

    /// The record's object was written and has these parts now, or none. Those before are waste.
    pub(super) fn written(&self, name: &str, now: &str) {
        let now = named(now).map(str::to_owned).collect::<Vec<_>>();
        let mut of = lock(&self.of);
        let before = match now.is_empty() {
            true => of.remove(name),
            false => of.insert(name.to_owned(), now),
        };
        drop(of);
        self.discard(before.into_iter().flatten());
    }

    pub(super) fn discard(&self, parts: impl IntoIterator<Item = String>) {
        let mut waste = lock(&self.waste);
        waste.extend(parts);
        if !waste.is_empty() {
            self.wasted.notify_one();
        }
    }

    /// All records of a list, each with its data whole. Remembers the parts of each, and what is
    /// waste. An error: the name of a record's object, and what is wrong with it.
    pub(super) fn whole(&self, objects: Vec<Object>) -> Result<Vec<Object>, (String, Unreadable)> {
        let (parts, mut records): (Vec<Object>, Vec<Object>) = objects
            .into_iter()
            .partition(|object| object.spec.about == About::Part);
        let mut parts: BTreeMap<String, Object> = parts
            .into_iter()
            .map(|part| (part.spec.of.clone(), part))
            .collect();
        let mut of = BTreeMap::new();
        for record in &mut records {
            let names: Vec<String> = named(&record.spec.data).map(str::to_owned).collect();
            if names.is_empty() {
                continue;
            }
            let mut data = String::new();
            for name in &names {
                match parts.remove(name) {
                    Some(part) => data.push_str(&part.spec.data),
                    None => {
                        let record = record.metadata.name.clone();
                        return Err((record, Unreadable::Part(name.clone())));
                    }
                }
            }
            record.spec.data = data;
            of.insert(record.metadata.name.clone(), names);
        }
        *lock(&self.of) = of;
        let orphans = parts.into_values();
        let old = orphans.filter(|part| is_old(&part.metadata, WallTime::now()));
        self.discard(old.map(|part| part.spec.of));
        Ok(records)
    }

    /// Waits for a part that is waste. It is the caller's now.
    pub(super) async fn next_waste(&self) -> String {
        loop {
            if let Some(part) = lock(&self.waste).pop_first() {
                return part;
            }
            self.wasted.notified().await;
        }
    }

    pub(super) fn tell_shrunk(&self, what: &str) {
        let most = self.most.load(Relaxed);
        info!(
            "the API server takes no object as large as {what}; records have parts of {most} bytes now"
        );
    }
}

/// The parts that an object's data names.
fn named(data: &str) -> impl Iterator<Item = &str> {
    data.strip_prefix(MARK)
        .into_iter()
        .flat_map(|names| names.split(','))
}

/// The names of these objects as parts, without the record's own.
pub(super) fn of(objects: &[Spec]) -> impl Iterator<Item = String> {
    let parts = objects.iter().filter(|spec| spec.about == About::Part);
    parts.map(|part| part.of.clone())
}

fn is_old(part: &Meta, now: WallTime) -> bool {
    let made = part.creation_timestamp.as_deref();
    let made = made.and_then(|text| text.parse::<WallTime>().ok());
    made.is_some_and(|made| now.duration_since(made).as_secs() >= ORPHAN.as_secs() as i64)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_without_a_record_is_waste_after_an_hour() {
        let now: WallTime = "2026-11-26T12:00:00Z".parse().unwrap();
        let made = |text: Option<&str>| Meta {
            creation_timestamp: text.map(str::to_owned),
            ..Meta::default()
        };
        assert!(is_old(&made(Some("2026-11-26T11:00:00Z")), now));
        for young in [Some("2026-11-26T11:00:01Z"), Some("soon"), None] {
            assert!(!is_old(&made(young), now), "{young:?}");
        }
    }

    #[test]
    fn parts_shrink_down_to_a_limit() {
        let parts = Parts::default();
        let spec = Spec {
            about: About::Job,
            of: "a".into(),
            version: None,
            data: "x".repeat(40 << 10),
        };
        assert_eq!(parts.split(&spec).len(), 1);
        assert!(parts.shrink(spec.data.len()));
        assert_eq!(parts.split(&spec).len(), 2 + 1, "20 KiB each, and its own");
        assert!(parts.shrink(20 << 10));
        assert_eq!(parts.split(&spec).len(), 3 + 1, "not below 16 KiB");
        assert!(!parts.shrink(DATA_MIN));
    }
}
