//! What each rank runs: the command without its launcher, and before it what prepares it.
//!
//! If nothing needs a shell, the preparation becomes fields of the job, and any lane can start the ranks.
//! Else each rank is a shell that prepares itself and becomes the command.

use std::collections::BTreeSet;

use muster_core::spec::{EnvVar, is_of_a_launch};

use super::{
    asked::Asked,
    body::{Body, IN_TEXT, Kept, Run, What},
    lexer::Part,
    values::{self, Expanded, OfSlurm, Values},
};
use crate::{
    launch::{self, By, Launch, is_python, stem},
    tree::Field,
    verdict::Verdicts,
    words::{Known, Word},
};

/// Stands around the number of a part that only a shell can say, in the words of a command. No script that is
/// read has it.
const MARK: char = '\u{1}';

/// Variables that every node has.
const OF_NODES: [&str; 20] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "PWD",
    "OLDPWD",
    "TMPDIR",
    "LANG",
    "TZ",
    "HOSTNAME",
    "RANDOM",
    "UID",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "SECONDS",
    "?",
    "$",
    "-",
];

/// Programs of which only Slurm knows the answer.
const ASK_SLURM: [&str; 6] = [
    "scontrol",
    "srun",
    "squeue",
    "sacct",
    "sinfo",
    "SLURM_JOB_NODELIST",
];

const ONLY_SHELL: &str =
    "is set for one command to what only a shell can say; export it in a line before";
const SET: &str = "is left out: Muster sets it for every rank";
const PUT_IN: &str = "is put in where it is used, or not needed";

/// The parts of a job that its script says.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) command: Vec<String>,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<EnvVar>,
    pub(super) dir: Option<String>,
    pub(super) lane: Option<&'static str>,
}

/// The command without its launcher, and the parts of it that only a shell can say.
pub(super) fn launch(
    run: &Run,
    values: &Values,
    log: &mut Verdicts,
) -> (Option<Launch>, Vec<Part>) {
    let mut parts = Vec::new();
    let words: Vec<Word> = run
        .words
        .iter()
        .map(|word| marked(&word.parts, &run.at, &mut parts))
        .collect();
    let known: Known = values
        .slurm
        .iter()
        .map(|(name, value)| {
            let value = match value {
                OfSlurm::Is(value) => Some(value.clone()),
                OfSlurm::Rank | OfSlurm::NotSet => None,
            };
            ((*name).to_owned(), value)
        })
        .collect();
    let from = log.remarks.len();
    let launch = launch::read(&words, &known, log);
    for remark in &mut log.remarks[from..] {
        if remark.message.contains(MARK) {
            remark.message = restored(&remark.message, &parts, |part| {
                values::render(std::slice::from_ref(part))
            });
        }
    }
    if let Some(launch) = &launch {
        judge_marks(launch, &parts, run, values, log);
    }
    (launch, parts)
}

/// Refuses what only a shell can say where it cannot stay: a variable for the command, and a program that a
/// line may have changed, which could be a launcher.
fn judge_marks(launch: &Launch, parts: &[Part], run: &Run, values: &Values, log: &mut Verdicts) {
    let env = launch.env.iter().map(|(_, value)| value);
    if env.chain(&launch.dir).any(|text| text.contains(MARK)) {
        log.refuse(&run.at, ONLY_SHELL);
    }
    // A shell that was not read with the script would take a value for one word.
    let is = |word: &Expanded, is: fn(&str) -> bool| word.plain().is_some_and(|word| is(&word));
    let shell: fn(&str) -> bool = |word| ["bash", "sh", "dash", "zsh", "ash"].contains(&stem(word));
    let changed =
        |part: &Part| matches!(part, Part::Variable { name, .. } if values.may_have_changed(name));
    let mut behind = run.words.iter().skip_while(|word| !is(word, shell));
    while let Some(word) = behind.next() {
        let text = || behind.clone().next();
        if is(word, |word| word.starts_with('-') && word.ends_with('c'))
            && text().is_some_and(|text| text.parts.iter().any(changed))
        {
            log.refuse(&run.at, IN_TEXT);
        }
    }
    let first = launch.command.first();
    let python = first.is_some_and(|word| is_python(stem(word)));
    let script = launch.args.first().filter(|_| python);
    let words = launch.command.iter().chain(script);
    for part in words.flat_map(|word| unmarked(word, parts)) {
        if let Part::Variable { name, .. } = part
            && values.may_have_changed(&name)
        {
            log.refuse(&run.at, format!("runs ${name}, which a line behind its assignment may have changed (source, module, conda); set it behind that line"));
        }
    }
}

