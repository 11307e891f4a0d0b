//! What a batch script does: what prepares the command, and the one command that trains.
//!
//! Slurm runs the script once, on the first node, and `srun` in it starts the tasks. Here each rank runs the
//! preparation and then becomes the command. So only preparation is taken that may run many times and
//! changes nothing but the process itself; everything else is refused with its line.

use super::{
    asked::Asked,
    lexer::{self, Command, Part, ShellWord, Then},
    options::{self, Found},
    shows::{all_show, shows, step_shows},
    values::{Expanded, Values},
};
use crate::{
    launch::stem,
    options::Cluster,
    tree::{Field, Place},
    verdict::Verdicts,
    words::Word,
};

/// A command that stays before the one that trains.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) at: Field<'static>,
    pub(super) source: String,
    /// What stands before it must have ended well.
    pub(super) and: bool,
    /// So many commands that are no preparation stand before it.
    pub(super) behind: usize,
    /// `exit 1` behind `||`: what the rank does if it fails.
    pub(super) exit: Option<String>,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// `A=1 B=2`, exported or not. Each with its source.
    Assigns {
        names: Vec<(String, String)>,
        exports: bool,
    },
    /// `cd`
    Dir(Option<String>),
    /// It means nothing without a shell, and needs none: `set -e`.
    Shell,
    /// Only a shell can do it: `module load`.
    Needs,
}

/// The command that trains.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) at: Field<'static>,
    pub(super) words: Vec<Expanded>,
    /// What `srun` says. `None`: there is no `srun`.
    pub(super) step: Option<Asked>,
    /// Variables before the command.
    pub(super) env: Vec<(String, String)>,
    pub(super) and: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Body {
    pub(super) kept: Vec<Kept>,
    pub(super) runs: Vec<Run>,
    /// It needs what a login sets: `module`, `conda`.
    pub(super) login: bool,
}

/// Options of a step that could only be about its job.
const OF_JOB: [&str; 7] = [
    "constraint",
    "hold",
    "mail-type",
    "mail-user",
    "no-requeue",
    "qos",
    "signal",
];

/// Commands that change the shell, which a rank can run for itself.
const PREPARES: [&str; 12] = [
    "source",
    ".",
    "module",
    "ml",
    "conda",
    "mamba",
    "micromamba",
    "spack",
    "ulimit",
    "umask",
    "mkdir",
    "unset",
];

/// Those of them that a login defines.
const OF_LOGIN: [&str; 6] = ["module", "ml", "conda", "mamba", "micromamba", "spack"];

const KEYWORDS: [&str; 19] = [
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac",
    "select", "function", "[", "[[", "!", "test", "coproc",
];

pub(super) const IN_TEXT: &str = "has a value in the text of a shell that is not known here, and could be more than words; put the value into the text";

const FIRST: &str = "part of the command: each rank runs it first";

const PIPED: &str = "has a pipe or || behind it, which is not understood here";

fn at(place: Place, path: &str) -> Field<'static> {
    Word::at(place, path).field()
}

pub(super) struct Reader<'a, 'c> {
    pub(super) values: &'a mut Values,
    pub(super) cluster: &'a Cluster<'c>,
    pub(super) log: &'a mut Verdicts,
    pub(super) body: Body,
    /// The commands are those of `srun bash -c`, where each task runs them.
    pub(super) in_step: Option<Asked>,
}

impl Reader<'_, '_> {
    /// Reads the commands, up to the first that could mean anything.
    pub(super) fn read(&mut self, mut commands: &[Command]) {
        let mut and = false;
        while let [first, rest @ ..] = commands {
            let piped = match first.then {
                Then::Pipe => {
                    1 + rest
                        .iter()
                        .take_while(|next| next.then == Then::Pipe)
                        .count()
                }
                _ => 0,
            };
            let (others, rest) = rest.split_at(piped.min(rest.len()));
            commands = rest;
            let last = others.last().unwrap_or(first);
            let exit = match (last.then, rest) {
                (Then::Or, [exit, rest @ ..])
                    if exit.words[0].plain().as_deref() == Some("exit")
                        && matches!(exit.then, Then::End | Then::And) =>
                {
                    commands = rest;
                    Some(exit.source.clone())
                }
                _ => None,
            };
            let (kept, runs) = (self.body.kept.len(), self.body.runs.len());
            let read = match others {
                [] => self.command(first, and),
                others => self.pipeline(first, others, and),
            };
            if !read {
                return;
            }
            if self.body.runs.len() == runs
                && let Some(kept) = self.body.kept[kept..].last_mut()
            {
                kept.exit.clone_from(&exit);
            }
            and = last.then == Then::And;
            let field = at(first.place, &first.words[0].source);
            match last.then {
                Then::End | Then::And => {}
                Then::Or if exit.is_some() => {}
                Then::Or | Then::Pipe => {
                    self.log.refuse(&field, PIPED);
                    return;
                }
                Then::Background => {
                    self.log.refuse(
                        &field,
                        "is started in the background; Muster runs one command, in the foreground",
                    );
                    return;
                }
            }
        }
    }

