//! Watches the files that a job saves, for jobs whose scripts show no steps. Only whether they
//! change counts, so the clock of a file server does not matter.
//!
//! Each watch has a thread of its own, because a file system of the network may hang. A hung watch
//! says nothing and holds up nobody.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use muster_core::{
    run::{CheckpointReport, RunId, RunPhase, RunReport},
    time::Timestamp,
};
use muster_runtime::clock::Clock;
use tracing::warn;

use crate::host::RunnerHost;

/// The time between looks. A checkpoint takes longer to train than this, and a look at a file
/// server costs it a few calls.
const EVERY: Duration = Duration::from_secs(10);

/// The watches of all runs that may train.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints(BTreeMap<RunId, Watch>);

#[derive(Debug)]
struct Watch {
    saved_at: Option<Timestamp>,
    /// The thread ends when this is dropped.
    _stop: mpsc::Sender<()>,
}

impl Checkpoints {
    /// Begins to watch for runs that are ready or train, and forgets the others. `files` knows the
    /// directory and the pattern of a run. `say` is called from a watch's thread when a file has
    /// changed; it returns whether somebody listens.
    pub(crate) fn follow<S>(
        &mut self,
        reports: &[RunReport],
        host: impl Fn(&RunId) -> Arc<dyn RunnerHost>,
        files: impl Fn(&RunId) -> Option<(PathBuf, String)>,
        say: S,
    ) where
        S: Fn(RunId, Timestamp) -> bool + Clone + Send + 'static,
    {
        let watched = |report: &&RunReport| {
            matches!(
                report.phase,
                RunPhase::Ready | RunPhase::Running | RunPhase::Stopping
            )
        };
        for run in reports.iter().filter(watched).map(|report| &report.run) {
            if self.0.contains_key(run) {
                continue;
            }
            let Some((dir, pattern)) = files(run) else {
                continue;
            };
            let (stop, stopped) = mpsc::channel();
            let (name, say, host) = (run.clone(), say.clone(), host(run));
            let look = move || host.saved(&dir, &pattern);
            let work = move || watch(look, &stopped, |at| say(name.clone(), at));
            let thread = thread::Builder::new().name("checkpoints".into());
            if let Err(e) = thread.spawn(work) {
                warn!(%run, "its checkpoints are not watched: {e}");
                continue;
            }
            let watch = Watch {
                saved_at: None,
                _stop: stop,
            };
            self.0.insert(run.clone(), watch);
        }
        self.0
            .retain(|run, _| reports.iter().any(|report| report.run == *run));
    }

    pub(crate) fn saved(&mut self, run: &RunId, at: Timestamp) {
        if let Some(watch) = self.0.get_mut(run) {
            watch.saved_at = Some(at);
        }
    }

    pub(crate) fn tell(&self, reports: &mut [RunReport]) {
        for report in reports {
            let watch = self.0.get(&report.run);
            report.checkpoint = watch.map(|watch| CheckpointReport {
                saved_at: watch.saved_at,
            });
        }
    }
}

fn watch(
    look: impl Fn() -> Option<BTreeMap<PathBuf, u64>>,
    stopped: &mpsc::Receiver<()>,
    say: impl Fn(Timestamp) -> bool,
) {
    let mut before = look();
    while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        let Some(now) = look() else {
            continue;
        };
        // A file that only went away is no progress: old checkpoints are often removed.
        let changed = before.as_ref().is_some_and(|before| {
            now.iter()
                .any(|(path, state)| before.get(path) != Some(state))
        });
        if changed && !say(Timestamp(Clock::Boot.now_us())) {
            return;
        }
        before = Some(now);
    }
}
