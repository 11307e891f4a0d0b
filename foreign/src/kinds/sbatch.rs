//! Batch scripts of Slurm: `#SBATCH` lines, what prepares the environment, and one command behind `srun`.
//!
//! `options` has the table of what `sbatch` and `srun` take, `asked` what a script asks for, `lexer` takes the
//! script apart into commands, `values` knows its variables, `body` tells preparation from the command,
//! `shows` what may be left out, `mail` says who is told, and `command` makes from both what each rank runs. No script is run, and no
//! Slurm is asked.

use self::{
    asked::Asked,
    body::{Body, Reader, Run},
    count::{Count, of_slurm},
    job::Job,
    options::Found,
    values::Values,
};
use crate::{
    draft::{Converted, NameAt},
    launch::stem,
    options::{Cluster, Options},
    tree::{Field, Place},
    verdict::{Verdict, Verdicts},
    words::Word,
};

mod asked;
mod body;
mod command;
mod count;
mod job;
mod lexer;
mod mail;
mod options;
mod shows;
mod values;

/// What to do with a script whose commands are refused. It is told once.
const INSTEAD: &str = ". Or write a MusterJob, or let the script call muster run --slurm in its allocation (docs/slurm.md)";

const DIRECTIVE: &str = "#SBATCH";

/// Whether a text is a batch script of Slurm: a script with at least one line for `sbatch`.
pub(crate) fn is_script(text: &str) -> bool {
    text.starts_with("#!") && text.lines().any(|line| line.starts_with(DIRECTIVE))
}

/// A job that was read, and its name.
pub(crate) fn read(
    text: &str,
    options: &Options,
    log: &mut Verdicts,
) -> (Option<Converted>, NameAt) {
    let cluster = Cluster {
        site: &options.site,
        namespace: options
            .namespace
            .as_deref()
            .unwrap_or(muster_core::spec::DEFAULT_NAMESPACE),
        command: &options.command,
        pods: options.pods,
        adopted: false,
        runtime_later: false,
    };
    let asked = directives(text, &cluster, log);
    let name = name_of(&asked, options, log);
    let named = NameAt {
        place: Place::START,
        namespace: options.namespace.clone(),
        name: name.clone(),
    };
    let start = Word::at(Place::START, "").field();
    if options.pods {
        log.refuse(
            &start,
            "has no pods that could be kept; convert it without --pods",
        );
        return (None, named);
    }
    let shell = interpreter(text, &start, log);
    let count = Count::of(&asked, &start, log);
    let mut values = Values::default();
    values.slurm = of_slurm(&asked, &count, &name, options);
    let from = log.remarks.len();
    let converted = body(text, &mut values, &cluster, log).and_then(|body| {
        let run = only_command(&body, &start, log)?;
        let step = run.step.clone().unwrap_or_default();
        let asked = asked.of_step(&step);
        let job = Job {
            asked,
            count,
            shell,
            name,
            start,
            options,
        };
        job.finish(&body, run, &values, log)
    });
    let refusals = log.remarks[from..].iter_mut();
    if let Some(last) = refusals
        .rev()
        .find(|remark| remark.verdict == Verdict::Refusal)
    {
        last.message.push_str(INSTEAD);
    }
    (converted, named)
}

/// Reads the lines for `sbatch`, which end at the first command.
fn directives(text: &str, cluster: &Cluster<'_>, log: &mut Verdicts) -> Asked {
    let mut asked = Asked::default();
    let mut open = true;
    for (line, text) in (1..).zip(text.lines()) {
        let place = Place { line, column: 1 };
        let Some(rest) = text.strip_prefix(DIRECTIVE) else {
            open &= text.trim().is_empty() || text.starts_with('#');
            continue;
        };
        let field = Word::at(place, DIRECTIVE).field();
        if rest.starts_with(|c: char| !c.is_whitespace()) {
            log.warn(
                &field,
                format!("{text:?} is a comment: a blank must follow {DIRECTIVE}"),
            );
            continue;
        }
        if !open {
            log.warn(
                &field,
                "is not read, by Slurm neither: it stands behind the first command",
            );
            continue;
        }
        if ["hetjob", "packjob"].contains(&rest.trim()) {
            log.refuse(
                &field,
                "has groups of different nodes; write a MusterJob with roles",
            );
            continue;
        }
        let Some(words) = words_of(rest) else {
            log.refuse(&field, "opens a quote that never ends");
            continue;
        };
        take_all(&words, place, &mut asked, cluster, log);
    }
    asked.notify = asked.mail.notify(log);
    asked
}

