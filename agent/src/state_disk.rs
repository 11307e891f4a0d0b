//! The disk that keeps what the agent must not forget. Two threads work on it, one for the ledger
//! and one for errands that nothing waits for, so that neither a heartbeat nor a word of a runner
//! ever waits for a disk.
//!
//! A write of the ledger that fails is tried again until it succeeds: meanwhile the session and the
//! workers go on, and the brain (`core::node`) obeys nothing new. How long a write takes and why it
//! fails is told to the node's senses, whose rules judge it.

use std::{
    collections::BTreeSet,
    io,
    path::Path,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use muster_core::{
    health::{Reading, Subject, Value},
    node::Ledger,
    run::RunId,
};
use muster_runtime::chain::chain;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tracing::{error, info, warn};

use crate::{ledger_file, probe::Facts, run_dir::Runs};

/// Between attempts to write the ledger: soon enough that a job waits little after a person has
/// made room.
const RETRY: Duration = Duration::from_secs(1);
/// A write that has taken so long is told of, and again whenever it has taken twice as long.
/// Healthy disks take milliseconds; the rule `state-disk-slow` says from when on it is a finding.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// Errands that wait: one release and one purge for each of the runs a node holds, many times over.
/// What does not fit is done later: the coordinator says again what is to be gone.
const ERRANDS_MAX: usize = 1_024;
/// What the threads have to say: one word for each thing they were asked, taken at once.
const NEWS_MAX: usize = 64;

/// Something to be done on disk, in order, that nothing waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Errand {
    /// Mark a run as acknowledged.
    Release(RunId),
    /// Remove what runs of this job, up to this generation, have left.
    Purge(RunId),
}

#[derive(Debug)]
enum News {
    Saved,
    NotSaved(String),
    Done(Errand),
}

#[derive(Debug)]
pub(crate) struct StateDisk {
    ledgers: SyncSender<Box<Ledger>>,
    errands: SyncSender<Errand>,
    news: mpsc::Receiver<News>,
    writing: Option<Writing>,
    /// Errands that are not done yet: an order that is repeated is not another.
    underway: BTreeSet<Errand>,
    facts: Facts,
}

#[derive(Debug)]
struct Writing {
    begun: Instant,
    /// When to tell how long it takes.
    tell_at: Instant,
    failure: Option<String>,
}

/// The thread that writes the ledger is gone, so nothing more can be obeyed.
#[derive(Debug, thiserror::Error)]
#[error("the thread that writes the ledger has ended")]
pub(crate) struct ThreadEnded;

impl StateDisk {
    pub(crate) fn start(dir: &Path, runs: Runs, facts: Facts) -> io::Result<Self> {
        // The brain has one write under way at a time.
        let (ledgers, to_write) = sync_channel(1);
        let (errands, to_do) = sync_channel(ERRANDS_MAX);
        let (say, news) = mpsc::channel(NEWS_MAX);
        let (dir, told) = (dir.to_owned(), say.clone());
        thread::Builder::new()
            .name("ledger".into())
            .spawn(move || write_ledgers(&dir, &to_write, &told))?;
        thread::Builder::new()
            .name("errands".into())
            .spawn(move || run_errands(&runs, &to_do, &say))?;
        Ok(Self {
            ledgers,
            errands,
            news,
            writing: None,
            underway: BTreeSet::new(),
            facts,
        })
    }

    /// Begins to write the ledger. One write is under way at a time: [`Self::saved`] says when it
    /// is on disk.
    pub(crate) fn save(&mut self, ledger: Box<Ledger>) {
        let begun = Instant::now();
        self.writing = Some(Writing {
            begun,
            tell_at: begun + TELL_AFTER,
            failure: None,
        });
        // If the thread is gone, saved() says so.
        let _ = self.ledgers.try_send(ledger);
    }

    pub(crate) fn run(&mut self, errand: Errand) {
        if self.underway.contains(&errand) {
            return;
        }
        match self.errands.try_send(errand.clone()) {
            Ok(()) => drop(self.underway.insert(errand)),
            Err(_) => warn!(
                ?errand,
                "too much waits for the state disk; it is done when it is asked for again"
            ),
        }
    }

    /// Returns when the ledger under way is on disk. Cancel safe.
    pub(crate) async fn saved(&mut self) -> Result<(), ThreadEnded> {
        loop {
            let tell_at = self.writing.as_ref().map(|writing| writing.tell_at);
            tokio::select! {
                news = self.news.recv() => match news.ok_or(ThreadEnded)? {
                    News::Done(errand) => drop(self.underway.remove(&errand)),
                    News::NotSaved(why) => {
                        self.writing.iter_mut().for_each(|writing| writing.failure = Some(why.clone()));
                        self.tell();
                    }
                    News::Saved => {
                        self.finish();
                        return Ok(());
                    }
                },
                () = until(tell_at) => {
                    self.tell();
                    self.writing.iter_mut().for_each(|writing| writing.tell_at = writing.begun + writing.begun.elapsed() * 2);
                }
            }
        }
    }

    fn finish(&mut self) {
        let Some(writing) = self.writing.as_mut() else {
            return;
        };
        let (took, failed) = (writing.begun.elapsed(), writing.failure.take().is_some());
        if took >= TELL_AFTER || failed {
            info!(?took, "the ledger is written");
            self.tell();
        }
        self.writing = None;
    }

    /// Has the write under way judged.
    fn tell(&self) {
        let Some(writing) = &self.writing else { return };
        let reading = |check, value, words| Reading {
            check,
            subject: Subject::Node,
            value,
            words,
        };
        let slow = "milliseconds that a write of the agent's ledger has taken, during which the node obeys nothing new".to_owned();
        let why = writing.failure.clone().unwrap_or_default();
        self.facts.note_state_disk(vec![
            reading(
                "state-disk-slow",
                Value::Level(
                    u64::try_from(writing.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
                ),
                slow,
            ),
            reading(
                "state-disk-unwritable",
                Value::Flag(writing.failure.is_some()),
                format!(
                    "the agent's ledger cannot be written, so the node obeys nothing new: {why}"
                ),
            ),
        ]);
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Ends when nobody asks, or nobody listens, any more.
fn write_ledgers(dir: &Path, to_write: &Receiver<Box<Ledger>>, news: &mpsc::Sender<News>) {
    let mut told = String::new();
    while let Ok(ledger) = to_write.recv() {
        while let Err(e) = ledger_file::write(dir, &ledger) {
            let why = chain(&e);
            // A disk that is full for an hour is one line.
            if told != why {
                error!(
                    "the ledger cannot be written, so nothing new is obeyed; trying again: {why}"
                );
                told.clone_from(&why);
            }
            if news.blocking_send(News::NotSaved(why)).is_err() {
                return;
            }
            thread::sleep(RETRY);
        }
        told.clear();
        if news.blocking_send(News::Saved).is_err() {
            return;
        }
    }
}

fn run_errands(runs: &Runs, to_do: &Receiver<Errand>, news: &mpsc::Sender<News>) {
    while let Ok(errand) = to_do.recv() {
        let done = match &errand {
            Errand::Release(run) => runs.release(run),
            Errand::Purge(run) => runs.purge(run),
        };
        if let Err(e) = done {
            warn!(?errand, "not done on the state disk: {e}");
        }
        if news.blocking_send(News::Done(errand)).is_err() {
            return;
        }
    }
}
