//! Whether a command starts ranks by itself, with torchrun or what is like it, also behind another
//! program and in the text of a shell.
//!
//! Muster starts the ranks. Behind a launcher of its own each rank would make a world of its own, and all of
//! them would train the same. This file only finds what the words of a command show: a script that starts
//! torchrun is noticed while it runs ([`crate::fleet::worlds`]). It must never find what is not there, so an
//! argument that merely names torchrun is none.

use super::{
    Framework, JobSpec,
    entry::is_python,
    errors::Errors,
    limits::{ARGS_BYTES_MAX, ARGS_MAX},
    wrappers::{self, Seen, stem},
};

mod text;

/// A launcher that a command starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starts {
    /// `torchrun`, `torch.distributed.run`, `accelerate`.
    pub launcher: String,
    /// What stands before it, the outermost first.
    pub behind: Vec<String>,
    /// The option of a wrapper that is not known, so nobody knows where its command begins.
    pub unknown: Option<String>,
}

impl Starts {
    /// What the command does, after its name: `starts torchrun behind nice`.
    pub fn sentence(&self) -> String {
        let behind = match self.behind.is_empty() {
            true => String::new(),
            false => format!(" behind {}", self.behind.join(" and ")),
        };
        let unknown = self.unknown.as_ref().map(|option| {
            format!(" (Muster does not know its option {option}, so it cannot take torchrun out)")
        });
        format!(
            "starts {}{behind}{}",
            self.launcher,
            unknown.unwrap_or_default()
        )
    }
}

/// Modules of Python that start ranks.
const MODULES: [&str; 8] = [
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.elastic",
    "torchelastic.distributed.launch",
    "deepspeed",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
    "accelerate.commands.launch",
];

/// Modules of Python that run a script or module that they are given.
const RUN_ANOTHER: [&str; 12] = [
    "cProfile",
    "profile",
    "pdb",
    "trace",
    "coverage",
    "debugpy",
    "viztracer",
    "memray",
    "scalene",
    "kernprof",
    "line_profiler",
    "torch.utils.bottleneck",
];

/// Programs that run none of their words.
const RUN_NOTHING: [&str; 27] = [
    "echo", "printf", "cat", "ls", "test", "[", "[[", "which", "type", "hash", "grep", "sed",
    "awk", "rm", "cp", "mv", "ln", "chmod", "chown", "mkdir", "touch", "pip", "pip3", "apt",
    "apt-get", "git", "pkill",
];

/// torchrun's flags by which its arguments are told from others.
const FLAGS: [&str; 11] = [
    "nproc-per-node",
    "nnodes",
    "node-rank",
    "standalone",
    "rdzv",
    "max-restarts",
    "master-addr",
    "master-port",
    "no-python",
    "module",
    "log-dir",
];

/// How deep a command is looked into: shells in shells, wrappers behind wrappers. Nobody writes more.
const DEPTH: usize = 8;

/// How many words of an interpreter or a shell are looked at for what it runs. Without a bound each of many
/// shells in a row would look at all the rest.
const OPTIONS: usize = 32;

/// The launcher that a command starts.
pub fn started_by(words: &[&str]) -> Option<Starts> {
    of_command(words, DEPTH)
}

/// The launcher that a script for the shell starts.
pub fn started_in(script: &str) -> Option<Starts> {
    of_text(script, DEPTH)
}

fn of_command(words: &[&str], depth: usize) -> Option<Starts> {
    let (first, rest) = words.split_first()?;
    let depth = depth.checked_sub(1)?;
    let name = stem(first);
    if let Some(launcher) = launcher(words) {
        return Some(bare(launcher));
    }
    match wrappers::look(words) {
        Seen::Behind(behind) => {
            let found = of_command(&words[behind.at..], depth)?;
            return Some(found.with(behind.name));
        }
        Seen::Opaque { name, option } => {
            let mut found = anywhere(rest, true, depth)?.with(name);
            found.unknown.get_or_insert(option);
            return Some(found);
        }
        Seen::NoWrapper => {}
    }
    if is_python(name) {
        return of_python(words, depth);
    }
    if let Some((_, text)) = shell_text(words) {
        return of_text(text, depth).map(|found| found.with(format!("{name} -c")));
    }
    if RUN_NOTHING.contains(&name) {
        return None;
    }
    let found = anywhere(rest, false, depth)?;
    Some(found.with((*first).to_owned()))
}

