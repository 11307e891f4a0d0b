//! From the words of a container to what each rank runs: takes off the shell and torchrun.
//!
//! Muster starts ranks itself, so a torchrun in the command must go: its script becomes the job's,
//! its flags get verdicts. A command that starts ranks in a way that cannot be taken off is refused,
//! because it would start a world on every node.

mod around;
mod fetched;
mod instead;
mod interpreter;

use muster_core::spec::{
    launchers,
    wrappers::{self, Seen},
};

pub(crate) use crate::ranks::Procs;
use fetched::is_on_nodes;
pub(crate) use fetched::refuse_fetched;
pub(crate) use interpreter::{is_python, stem};
use interpreter::{launcher_in, module_of, script_of, shell_text};

use crate::{
    flags::{self, Flags, Takes, Use},
    grace, shell,
    tree::Place,
    verdict::Verdicts,
    words::{Known, Word, on_node},
};

/// Which program would have started the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Torchrun,
    /// The launcher of the package torchelastic: one rank for each GPU, and three restarts.
    Torchelastic,
    Deepspeed,
    /// Nobody: the command is one process.
    Itself,
}

/// A value of a flag, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given<T> {
    pub(crate) value: T,
    pub(crate) place: Place,
    pub(crate) path: String,
}

/// What a command starts, without its launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) by: By,
    /// The interpreter and its options, or a program.
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) procs: Option<Given<Procs>>,
    /// At least and at most so many nodes.
    pub(crate) nodes: Option<Given<(i64, i64)>>,
    pub(crate) max_restarts: Option<i64>,
    /// Seconds from SIGTERM to SIGKILL.
    pub(crate) grace: Option<i64>,
    /// A world of one node.
    pub(crate) standalone: Option<Given<()>>,
    /// What a shell would have set, in its order.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) dir: Option<String>,
    /// The lane that the arguments need.
    pub(crate) lane: Option<&'static str>,
    /// A part of it was refused, so the words are not whole. The job is not made.
    pub(crate) broken: bool,
    /// A launcher that could not be taken off: where it stands, and why it cannot be.
    pub(crate) stays: Option<(Word, String)>,
}

/// Variables that are the number of nodes.
const NODES: [&str; 4] = [
    "PET_NNODES",
    "WORLD_SIZE",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
];

/// What torchrun puts for the local rank into an argument (torch.distributed.elastic `macros`).
const LOCAL_RANK: &str = "${local_rank}";

/// Reads a command. `None`: it was refused.
pub(crate) fn read(words: &[Word], known: &Known, log: &mut Verdicts) -> Option<Launch> {
    let (mut env, mut dir) = (Vec::new(), None);
    let (mut kept, mut stays) = (Vec::new(), None);
    let mut words = words.to_vec();
    loop {
        let first = words.first()?;
        let pairs = assignments(&words);
        match stem(&first.text) {
            "env" if !pairs.is_empty() => {
                words.drain(..=pairs.len());
                env.extend(pairs);
            }
            "sh" | "bash" | "dash" | "zsh" | "ash" => {
                let Some(text) = shell_text(&words) else {
                    warn_of_script(&words, log);
                    break;
                };
                let Some(simple) = shell::simple(&text.text, known) else {
                    let refusal = |launcher: &str| {
                        format!(
                            "starts {launcher} in a script for the shell; Muster starts the ranks itself and can only take \
                             the launcher off one plain command: put the rest into the image or into a script"
                        )
                    };
                    if let Some(launcher) = launcher_in(&text.text) {
                        log.refuse(&text.field(), refusal(launcher));
                        return None;
                    }
                    let found = launchers::started_in(&text.text);
                    stays = found.map(|found| (text.clone(), refusal(&found.launcher)));
                    break;
                };
                env.extend(simple.env);
                dir = simple.dir.or(dir);
                let place = text.clone();
                words = simple
                    .words
                    .into_iter()
                    .map(|piece| Word {
                        text: piece.text,
                        on_node: piece.on_node,
                        ..place.clone()
                    })
                    .collect();
                around::leave_out_times(&mut words, log);
            }
            _ => match around::take(&mut words, log) {
                around::Taken::Nothing => break,
                around::Taken::Kept(wrapper) => kept.extend(wrapper),
                around::Taken::LeftOut => {}
                around::Taken::Not(why) => {
                    stays = words.first().map(|first| (first.clone(), why));
                    break;
                }
            },
        }
    }
    let mut launch = match &stays {
        Some(_) => plain(texts(&words, log)?, By::Itself),
        None => taken_off(&words, log)?,
    };
    if !kept.is_empty() {
        launch = launch.behind(texts(&kept, log)?);
    }
    launch.env = env;
    launch.dir = dir;
    launch.stays = stays;
    Some(launch)
}

