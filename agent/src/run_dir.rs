//! Where runs lie on disk: `DIR/runs/<job uid>-g<generation>/`, each the directory of one runner.
//!
//! Besides the runner's files the agent keeps `accepted.json` (the term and the GPUs), `lost.json`
//! (when a run without a record of its end was found dead), `released` (its end is recorded
//! elsewhere, so only its logs are still useful; it says how many bytes they are) and `emptied` (its
//! logs were removed to make room).

use std::{
    collections::VecDeque,
    fs::{self, DirBuilder, File},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use muster_core::{
    id::{Generation, JobUid, Term},
    nccl::stack::Stack,
    node::{lane::Lane, pool},
    run::{Key, RunId},
};
use muster_runner::{RunnerIdentity, record, wire::Status};
use muster_runtime::clock::Clock;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tracing::warn;

use crate::{
    atomic_file::write_atomic,
    keep::{self, Ended, Fate},
};

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
/// How many levels of directories below a run's own are counted. Muster and torchrun make a few; a
/// script can nest them until their path is too long for the kernel.
const COUNTED_DEPTH: usize = 16;
/// How many files and directories of a run are counted. Muster and torchrun make a few for each rank;
/// a script can make any number, and 100,000 take some tenths of a second.
const COUNTED_ENTRIES: usize = 100_000;

/// All runs of one node.
#[derive(Clone, Debug)]
pub(crate) struct Runs {
    root: PathBuf,
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

/// When a lost run was found dead, on the clock of one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lost {
    pub(crate) boot_id: String,
    pub(crate) at_us: u64,
}

impl Runs {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self {
            root: state_dir.join("runs"),
            limit: LOGS_MAX_MIB << 20,
        }
    }

    /// The same, with another bound of what runs that are over may take.
    pub(crate) fn keeping(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    pub(crate) fn dir(&self, run: &RunId) -> PathBuf {
        self.root.join(run.to_string())
    }

    /// Makes a run's directory and notes what was accepted.
    pub(crate) fn make(&self, run: &RunId, accepted: &Accepted) -> io::Result<PathBuf> {
        let dir = self.dir(run);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        write_json(&dir.join(ACCEPTED), accepted)?;
        Ok(dir)
    }

    pub(crate) fn launcher_dir(&self, job: &JobUid, number: u32) -> PathBuf {
        self.root.join(format!("{job}{LAUNCHER}{number}"))
    }

    /// The directory of a launcher that belongs to no job.
    pub(crate) fn pool_dir(&self, number: u32) -> PathBuf {
        self.root.join(format!("{}{LAUNCHER}{number}", pool::NAME))
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
            .filter_map(|name| Some((number(&name)?, self.root.join(&name))))
            .collect())
    }

    /// Notes that a run uses another lane than the one it was accepted with.
    pub(crate) fn note_lane(&self, run: &RunId, accepted: &Accepted) -> io::Result<()> {
        write_json(&self.dir(run).join(ACCEPTED), accepted)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        match fs::read_dir(&self.root) {
            Ok(entries) => entries
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect(),
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
        self.dir(run).join(RELEASED).exists()
    }

    pub(crate) fn accepted(&self, run: &RunId) -> Option<Accepted> {
        read_json(&self.dir(run).join(ACCEPTED))
    }

    /// The identity of its runner, even if the other records are damaged.
    pub(crate) fn runner(&self, run: &RunId) -> Option<RunnerIdentity> {
        read_json(&self.dir(run).join(record::RUNNER))
    }

    pub(crate) fn lost(&self, run: &RunId) -> Option<Lost> {
        read_json(&self.dir(run).join(LOST))
    }

    pub(crate) fn note_lost(&self, run: &RunId, lost: &Lost) -> io::Result<()> {
        write_json(&self.dir(run).join(LOST), lost)
    }

    /// Marks a run as acknowledged, and removes the oldest runs beyond those that are kept.
    pub(crate) fn release(&self, run: &RunId) -> io::Result<()> {
        let dir = self.dir(run);
        if dir.exists() && !dir.join(RELEASED).exists() {
            // Nothing is written to the directory of a run that is over.
            write_atomic(&dir.join(RELEASED), bytes_below(&dir).to_string())?;
        }
        let (ended, live): (Vec<RunId>, Vec<RunId>) =
            { self.all()?.into_iter() }.partition(|run| self.is_released(run));
        let live = live.into_iter().map(|run| run.job).collect();
        let ended = ended.into_iter().map(|run| self.ended(run)).collect();
        for fate in keep::beyond(ended, &live, self.limit, |run| self.has_failed(run)) {
            match fate {
                Fate::Remove(run) => remove(&self.dir(&run))?,
                Fate::Empty(run) => self.empty(&run)?,
            }
        }
        Ok(())
    }

    fn ended(&self, run: RunId) -> Ended {
        let dir = self.dir(&run);
        let released = dir.join(RELEASED);
        let is_emptied = dir.join(EMPTIED).exists();
        // Older agents wrote no number.
        let noted = read_number(&released).filter(|_| !is_emptied);
        Ended {
            bytes: noted.unwrap_or_else(|| bytes_below(&dir)),
            at: { fs::symlink_metadata(&released) }
                .and_then(|about| about.modified())
                .ok(),
            is_emptied,
            run,
        }
    }

    /// Removes all that a run has left, and notes that.
    fn empty(&self, run: &RunId) -> io::Result<()> {
        let dir = self.dir(run);
        let note = Emptied {
            unix_us: Clock::unix(0).now_us(),
            limit: self.limit,
        };
        // The note comes first, so that nothing is gone unsaid if this is interrupted.
        write_json(&dir.join(EMPTIED), &note)?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if [EMPTIED, RELEASED]
                .iter()
                .any(|kept| entry.file_name() == *kept)
            {
                continue;
            }
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }

    /// Whether the logs of a run were removed to make room.
    pub(crate) fn emptied(&self, run: &RunId) -> Option<Emptied> {
        read_json(&self.dir(run).join(EMPTIED))
    }

    /// Generations of a job whose logs are here, in ascending order.
    pub(crate) fn generations(&self, job: &JobUid) -> io::Result<Vec<Generation>> {
        Ok(self
            .all()?
            .into_iter()
            .filter(|run| run.job == *job && !self.dir(run).join(EMPTIED).exists())
            .map(|run| run.generation)
            .collect())
    }

    /// Whether a run failed, as far as this node can tell: it ended neither well nor by a planned
    /// stop.
    fn has_failed(&self, run: &RunId) -> bool {
        let dir = self.dir(run);
        if !dir.join(record::RUNNER).exists() {
            return false;
        }
        // A runner that left no outcome was lost.
        read_json::<Status>(&dir.join(record::OUTCOME)).is_none_or(|end| {
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
        for old in self
            .all()?
            .into_iter()
            .filter(|old| old.job == run.job && old.generation <= run.generation)
        {
            remove(&self.dir(&old))?;
        }
        Ok(())
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

/// The number in a file that anything may have replaced: a link is not followed, and a FIFO is not
/// waited for.
fn read_number(path: &Path) -> Option<u64> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(NUMBER_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn run_of(name: &str) -> Option<RunId> {
    let (job, generation) = name.rsplit_once("-g")?;
    let generation: u64 = generation.parse().ok()?;
    (!job.is_empty()).then(|| RunId {
        job: JobUid::from(job),
        generation: Generation(generation),
    })
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    write_atomic(path, muster_sealed::seal(serde_json::to_vec(value)?))
}

/// A note that cannot be read counts as missing, since everything in it is dispensable. A person
/// should still know.
fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
        Err(e) => {
            warn!(path = %path.display(), "cannot be read: {e}");
            return None;
        }
    };
    match record::parse(&text) {
        Ok(value) => Some(value),
        Err((offset, what)) => {
            warn!(path = %path.display(), "damaged at byte {offset}: {what}; going on without it");
            None
        }
    }
}

#[cfg(test)]
mod tests;