fn marked(word: &[Part], at: &Field<'static>, parts: &mut Vec<Part>) -> Word {
    let mut made = Word {
        by_shell: true,
        ..Word::at(at.place, &at.path)
    };
    for part in word {
        let name = match part {
            Part::Text { text, .. } => {
                made.text.push_str(text);
                continue;
            }
            Part::Variable { name, .. } => name.clone(),
            Part::Shell { raw, .. } => raw.clone(),
        };
        made.text.push_str(&format!("{MARK}{}{MARK}", parts.len()));
        parts.push(part.clone());
        made.on_node.get_or_insert(name);
    }
    made
}

/// A text with other words in place of the marks.
fn restored(text: &str, parts: &[Part], show: impl Fn(&Part) -> String) -> String {
    let pieces = text.split(MARK).enumerate().map(|(i, piece)| {
        let part = piece.parse::<usize>().ok().and_then(|at| parts.get(at));
        match part.filter(|_| i % 2 == 1) {
            Some(part) => show(part),
            None => piece.to_owned(),
        }
    });
    pieces.collect()
}

/// A word of the command as parts again.
fn unmarked(text: &str, parts: &[Part]) -> Vec<Part> {
    let pieces = text.split(MARK).enumerate().map(|(i, piece)| {
        let part = piece.parse::<usize>().ok().and_then(|at| parts.get(at));
        match part.filter(|_| i % 2 == 1) {
            Some(part) => part.clone(),
            None => Part::Text {
                text: piece.to_owned(),
                quoted: true,
            },
        }
    });
    pieces.collect()
}

/// What is known of the ranks of a job.
#[derive(Clone, Copy)]
pub(super) struct Ranks<'a> {
    pub(super) asked: &'a Asked,
    pub(super) shell: (&'static str, bool),
    pub(super) body: &'a Body,
    pub(super) run: &'a Run,
    pub(super) launch: &'a Launch,
    /// What only a shell can say in the words of the launch.
    pub(super) parts: &'a [Part],
    pub(super) values: &'a Values,
}

impl Ranks<'_> {
    /// What each rank runs.
    pub(super) fn made(self, log: &mut Verdicts) -> Made {
        let left_out = LeftOut::of(self.body, self.values);
        let needs = |kept: &Kept| match &kept.what {
            What::Needs | What::Dir(None) => true,
            What::Assigns {
                names,
                exports: true,
            } => names
                .iter()
                .any(|(name, _)| self.values.plain(name).is_none() && !left_out.has(name)),
            What::Assigns { .. } | What::Dir(Some(_)) | What::Shell => false,
        };
        let launch = self.launch;
        let mut words = launch.command.iter().chain(&launch.args);
        match words.any(|word| word.contains(MARK)) || self.body.kept.iter().any(needs) {
            false => plain(self, log),
            true => Shell {
                ranks: self,
                left_out,
                log,
            }
            .made(),
        }
    }
}

/// Exported variables that no rank reads: Muster sets them, or they are parts of the command, into which
/// they were put.
struct LeftOut(BTreeSet<String>);

impl LeftOut {
    fn of(body: &Body, values: &Values) -> LeftOut {
        let (mut asking, mut left) = (BTreeSet::new(), BTreeSet::new());
        for kept in &body.kept {
            let What::Assigns { names, .. } = &kept.what else {
                continue;
            };
            for (name, source) in names {
                let mut uses = BTreeSet::new();
                values::names_in(source, &mut uses);
                let ours = is_of_a_launch(name);
                if !ours
                    && (asks(source).is_some() || uses.iter().any(|name| asking.contains(name)))
                {
                    asking.insert(name.clone());
                }
                let put_in = values.used.contains(name) && values.plain(name).is_none();
                if ours || put_in && (asking.contains(name) || values.is_line(name)) {
                    left.insert(name.clone());
                }
            }
        }
        LeftOut(left)
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

/// What a text asks Slurm with.
fn asks(source: &str) -> Option<&'static str> {
    ASK_SLURM.into_iter().find(|name| source.contains(name))
}

fn text(text: &str) -> Part {
    Part::Text {
        text: text.to_owned(),
        quoted: true,
    }
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: value.to_owned(),
        value_from: None,
    }
}

/// A later value wins, and one of a launch is left out.
fn add(env: &mut Vec<EnvVar>, name: &str, value: &str) {
    if is_of_a_launch(name) {
        return;
    }
    env.retain(|before| before.name != name);
    env.push(variable(name, value));
}

fn joined(before: Option<String>, dir: &str) -> String {
    match before {
        Some(before) if !dir.starts_with('/') => format!("{before}/{dir}"),
        _ => dir.to_owned(),
    }
}

