//! Watches the files that a job saves, for jobs whose scripts show no steps. Only whether they
//! change counts, so the clock of a file server does not matter.
//!
//! Each watch has a thread of its own, because a file system of the network may hang. A hung watch
//! says nothing and holds up nobody.

use std::{
    collections::BTreeMap,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use muster_core::{
    run::{CheckpointReport, RunId, RunPhase, RunReport},
    time::Timestamp,
};
use muster_runtime::clock::Clock;
use tracing::warn;

/// The time between looks. A checkpoint takes longer to train than this, and a look at a file
/// server costs it a few calls.
const EVERY: Duration = Duration::from_secs(10);

/// How many names of directories one look reads. A pattern that meets more is too wide: the rest is
/// not seen.
const NAMES_MAX: usize = 10_000;

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
            let (name, say) = (run.clone(), say.clone());
            let work = move || watch(&dir, &pattern, &stopped, |at| say(name.clone(), at));
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

fn watch(dir: &Path, pattern: &str, stopped: &mpsc::Receiver<()>, say: impl Fn(Timestamp) -> bool) {
    let mut before = look(dir, pattern);
    while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        let now = look(dir, pattern);
        // A file that only went away is no progress: old checkpoints are often removed.
        let changed = now
            .iter()
            .any(|(path, state)| before.get(path) != Some(state));
        if changed && !say(Timestamp(Clock::Boot.now_us())) {
            return;
        }
        before = now;
    }
}

/// The files that match, each with what changes when it is written.
fn look(dir: &Path, pattern: &str) -> BTreeMap<PathBuf, u64> {
    let mut names = NAMES_MAX;
    let mut found = vec![PathBuf::new()];
    for part in dir.join(pattern).components() {
        let Component::Normal(part) = part else {
            for path in &mut found {
                path.push(part);
            }
            continue;
        };
        let part = part.to_string_lossy();
        if !part.contains('*') {
            for path in &mut found {
                path.push(&*part);
            }
            continue;
        }
        let mut next = Vec::new();
        for dir in &found {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            for entry in entries.take(names) {
                names -= 1;
                let name = entry.file_name();
                if fits(&part, &name.to_string_lossy()) {
                    next.push(dir.join(name));
                }
            }
        }
        found = next;
    }
    let state = |path: PathBuf| {
        let file = fs::metadata(&path).ok()?;
        let mut state = DefaultHasher::new();
        (file.ino(), file.len(), file.mtime(), file.mtime_nsec()).hash(&mut state);
        Some((path, state.finish()))
    };
    found.into_iter().filter_map(state).collect()
}

/// Whether a name fits a pattern, in which `*` is any text.
fn fits(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else {
        return rest.is_empty();
    };
    for piece in pieces {
        let Some(at) = rest.find(piece) else {
            return false;
        };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_part_of_a_name() {
        for (pattern, name, fit) in [
            ("*.pt", "a.pt", true),
            ("*.pt", "a.pth", false),
            ("step*.pt", "step12.pt", true),
            ("step*.pt", "last.pt", false),
            ("*", "anything", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXcYb", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(fits(pattern, name), fit, "{pattern} {name}");
        }
    }

    #[test]
    fn only_files_of_the_pattern_are_seen_and_only_their_changes_count() {
        let dir = tempfile::tempdir().unwrap();
        let (out, pattern) = (dir.path().join("out/run-1"), "out/*/*.pt");
        assert!(look(dir.path(), pattern).is_empty());
        fs::create_dir_all(&out).unwrap();
        fs::write(out.join("a.pt"), "1").unwrap();
        fs::write(out.join("log.txt"), "1").unwrap();
        let before = look(dir.path(), pattern);
        assert_eq!(before.keys().collect::<Vec<_>>(), [&out.join("a.pt")]);
        assert_eq!(look(dir.path(), pattern), before);
        fs::write(out.join("log.txt"), "22").unwrap();
        assert_eq!(look(dir.path(), pattern), before);
        fs::write(out.join("a.pt"), "22").unwrap();
        assert_ne!(look(dir.path(), pattern), before);
    }
}