fn bare(launcher: &str) -> Starts {
    Starts {
        launcher: launcher.to_owned(),
        behind: Vec::new(),
        unknown: None,
    }
}

impl Starts {
    fn with(mut self, before: String) -> Starts {
        self.behind.insert(0, before);
        self
    }
}

/// The launcher that these words begin with, unless it is only asked for its help.
fn launcher<'w>(words: &[&'w str]) -> Option<&'w str> {
    let (first, rest) = words.split_first()?;
    let next = rest.first().copied().unwrap_or_default();
    let asks = ["-h", "--help", "--version"].contains(&next);
    let starts = match stem(first) {
        "torchrun" | "torchrun.py" => !asks,
        "accelerate" => next == "launch",
        "deepspeed" => !asks && (next.starts_with('-') || next.ends_with(".py")),
        _ => false,
    };
    starts.then(|| stem(first))
}

/// `python -m torch.distributed.run`, `python /usr/bin/torchrun`, `python -m cProfile -m ...`.
fn of_python(words: &[&str], depth: usize) -> Option<Starts> {
    match python(words)? {
        Python::Starts(launcher) => Some(bare(launcher)),
        Python::Another { name, at } => Some(anywhere(&words[at..], false, depth)?.with(name)),
    }
}

/// What an interpreter runs, as far as it matters here.
enum Python<'w> {
    /// This launcher.
    Starts(&'w str),
    /// A module that runs another. Its words begin here.
    Another { name: String, at: usize },
}

fn python<'w>(words: &[&'w str]) -> Option<Python<'w>> {
    let mut at = 1;
    while let Some(word) = words.get(at).filter(|_| at < OPTIONS) {
        match *word {
            "-m" => {
                let module = words.get(at + 1)?;
                if MODULES.contains(module) {
                    return Some(Python::Starts(module));
                }
                return RUN_ANOTHER.contains(module).then(|| Python::Another {
                    name: format!("{} -m {module}", stem(words[0])),
                    at: at + 2,
                });
            }
            "-W" | "-X" | "--check-hash-based-pycs" => at += 2,
            "-c" | "-" => return None,
            option if option.starts_with('-') => at += 1,
            _ => return launcher(&words[at..]).map(Python::Starts),
        }
    }
    None
}

/// A launcher among the arguments of a program that nobody knows. `runs`: one of them is the command that
/// it runs.
///
/// No word is looked at twice, else a command of many interpreters or shells would take time without end.
fn anywhere(words: &[&str], mut runs: bool, depth: usize) -> Option<Starts> {
    let mut behind = Vec::new();
    let mut at = 0;
    let mut found = loop {
        let here = &words[at..];
        let name = stem(here.first()?);
        let mut took = 1;
        let found = if is_python(name) {
            match python(here) {
                Some(Python::Starts(launcher)) => Some(bare(launcher)),
                // The search goes on in the words of that module.
                Some(Python::Another { name, at }) => {
                    // More of them would only make the message long.
                    if behind.len() < DEPTH {
                        behind.push(name);
                    }
                    (runs, took) = (false, at);
                    None
                }
                None => None,
            }
        } else if let Some((text, _)) = shell_text(here) {
            took = text + 1;
            of_command(&here[..took], depth)
        } else {
            let before = at.checked_sub(1).map(|before| words[before]);
            argument(here, before, runs).map(bare)
        };
        if let Some(found) = found {
            break found;
        }
        at += took;
    };
    found.behind.splice(0..0, behind);
    Some(found)
}

/// The launcher that these arguments of a program begin with. `before`: the argument before them.
fn argument<'w>(here: &[&'w str], before: Option<&str>, runs: bool) -> Option<&'w str> {
    let next = *here.get(1)?;
    if here[0] == "-m" {
        return MODULES.contains(&next).then_some(next);
    }
    let launcher = launcher(here)?;
    // The value of an option, as in `--launcher torchrun`.
    let is_value = before.is_some_and(|before| before.len() > 1 && before.starts_with('-'))
        && before != Some("--")
        && !runs;
    let sure = match launcher {
        "torchrun" => is_flag(next) || !is_value && (next == "-m" || next.ends_with(".py")),
        _ => !is_value,
    };
    sure.then_some(launcher)
}

fn is_flag(word: &str) -> bool {
    let Some(name) = word.strip_prefix("--") else {
        return false;
    };
    let name = name.replace('_', "-");
    FLAGS.iter().any(|flag| name.starts_with(flag))
}