/// Words in place of those of a command that was refused, against which nothing speaks.
pub(crate) fn placeholder(command: &mut Vec<String>, args: &mut Vec<String>) {
    *command = vec!["python3".to_owned()];
    *args = vec!["refused.py".to_owned()];
}

/// The assignments of `env A=B ... COMMAND`, which has no options.
fn assignments(words: &[Word]) -> Vec<(String, String)> {
    let pairs = words.iter().skip(1);
    let pairs: Vec<_> = pairs
        .map_while(|word| shell::assignment(&word.text))
        .collect();
    match words.get(pairs.len() + 1) {
        Some(next) if !next.text.starts_with('-') => pairs,
        _ => Vec::new(),
    }
}

/// A command that is left as it is.
pub(crate) fn program(words: &[Word]) -> Launch {
    plain(
        words.iter().map(|word| word.text.clone()).collect(),
        By::Itself,
    )
}

impl Launch {
    /// In place of a command that was refused, so that the rest of its job is judged as well.
    pub(crate) fn unknown() -> Launch {
        Launch {
            broken: true,
            ..plain(Vec::new(), By::Itself)
        }
    }

    /// Puts the site's interpreter in place of the image's.
    pub(crate) fn use_python(&mut self, python: &str) {
        let words: Vec<&str> = self
            .command
            .iter()
            .chain(&self.args)
            .map(|w| &**w)
            .collect();
        let mut at = 0;
        while let Seen::Behind(behind) = wrappers::look(&words[at..]) {
            at += behind.at;
        }
        let word = self.command.iter_mut().chain(&mut self.args).nth(at);
        if let Some(word) = word.filter(|word| is_python(stem(word))) {
            python.clone_into(word);
        }
    }

    /// Whether the command is a program and not Python's script or module.
    pub(crate) fn is_program(&self) -> bool {
        !self
            .command
            .first()
            .is_some_and(|word| is_python(stem(word)))
    }

    /// Whether a word of the command has this text in it.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        let mut words = self.command.iter().chain(&self.args);
        words.any(|word| word.contains(text))
    }
}

/// Takes torchrun, or what is like it, off the words.
fn taken_off(words: &[Word], log: &mut Verdicts) -> Option<Launch> {
    let first = words.first()?;
    let name = stem(&first.text);
    let beside = |program: &str| match first.text.rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/{program}"),
        None => program.to_owned(),
    };
    match name {
        "torchrun" => {
            let python = beside("python3");
            return with_flags(By::Torchrun, python, first, &words[1..], log);
        }
        "deepspeed" => {
            let python = beside("python3");
            return with_flags(By::Deepspeed, python, first, &words[1..], log);
        }
        "accelerate" | "horovodrun" | "mpirun" | "mpiexec" => {
            log.refuse(&first.field(), instead::starts_its_own(name));
            return None;
        }
        _ => {}
    }
    if is_python(name)
        && let Some(at) = script_of(words)
        && stem(&words[at].text) == "torchrun"
    {
        return with_flags(
            By::Torchrun,
            first.text.clone(),
            &words[at],
            &words[at + 1..],
            log,
        );
    }
    if is_python(name)
        && let Some(at) = module_of(words)
        && let Some(module) = words.get(at + 1)
    {
        let by = match module.text.as_str() {
            "torch.distributed.run" | "torch.distributed.launch" | "torch.distributed.elastic" => {
                Some(By::Torchrun)
            }
            "torchelastic.distributed.launch" => Some(By::Torchelastic),
            "deepspeed" | "deepspeed.launcher.runner" => Some(By::Deepspeed),
            "accelerate.commands.launch" | "accelerate" => {
                log.refuse(&module.field(), instead::starts_its_own("accelerate"));
                return None;
            }
            _ => None,
        };
        if let Some(by) = by {
            if at > 1 {
                log.note(
                    &words[1].field(),
                    "the interpreter's options are for the launcher; ranks write without a buffer anyway",
                );
            }
            return with_flags(by, first.text.clone(), module, &words[at + 2..], log);
        }
    }
    let before = log.refused();
    refuse_fetched(words, log);
    let texts = texts(words, log)?;
    (log.refused() == before).then(|| plain(texts, By::Itself))
}

