//! Whom a SIGTERM goes to when a rank, or what a rank has left behind, is told to end.
//!
//! It goes to the process alone and not to its children: a program that saves at SIGTERM needs its
//! helpers, such as the workers of a DataLoader, until it has saved. Two kinds of parents need more.
//! A *shell* that has a trap waits for its foreground command before the trap runs, so the command is
//! told as well. A *relay* (timeout) passes the signal on to a whole group, so its children are told
//! in its place. A shell without a trap dies of the signal, and what it ran is told as what it has
//! left behind. A command that only reads what another one prints (`| tee`) ends with that one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use muster_runner::procfs::{self, Dispositions, Stat};
use rustix::process::Signal;

/// Shells, by the names of their programs. All of them put off a trap while a command runs in the
/// foreground (POSIX, 2.11 "Signals and Error Handling").
const SHELLS: [&str; 9] = [
    "sh", "bash", "dash", "ash", "zsh", "ksh", "ksh93", "mksh", "yash",
];

/// Programs that send a signal that they get to a process group. coreutils' `timeout` sends it to its
/// own group, dumb-init to that of its child.
const RELAYS: [&str; 2] = ["timeout", "dumb-init"];

/// Programs that are several, by the name that they are called.
const SEVERAL: [&str; 3] = ["busybox", "toybox", "coreutils"];

/// Programs whose first word that is no option is a script.
const INTERPRETERS: [&str; 5] = ["python", "perl", "ruby", "node", "Rscript"];

/// Shells below shells below shells. The bound ends a walk that a reused pid makes circular.
const DEPTH: usize = 16;

/// On a busy machine a process may stand for so long between two of its calls to the kernel.
const BETWEEN_CALLS: Duration = Duration::from_millis(100);

/// Characters of a program's name that are shown. A report takes 256 bytes of it.
const NAME_MAX: usize = 60;