/// Without a shell.
fn plain(ranks: Ranks<'_>, log: &mut Verdicts) -> Made {
    let Ranks {
        asked,
        body,
        run,
        launch,
        values,
        ..
    } = ranks;
    let mut made = Made {
        command: launch.command.clone(),
        args: launch.args.clone(),
        dir: asked.chdir.as_ref().map(|(dir, _)| dir.clone()),
        lane: launch.lane,
        ..Made::default()
    };
    for (name, value) in &asked.env {
        add(&mut made.env, name, value);
    }
    for kept in &body.kept {
        match &kept.what {
            What::Assigns { names, exports } => {
                let plain = || {
                    names
                        .iter()
                        .filter_map(|(name, _)| Some((name, values.plain(name)?)))
                };
                // A variable may be set in one line and exported in another.
                let exported = *exports
                    || names
                        .iter()
                        .any(|(name, _)| made.env.iter().any(|var| var.name == *name));
                let exported = exported && plain().next().is_some();
                if exported {
                    plain().for_each(|(name, value)| add(&mut made.env, name, &value));
                }
                let left = names.iter().all(|(name, _)| is_of_a_launch(name));
                match (exported, left) {
                    (_, true) => log.note(&kept.at, SET),
                    (true, false) => log.taken(&kept.at, "part of spec.env"),
                    (false, false) => log.note(&kept.at, PUT_IN),
                }
            }
            What::Dir(Some(dir)) => made.dir = Some(joined(made.dir.take(), dir)),
            What::Dir(None) | What::Shell | What::Needs => {}
        }
    }
    for (name, value) in run.env.iter().chain(&launch.env) {
        add(&mut made.env, name, value);
    }
    if let Some(dir) = &launch.dir {
        made.dir = Some(joined(made.dir.take(), dir));
    }
    log.taken(&run.at, "spec.command and spec.args");
    made
}

/// With a shell, which prepares the rank and becomes the command.
struct Shell<'a> {
    ranks: Ranks<'a>,
    left_out: LeftOut,
    log: &'a mut Verdicts,
}