/// The text of `sh -c TEXT`, and at which word it is.
fn shell_text<'w>(words: &[&'w str]) -> Option<(usize, &'w str)> {
    if !["sh", "bash", "dash", "zsh", "ash", "ksh"].contains(&stem(words.first()?)) {
        return None;
    }
    let mut rest = words.iter().enumerate().take(OPTIONS).skip(1);
    let text = rest.find_map(|(at, word)| {
        let letters = word.strip_prefix('-').or(word.strip_prefix('+'));
        match letters {
            Some(long) if long.starts_with('-') => None,
            Some(letters) if letters.ends_with('c') => {
                Some(words.get(at + 1).map(|text| (at + 1, *text)))
            }
            Some(_) => None,
            // The value of -o.
            None if words[at - 1].ends_with('o') && words[at - 1].starts_with('-') => None,
            None => Some(None),
        }
    });
    text.flatten()
}

fn of_text(script: &str, depth: usize) -> Option<Starts> {
    let depth = depth.checked_sub(1)?;
    text::commands(script)
        .iter()
        .find_map(|words| of_simple(words, depth))
}

/// One command of a script, with what the shell itself understands before it.
fn of_simple(words: &[String], depth: usize) -> Option<Starts> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut words = &words[..];
    loop {
        let first = *words.first()?;
        let at = match first {
            "if" | "then" | "else" | "elif" | "do" | "while" | "until" | "!" | "{" | "builtin" => 1,
            "time" | "exec" | "command" => {
                let options = words[1..].iter().take_while(|word| word.starts_with('-'));
                let options: Vec<&&str> = options.collect();
                // It only looks for the command.
                if first == "command"
                    && options.iter().any(|word| word.to_lowercase().contains('v'))
                {
                    return None;
                }
                1 + options.len()
            }
            "eval" => return of_text(&words[1..].join(" "), depth),
            "export" | "declare" | "local" | "readonly" | "alias" => {
                return words[1..].iter().find_map(|word| assigned(word, depth));
            }
            word if wrappers::is_assignment(word) => {
                if let Some(found) = assigned(word, depth) {
                    return Some(found);
                }
                1
            }
            _ => break,
        };
        words = &words[at..];
    }
    of_command(words, depth)
}

/// A launcher in the value of a variable, which the script runs later.
fn assigned(word: &str, depth: usize) -> Option<Starts> {
    let (_, value) = word.split_once('=')?;
    let is_text = value.contains(char::is_whitespace);
    is_text.then(|| of_text(value, depth)).flatten()
}

impl Errors {
    /// Refuses a world of several ranks that would start worlds of their own.
    pub(super) fn launchers(&mut self, spec: &JobSpec) {
        if spec.framework != Framework::Torch {
            return;
        }
        let roles = spec.roles.iter().enumerate();
        let of_roles = roles.map(|(i, role)| {
            let ranks = u64::from(role.max_replicas) * u64::from(role.proc_per_node);
            (format!("spec.roles[{i}]"), ranks, &role.command, &role.args)
        });
        let ranks = u64::from(spec.max_replicas) * u64::from(spec.proc_per_node);
        let own =
            (spec.roles.is_empty()).then(|| ("spec".to_owned(), ranks, &spec.command, &spec.args));
        let programs: Vec<_> = of_roles.chain(own).collect();
        let ranks: u64 = programs.iter().map(|(_, ranks, ..)| ranks).sum();
        if ranks < 2 {
            return;
        }
        for (path, _, command, args) in programs {
            let words: Vec<&str> = command.iter().chain(args).map(String::as_str).collect();
            let bytes: usize = words.iter().map(|word| word.len()).sum();
            // It is refused for its length, and nobody shall wait for a search in it.
            if words.len() > 2 * ARGS_MAX || bytes > ARGS_BYTES_MAX {
                continue;
            }
            if let Some(found) = started_by(&words) {
                let field = if args.is_empty() { "command" } else { "args" };
                self.add(format!("{path}.{field}"), refusal(&found, ranks));
            }
        }
    }
}

/// Why a job of so many ranks must not start a launcher, and what to do.
pub fn refusal(found: &Starts, ranks: u64) -> String {
    format!(
        "{}, and the job has {ranks} ranks: each of them would start a world of its own. Muster starts the ranks itself, so \
         leave {} and its flags out: the command is what one rank runs, and procPerNode says how many ranks a node has. If each \
         process shall start its own ranks, say framework: plain",
        found.sentence(),
        found.launcher
    )
}

#[cfg(test)]
mod tests;