/// Tells a process to end.
pub(crate) fn to_end(pid: i32) {
    let Ok(stat) = Stat::of(pid) else {
        return;
    };
    if let Kind::Program = kind(pid) {
        return procfs::send(&stat, Signal::TERM);
    }
    let all = procfs::all().unwrap_or_default();
    for stat in addressees(stat, &all, &System, DEPTH) {
        procfs::send(&stat, Signal::TERM);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Program,
    Shell,
    Relay,
}

/// What the rules ask about a process.
trait Look {
    fn kind(&self, pid: i32) -> Kind;
    fn dispositions(&self, pid: i32) -> Dispositions;
    /// The same, but not in the middle of a change. It may take a moment.
    fn settled(&self, pid: i32) -> Dispositions {
        self.dispositions(pid)
    }
    fn words(&self, pid: i32) -> Vec<String>;
    /// What its standard input, output and error are, as `/proc/PID/fd` names them.
    fn stream(&self, pid: i32, fd: u8) -> Option<String>;
}

struct System;

impl Look for System {
    fn kind(&self, pid: i32) -> Kind {
        kind(pid)
    }

    fn dispositions(&self, pid: i32) -> Dispositions {
        Dispositions::of(pid).unwrap_or_default()
    }

    fn settled(&self, pid: i32) -> Dispositions {
        settled(pid)
    }

    fn words(&self, pid: i32) -> Vec<String> {
        words(pid)
    }

    fn stream(&self, pid: i32, fd: u8) -> Option<String> {
        let target = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
        Some(target.to_str()?.to_owned())
    }
}

/// What a process does with signals when it is not just changing that. bash catches SIGINT for a moment each time it begins to
/// wait for a command, also if it ignores it before and after. One that truly catches it sleeps while its command runs.
fn settled(pid: i32) -> Dispositions {
    let (since, mut asleep) = (Instant::now(), 0);
    loop {
        let of = Dispositions::of(pid).unwrap_or_default();
        let may_change = of.catches(Signal::INT) && of.ignores(Signal::QUIT);
        asleep = if of.runs { 0 } else { asleep + 1 };
        // It may have woken while it was read.
        if !may_change || asleep == 2 || since.elapsed() >= BETWEEN_CALLS {
            return of;
        }
        std::thread::yield_now();
    }
}

/// The processes that hear of it if this one is told to end, the parents first: a shell must know of
/// it before its command ends, or it starts the next one.
fn addressees(stat: Stat, all: &[Stat], look: &impl Look, depth: usize) -> Vec<Stat> {
    let kind = look.kind(stat.pid);
    let own = look.dispositions(stat.pid);
    let waits = match kind {
        Kind::Program => false,
        Kind::Shell => own.catches(Signal::TERM) || own.ignores(Signal::TERM),
        Kind::Relay => true,
    };
    if !waits || depth == 0 {
        return vec![stat];
    }
    let children = all.iter().filter(|s| s.ppid == stat.pid && !s.is_dead());
    // A shell without job control starts what it does not wait for with these signals ignored (POSIX,
    // 2.11). The trap of the shell decides about that.
    let in_background = |child: &&Stat| {
        let child = look.settled(child.pid);
        let both = |d: Dispositions| d.ignores(Signal::INT) && d.ignores(Signal::QUIT);
        kind == Kind::Shell && both(child) && !both(own)
    };
    let children: Vec<Stat> = children.filter(|s| !in_background(s)).copied().collect();
    let told = without_readers(&children, &[&[stat], &children[..]].concat(), look);
    let below = told
        .into_iter()
        .flat_map(|child| addressees(child, all, look, depth - 1));
    let (first, below): (Vec<Stat>, Vec<Stat>) = match kind {
        Kind::Relay => (Vec::new(), below.collect()),
        _ => (vec![stat], below.collect()),
    };
    match first.is_empty() && below.is_empty() {
        true => vec![stat],
        false => [first, below].concat(),
    }
}

/// Leaves out those that read what one of the `writers` prints. They end with it.
fn without_readers(some: &[Stat], writers: &[Stat], look: &impl Look) -> Vec<Stat> {
    let pipe = |pid: i32, fd: u8| {
        look.stream(pid, fd)
            .filter(|name| name.starts_with("pipe:"))
    };
    let reads = |reader: &Stat| {
        let Some(input) = pipe(reader.pid, 0) else {
            return false;
        };
        let others = writers.iter().filter(|writer| writer.pid != reader.pid);
        others
            .flat_map(|writer| [pipe(writer.pid, 1), pipe(writer.pid, 2)])
            .flatten()
            .any(|output| output == input)
    };
    let kept: Vec<Stat> = some.iter().filter(|stat| !reads(stat)).copied().collect();
    match kept.is_empty() {
        true => some.to_vec(),
        false => kept,
    }
}

/// The processes of a worker group that the rules about leftovers need to know.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// The runner, and the shims that adopt what their ranks leave behind.
    pub(crate) adopters: BTreeSet<i32>,
    /// The launcher, the shims, and the ranks that live.
    pub(crate) own: BTreeSet<i32>,
    /// Set while a rank lives: what has lost its parent belongs to a rank that has ended only if it is
    /// in one of these sessions.
    pub(crate) sessions: Option<BTreeSet<i32>>,
    /// What the ranks ran, if all of them have ended as they wanted. A process that runs the same is a
    /// fork of one, such as a loader's worker. If SIGTERM ended a rank, those that it had started may
    /// be the ones that train.
    pub(crate) commands: Option<BTreeSet<Vec<String>>>,
}

/// What ranks have left behind.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// The topmost processes. Their children hear of nothing before they have ended, unless they
    /// ignore SIGTERM.
    pub(crate) roots: Vec<Stat>,
    /// Some of it may have something to save: it does not ignore SIGTERM, and is no helper of Python's
    /// that has lost its rank.
    pub(crate) may_save: bool,
}

/// Finds what the ranks of a group have left behind.
pub(crate) fn left(group: &Group, all: &[Stat]) -> Left {
    left_of(group, all, &System)
}