/// The words as they are. `None`: one of them means something else on each node.
fn texts(words: &[Word], log: &mut Verdicts) -> Option<Vec<String>> {
    let before = log.refused();
    for word in words {
        if let Some(name) = word.on_node.as_ref().filter(|_| !word.by_shell) {
            log.refuse(&word.field(), on_node(name));
        }
    }
    let texts = words.iter().map(|word| word.text.clone()).collect();
    (log.refused() == before).then_some(texts)
}

/// A command that is one process of the world, without a launcher.
fn plain(mut words: Vec<String>, by: By) -> Launch {
    let python = words.first().is_some_and(|word| is_python(stem(word)));
    let mut lane = None;
    // Muster takes what follows an interpreter for a script. Code on the command line is a program
    // of its own.
    if python && has_code(&words) {
        words.insert(0, "env".into());
    }
    let python = words.first().is_some_and(|word| is_python(stem(word)));
    if !python {
        // A program needs no torchrun beside it.
        lane = Some("direct");
    }
    let at = usize::from(!words.is_empty());
    Launch {
        by,
        args: words.split_off(at),
        command: words,
        procs: None,
        nodes: None,
        max_restarts: None,
        grace: None,
        standalone: None,
        env: Vec::new(),
        dir: None,
        lane,
        broken: false,
        stays: None,
    }
}

/// Whether the first word that is not an option of the interpreter is `-c CODE` or `-`.
fn has_code(words: &[String]) -> bool {
    let mut words = words[1..].iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-c" | "-" => return true,
            "-W" | "-X" | "--check-hash-based-pycs" => drop(words.next()),
            "-m" => return false,
            option if option.starts_with('-') => {}
            _ => return false,
        }
    }
    false
}