impl Shell<'_> {
    fn made(mut self) -> Made {
        let Ranks {
            asked, run, launch, ..
        } = self.ranks;
        if launch.lane == Some("cold") {
            self.log.refuse(&run.at, "gives the script its local rank as an argument, which a shell before it hides; start it with torchrun, and let the script read LOCAL_RANK");
        }
        let words = self.words();
        let mut needed = BTreeSet::new();
        for word in &words {
            values::names(word, &mut needed);
        }
        let lines = self.lines(&mut needed);
        let mut text = self.before(&needed);
        for (line, and) in lines {
            join(&mut text, &line, and);
        }
        for (name, value) in run.env.iter().chain(&launch.env) {
            let line = format!("export {name}={}", values::quoted(value));
            join(&mut text, &line, false);
        }
        if let Some(dir) = &launch.dir {
            join(&mut text, &format!("cd {}", values::quoted(dir)), false);
        }
        let words: Vec<String> = words.iter().map(|word| values::render(word)).collect();
        join(&mut text, &format!("exec {}", words.join(" ")), run.and);
        let (shell, login) = self.ranks.shell;
        let login = login || self.ranks.body.login;
        let logs_in = if login { ", which logs in" } else { "" };
        self.log.taken(
            &run.at,
            format!("spec.command and spec.args: each rank runs a shell{logs_in}"),
        );
        let mut env = Vec::new();
        for (name, value) in &asked.env {
            add(&mut env, name, value);
        }
        Made {
            command: vec![shell.to_owned()],
            args: vec![if login { "-lc" } else { "-c" }.to_owned(), text],
            env,
            dir: asked.chdir.as_ref().map(|(dir, _)| dir.clone()),
            lane: Some("direct"),
        }
    }

    /// The words of the command.
    fn words(&self) -> Vec<Vec<Part>> {
        let Ranks { launch, parts, .. } = self.ranks;
        let all = launch.command.iter().chain(&launch.args);
        let mut words: Vec<Vec<Part>> = all.map(|word| unmarked(word, parts)).collect();
        let first = launch.command.first();
        let python = first.is_some_and(|word| is_python(stem(word)));
        if python && launch.args.first().is_none_or(|word| word != "-u") {
            // As Muster and torchrun run a script: without a buffer.
            words.insert(1, vec![text("-u")]);
        }
        words
    }

    /// The lines that stay, from the last to the first: a value that nobody needs any more is left out.
    fn lines(&mut self, needed: &mut BTreeSet<String>) -> Vec<(String, bool)> {
        let mut lines = Vec::new();
        // A file that is read later may use any variable.
        let mut read_later = false;
        for kept in self.ranks.body.kept.iter().rev() {
            let source = match &kept.what {
                What::Assigns { names, exports } => {
                    self.assigns(kept, names, *exports, needed, read_later)
                }
                What::Dir(_) | What::Shell | What::Needs => Some(kept.source.clone()),
            };
            read_later |= kept.source.starts_with("source ") || kept.source.starts_with(". ");
            let Some(source) = source else { continue };
            let source = match &kept.exit {
                Some(exit) => format!("{source} || {exit}"),
                None => source,
            };
            if let Some(asks) = asks(&source) {
                self.log.refuse(&kept.at, format!("asks {asks}, which only Slurm has, and its answer is needed later on; ranks have RANK, WORLD_SIZE and MASTER_ADDR"));
            }
            values::names_in(&source, needed);
            lines.push((source, kept.and));
        }
        lines.reverse();
        lines
    }

    /// Whether a file may use the variable. What asks Slurm is none of it.
    fn may_be_read(&self, name: &str) -> bool {
        let values = self.ranks.values;
        values.plain(name).is_some() || values.may_have_changed(name)
    }

    /// The part of some assignments that is needed.
    fn assigns(
        &mut self,
        kept: &Kept,
        names: &[(String, String)],
        exports: bool,
        needed: &BTreeSet<String>,
        read_later: bool,
    ) -> Option<String> {
        let stays = |name: &str| match exports {
            _ if is_of_a_launch(name) => false,
            true => needed.contains(name) || !self.left_out.has(name),
            false => needed.contains(name) || read_later && self.may_be_read(name),
        };
        let stay: Vec<&str> = names
            .iter()
            .filter(|(name, _)| stays(name))
            .map(|(_, source)| &**source)
            .collect();
        if stay.is_empty() {
            let why = match names.iter().all(|(name, _)| is_of_a_launch(name)) {
                true => SET,
                false => PUT_IN,
            };
            self.log.note(&kept.at, why);
            return None;
        }
        self.log
            .taken(&kept.at, "part of the command: each rank runs it first");
        Some(match (exports, stay.len() == names.len()) {
            (_, true) => kept.source.clone(),
            (true, false) => format!("export {}", stay.join(" ")),
            (false, false) => stay.join(" "),
        })
    }

    /// The variables of Slurm that are needed, for the shell alone. A rank sees none of them.
    fn before(&mut self, needed: &BTreeSet<String>) -> String {
        let mut text = String::new();
        for name in needed {
            if self.ranks.values.has(name)
                || is_of_a_launch(name)
                || OF_NODES.contains(&name.as_str())
            {
                continue;
            }
            let at = &self.ranks.run.at;
            match self.ranks.values.of_slurm(name) {
                Some(OfSlurm::Is(value)) => {
                    let line = format!("{name}={}", values::quoted(&value));
                    join(&mut text, &line, false);
                }
                Some(OfSlurm::Rank) => join(&mut text, &format!("{name}={}", of_rank(name, self.ranks.launch.by)), false),
                Some(OfSlurm::NotSet) => self.log.refuse(at, format!("needs {name}, which only Slurm sets, and which has nothing like it here")),
                None if name.chars().all(|c| !c.is_ascii_alphabetic() && c != '_') => self.log.refuse(at, format!("needs ${name}, an argument of the script, which there is none of; write its value")),
                None => self.log.warn(at, format!("needs {name}, which the script does not set: it is the node's, not that of your shell")),
            }
        }
        text
    }
}

/// The variable of a rank that says what Slurm says with this one.
fn of_rank(name: &str, by: By) -> &'static str {
    let torchrun = by != By::Itself;
    match name {
        "SLURM_PROCID" if torchrun => "$GROUP_RANK",
        "SLURM_PROCID" => "$RANK",
        "SLURM_LOCALID" if torchrun => "0",
        "SLURM_LOCALID" => "$LOCAL_RANK",
        "SLURM_NTASKS" | "SLURM_NPROCS" if torchrun => "$GROUP_WORLD_SIZE",
        "SLURM_NTASKS" | "SLURM_NPROCS" => "$WORLD_SIZE",
        "SLURM_NODEID" => "$GROUP_RANK",
        "SLURM_RESTART_COUNT" => "$TORCHELASTIC_RESTART_COUNT",
        "SLURMD_NODENAME" => "$MUSTER_NODE",
        "SLURM_JOB_USER" => "$USER",
        _ => "$GROUP_WORLD_SIZE",
    }
}

fn join(text: &mut String, line: &str, and: bool) {
    if !text.is_empty() {
        text.push_str(if and { " &&\n" } else { "\n" });
    }
    text.push_str(line);
}