fn left_of(group: &Group, all: &[Stat], look: &impl Look) -> Left {
    let is_root = |stat: &&Stat| {
        let of_ended = group.sessions.as_ref();
        group.adopters.contains(&stat.ppid)
            && !group.own.contains(&stat.pid)
            && !stat.is_dead()
            && of_ended.is_none_or(|sessions| sessions.contains(&stat.session))
    };
    let mut left = Left::default();
    let mut next: Vec<Stat> = all.iter().filter(is_root).copied().collect();
    let mut every: Vec<Stat> = Vec::new();
    while let Some(stat) = next.pop() {
        if every.iter().any(|s| s.pid == stat.pid) {
            continue;
        }
        every.push(stat);
        let deaf = look.dispositions(stat.pid).ignores(Signal::TERM);
        let commands = group.commands.as_ref();
        let helps = commands.is_some_and(|all| is_helper(&look.words(stat.pid), all));
        left.may_save |= !deaf && !helps;
        let children = all.iter().filter(|s| s.ppid == stat.pid && !s.is_dead());
        // A root that ignores it passes nothing on, so its children are roots, too.
        let above = left.roots.iter().any(|root| root.pid == stat.ppid);
        let at_top = is_root(&&stat) || above && ignores(stat.ppid, look);
        if at_top {
            left.roots.push(stat);
        }
        next.extend(children);
    }
    left.roots = without_readers(&left.roots, &every, look);
    left
}

/// Whether a process serves a rank of Python and has nothing of its own to save: it is a fork of the
/// rank, or was started by `multiprocessing` (its start methods spawn and forkserver, its tracker).
fn is_helper(words: &[String], commands: &BTreeSet<Vec<String>>) -> bool {
    let started = |word: &String| word.starts_with("from multiprocessing.");
    commands.contains(words) || words.iter().any(started)
}

fn ignores(pid: i32, look: &impl Look) -> bool {
    look.dispositions(pid).ignores(Signal::TERM)
}

fn kind(pid: i32) -> Kind {
    let exe = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let exe = exe.as_deref().and_then(Path::file_name);
    let exe = exe.and_then(|name| name.to_str()).map(str::to_owned);
    let name = match exe {
        Some(name) if !SEVERAL.contains(&name.as_str()) => name,
        _ => {
            let words = words(pid);
            let mut words = words.iter().map(|word| base(word));
            let called = words.find(|word| !SEVERAL.contains(word));
            called.unwrap_or_default().to_owned()
        }
    };
    match name.as_str() {
        name if SHELLS.contains(&name) => Kind::Shell,
        name if RELAYS.contains(&name) => Kind::Relay,
        _ => Kind::Program,
    }
}

/// The name of a process for people: its program, and the script or module if it is an interpreter.
/// Its other words may be secrets.
pub(crate) fn name(pid: i32) -> String {
    let name = name_of(&words(pid));
    let shown = name.chars().filter(|c| !c.is_control()).take(NAME_MAX);
    match shown.collect::<String>() {
        name if name.is_empty() => {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
            comm.unwrap_or_default().trim().to_owned()
        }
        name => name,
    }
}

fn name_of(words: &[String]) -> String {
    let Some((first, rest)) = words.split_first() else {
        return String::new();
    };
    // A program may have written a sentence over its words.
    let program = base(first.split_whitespace().next().unwrap_or_default());
    let interprets = INTERPRETERS.iter().any(|name| program.starts_with(name));
    if !interprets && !SHELLS.contains(&program) {
        return program.to_owned();
    }
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-m" => return format!("{program} -m {}", rest.next().map_or("", String::as_str)),
            "-W" | "-X" | "-o" => drop(rest.next()),
            // The next word is a program text. It may hold secrets.
            option if has_text_behind(program, option) => {
                return format!("{program} {option}");
            }
            option if option.starts_with('-') => {}
            script => return format!("{program} {}", base(script)),
        }
    }
    program.to_owned()
}

/// Whether a text to run follows this option: `-c`, `-lc`, `-uc` of shells and Python, `-e` and its like of
/// the others.
fn has_text_behind(program: &str, option: &str) -> bool {
    let takes_c = SHELLS.contains(&program) || program.starts_with("py");
    let short = option.starts_with('-') && !option.starts_with("--");
    match takes_c {
        true => short && option.contains('c'),
        false => {
            let letters = ['e', 'E', 'p'];
            ["--eval", "--print"].contains(&option) || short && option.contains(letters)
        }
    }
}

fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// The command line of a process.
pub(crate) fn words(pid: i32) -> Vec<String> {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = text.split(|byte| *byte == 0);
    let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
    words.filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests;
