//! The disk that keeps what the agent must not forget. Two threads write to it: one writes the
//! ledger, and one does errands that nothing waits for. So neither a heartbeat nor a runner's
//! message ever waits for a disk.
//!
//! A failed write of the ledger is tried again until it succeeds. Meanwhile the session and the
//! workers go on, and the brain (`core::node`) obeys nothing new. The node's senses are told how
//! long a write takes and why it fails, and their rules judge it.

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

/// Time between attempts to write the ledger, so short that a job waits little after a person has
/// freed space.
const RETRY: Duration = Duration::from_secs(1);
/// A write that takes this long is reported, and again each time its duration has doubled. Healthy
/// disks take milliseconds. The rule `state-disk-slow` says when it becomes a finding.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// How many errands may wait: a release and a purge for each run of a node, many times over. The
/// others are done later, because the coordinator repeats what must be gone.
const ERRANDS_MAX: usize = 1_024;
/// How many messages of the threads may wait: one per request, taken at once.
const NEWS_MAX: usize = 64;

/// A task for the disk that nothing waits for. Errands are done in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Errand {
    /// Mark a run as acknowledged.
    Release(RunId),
    /// Remove everything that this job's runs have left, up to this generation.
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
    /// Errands that are not done yet. A repeated order adds no second errand.
    underway: BTreeSet<Errand>,
    facts: Facts,
}

#[derive(Debug)]
struct Writing {
    begun: Instant,
    /// When to report how long the write takes.
    tell_at: Instant,
    failure: Option<String>,
}

/// The ledger's thread has ended, so nothing more can be obeyed.
#[derive(Debug, thiserror::Error)]
#[error("the thread that writes the ledger has ended")]
pub(crate) struct ThreadEnded;

impl StateDisk {
    pub(crate) fn start(dir: &Path, runs: Runs, facts: Facts) -> io::Result<Self> {
        // The brain has only one write under way at a time.
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

    /// Starts to write the ledger. Only one write is under way at a time, and [`Self::saved`]
    /// returns when it is on disk.
    pub(crate) fn save(&mut self, ledger: Box<Ledger>) {
        let begun = Instant::now();
        self.writing = Some(Writing {
            begun,
            tell_at: begun + TELL_AFTER,
            failure: None,
        });
        // If the thread has ended, saved() reports it.
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

    /// Returns when the current write of the ledger is on disk. Cancel safe.
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

    /// Sends the state of the current write to the judge.
    fn tell(&self) {
        let Some(writing) = &self.writing else { return };
        let reading = |check, value, words| Reading {
            check,
            subject: Subject::Node,
            value,
            words,
            runs: Vec::new(),
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

/// Ends when nobody asks any more, or nobody listens any more.
fn write_ledgers(dir: &Path, to_write: &Receiver<Box<Ledger>>, news: &mpsc::Sender<News>) {
    let mut told = String::new();
    while let Ok(ledger) = to_write.recv() {
        while let Err(e) = ledger_file::write(dir, &ledger) {
            let why = chain(&e);
            // A disk that is full for an hour gives one line in the log.
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