    /// Takes commands that are piped: all only show something, or the first is the one that trains and `tee`
    /// keeps what it writes. Whether the rest can be judged as well.
    fn pipeline(&mut self, first: &Command, others: &[Command], and: bool) -> bool {
        if all_show(first, others) {
            return self.command(first, and);
        }
        let runs = self.body.runs.len();
        if let [tee] = others
            && tee.words[0].plain().as_deref() == Some("tee")
            && !shows(first)
        {
            if !self.command(first, and) {
                return false;
            }
            if self.body.runs.len() > runs {
                let why = "is left out: Muster keeps the output of every rank (muster logs)";
                self.log.note(&at(tee.place, "tee"), why);
                return true;
            }
        }
        let field = at(first.place, &first.words[0].source);
        self.log.refuse(&field, PIPED);
        false
    }

    /// Takes one command. Whether the rest can be judged as well.
    fn command(&mut self, command: &Command, and: bool) -> bool {
        let assigned = command
            .words
            .iter()
            .take_while(|word| word.assignment().is_some())
            .count();
        let field = at(
            command.place,
            command.words[0]
                .assignment()
                .map_or_else(|| command.words[0].source.clone(), |(name, ..)| name)
                .as_str(),
        );
        if assigned == command.words.len() {
            return self.assign(command, &command.words, false, and, &field);
        }
        if shows(command) {
            self.log
                .note(&field, "is left out: it only shows something, or waits");
            return true;
        }
        let first = command.words[assigned].plain().unwrap_or_default();
        if assigned == 0 {
            if KEYWORDS.contains(&first.as_str()) || first == "{" {
                self.log.refuse(&field, "begins something that is more than one command, and what it does depends on what runs");
                return false;
            }
            match stem(&first) {
                "export" | "declare" | "typeset" | "readonly" => {
                    return self.export(command, and, &field);
                }
                "cd" => return self.cd(command, and, &field),
                "exit" | "return" if !self.body.runs.is_empty() => {
                    self.log
                        .note(&field, "is left out: the job ends as the command does");
                    return true;
                }
                "set" | "shopt" => {
                    self.log
                        .note(&field, "is kept if a shell prepares the command");
                    self.keep(command, What::Shell, and, &field);
                    return true;
                }
                "trap" => {
                    self.log.refuse(&field, "waits for a signal in the script; Muster sends SIGTERM to the ranks themselves before it stops them, and starts them again");
                    return true;
                }
                "eval" if is_hook(&command.source) => {
                    self.changes_all(&field);
                    self.body.login = true;
                    self.keep(command, What::Needs, and, &field);
                    return true;
                }
                "scontrol" | "scancel" | "sbatch" | "salloc" | "sattach" | "strigger"
                | "sbcast" => {
                    self.log.refuse(
                        &field,
                        "asks Slurm, which is not there when Muster runs the job",
                    );
                    return true;
                }
                name if PREPARES.contains(&name) => {
                    self.prepare(command, and, &field);
                    return true;
                }
                _ => {}
            }
        }
        self.run(command, assigned, and, &field)
    }

    fn keep(&mut self, command: &Command, what: What, and: bool, field: &Field<'static>) {
        self.body.kept.push(Kept {
            at: field.clone(),
            source: command.source.clone(),
            and,
            behind: self.body.runs.len(),
            exit: None,
            what,
        });
    }

    fn prepare(&mut self, command: &Command, and: bool, field: &Field<'static>) {
        let first = command.words[0].plain().unwrap_or_default();
        self.body.login |= OF_LOGIN.contains(&first.as_str());
        for word in &command.words[1..] {
            if first == "unset" {
                self.values.forget(&word.source);
            }
        }
        // What loads software sets variables of its own, and none that a script has set for itself.
        let loads = OF_LOGIN.contains(&first.as_str())
            || ["source", "."].contains(&first.as_str())
                && command
                    .words
                    .get(1)
                    .is_some_and(|word| word.source.ends_with("activate"));
        match loads || ["ulimit", "umask", "mkdir", "unset"].contains(&first.as_str()) {
            true => self.log.taken(field, FIRST),
            false => self.changes_all(field),
        }
        self.keep(command, What::Needs, and, field);
    }

