//! What a rank left in files when an exception left its script: the launcher's own note
//! (`launcher/rank.py`), and the error file of torch's `@record`.
//!
//! A rank's script can write into these files, so they are opened and read as what a stranger wrote: no
//! links, regular files of bounded size, and whatever cannot be understood is as if it were not there.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_runner::{Folder, wire::RankException};
use serde::Deserialize;

use super::shape;
use super::traceback::{self, Line, Parser, Raised};
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
    /// Type and text of the first exception of its chain, if that is another one.
    #[serde(default)]
    root: Option<(String, String)>,
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
        let root = |(name, text): &(String, String)| traceback::whole(name, text, &[]).line();
        raised.root = note.root.as_ref().map(root);
        for frame in &note.frames {
            traceback::keep(&mut raised.frames, shape::one_line(frame, traceback::FRAME));
        }
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
    let folder = Folder::trusted(path.parent()?).ok()?;
    let file = folder.open(path.file_name()?).ok()?;
    let about = file.metadata().ok()?;
    let since = started
        .and_then(|at| at.checked_sub(TICK))
        .unwrap_or(UNIX_EPOCH);
    if about.modified().ok()? < since {
        return None;
    }
    let mut text = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode};

    use super::*;

    fn files(dir: &Path) -> Files {
        Files {
            note: dir.join(NOTE),
            recorded: dir.join(ERROR_FILE),
        }
    }

    fn note(text: &str) -> Left {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NOTE), text).unwrap();
        files(dir.path()).read(None)
    }

    #[test]
    fn a_note_is_read_as_python_would_print_the_exception() {
        let text = r#"{"name": "torch.distributed.DistBackendError", "frames": ["a.py:1 in f"],
            "text": "NCCL error\nLast error:\nDuplicate GPU\n\nException raised from x\nframe #0: y"}"#;
        let raised = note(text).written.unwrap();
        assert_eq!(
            raised.line(),
            "torch.distributed.DistBackendError: NCCL error Last error: Duplicate GPU"
        );
        assert_eq!(raised.frames, ["a.py:1 in f"]);
        assert!(raised.left);
        let loader = r#"{"name": "ValueError", "text": "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File \"a\", line 1, in f\nValueError: bad sample 3\n"}"#;
        assert_eq!(
            note(loader).written.unwrap().line(),
            "ValueError: Caught ValueError in DataLoader worker process 0. ValueError: bad sample 3"
        );
        let exited = r#"{"name": "SystemExit", "text": "no data:\n  none", "handling": ["KeyError", "'x'"]}"#;
        let left = note(exited);
        assert!(left.written.is_none());
        let exited = left.exited.unwrap();
        assert_eq!(exited.text.as_deref(), Some("no data: none"));
        assert_eq!(exited.handling.unwrap().line(), "KeyError: 'x'");
        let code = r#"{"name": "SystemExit", "text": "3", "code": 3}"#;
        assert_eq!(note(code).exited.unwrap().text, None);
    }

    #[test]
    fn whatever_else_stands_in_the_place_of_a_note_is_nothing() {
        let long = format!(r#"{{"name": "E", "text": "{}"}}"#, "x".repeat(300_000));
        for text in ["", "{", "[]", "null", "{\"name\": 3}", "\u{0}", &long] {
            assert!(note(text).written.is_none(), "{:.20}", text);
        }
        let good = r#"{"name": "E", "text": "x"}"#;
        assert!(note(good).written.is_some());
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        std::fs::write(dir.path().join("elsewhere"), good).unwrap();
        symlink("elsewhere", &files.note).unwrap();
        assert!(files.read(None).written.is_none(), "a link");
        std::fs::remove_file(&files.note).unwrap();
        rustix::fs::mkfifoat(CWD, &files.note, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(
            files.read(None).written.is_none(),
            "a pipe, without waiting"
        );
        std::fs::remove_file(&files.note).unwrap();
        std::fs::create_dir(&files.note).unwrap();
        assert!(files.read(None).written.is_none(), "a folder");
    }

    #[test]
    fn a_note_of_an_attempt_before_is_not_of_this_one() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        std::fs::write(&files.note, r#"{"name": "E", "text": "x"}"#).unwrap();
        let noted = std::fs::metadata(&files.note).unwrap().modified().unwrap();
        assert!(files.read(Some(noted)).written.is_some());
        let later = noted + 2 * TICK;
        assert!(files.read(Some(later)).written.is_none());
    }

    #[test]
    fn the_error_file_gets_the_module_of_its_type_from_its_traceback() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let recorded = |message: &str, stack: &str| {
            let text = serde_json::json!({"message": {"message": message, "extraInfo": {"py_callstack": stack, "timestamp": "1"}}});
            std::fs::write(&files.recorded, text.to_string()).unwrap();
            files.read(None).recorded.unwrap()
        };
        let stack = "Traceback (most recent call last):\n  File \"a.py\", line 3, in main\n    x\n_queue.Empty\n";
        assert_eq!(recorded("Empty: ", stack).line(), "_queue.Empty");
        assert_eq!(recorded("Empty: ", stack).frames, ["a.py:3 in main"]);
        assert_eq!(recorded("Odd: 1\n2", "nothing").line(), "Odd: 1 2");
        // A child that failed has a text without the parts.
        std::fs::write(&files.recorded, r#"{"message": "<NONE>"}"#).unwrap();
        assert!(files.read(None).recorded.is_none());
    }
}
