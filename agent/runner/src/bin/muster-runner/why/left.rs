//! What a rank left in files when an exception left its script: the launcher's own note
//! (`launcher/rank.py`), and the error file of torch's `@record`.
//!
//! A rank's script can write into these files, so they are opened and read as what a stranger wrote: no
//! links, regular files of bounded size, and whatever cannot be understood is as if it were not there.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_runner::wire::RankException;
use rustix::fs::{CWD, Mode, OFlags};
use serde::Deserialize;

use super::traceback::{self, FRAMES, Line, Parser, Raised};
use crate::rank_env::ERRORS;

/// The launcher's note, beside the error file of the same rank.
pub(crate) const NOTE: &str = "left.json";
/// torch's.
const ERROR_FILE: &str = "error.json";

/// A note has 20 KiB at most. A traceback that `@record` writes is longer only after a deep recursion.
const FILE_MAX: u64 = 256 << 10;

/// The kernel's stamps of files are this much behind at most: one tick of 100 Hz.
const TICK: Duration = Duration::from_millis(10);

/// Where a rank may have left something.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    note: PathBuf,
    recorded: PathBuf,
}

/// What a rank has left.
#[derive(Default)]
pub(crate) struct Left {
    /// The exception that left the script.
    pub(super) written: Option<Raised>,
    /// The one that left the function under `@record`.
    pub(super) recorded: Option<Raised>,
    /// The script has ended itself.
    pub(super) exited: Option<Exited>,
}

/// `SystemExit` with a text or a code that is not 0.
pub(super) struct Exited {
    pub(super) text: Option<String>,
    /// The exception that was being handled.
    pub(super) handling: Option<Raised>,
    pub(super) exception: RankException,
}

/// The launcher's note.
#[derive(Deserialize)]
struct Note {
    name: String,
    text: String,
    #[serde(default)]
    frames: Vec<String>,
    /// The parts of an exception group.
    #[serde(default)]
    parts: Vec<String>,
    /// Of `SystemExit`: the code, if it is a number.
    #[serde(default)]
    code: Option<i64>,
    /// Of `SystemExit`: the type and the text of the exception that was being handled.
    #[serde(default)]
    handling: Option<(String, String)>,
}

/// The file that torch's `ErrorHandler` writes.
#[derive(Deserialize)]
struct Recorded {
    message: Message,
}

#[derive(Deserialize)]
struct Message {
    message: String,
    #[serde(default, rename = "extraInfo")]
    extra: Extra,
}

#[derive(Default, Deserialize)]
struct Extra {
    #[serde(default)]
    py_callstack: String,
}

impl Files {
    /// The files of a rank in the runner's directory.
    pub(crate) fn of(on_node: usize) -> Self {
        let folder = Path::new(ERRORS).join(on_node.to_string());
        Self {
            note: folder.join(NOTE),
            recorded: folder.join(ERROR_FILE),
        }
    }

    /// torchrun has an error file of its own for each rank.
    pub(crate) fn with_error_file(&mut self, path: PathBuf) {
        self.recorded = path;
    }

    /// What the rank has left. An attempt before this one may have left a file: then it started at this time.
    pub(crate) fn read(&self, started: Option<SystemTime>) -> Left {
        let mut left = Left::default();
        if let Some(note) = read::<Note>(&self.note, started) {
            left.take(note);
        }
        if let Some(recorded) = read::<Recorded>(&self.recorded, started) {
            left.recorded = Some(recorded.raised());
        }
        left
    }
}

impl Left {
    fn take(&mut self, note: Note) {
        let mut raised = traceback::whole(&note.name, &note.text, &note.parts);
        let skipped = note.frames.len().saturating_sub(FRAMES);
        raised.frames = note
            .frames
            .iter()
            .skip(skipped)
            .map(|frame| traceback::one_line(frame, traceback::FRAME))
            .collect();
        if note.name != "SystemExit" {
            self.written = Some(raised);
            return;
        }
        self.exited = Some(Exited {
            text: note.code.is_none().then(|| raised.said()),
            handling: note
                .handling
                .map(|(name, text)| traceback::whole(&name, &text, &[])),
            exception: raised.exception(),
        });
    }
}

impl Recorded {
    /// The message has the type without its module, and the traceback has all of it.
    fn raised(&self) -> Raised {
        let mut parser = Parser::default();
        let mut found = None;
        for line in self.message.extra.py_callstack.lines() {
            if matches!(parser.line(line), Line::Raised | Line::More) {
                found = Some(parser.raised().clone());
            }
        }
        let (name, text) = self
            .message
            .message
            .split_once(": ")
            .unwrap_or((&self.message.message, ""));
        let whole = |name: &str| traceback::whole(name, text, &[]);
        match found.filter(|raised| raised.name.rsplit('.').next() == Some(name)) {
            Some(shown) => {
                let mut raised = whole(&shown.name);
                raised.frames = shown.frames;
                raised
            }
            None => whole(name),
        }
    }
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path, started: Option<SystemTime>) -> Option<T> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?);
    let about = file.metadata().ok()?;
    let since = started
        .and_then(|at| at.checked_sub(TICK))
        .unwrap_or(UNIX_EPOCH);
    if !about.is_file() || about.modified().ok()? < since {
        return None;
    }
    let mut text = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}
