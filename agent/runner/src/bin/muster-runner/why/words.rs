//! What a line outside a traceback is: a crash that the C library, the interpreter, the kernel or a shell
//! tells, an error that a program tells about itself, or the chatter that goes on around an end.

use super::shape::{exception, one_line};

/// Enough for a shell's message with its command.
const WORDS: usize = 500;

/// One line outside a traceback.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Warnings, logs of C++, progress bars, summaries of trackers: they come before and after an
    /// end and say nothing about it.
    Chatter,
    /// A crash, and how many of the next lines belong to it.
    Crash(String, u8),
    /// An error that a program or a shell tells before it ends itself.
    Error(String),
    /// What MPI's programs and Muster's own say of another process.
    Mpi(String),
    Plain,
}

pub(super) fn look(line: &str) -> Word {
    if let Some(more) = is_crash(line) {
        return Word::Crash(one_line(line, WORDS), more);
    }
    if is_of_mpi(line) {
        return Word::Mpi(one_line(line, WORDS));
    }
    if is_chatter(line) {
        return Word::Chatter;
    }
    if is_error(line) {
        return Word::Error(one_line(line, WORDS));
    }
    Word::Plain
}

/// How many lines of text follow a line that tells a crash. None: it tells none.
fn is_crash(line: &str) -> Option<u8> {
    // `what():  ` and its text.
    if line.starts_with("terminate called after throwing") {
        return Some(6);
    }
    // Rust writes the message into the next line.
    if line.starts_with("thread '") && line.contains("' panicked at ") {
        return Some(1);
    }
    let begins = [
        "terminate called",
        "Fatal Python error: ",
        "Segmentation fault",
        "Bus error",
        "Aborted",
        "Killed",
        "Illegal instruction",
        "Floating point exception",
        "Trace/breakpoint trap",
        "panic: ",
        // glibc: malloc/malloc.c, debug/fortify_fail.c.
        "double free or corruption",
        "free(): ",
        "malloc(): ",
        "malloc_consolidate(): ",
        "realloc(): ",
        "munmap_chunk(): ",
        "corrupted size vs. prev_size",
        "corrupted double-linked list",
        "*** stack smashing detected ***",
        "*** buffer overflow detected ***",
    ];
    let said = begins.iter().any(|words| line.starts_with(words))
        || of_glog(line) == Some('F')
        || line.contains(": Assertion `") && line.ends_with("' failed.")
        || is_crash_below_shell(line);
    said.then_some(0)
}

/// `run.sh: line 5:  4711 Killed    python train.py`
fn is_crash_below_shell(line: &str) -> bool {
    let Some((_, rest)) = line.split_once(": line ") else {
        return false;
    };
    let Some((_, rest)) = rest.split_once(": ") else {
        return false;
    };
    let rest = rest.trim_start();
    let what = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let crashes = [
        "Killed",
        "Segmentation fault",
        "Aborted",
        "Bus error",
        "Illegal instruction",
        "Terminated",
    ];
    what.len() < rest.len()
        && crashes
            .iter()
            .any(|crash| what.trim_start().starts_with(crash))
}

/// The severity of a line of glog, absl or torch: `E1126 12:00:00.0 12 file.cc:3] text`.
fn of_glog(line: &str) -> Option<char> {
    let severity = line.chars().next().filter(|c| "IWEF".contains(*c))?;
    let (day, rest) = line[1..].split_once(' ')?;
    let digits = day.len() == 4 && day.bytes().all(|b| b.is_ascii_digit());
    (digits && rest.starts_with(|c: char| c.is_ascii_digit()) && rest.contains("] "))
        .then_some(severity)
}

pub(super) fn is_chatter(line: &str) -> bool {
    let begins = [
        "wandb:",
        "COMET ",
        "Pass --help",
        "Set the environment variable HYDRA_FULL_ERROR",
        "Current thread 0x",
        "Thread 0x",
        "Extension modules: ",
        "WARNING: Logging before flag parsing goes to stderr.",
    ];
    begins.iter().any(|words| line.starts_with(words))
        || line.starts_with("[rank") && line.contains("]:[")
        || matches!(of_glog(line.trim_start_matches('[')), Some('I' | 'W' | 'E'))
        || line.contains("Warning: ")
        || line.contains("it/s]")
        || line.contains("s/it]")
        || line.contains("?it/s")
        || line.contains("resource_tracker: ")
}

fn is_error(line: &str) -> bool {
    let begins = [
        "Error: ",
        "ERROR: ",
        "error: ",
        "fatal: ",
        "FATAL",
        "Fatal error",
    ];
    let ends = [
        ": command not found",
        ": not found",
        ": No such file or directory",
        ": Permission denied",
        ": Is a directory",
        ": required file not found",
        "Exec format error",
    ];
    let holds = [
        ": error: ",
        ": can't open file ",
        ": error while loading shared libraries: ",
        ": symbol lookup error: ",
    ];
    begins.iter().any(|words| line.starts_with(words))
        || ends.iter().any(|words| line.ends_with(words))
        || holds.iter().any(|words| line.contains(words))
        || line.starts_with("muster-shim: ")
        || names_an_error(line)
        || of_shell(line)
        || line
            .split_once(": No module named ")
            .is_some_and(|(program, _)| !program.contains(' '))
}

/// `package.SomeError: text`, `SomeError`: an exception that was printed without its traceback. Only
/// the name tells it from other lines.
fn names_an_error(line: &str) -> bool {
    let ends = [
        "Error",
        "Exception",
        "Interrupt",
        "SystemExit",
        "Timeout",
        "Expired",
        "Failure",
    ];
    exception(line).is_some_and(|(name, _)| ends.iter().any(|end| name.ends_with(end)))
}

/// `run.sh: line 3: ` of bash, `run.sh: 3: ` of dash.
fn of_shell(line: &str) -> bool {
    let mut parts = line.splitn(3, ": ");
    let (Some(script), Some(place), Some(_)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let place = place.strip_prefix("line ").unwrap_or(place);
    !script.contains(' ') && !place.is_empty() && place.bytes().all(|b| b.is_ascii_digit())
}

/// What a member of an MPI job says of the others: `muster-lend`, `muster-rsh`, and Open MPI's
/// `mpirun`.
fn is_of_mpi(line: &str) -> bool {
    let of_lender = [
        "muster-lend: MPI rank ",
        "muster-lend: Open MPI rank ",
        "muster-lend: the daemon above",
        "muster-lend: the launcher's connection broke",
    ];
    let of_launcher = [
        "noticed that process rank",
        "has lost communication with a remote daemon",
    ];
    let gone = line.starts_with("muster-rsh: ") && line.contains(" is gone: ");
    gone || of_lender.iter().any(|words| line.starts_with(words))
        || of_launcher.iter().any(|words| line.contains(words))
}
