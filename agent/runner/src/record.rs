//! The files of a runner's directory, as an agent reads them after either has restarted.
//!
//! The agent writes `hold.json`. The runner writes `runner.json`, `descendants.json`, `exits.jsonl`
//! and `outcome.json`. Its keeper writes `swept.json`. Whole files are replaced atomically and
//! carry their checksum, so each is either absent or complete. Anything else is damage and is
//! reported, never guessed. Workers can write there too, so every file is opened through a [`Folder`].

use std::io;
use std::path::{Path, PathBuf};

use muster_sealed::Broken;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::folder::Folder;
use crate::identity::RunnerIdentity;
use crate::journal;
use crate::wire::{ExitRecord, Hold, Status};

/// The longest record. An outcome with the reasons of 256 ranks has 6 MiB, and a journal of this length
/// has 80,000 exits.
pub const RECORD_MAX: u64 = 16 << 20;

pub const HOLD: &str = "hold.json";
pub const RUNNER: &str = "runner.json";
pub const EXITS: &str = "exits.jsonl";
pub const OUTCOME: &str = "outcome.json";
/// The runner's list of its descendants; see [`crate::descendants`].
pub const DESCENDANTS: &str = "descendants.json";
/// The file of a [`Swept`], written by the runner's keeper.
pub const SWEPT: &str = "swept.json";
pub const LOGS: &str = "logs";
pub const LAUNCHER_LOG: &str = "launcher.log";
/// Modules that a launcher imports ahead, one a line. The agent makes it from an earlier
/// generation's [`MODULES`].
pub const PRELOAD: &str = "preload.txt";
/// What became of standbys: in a launcher's directory those that wait, in a run's directory those that
/// became its ranks. See [`StandbysShown`](crate::wire::StandbysShown).
pub const STANDBYS: &str = "standbys.json";
/// Modules that this worker group imported, either in rank 0 of the node or ahead of it.
pub const MODULES: &str = "modules.txt";
/// The modules that a launcher has imported ahead, in the launcher's directory. The form of a line is that of [`MODULES`].
pub const PRELOADED: &str = "preloaded.txt";

/// Name of a rank's log inside [`LOGS`].
pub fn rank_log(rank: u32) -> String {
    format!("rank-{rank}.log")
}

/// The proof that nothing of a runner's group lives, where the runner ended without writing its own
/// proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    pub v: u32,
    pub boot_id: String,
    /// When the last process had ended.
    pub at_us: u64,
}

impl Swept {
    /// Reads the proof in a runner's directory. None: there is no proof.
    pub fn read(dir: &Path) -> Result<Option<Swept>, ReadError> {
        json(dir, SWEPT)
    }
}

/// Name of a full part of a log. The number is the position, in bytes, at which it ends in the log
/// as a whole.
pub fn rotated_log(name: &str, end: u64) -> String {
    format!("{name}.{end}")
}

/// No log gets this long: 4 EiB. A job can name a file so.
const END_MAX: u64 = 1 << 62;

/// Where the part of log `name` in this file ends, if the file is such a part.
pub fn rotated_end(name: &str, file: &str) -> Option<u64> {
    let end = file.strip_prefix(name)?.strip_prefix('.')?.parse().ok()?;
    // Whoever adds a file's length to it must not leave the numbers that there are.
    (end <= END_MAX).then_some(end)
}

/// Everything that a runner has written to its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub hold: Hold,
    /// None: the runner never became ready, so nothing was ever started.
    pub runner: Option<RunnerIdentity>,
    /// The launcher's, and those of the ranks' newest attempts.
    pub exits: Vec<ExitRecord>,
    /// Set once the group was proven dead.
    pub outcome: Option<Status>,
}

