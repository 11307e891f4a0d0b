//! The name of a job that was given none: what its script is called, as a label, with an end that
//! makes it another job each time. It never fails, whatever the script is called.

/// Characters that a script gives to a name. With the end it stays far below the 63 of a label, so that
/// objects which are named after the job have room for more.
const WORDS_MAX: usize = 40;

/// Letters of the shortest text that is a word without the digits before it: `01train` is `train`, but
/// `3d` and `7b` belong to what they count.
const WORD: usize = 3;

/// What a file is, and not what it does.
const SUFFIXES: [&str; 10] = [
    ".py", ".pyw", ".pyc", ".pyz", ".sh", ".bash", ".zsh", ".exe", ".bin", ".elf",
];

/// The files that Python runs for a folder or a package, which say nothing without it.
const OF_FOLDER: [&str; 2] = ["main", "init"];

/// How a script was named.
#[derive(Clone, Copy, Debug)]
pub(super) enum Script<'a> {
    /// A script, a folder or another program, from where the command runs.
    Path { path: &'a str, here: &'a str },
    /// A module of Python.
    Module(&'a str),
}

/// A valid name with `end`, some lower-case letters and digits, last. It begins with the first word of
/// the script's name that is no number.
pub(super) fn made_from(script: Script<'_>, end: &str) -> String {
    let parts: Vec<String> = match script {
        Script::Path { path, here } => match parts_of(path) {
            // `muster run .` runs the folder that the user is in.
            parts if parts.is_empty() => parts_of(here),
            parts => parts,
        },
        Script::Module(module) => module.split('.').map(label).collect(),
    };
    let mut parts = parts.into_iter().rev().filter(|part| !part.is_empty());
    let last = parts.next().unwrap_or_default();
    let words = match parts.next() {
        Some(folder) if OF_FOLDER.contains(&last.as_str()) => {
            let room = WORDS_MAX - 1 - last.len();
            format!("{}-{last}", cut(&folder, room))
        }
        _ => last,
    };
    match begun(&words) {
        words if words.is_empty() => format!("job-{end}"),
        words => format!("{}-{end}", cut(&words, WORDS_MAX)),
    }
}

/// The names in a path, each as a label, without what only says where they are.
fn parts_of(path: &str) -> Vec<String> {
    let names = path
        .split('/')
        .filter(|name| !matches!(*name, "" | "." | ".."));
    names.map(|name| label(without_suffix(name))).collect()
}

fn without_suffix(name: &str) -> &str {
    let lower = name.to_ascii_lowercase();
    let suffix = SUFFIXES.iter().find(|suffix| lower.ends_with(**suffix));
    suffix.map_or(name, |suffix| &name[..name.len() - suffix.len()])
}

/// Lower-case words of ASCII letters and digits with one '-' between them.
fn label(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("-").to_ascii_lowercase()
}

/// The words from the first that may begin a name: a name begins with a letter.
fn begun(words: &str) -> String {
    let is_digit = |c: char| c.is_ascii_digit();
    let is_number = |word: &&str| word.chars().all(is_digit);
    let kept: Vec<&str> = words.split('-').skip_while(is_number).collect();
    let kept = kept.join("-");
    let bare = kept.trim_start_matches(is_digit);
    let letters = bare.chars().take_while(char::is_ascii_lowercase).count();
    match (kept.is_empty(), words.is_empty()) {
        (true, true) => String::new(),
        (true, false) => format!("job-{words}"),
        _ if bare.len() == kept.len() || letters >= WORD => bare.to_owned(),
        _ => format!("job-{kept}"),
    }
}

/// At most so many characters, which do not end between two words.
fn cut(words: &str, most: usize) -> &str {
    // A label is ASCII.
    words[..words.len().min(most)].trim_end_matches('-')
}

#[cfg(test)]
mod tests;
