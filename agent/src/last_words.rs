//! Why a launcher failed before any rank did: the last line of its log that tells of an error.
//!
//! A missing module, an unknown flag of torchrun, a TCPStore that cannot be reached: whatever ends
//! torchrun itself appears only in `launcher.log`. Once a rank has failed, the rank knows the
//! cause, and torchrun's own summary only repeats it.

use std::{
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use muster_runner::{Folder, record};

/// A Python traceback is a few KiB long, so the last 64 KiB hold it.
const TAIL: u64 = 64 << 10;

/// The last error line in the launcher's log of a run. None if no line looks like one.
pub(crate) fn of(run_dir: &Path) -> io::Result<Option<String>> {
    let logs = Folder::of_run(run_dir)?.below(record::LOGS)?;
    let mut file = logs.open(record::LAUNCHER_LOG)?;
    let start = file.metadata()?.len().saturating_sub(TAIL);
    file.seek(SeekFrom::Start(start))?;
    let mut text = Vec::new();
    file.take(TAIL).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    Ok(text
        .lines()
        .rev()
        .filter_map(of_stderr)
        .find(|line| tells_of_an_error(line))
        .map(str::to_owned))
}

/// The text of a log line, if it came from stderr: `TIME stderr F TEXT`.
fn of_stderr(line: &str) -> Option<&str> {
    line.split_once(' ')?
        .1
        .strip_prefix("stderr ")?
        .split_once(' ')
        .map(|(_, text)| text)
}

/// Whether a line begins an error message. Lines of a traceback are indented and do not count.
fn tells_of_an_error(line: &str) -> bool {
    let flush = line.starts_with(|c: char| !c.is_whitespace());
    flush
        && ["Error", "error:", "Exception", "Fatal"]
            .iter()
            .any(|sign| line.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exception_and_not_its_frames() {
        let cases = [
            (
                "stderr F Traceback (most recent call last):\nstderr F   raise KeyError: x\nstderr F ModuleNotFoundError: No module named 'torch'",
                Some("ModuleNotFoundError: No module named 'torch'"),
            ),
            (
                "stderr F usage: torchrun\nstderr F torchrun: error: unrecognized arguments: --x\nstdout F Error: not this",
                Some("torchrun: error: unrecognized arguments: --x"),
            ),
            ("stderr F all is well", None),
            ("", None),
        ];
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(record::LOGS)).unwrap();
        let log = dir.path().join("logs/launcher.log");
        for (text, word) in cases {
            let lines: Vec<String> = text
                .lines()
                .map(|line| format!("2026-11-21T00:00:00.000000000Z {line}\n"))
                .collect();
            std::fs::write(&log, "x".repeat(100_000) + "\n" + &lines.concat()).unwrap();
            assert_eq!(of(dir.path()).unwrap().as_deref(), word);
        }
    }
}
