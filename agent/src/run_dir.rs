//! Where runs lie on disk: `DIR/runs/<job uid>-g<generation>/`, each the directory of one runner.
//!
//! Besides the runner's files the agent keeps notes: `accepted.json` (the term and the GPUs), `lost.json`
//! (when a run without a record of its end was found dead), `released` (its end is recorded
//! elsewhere, so only its logs are still useful; it says how many bytes they are) and `emptied` (its
//! logs were removed to make room). On a machine they lie beside the runner's files. In a pod, where the
//! workers' container can write the runs but not the agent's state directory, they lie there.
//!
//! Workers can put anything in the place of any file of a run, so all goes through [`Folder`].

use std::{
    collections::VecDeque,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use muster_core::{
    id::{Generation, JobUid, Term},
    nccl::stack::Stack,
    node::{account::Account, caches, lane::Lane, launch::Noted, pool},
    run::{Key, RunId},
};
use muster_runner::{Folder, RunnerIdentity, pod::RUNS, record, wire::Status};
use muster_runtime::{chain::chain, clock::Clock};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tracing::warn;

use crate::keep::{self, Ended, Fate};

const ACCEPTED: &str = "accepted.json";
const LOST: &str = "lost.json";
const RELEASED: &str = "released";
const EMPTIED: &str = "emptied";
/// Stands between the job and the number in the name of a launcher's directory.
const LAUNCHER: &str = "-launcher-";
/// The same mark of older agents, whose launchers served one generation each.
const LAUNCHER_OLD: &str = "-spare-";

/// What ended runs may take together on a node, in MiB, unless its operator says otherwise: the logs
/// of four jobs with 8 ranks that wrote all they can, and of any number that wrote little.
pub(crate) const LOGS_MAX_MIB: u64 = 20 << 10;

/// How many bytes of `released` are read. A number has at most 20 digits.
const NUMBER_MAX: u64 = 32;
/// The longest note: the GPUs, ports and software of one run.
const NOTE_MAX: u64 = 1 << 20;
/// How many names the directory of all runs may have. Beyond it the agent would not know what it holds,
/// so it says so and lists nothing.
const NAMES_MAX: usize = 1_000_000;
/// How many levels of directories below a run's own are counted. Muster and torchrun make a few; a
/// script can nest them until their path is too long for the kernel.
const COUNTED_DEPTH: usize = 16;
/// How many files and directories of a run are counted. Muster and torchrun make a few for each rank;
/// a script can make any number, and 100,000 take some tenths of a second.
const COUNTED_ENTRIES: usize = 100_000;

/// All runs of one node.
#[derive(Clone, Debug)]
pub(crate) struct Runs {
    /// Each run has a directory here, in `runs`.
    root: PathBuf,
    /// Where the notes about a run lie, in a directory of the same name.
    notes: PathBuf,
    /// How many bytes the runs that are over may take.
    limit: u64,
}

/// That the logs of a run were removed to make room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Emptied {
    /// Microseconds since 1970.
    pub(crate) unix_us: u64,
    /// How many bytes ended runs might take then.
    pub(crate) limit: u64,
}

/// The agent's own notes about a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Accepted {
    pub(crate) term: Term,
    pub(crate) gpus: Vec<String>,
    /// The job's name as its user knows it. A job that was submitted again has the same name.
    #[serde(default)]
    pub(crate) job: String,
    #[serde(default)]
    pub(crate) lane: Lane,
    /// Why the run has this lane, for the user.
    #[serde(default)]
    pub(crate) why: String,
    /// Its torchrun serves a TCPStore itself (`torchrun::alone`).
    #[serde(default)]
    pub(crate) alone: bool,
    /// The software of the interpreter that starts the ranks.
    #[serde(default)]
    pub(crate) stack: Stack,
    /// The value of `LC_CTYPE` that torchrun's interpreter leaves to ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ctype: Option<String>,
    /// Its runner must be told when the coordinator was heard.
    #[serde(default)]
    pub(crate) fenced: bool,
    /// Where its workers start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) work_dir: Option<String>,
    /// The files whose changes are reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint_pattern: Option<String>,
    /// As whom it runs. None: as the agent's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) account: Option<Account>,
    /// The port that was chosen for its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
    /// The ports that were chosen for all members, if the node holds several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<u16>,
    /// The key that was chosen for its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<Key>,
    /// The directory that its processes also name, if an older agent has started the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) was: Option<PathBuf>,
}

impl Accepted {
    /// What its start needs of it.
    pub(crate) fn noted(&self) -> Noted<'_> {
        Noted {
            lane: self.lane,
            alone: self.alone,
            ctype: self.ctype.as_deref(),
            torch: &self.stack.torch,
            key: self.key.as_ref(),
        }
    }
}