fn with_flags(
    by: By,
    python: String,
    launcher: &Word,
    words: &[Word],
    log: &mut Verdicts,
) -> Option<Launch> {
    let flags: Flags = match by {
        By::Deepspeed => flags::DEEPSPEED,
        _ => flags::TORCHRUN,
    };
    let mut launch = plain(Vec::new(), by);
    launch.lane = None;
    let (mut module, mut no_python) = (false, false);
    let mut local_rank = match (by, launcher.text.as_str()) {
        (_, "torch.distributed.launch") => Some("--local-rank"),
        (By::Deepspeed, _) => Some("--local_rank"),
        _ => None,
    };
    let before = log.refused();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let ((name, takes, meaning), own) = match flags::look(&word.text, flags) {
            flags::Word::NoFlag => break,
            flags::Word::Flag(entry, own) => (entry, own),
            flags::Word::Unknown => {
                log.refuse(
                    &word.field(),
                    flags::unknown(&word.text, program_of(by), flags),
                );
                at += 1;
                match (word.text.contains('='), flags::meant(&word.text, flags)) {
                    (true, _) | (false, Some((_, Takes::Nothing, _))) => {}
                    (false, Some((_, Takes::Value, _))) => at += 1,
                    // Whether a value follows is not known, nor what comes after it.
                    (false, None) => return Some(refused(launch)),
                }
                continue;
            }
        };
        at += 1;
        let mut unknown = word.on_node.as_ref();
        let value = match (takes, own) {
            (Takes::Nothing, _) => "",
            (Takes::Value, Some(own)) => own,
            (Takes::Value, None) => {
                at += 1;
                match words.get(at - 1) {
                    Some(next) => {
                        unknown = unknown.or(next.on_node.as_ref());
                        next.text.as_str()
                    }
                    None => {
                        log.refuse(&word.field(), format!("{} has no value", word.text));
                        return Some(refused(launch));
                    }
                }
            }
        };
        if let Some(variable) = unknown {
            match meaning {
                // Muster decides these, whatever the node would say.
                Use::Note(_) | Use::Warn(_) => {}
                // The operator sets these to the number of nodes.
                Use::Nodes if NODES.contains(&variable.as_str()) => {
                    log.note(
                        &word.field(),
                        format!("--{name} is the number of nodes anyway"),
                    );
                    continue;
                }
                Use::Procs if variable == "PET_NPROC_PER_NODE" => {
                    log.note(
                        &word.field(),
                        format!("--{name} is what the job says anyway"),
                    );
                    continue;
                }
                _ => {
                    log.refuse(&word.field(), format!("--{name} {}", on_node(variable)));
                    continue;
                }
            }
        }
        let given = |at: &Word| Given {
            value: (),
            place: at.place,
            path: at.path.clone(),
        };
        match meaning {
            Use::Procs => match Procs::read(value) {
                Ok(procs) => launch.procs = Some(given(word).with(procs)),
                Err(message) => log.refuse(&word.field(), format!("--{name} {message}")),
            },
            Use::Nodes => match range(value) {
                Some(nodes) => launch.nodes = Some(given(word).with(nodes)),
                None => log.refuse(
                    &word.field(),
                    format!("--{name} is {value:?}, must be N or MIN:MAX"),
                ),
            },
            Use::Restarts => match value.parse() {
                Ok(count) => {
                    launch.max_restarts = Some(count);
                    log.taken(&word.field(), "part of spec.restartPolicy.maxRestarts");
                }
                Err(_) => log.refuse(
                    &word.field(),
                    format!("--{name} is {value:?}, must be a number"),
                ),
            },
            Use::Grace => match value.parse() {
                Ok(seconds) if seconds >= 0 => {
                    launch.grace = Some(seconds);
                    grace::take(&format!("--{name}"), seconds, &word.field(), log);
                }
                _ => log.refuse(
                    &word.field(),
                    format!("--{name} is {value:?}, must be a whole number of seconds"),
                ),
            },
            Use::Module => module = true,
            Use::NoPython => no_python = true,
            Use::Standalone => launch.standalone = Some(given(word)),
            Use::LocalRank(wanted) => {
                if !wanted {
                    local_rank = None;
                }
            }
            Use::Note(message) => log.note(&word.field(), format!("--{name} {message}")),
            Use::Warn(message) => log.warn(&word.field(), format!("--{name} {message}")),
            Use::Refuse(message) => log.refuse(&word.field(), format!("--{name} {message}")),
        }
    }
    let rest = words.get(at..).unwrap_or_default();
    if let Some(word) = rest.first() {
        is_on_nodes(word, log);
    }
    let rest = texts(rest, log).unwrap_or_default();
    if rest.is_empty() && words.get(at).is_none() {
        log.refuse(&launcher.field(), "names no script after its flags");
    }
    if log.refused() > before {
        return Some(refused(launch));
    }
    let (script, args) = rest.split_first()?;
    let args = match local_rank {
        Some(flag) => {
            launch.lane = Some("cold");
            log.note(
                &launcher.field(),
                format!("the script gets {flag} as before, for which ranks are started by torchrun itself"),
            );
            [&[format!("{flag}={LOCAL_RANK}")], args].concat()
        }
        None => args.to_vec(),
    };
    match (no_python, module) {
        (true, _) => {
            let program = plain([std::slice::from_ref(script), &args[..]].concat(), by);
            // torchrun itself replaces the local rank.
            launch.lane = launch.lane.or(program.lane);
            (launch.command, launch.args) = (program.command, program.args);
        }
        (false, true) => {
            launch.command = vec![python];
            launch.args = [&["-m".to_owned(), script.clone()], &args[..]].concat();
        }
        (false, false) => {
            launch.command = vec![python];
            launch.args = [std::slice::from_ref(script), &args[..]].concat();
        }
    }
    Some(launch)
}

impl Given<()> {
    fn with<T>(self, value: T) -> Given<T> {
        Given {
            value,
            place: self.place,
            path: self.path,
        }
    }
}

/// The arguments of a launcher that an image starts by itself.
pub(crate) fn arguments(
    by: By,
    python: &str,
    words: &[Word],
    log: &mut Verdicts,
) -> Option<Launch> {
    let launcher = Word {
        text: String::new(),
        ..words.first()?.clone()
    };
    with_flags(by, python.to_owned(), &launcher, words, log)
}

fn program_of(by: By) -> &'static str {
    match by {
        By::Deepspeed => "deepspeed",
        _ => "torchrun",
    }
}

/// What is known of a launcher of which a part was refused.
fn refused(launch: Launch) -> Launch {
    Launch {
        broken: true,
        ..launch
    }
}

/// `N` or `MIN:MAX`
fn range(text: &str) -> Option<(i64, i64)> {
    match text.split_once(':') {
        Some((min, max)) => Some((min.parse().ok()?, max.parse().ok()?)),
        None => text.parse().ok().map(|n| (n, n)),
    }
}

/// A script of the shell may start torchrun, which nobody sees here.
fn warn_of_script(words: &[Word], log: &mut Verdicts) {
    let script = words
        .iter()
        .skip(1)
        .find(|word| !word.text.starts_with('-'));
    if let Some(script) = script {
        is_on_nodes(script, log);
        log.warn(
            &script.field(),
            "is a script whose content is not seen here; it must start one process of the world, not torchrun",
        );
    }
}

#[cfg(test)]
mod tests;