/// The words of a line for `sbatch`, which knows quotes and nothing else of a shell. A word that begins with #
/// begins a comment. `None`: a quote never ends.
fn words_of(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(chars.next()),
            ('\'' | '"', None) => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            ('#', None) if word.is_none() => break,
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

fn take_all(
    words: &[String],
    place: Place,
    asked: &mut Asked,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut at = 0;
    while at < words.len() {
        let field = |path: &str| Word::at(place, path).field();
        match options::look(&words[at..], false) {
            Found::Option {
                entry,
                written,
                value,
                words,
            } => {
                asked.take(entry, value.as_deref(), &field(&written), cluster, log);
                at += words;
            }
            Found::Lacks(written) => {
                log.refuse(&field(&written), "has no value");
                return;
            }
            Found::Unknown(why) => {
                log.refuse(&field(words[at]), why);
                // Its value, if one follows.
                at += 1 + usize::from(words.get(at + 1).is_some_and(|word| !word.starts_with('-')));
            }
            Found::Command => {
                log.refuse(&field(words[at]), "is no option of sbatch");
                at += 1;
            }
        }
    }
}

/// The shell of the first line, and whether it logs in.
fn interpreter(text: &str, start: &Field<'static>, log: &mut Verdicts) -> (&'static str, bool) {
    let first = text
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("#!");
    let words: Vec<&str> = first.split_whitespace().collect();
    let stems = words.iter().map(|word| stem(word));
    let login = words.iter().any(|word| {
        *word == "--login"
            || word
                .strip_prefix('-')
                .is_some_and(|letters| !letters.starts_with('-') && letters.contains('l'))
    });
    let mut shells = stems.filter_map(|stem| {
        ["bash", "sh", "dash"]
            .into_iter()
            .find(|shell| *shell == stem)
    });
    match shells.next() {
        Some("bash") => ("bash", login),
        Some(_) => ("sh", login),
        None => {
            log.refuse(
                start,
                format!("is a script for {first:?}; only scripts for bash and sh are read"),
            );
            ("bash", false)
        }
    }
}

/// The most letters of a script's name in the name of its job: with the end it stays below a label's 63.
const NAME_MAX: usize = 40;

/// The job's name. Slurm takes any text, and the same one for many jobs, so it gets an end of its own.
fn name_of(asked: &Asked, options: &Options, log: &mut Verdicts) -> String {
    let file = options.file.rsplit('/').next().unwrap_or_default();
    let file = file.split('.').next().unwrap_or_default();
    let said = asked.name.as_ref().map_or(file, |(name, _)| name);
    let words = said.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let mut name = words.join("-").to_ascii_lowercase();
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        name = format!("job-{name}");
    }
    name.truncate(NAME_MAX);
    let name = name.trim_end_matches('-');
    let name = match options.suffix.as_str() {
        "" => name.to_owned(),
        suffix => format!("{name}-{suffix}"),
    };
    if let Some((_, at)) = &asked.name {
        log.taken(at, format!("metadata.name: {name}; with an end of its own, because each submission is another job"));
    }
    name
}

fn body(
    text: &str,
    values: &mut Values,
    cluster: &Cluster<'_>,
    log: &mut Verdicts,
) -> Option<Body> {
    let odd = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    if let Some((line, _)) = (1..).zip(text.lines()).find(|(_, line)| line.contains(odd)) {
        let place = Place { line, column: 1 };
        log.refuse(
            &Word::at(place, "").field(),
            "has a control character, which no script needs",
        );
        return None;
    }
    let commands = match lexer::commands(text, Place::START) {
        Ok(commands) => commands,
        Err((place, why)) => {
            log.refuse(&Word::at(place, "").field(), why);
            return None;
        }
    };
    let before = log.refused();
    let mut reader = Reader {
        values,
        cluster,
        log,
        body: Body::default(),
        in_step: None,
    };
    reader.read(&commands);
    let body = reader.body;
    (log.refused() == before).then_some(body)
}

/// The command that trains: that of `srun`, else the only one.
fn only_command<'b>(body: &'b Body, start: &Field<'static>, log: &mut Verdicts) -> Option<&'b Run> {
    let is_step = |run: &&Run| run.step.is_some();
    let chosen = match body.runs.iter().rposition(|run| run.step.is_some()) {
        Some(at) => at,
        None => match body.runs.len() {
            0 => {
                log.refuse(start, "starts no command");
                return None;
            }
            count => count - 1,
        },
    };
    let steps = body.runs.iter().filter(is_step).count();
    let before = log.refused();
    for (i, run) in body.runs.iter().enumerate().filter(|(i, _)| *i != chosen) {
        let why = match (run.step.is_some(), i > chosen) {
            (true, _) => format!("is one of {steps} commands behind srun, and Muster runs one; submit one job for each"),
            (false, true) => "stands behind the command that trains, which each rank becomes; make it a job of its own, or let the script do it".into(),
            (false, false) => "runs once in Slurm, on the first node, and here every rank would run it; do it before you submit, or in the script that trains".into(),
        };
        log.refuse(&run.at, why);
    }
    for kept in body
        .kept
        .iter()
        .filter(|kept| kept.behind > chosen && kept.what == body::What::Needs)
    {
        log.refuse(
            &kept.at,
            "stands behind the command that trains, which each rank becomes; take it out",
        );
    }
    (log.refused() == before).then(|| &body.runs[chosen])
}
