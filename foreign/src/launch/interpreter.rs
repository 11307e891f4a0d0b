//! Where the command line of an interpreter or a shell has its script, its module or its text, and which
//! programs are interpreters. It judges nothing.

use crate::words::Word;

/// Names of other programs that start ranks. A script for the shell that has one of them cannot be run on
/// each node as it is.
const LAUNCHERS: [&str; 3] = ["horovodrun", "mpirun", "mpiexec"];

/// The text of `sh -c TEXT`. Options may stand before, and together with, `-c`.
pub(super) fn shell_text(words: &[Word]) -> Option<&Word> {
    for (at, word) in words.iter().enumerate().skip(1) {
        match word.text.strip_prefix('-') {
            Some("-login" | "-noprofile" | "-norc" | "-posix") => {}
            Some(letters) if letters.starts_with('-') || letters.is_empty() => return None,
            Some(letters) if letters.ends_with('c') => return words.get(at + 1),
            Some(_) => {}
            // The value of -o.
            None if word.text == "pipefail" => {}
            None => return None,
        }
    }
    None
}

/// The launcher of MPI that a text names, if any.
pub(super) fn launcher_in(text: &str) -> Option<&'static str> {
    let part = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
    let named = |name: &&'static str| {
        text.match_indices(*name).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            before.is_none_or(|c| !part(c)) && !text[at + name.len()..].starts_with(part)
        })
    };
    LAUNCHERS.into_iter().find(named)
}

/// Where `-m` is, if it comes before any script.
pub(super) fn module_of(words: &[Word]) -> Option<usize> {
    after_options(words).filter(|at| words[*at].text == "-m")
}

/// Where the script is, if Python runs one.
pub(super) fn script_of(words: &[Word]) -> Option<usize> {
    after_options(words).filter(|at| !words[*at].text.starts_with('-'))
}

/// The first word that is no option of the interpreter but says what it runs.
fn after_options(words: &[Word]) -> Option<usize> {
    let mut at = 1;
    while let Some(word) = words.get(at) {
        match word.text.as_str() {
            "-m" | "-c" | "-" => return Some(at),
            "-W" | "-X" | "--check-hash-based-pycs" => at += 2,
            option if option.starts_with('-') => at += 1,
            _ => return Some(at),
        }
    }
    None
}

/// The name of a program without its folder.
pub(crate) fn stem(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// `python`, `python3`, `python3.11`, `pypy3`.
pub(crate) fn is_python(name: &str) -> bool {
    ["python", "pypy"].iter().any(|stem| {
        name.strip_prefix(stem)
            .is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
    })
}
