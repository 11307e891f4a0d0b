//! The audit trail: who did what, when, from where, on which object, with which result. In `audit/`
//! of the state directory, readable by the coordinator's user only.
//!
//! | file | owns |
//! |---|---|
//! | `entry` | one entry, a line of JSON |
//! | `files` | the files: append, rotate, read |
//! | `refusals` | which refused calls get an entry of their own, and which are counted |
//! | `call` | one call, from its admission to its answer |
//! | `writer` | the thread that writes |
//!
//! A call is never held up by the trail. It puts its entry into a bounded queue, and a thread writes
//! from there. Entries that do not fit or cannot be written are counted; the count becomes an entry as
//! soon as one can be written again. Entries hold names and codes, and of a denied call the reason in the
//! coordinator's words, cut and on one line: no token, no value of an environment variable.
//!
//! Commands on the coordinator's machine append to the same files.

mod call;
mod entry;
mod files;
mod refusals;
mod writer;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

pub(crate) use call::{Call, Note};
pub use entry::{Entry, Outcome};
pub(crate) use files::Files;
use refusals::Refusals;
pub(crate) use writer::Writer;

/// Entries that wait for the disk: 4,096 of at most some 900 bytes are 4 MB. The busiest hour of
/// people and scripts brings some ten entries a second, so this bridges minutes.
const WAITING_MAX: usize = 4_096;

/// Where the trail is, and its bounds.
#[derive(Clone, Debug)]
pub struct Options {
    pub folder: PathBuf,
    /// Bytes of a file after which the next one begins. Two files are kept.
    pub file_bytes: u64,
    /// How long refusals of callers without a certificate are counted for one entry.
    pub strangers: Duration,
    /// The same for calls alike of one known caller.
    pub repeats: Duration,
}

impl Options {
    /// The trail of this state directory.
    pub fn of(state_dir: &Path) -> Self {
        Self {
            folder: state_dir.join("audit"),
            // An entry has some 180 bytes, so two files hold the last 180,000 calls.
            file_bytes: 16 << 20,
            strangers: Duration::from_secs(60),
            // A denied agent calls again every few seconds for as long as it runs. At six entries
            // an hour it would need years to push out the entries of others.
            repeats: Duration::from_secs(600),
        }
    }
}

/// The way into the trail. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Trail {
    queue: SyncSender<Message>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum Message {
    Entry(Entry),
    /// The coordinator ends.
    End,
}

/// What the trail's users share with the thread that writes.
#[derive(Debug)]
struct Shared {
    refusals: Mutex<Refusals>,
    /// Entries that are not and will not be written.
    lost: AtomicU64,
}

impl Trail {
    fn new(options: &Options) -> (Self, Receiver<Message>) {
        let (queue, waiting) = sync_channel(WAITING_MAX);
        let shared = Shared {
            refusals: Mutex::new(Refusals::new(options.strangers, options.repeats)),
            lost: AtomicU64::new(0),
        };
        let trail = Self {
            queue,
            shared: Arc::new(shared),
        };
        (trail, waiting)
    }

    /// Takes an entry. Never waits.
    pub(crate) fn record(&self, entry: Entry) {
        let own_entry =
            entry.result == Outcome::Allowed || self.shared.refusals().note(Instant::now(), &entry);
        if own_entry && self.queue.try_send(Message::Entry(entry)).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Shared {
    fn refusals(&self) -> std::sync::MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Appends what a command on the coordinator's machine did.
pub fn append(options: &Options, entries: &[Entry]) -> std::io::Result<()> {
    Files::new(options).append(entries)
}

#[cfg(test)]
mod tests;
