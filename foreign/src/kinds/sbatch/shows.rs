//! Commands that only show something, which may be left out.

use super::{
    lexer::{Command, Part, Redirect, ShellWord},
    values::Expanded,
};
use crate::launch::stem;

/// Commands that only show something.
const SHOWS: [&str; 28] = [
    "echo",
    "printf",
    "date",
    "hostname",
    "pwd",
    "printenv",
    "nvidia-smi",
    "which",
    "type",
    "nproc",
    "free",
    "lscpu",
    "df",
    "du",
    "cat",
    "ls",
    "whoami",
    "id",
    "uname",
    "uptime",
    "true",
    ":",
    "sleep",
    "wait",
    "squeue",
    "sinfo",
    "sacct",
    "sstat",
];

/// Commands that pass on what they read, and do nothing else.
const FILTERS: [&str; 12] = [
    "cat", "column", "cut", "egrep", "fgrep", "grep", "head", "nl", "sort", "tail", "tr", "wc",
];

/// Whether a command only shows something, and writes no file.
pub(super) fn shows(command: &Command) -> bool {
    let words: Vec<Option<String>> = command.words.iter().map(ShellWord::plain).collect();
    !writes(&command.redirects) && !command.words.iter().any(sets) && shown(&words)
}

/// The same of the words behind `srun`.
pub(super) fn step_shows(words: &[Expanded], redirects: &[Redirect]) -> bool {
    let words: Vec<Option<String>> = words.iter().map(Expanded::plain).collect();
    let first = words.first().and_then(Option::as_deref).map(stem);
    let names = first.is_some_and(|first| first == "env" || SHOWS.contains(&first));
    !writes(redirects) && names && shown(&words)
}

/// Whether all commands of a pipeline only show something. Standing behind another, some only pass it on.
pub(super) fn all_show(first: &Command, others: &[Command]) -> bool {
    shows(first)
        && others
            .iter()
            .all(|command| shows(command) || filters(command))
}

fn shown(words: &[Option<String>]) -> bool {
    let word = |at: usize| words.get(at).and_then(Option::as_deref).unwrap_or_default();
    let lists = ["list", "avail", "show", "--version", "-V"].contains(&word(1));
    match stem(word(0)) {
        // With a command it runs that one.
        "env" => words[1..].iter().all(|word| {
            word.as_deref()
                .is_some_and(|word| word.contains('=') || ["-0", "--null"].contains(&word))
        }),
        // `-v` sets a variable.
        "printf" => !word(1).starts_with("-v"),
        "module" | "ml" | "scontrol" | "python" | "python3" | "conda" | "nvcc" => lists,
        name => SHOWS.contains(&name),
    }
}

fn filters(command: &Command) -> bool {
    let first = command.words[0].plain().unwrap_or_default();
    let options = |name: &str| {
        let mut words = command.words[1..].iter();
        words.any(|word| word.source.starts_with(name))
    };
    let filters = match stem(&first) {
        // What it appends to is a log, which Muster keeps anyway.
        "tee" => options("-a") || options("--append"),
        "sort" => !options("-o") && !options("--output"),
        name => FILTERS.contains(&name),
    };
    filters && !writes(&command.redirects)
}

/// Whether a file is written. Those of /dev keep nothing.
fn writes(redirects: &[Redirect]) -> bool {
    let mut files = redirects
        .iter()
        .filter_map(|redirect| redirect.file.as_ref());
    files.any(|file| !file.plain().is_some_and(|file| file.starts_with("/dev/")))
}

/// `${NAME:=VALUE}`
fn sets(word: &ShellWord) -> bool {
    let mut parts = word.parts.iter();
    parts.any(|part| matches!(part, Part::Shell { raw, .. } if raw.starts_with("${") && raw.contains(":=")))
}