    /// Takes a command that may change any variable.
    fn changes_all(&mut self, field: &Field<'static>) {
        let why = match self.values.all_opaque() {
            true => format!("{FIRST}, and may change what is set before it"),
            false => FIRST.to_owned(),
        };
        self.log.taken(field, why);
    }

    fn assign(
        &mut self,
        command: &Command,
        words: &[ShellWord],
        exports: bool,
        and: bool,
        field: &Field<'static>,
    ) -> bool {
        let mut names = Vec::new();
        for word in words {
            if let Err(why) = self.values.assign(word) {
                self.log.refuse(field, why);
                return false;
            }
            let name = word
                .assignment()
                .map_or_else(|| word.source.clone(), |(name, ..)| name);
            names.push((name, word.source.clone()));
        }
        self.keep(command, What::Assigns { names, exports }, and, field);
        true
    }

    fn export(&mut self, command: &Command, and: bool, field: &Field<'static>) -> bool {
        let words: Vec<ShellWord> = command.words[1..].to_vec();
        let options = words.iter().take_while(|word| word.source.starts_with('-'));
        let count = options.clone().count();
        let known = options
            .clone()
            .all(|word| ["-x", "-r", "-rx"].contains(&word.source.as_str()));
        let named = |word: &ShellWord| {
            word.assignment().is_some() || word.plain().is_some_and(|name| lexer::is_name(&name))
        };
        if !known || !words[count..].iter().all(named) {
            self.log.refuse(
                field,
                "is no list of NAME=VALUE, and what it sets cannot be said here",
            );
            return true;
        }
        self.assign(command, &words[count..], true, and, field)
    }

    fn cd(&mut self, command: &Command, and: bool, field: &Field<'static>) -> bool {
        let words = match self.expand(&command.words[1..], field) {
            Some(words) => words,
            None => return false,
        };
        let dir = match &words[..] {
            [dir] => dir.plain().filter(|dir| !dir.starts_with('-')),
            _ => None,
        };
        self.log.taken(
            field,
            match dir {
                Some(_) => "where the ranks start",
                None => FIRST,
            },
        );
        self.keep(command, What::Dir(dir), and, field);
        true
    }

    fn expand(&mut self, words: &[ShellWord], field: &Field<'static>) -> Option<Vec<Expanded>> {
        let mut all = Vec::new();
        for word in words {
            match self.values.expand(word) {
                Ok(more) => all.extend(more),
                Err(why) => {
                    self.log.refuse(field, why);
                    return None;
                }
            }
        }
        Some(all)
    }

    /// A command that is no preparation: it is the one that trains, or one too many.
    fn run(
        &mut self,
        command: &Command,
        assigned: usize,
        and: bool,
        field: &Field<'static>,
    ) -> bool {
        let mut env = Vec::new();
        for word in &command.words[..assigned] {
            let value = word.assignment().and_then(|(name, _, parts)| {
                let value = ShellWord {
                    place: word.place,
                    parts,
                    items: None,
                    source: String::new(),
                };
                match &self.values.expand(&value).ok()?[..] {
                    [] => Some((name, String::new())),
                    [value] => Some((name, value.plain()?)),
                    _ => None,
                }
            });
            match value {
                Some(pair) => env.push(pair),
                None => self.log.refuse(field, "is set for one command to what only a shell can say; export it in a line before"),
            }
        }
        let Some(mut words) = self.expand(&command.words[assigned..], field) else {
            return false;
        };
        let leads = |words: &[Expanded], names: &[&str]| {
            let first = words.first().and_then(Expanded::plain);
            first.is_some_and(|first| names.contains(&stem(&first)))
        };
        while leads(&words, &["exec", "time"]) && words.len() > 1 {
            words.remove(0);
        }
        for redirect in &command.redirects {
            if redirect.reads && redirect.file.is_some() {
                let why =
                    "reads a file as its input, which Muster does not; let the script open it";
                self.log.refuse(field, why);
            }
        }
        if !command.redirects.is_empty() {
            self.log.note(field, "writes into files in Slurm; here Muster keeps the output of every rank (muster logs)");
        }
        let mut step = self.in_step.clone();
        if leads(&words, &["srun"]) {
            let Some((asked, count)) = self.step(&words[1..], field) else {
                return false;
            };
            words.drain(..=count);
            step = Some(asked);
            if step_shows(&words, &command.redirects) {
                self.log.note(field, "is left out: it only shows something");
                return true;
            }
        }
        if words.is_empty() {
            self.log.refuse(field, "names no command");
            return true;
        }
        let run = Run {
            at: field.clone(),
            words,
            step,
            env,
            and,
        };
        if run.step.is_some() && self.in_step.is_none() && self.inner(&run) {
            return true;
        }
        self.body.runs.push(run);
        true
    }

