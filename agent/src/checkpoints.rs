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
/// The looks in a row at which something has changed, before that is told although it goes on.
const WRITES_MAX: u32 = 6;

/// Files, each with what changes when it is written.
type Files = BTreeMap<PathBuf, u64>;

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
    look: impl Fn() -> Option<Files>,
    stopped: &mpsc::Receiver<()>,
    say: impl Fn(Timestamp) -> bool,
) {
    let mut seen = Seen {
        before: look(),
        ..Seen::default()
    };
    while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        let Some(files) = look() else {
            continue;
        };
        let saved = seen.look(files, Timestamp(Clock::Boot.now_us()));
        if saved.is_some_and(|at| !say(at)) {
            return;
        }
    }
}

/// The files of a job's pattern at the last look, and a change that was not told yet.
#[derive(Debug, Default)]
struct Seen {
    before: Option<Files>,
    /// When they changed, if that was not told.
    changed: Option<Timestamp>,
    /// At how many looks in a row.
    looks: u32,
}

impl Seen {
    /// Looks at the files. Returns when a save was made that is over now. A file that still changes is no save yet, unless
    /// it changes at many looks in a row: some scripts write all the time.
    fn look(&mut self, files: Files, now: Timestamp) -> Option<Timestamp> {
        // A file that only went away is no progress: old checkpoints are often removed.
        let changes = self.before.as_ref().is_some_and(|before| {
            let mut files = files.iter();
            files.any(|(path, state)| before.get(path) != Some(state))
        });
        self.before = Some(files);
        if changes {
            (self.changed, self.looks) = (Some(now), self.looks + 1);
        }
        if changes && self.looks < WRITES_MAX {
            return None;
        }
        self.looks = 0;
        self.changed.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When saves were told, if the only file is this at looks that are a second apart.
    fn told(states: &[Option<u64>]) -> Vec<(u64, u64)> {
        let mut seen = Seen::default();
        let mut told = Vec::new();
        for (second, state) in (0..).zip(states) {
            let files = state.map(|state| (PathBuf::from("model.pt"), state));
            let saved = seen.look(files.into_iter().collect(), Timestamp(second));
            told.extend(saved.map(|at| (second, at.0)));
        }
        told
    }

    #[test]
    fn a_save_is_told_when_it_is_over() {
        assert_eq!(
            told(&[Some(1), Some(1), Some(1)]),
            [],
            "it was there before"
        );
        assert_eq!(told(&[None, Some(1), Some(1), Some(1)]), [(2, 1)]);
        let grows = [Some(1), Some(2), Some(3), Some(3), Some(3)];
        assert_eq!(told(&grows), [(3, 2)], "it was written until then");
        assert_eq!(told(&[Some(1), None, None]), [], "it was removed");
    }

    #[test]
    fn who_writes_all_the_time_saves_too() {
        let writes: Vec<Option<u64>> = (0..14).map(Some).collect();
        assert_eq!(told(&writes), [(6, 6), (12, 12)]);
    }
}
