//! The thread that writes the trail. Only it waits for the disk.

use std::{
    io,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;
use tracing::{error, info};

use super::{Message, Options, Shared, Trail, WAITING_MAX, entry::Entry, files::Files};

/// How often to look for counts that are due, and to try again after a failure.
const TICK: Duration = Duration::from_secs(5);

/// How long the end of the coordinator waits for the last entries. A longer time would not help:
/// the disk hangs.
const LAST_ENTRIES: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Writer {
    trail: Trail,
    ended: oneshot::Receiver<()>,
}

impl Writer {
    pub(crate) fn start(options: &Options) -> io::Result<(Trail, Self)> {
        let (trail, waiting) = Trail::new(options);
        let work = Work {
            files: Files::new(options),
            shared: trail.shared.clone(),
            failing: false,
        };
        let tick = TICK.min(options.strangers);
        let (ending, ended) = oneshot::channel();
        thread::Builder::new().name("audit".into()).spawn(move || {
            // Dropped last, also after a panic.
            let _ending: oneshot::Sender<()> = ending;
            work.run(&waiting, tick);
        })?;
        let writer = Self {
            trail: trail.clone(),
            ended,
        };
        Ok((trail, writer))
    }

    /// Writes what is left and ends, unless the disk hangs.
    pub(crate) async fn end(self) {
        // If there is no room, the disk hangs.
        let _ = self.trail.queue.try_send(Message::End);
        let _ = tokio::time::timeout(LAST_ENTRIES, self.ended).await;
    }
}

pub(super) struct Work {
    pub(super) files: Files,
    pub(super) shared: Arc<Shared>,
    /// The last attempt to write has failed.
    pub(super) failing: bool,
}

impl Work {
    fn run(mut self, waiting: &Receiver<Message>, tick: Duration) {
        loop {
            let first = waiting.recv_timeout(tick);
            let mut ends = matches!(first, Err(RecvTimeoutError::Disconnected));
            let mut batch = Vec::new();
            for message in first
                .into_iter()
                .chain(waiting.try_iter().take(WAITING_MAX))
            {
                match message {
                    Message::Entry(entry) => batch.push(entry),
                    Message::End => ends = true,
                }
            }
            let now = (!ends).then(Instant::now);
            batch.extend(self.shared.refusals().take(now));
            self.write(batch);
            if ends {
                return;
            }
        }
    }

    /// Writes entries, and how many were lost before.
    pub(super) fn write(&mut self, mut batch: Vec<Entry>) {
        for entry in &batch {
            log(entry);
        }
        let lost = self.shared.lost.swap(0, Ordering::Relaxed);
        let new = batch.len() as u64;
        if lost > 0 {
            batch.push(Entry::of_lost(lost));
        }
        if batch.is_empty() {
            return;
        }
        let written = self.files.append(&batch);
        if let Err(e) = &written {
            self.shared.lost.fetch_add(lost + new, Ordering::Relaxed);
            if !self.failing {
                error!(
                    "write the audit trail: {e}; entries are lost until it can be written, the coordinator goes on"
                );
            }
        } else if lost > 0 {
            error!(lost, "entries of the audit trail were lost");
        }
        self.failing = written.is_err();
    }
}

/// A copy for the journal, which another user may keep.
fn log(entry: &Entry) {
    let Entry {
        who,
        from,
        what,
        object,
        code,
        count,
        ..
    } = entry;
    let result = entry.result.word();
    info!(target: "audit", who, from, what, object, result, code, count);
}