    /// Reads `bash -c TEXT` of an `srun` as more lines of the script. Whether it is understood; else it stays a
    /// program.
    fn inner(&mut self, run: &Run) -> bool {
        let [shell, options @ .., text] = &run.words[..] else {
            return false;
        };
        let is = |word: &Expanded, names: &[&str]| {
            word.plain()
                .is_some_and(|word| names.contains(&stem(&word)))
        };
        if !is(shell, &["bash", "sh"])
            || options.is_empty()
            || !options
                .iter()
                .all(|word| is(word, &["-c", "-lc", "-l", "-e"]))
        {
            return false;
        }
        let source = unknown(text).replace('\u{1}', "");
        let Ok(commands) = lexer::commands(&source, text.place) else {
            return false;
        };
        if !self.values.read_again(text, &commands) {
            self.log.refuse(&run.at, IN_TEXT);
            return true;
        }
        let mut log = Verdicts::default();
        let mut values = self.values.clone();
        let mut reader = Reader {
            values: &mut values,
            cluster: self.cluster,
            log: &mut log,
            body: Body::default(),
            in_step: run.step.clone(),
        };
        reader.read(&commands);
        let mut body = reader.body;
        if log.refused() > 0 || body.runs.len() != 1 {
            return false;
        }
        *self.values = values;
        self.log.remarks.append(&mut log.remarks);
        for kept in &mut body.kept {
            kept.behind = self.body.runs.len();
        }
        self.body.kept.append(&mut body.kept);
        for found in &mut body.runs {
            found.env.splice(0..0, run.env.iter().cloned());
        }
        self.body.runs.append(&mut body.runs);
        self.body.login |= body.login || options.iter().any(|word| is(word, &["-lc", "-l"]));
        true
    }

    /// The options of an `srun`, and how many words they are.
    fn step(&mut self, words: &[Expanded], field: &Field<'static>) -> Option<(Asked, usize)> {
        // A value that only the nodes know counts only where it is not read.
        let texts: Vec<String> = words
            .iter()
            .map(|word| word.plain().unwrap_or_else(|| unknown(word)))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut asked = Asked::default();
        let mut count = 0;
        loop {
            match options::look(&texts[count..], true) {
                Found::Command => return Some((asked, count)),
                Found::Lacks(name) => {
                    self.log.refuse(field, format!("{name} has no value"));
                    return None;
                }
                Found::Unknown(why) => {
                    self.log.refuse(field, format!("{} {why}", texts[count]));
                    return None;
                }
                Found::Option {
                    entry,
                    written,
                    value,
                    words,
                } => {
                    let option = at(field.place, &format!("srun {written}"));
                    match value.as_deref() {
                        Some(value) if value.contains('\u{1}') && entry.3 == options::Use::Read => {
                            let shown = value.replace('\u{1}', "");
                            self.log.refuse(
                                &option,
                                format!("is {shown}, which only a shell can say; write the value"),
                            );
                        }
                        _ if entry.0 == "job-name" => {
                            self.log.note(&option, "is not kept: it names the step");
                        }
                        _ if OF_JOB.contains(&entry.0) => {
                            self.log.warn(&option, "has no effect: it is about the whole job; say it in a line for sbatch");
                        }
                        value => asked.take(entry, value, &option, self.cluster, self.log),
                    }
                    count += words;
                }
            }
        }
    }
}

/// A word with what only a shell can say, marked.
fn unknown(word: &Expanded) -> String {
    let texts = word.parts.iter().map(|part| match part {
        Part::Text { text, .. } => text.clone(),
        Part::Variable { raw, .. } | Part::Shell { raw, .. } => format!("\u{1}{raw}\u{1}"),
    });
    texts.collect()
}

/// `eval "$(conda shell.bash hook)"`
fn is_hook(source: &str) -> bool {
    ["conda", "mamba", "micromamba"]
        .iter()
        .any(|name| source.contains(name))
        && source.contains("hook")
}