impl Record {
    pub fn read(dir: &Path) -> Result<Record, ReadError> {
        let hold: Hold = json(dir, HOLD)?.ok_or_else(|| ReadError::Missing {
            file: dir.join(HOLD),
        })?;
        hold.check().map_err(|what| ReadError::Damaged {
            file: dir.join(HOLD),
            offset: 0,
            what,
        })?;
        let exits = match read_file(dir, EXITS)? {
            None => Vec::new(),
            Some(text) => {
                let journal = journal::read(&text).map_err(|d| ReadError::Damaged {
                    file: dir.join(EXITS),
                    offset: d.offset,
                    what: d.what,
                })?;
                ExitRecord::newest(journal.records)
            }
        };
        Ok(Record {
            hold,
            runner: json(dir, RUNNER)?,
            exits,
            outcome: json(dir, OUTCOME)?,
        })
    }
}

/// What can be read from a directory in which something is damaged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Salvage {
    pub runner: Option<RunnerIdentity>,
    /// As in [`Record`].
    pub exits: Vec<ExitRecord>,
    pub outcome: Option<Status>,
}

impl Salvage {
    pub fn of(dir: &Path) -> Salvage {
        let exits = read_file(dir, EXITS)
            .ok()
            .flatten()
            .map(|text| ExitRecord::newest(journal::whole_lines(&text)));
        let runner = json(dir, RUNNER).ok().flatten();
        Salvage {
            runner,
            exits: exits.unwrap_or_default(),
            outcome: json(dir, OUTCOME).ok().flatten(),
        }
    }
}

/// Why a directory could not be read. The text says what to do, because a person must act.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{}: missing: this is not a runner's directory; remove the directory or restore the file", file.display())]
    Missing { file: PathBuf },
    #[error(
        "{}: damaged at byte {offset}: {what}; make sure that nothing of this worker group runs, then move the \
         directory away",
        file.display()
    )]
    Damaged {
        file: PathBuf,
        offset: usize,
        what: String,
    },
    #[error("{}", file.display())]
    Io {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn read_file(dir: &Path, name: &str) -> Result<Option<Vec<u8>>, ReadError> {
    match Folder::of_run(dir).and_then(|folder| folder.read(name, RECORD_MAX)) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(ReadError::Damaged {
            file: dir.join(name),
            offset: 0,
            what: e.to_string(),
        }),
        Err(source) => Err(ReadError::Io {
            file: dir.join(name),
            source,
        }),
    }
}

/// The value of the sealed JSON file `dir/name`. None: it is not there.
pub fn json<T: DeserializeOwned>(dir: &Path, name: &str) -> Result<Option<T>, ReadError> {
    let Some(text) = read_file(dir, name)? else {
        return Ok(None);
    };
    parse(&text)
        .map(Some)
        .map_err(|(offset, what)| ReadError::Damaged {
            file: dir.join(name),
            offset,
            what,
        })
}

/// The value of a sealed JSON text, or the byte at which it is damaged, and how.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, (usize, String)> {
    let json = muster_sealed::open(text).map_err(|broken| match broken {
        Broken::CutOff => (text.len(), broken.to_string()),
        Broken::Sum => (0, broken.to_string()),
    })?;
    serde_json::from_slice(json).map_err(|e| (offset(text, e.line(), e.column()), e.to_string()))
}

/// Converts serde_json's (1-based line, column) to a byte offset.
fn offset(text: &[u8], line: usize, column: usize) -> usize {
    let before: usize = text
        .split(|b| *b == b'\n')
        .take(line.saturating_sub(1))
        .map(|l| l.len() + 1)
        .sum();
    (before + column.saturating_sub(1)).min(text.len())
}

/// Replaces `dir/name` by the JSON of `value`. After a crash there is the old file or the new one,
/// never a mixture.
pub fn write_atomic<T: Serialize>(dir: &Path, name: &str, value: &T) -> io::Result<()> {
    let content = muster_sealed::seal(serde_json::to_vec(value)?);
    Folder::of_run(dir)?.replace(name, &content)
}

impl RunnerIdentity {
    /// Reads `runner.json` in a runner's directory. None: no runner was ever ready there.
    pub fn read(dir: &Path) -> Result<Option<Self>, ReadError> {
        json(dir, RUNNER)
    }
}