/// When a lost run was found dead, on the clock of one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lost {
    pub(crate) boot_id: String,
    pub(crate) at_us: u64,
}

impl Runs {
    /// Those in this directory, with the notes about them beside them.
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            notes: root.to_owned(),
            limit: LOGS_MAX_MIB << 20,
        }
    }

    /// The same, with the notes in another directory.
    pub(crate) fn noting(self, notes: &Path) -> Self {
        let notes = notes.to_owned();
        Self { notes, ..self }
    }

    /// The same, with another bound of what runs that are over may take.
    pub(crate) fn keeping(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    pub(crate) fn dir(&self, run: &RunId) -> PathBuf {
        self.root.join(RUNS).join(run.to_string())
    }

    /// Makes a run's directory and notes what was accepted.
    pub(crate) fn make(&self, run: &RunId, accepted: &Accepted) -> io::Result<PathBuf> {
        let dir = self.dir(run);
        Folder::make_run(&dir)?;
        if let Some(notes) = self.notes_dir(run) {
            Folder::make_run(&notes)?;
        }
        self.note(run, ACCEPTED, accepted)?;
        Ok(dir)
    }

    fn folder(&self, run: &RunId) -> io::Result<Folder> {
        Folder::of_run(&self.dir(run))
    }

    /// The directory of the notes about a run, if it is not the run's own.
    fn notes_dir(&self, run: &RunId) -> Option<PathBuf> {
        (self.notes != self.root).then(|| self.notes.join(RUNS).join(run.to_string()))
    }

    /// The folder with the notes about a run, and whether it is the run's own.
    fn notes(&self, run: &RunId) -> io::Result<(Folder, bool)> {
        match self.notes_dir(run).map(|notes| Folder::of_run(&notes)) {
            // None: an older agent has accepted the run.
            Some(Err(e)) if e.kind() == io::ErrorKind::NotFound => {}
            Some(notes) => return Ok((notes?, false)),
            None => {}
        }
        Ok((self.folder(run)?, true))
    }

    fn note<T: Serialize>(&self, run: &RunId, name: &str, value: &T) -> io::Result<()> {
        let content = muster_sealed::seal(serde_json::to_vec(value)?);
        self.notes(run)?.0.replace(name, &content)
    }

    /// A note that cannot be read counts as missing, since everything in it is dispensable. A person
    /// should still know.
    fn noted<T: DeserializeOwned>(&self, run: &RunId, name: &str) -> Option<T> {
        let text = self
            .notes(run)
            .and_then(|(notes, _)| notes.read(name, NOTE_MAX));
        let value = match text {
            Ok(text) => record::parse(&text)
                .map_err(|(offset, what)| format!("damaged at byte {offset}: {what}")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => Err(format!("cannot be read: {e}")),
        };
        value
            .inspect_err(|e| warn!(%run, name, "{e}; going on without it"))
            .ok()
    }

    fn has_note(&self, run: &RunId, name: &str) -> bool {
        self.notes(run).is_ok_and(|(notes, _)| notes.has(name))
    }

    pub(crate) fn launcher_dir(&self, job: &JobUid, number: u32) -> PathBuf {
        self.root
            .join(RUNS)
            .join(format!("{job}{LAUNCHER}{number}"))
    }

    /// The directory of a launcher that belongs to no job.
    pub(crate) fn pool_dir(&self, number: u32) -> PathBuf {
        let name = format!("{}{LAUNCHER}{number}", pool::NAME);
        self.root.join(RUNS).join(name)
    }

    /// The directory of what a job's ranks compile.
    pub(crate) fn cache_dir(&self, job: &JobUid) -> PathBuf {
        self.root
            .join(RUNS)
            .join(format!("{job}{}", caches::SUFFIX))
    }

    /// Makes that directory, and empties it if it has become too large.
    pub(crate) fn make_cache(&self, job: &JobUid) -> io::Result<()> {
        let dir = self.cache_dir(job);
        if bytes_below(&Folder::make_run(&dir)?.handle()) > caches::BYTES_MAX {
            Folder::remove_run(&dir)?;
            Folder::make_run(&dir)?;
        }
        Ok(())
    }

    /// The jobs that have such a directory.
    pub(crate) fn cached_jobs(&self) -> io::Result<Vec<JobUid>> {
        let names = self.names()?;
        let jobs = names
            .iter()
            .filter_map(|name| name.strip_suffix(caches::SUFFIX));
        Ok(jobs.map(JobUid::from).collect())
    }

    /// The directories that launchers of an earlier agent have left, with their numbers.
    pub(crate) fn old_launchers(&self) -> io::Result<Vec<(u32, PathBuf)>> {
        let number = |name: &str| {
            [LAUNCHER, LAUNCHER_OLD]
                .iter()
                .find_map(|mark| name.rsplit_once(mark)?.1.parse().ok())
        };
        Ok(self
            .names()?
            .into_iter()
            .filter_map(|name| Some((number(&name)?, self.root.join(RUNS).join(&name))))
            .collect())
    }

    /// Whether a launcher of this job has imported what its ranks have imported.
    pub(crate) fn has_imported_ahead(&self, job: &JobUid) -> bool {
        let launchers = self.old_launchers().unwrap_or_default();
        let told = |number: u32| self.launcher_dir(job, number).join(record::PRELOADED);
        launchers.iter().any(|(number, _)| told(*number).exists())
    }

    /// Notes that a run uses another lane than the one it was accepted with.
    pub(crate) fn note_lane(&self, run: &RunId, accepted: &Accepted) -> io::Result<()> {
        self.note(run, ACCEPTED, accepted)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        match Folder::trusted(&self.root).and_then(|root| root.below(RUNS)?.names(NAMES_MAX)) {
            Ok(names) => Ok({ names.into_iter() }
                .map(|name| name.to_string_lossy().into_owned())
                .collect()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Every run on disk, released or not.
    fn all(&self) -> io::Result<Vec<RunId>> {
        let mut runs = Vec::new();
        for name in self.names()? {
            match run_of(&name) {
                Some(run) => runs.push(run),
                None if name.contains(LAUNCHER) || name.contains(LAUNCHER_OLD) => {}
                None if name.ends_with(caches::SUFFIX) => {}
                None => warn!(name = ?name, "not a run's directory, left alone"),
            }
        }
        runs.sort();
        Ok(runs)
    }

    /// Runs whose end is not acknowledged.
    pub(crate) fn open(&self) -> io::Result<Vec<RunId>> {
        Ok(self
            .all()?
            .into_iter()
            .filter(|run| !self.is_released(run))
            .collect())
    }

    /// Whether the end of a run is acknowledged, so that only its logs are still useful.
    pub(crate) fn is_released(&self, run: &RunId) -> bool {
        self.has_note(run, RELEASED)
    }

    /// Whether a runner was ever ready. Without one nothing was ever started.
    pub(crate) fn had_runner(&self, run: &RunId) -> bool {
        self.folder(run).is_ok_and(|dir| dir.has(record::RUNNER))
    }

    pub(crate) fn accepted(&self, run: &RunId) -> Option<Accepted> {
        self.noted(run, ACCEPTED)
    }

    /// The identity of its runner, even if the other records are damaged.
    pub(crate) fn runner(&self, run: &RunId) -> Option<RunnerIdentity> {
        let read = RunnerIdentity::read(&self.dir(run));
        read.inspect_err(|e| warn!(%run, "going on without its runner's identity: {}", chain(e)))
            .ok()
            .flatten()
    }

    pub(crate) fn lost(&self, run: &RunId) -> Option<Lost> {
        self.noted(run, LOST)
    }

    pub(crate) fn note_lost(&self, run: &RunId, lost: &Lost) -> io::Result<()> {
        self.note(run, LOST, lost)
    }

    /// Marks a run as acknowledged, and removes the oldest runs beyond those that are kept.
    pub(crate) fn release(&self, run: &RunId) -> io::Result<()> {
        let mut done = vec![self.note_release(run)];
        let (ended, live): (Vec<RunId>, Vec<RunId>) =
            { self.all()?.into_iter() }.partition(|run| self.is_released(run));
        let live = live.into_iter().map(|run| run.job).collect();
        let ended = ended.into_iter().map(|run| self.ended(run)).collect();
        for fate in keep::beyond(ended, &live, self.limit, |run| self.has_failed(run)) {
            // One that cannot be removed holds up no other.
            done.push(match fate {
                Fate::Remove(run) => self.remove(&run),
                Fate::Empty(run) => self.empty(&run),
            });
        }
        done.into_iter().collect()
    }

    fn note_release(&self, run: &RunId) -> io::Result<()> {
        match self.folder(run) {
            Ok(_) if self.is_released(run) => Ok(()),
            Ok(folder) => {
                // Nothing is written to the directory of a run that is over.
                let bytes = bytes_below(&folder.handle()).to_string();
                self.notes(run)?.0.replace(RELEASED, bytes.as_bytes())
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            // A job has put something else in the place of its directory.
            Err(e) if e.kind() == io::ErrorKind::InvalidData => self.remove(run),
            Err(e) => Err(e),
        }
    }

    /// Removes the directory of a run, and the notes about it.
    fn remove(&self, run: &RunId) -> io::Result<()> {
        Folder::remove_run(&self.dir(run))?;
        self.notes_dir(run)
            .map_or(Ok(()), |notes| Folder::remove_run(&notes))
    }

    fn ended(&self, run: RunId) -> Ended {
        let is_emptied = self.has_note(&run, EMPTIED);
        let notes = self.notes(&run).map(|(notes, _)| notes);
        let number = |notes: &Folder| {
            let text = notes.read(RELEASED, NUMBER_MAX).ok()?;
            str::from_utf8(&text).ok()?.trim().parse().ok()
        };
        let at = |notes: &Folder| notes.about(RELEASED).ok()?.modified().ok();
        // Older agents wrote no number.
        let noted = { notes.as_ref().ok().and_then(number) }.filter(|_| !is_emptied);
        let counted = || {
            let folder = self.folder(&run).ok();
            folder.map_or(0, |folder| bytes_below(&folder.handle()))
        };
        Ended {
            bytes: noted.unwrap_or_else(counted),
            at: notes.as_ref().ok().and_then(at),
            is_emptied,
            run,
        }
    }

    /// Removes all that a run has left, and notes that.
    fn empty(&self, run: &RunId) -> io::Result<()> {
        let note = Emptied {
            unix_us: Clock::unix(0).now_us(),
            limit: self.limit,
        };
        // The note comes first, so that nothing is gone unsaid if this is interrupted.
        self.note(run, EMPTIED, &note)?;
        let (_, are_here) = self.notes(run)?;
        let kept: &[&str] = match are_here {
            true => &[EMPTIED, RELEASED],
            false => &[],
        };
        self.folder(run)?.clear(kept)
    }

    /// Whether the logs of a run were removed to make room.
    pub(crate) fn emptied(&self, run: &RunId) -> Option<Emptied> {
        self.noted(run, EMPTIED)
    }

    /// Generations of a job whose logs are here, in ascending order.
    pub(crate) fn generations(&self, job: &JobUid) -> io::Result<Vec<Generation>> {
        Ok(self
            .all()?
            .into_iter()
            .filter(|run| run.job == *job && !self.has_note(run, EMPTIED))
            .map(|run| run.generation)
            .collect())
    }

    /// Whether a run failed, as far as this node can tell: it ended neither well nor by a planned
    /// stop.
    fn has_failed(&self, run: &RunId) -> bool {
        if !self.had_runner(run) {
            return false;
        }
        // A runner that left no outcome was lost.
        let outcome = record::json::<Status>(&self.dir(run), record::OUTCOME);
        outcome.ok().flatten().is_none_or(|end| {
            let asked = end.stop.as_ref().map(|stop| stop.asked_us);
            let before_stop =
                |at: Option<u64>| asked.is_none_or(|asked| at.is_some_and(|at| at < asked));
            let launcher = end
                .launcher
                .iter()
                .map(|launcher| (launcher.exit, launcher.exited_us));
            let ranks = end.ranks.iter().map(|rank| (rank.exit, rank.exited_us));
            let mut bad = launcher
                .chain(ranks)
                .filter(|(exit, _)| exit.is_some_and(|exit| !exit.success()));
            // The coordinator gives no grace to a world that broke elsewhere.
            end.stop.as_ref().is_some_and(|stop| stop.grace_ms == 0)
                || bad.any(|(_, at)| before_stop(at))
        })
    }

    /// Removes everything that this job's runs have left, up to this generation.
    pub(crate) fn purge(&self, run: &RunId) -> io::Result<()> {
        let mut old = self.all()?;
        old.retain(|old| old.job == run.job && old.generation <= run.generation);
        let done: Vec<io::Result<()>> = old.iter().map(|old| self.remove(old)).collect();
        done.into_iter().collect()
    }
}

/// What a directory takes on disk, with what is below it. Links are not followed. What cannot be read
/// and what lies beyond the bounds counts nothing: a script can leave both, and its run must still be
/// released.
fn bytes_below(dir: &Path) -> u64 {
    bytes_of(dir, COUNTED_ENTRIES)
}

fn bytes_of(dir: &Path, most: usize) -> u64 {
    let (mut bytes, mut counted) = (0_u64, 0);
    // Level by level, so that no depth takes the place of the logs, which lie at the top.
    let mut open = VecDeque::from([(dir.to_owned(), 0)]);
    while let Some((dir, depth)) = open.pop_front() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if counted == most {
                return bytes;
            }
            counted += 1;
            let Ok(about) = entry.metadata() else {
                continue;
            };
            // The unit of `blocks` is 512 bytes, whatever the file system's own is.
            bytes = bytes.saturating_add(about.blocks().saturating_mul(512));
            if about.is_dir() && depth < COUNTED_DEPTH {
                open.push_back((entry.path(), depth + 1));
            }
        }
    }
    bytes
}

fn run_of(name: &str) -> Option<RunId> {
    let (job, generation) = name.rsplit_once("-g")?;
    let generation: u64 = generation.parse().ok()?;
    (!job.is_empty()).then(|| RunId {
        job: JobUid::from(job),
        generation: Generation(generation),
    })
}

#[cfg(test)]
mod tests;
