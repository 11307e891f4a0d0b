//! Batch scripts of Slurm: `#SBATCH` lines, what prepares the environment, and one command behind `srun`.
//!
//! `options` has the table of what `sbatch` and `srun` take, `asked` what a script asks for, `lexer` takes the
//! script apart into commands, `values` knows its variables, `body` tells preparation from the command, and
//! `command` makes from both what each rank runs. No script is run, and no Slurm is asked.

use muster_core::{
    period,
    spec::{API_VERSION, JobDocument, KIND, Metadata, RuleDocument, SpecDocument},
};
use std::time::Duration;

use self::{
    asked::Asked,
    body::{Body, Reader, Run},
    options::Found,
    values::{OfSlurm, Values},
};
use super::{Sizes, nodes};
use crate::{
    draft::{Converted, NameAt, Size, may_stay},
    launch::{By, Launch, Procs},
    options::{Cluster, Options},
    procs, roles,
    run_policy::RunPolicy,
    shell,
    tree::{Field, Place},
    verdict::{Verdict, Verdicts},
    words::Word,
};

mod asked;
mod body;
mod command;
mod lexer;
mod options;
mod values;

/// What to do with a script whose commands are refused. It is told once.
const INSTEAD: &str =
    ". Else write a MusterJob, or run the script in its allocation with muster run --slurm";

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
        };
        job.finish(&body, run, &values, options, log)
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
        // What follows a word that begins with # is a comment.
        let rest = rest.split(" #").next().unwrap_or_default();
        if ["hetjob", "packjob"].contains(&rest.trim()) {
            log.refuse(
                &field,
                "has groups of different nodes; write a MusterJob with roles",
            );
            continue;
        }
        let Some(words) = shell::words(&rest.replace(
            [
                '(', ')', '[', ']', '*', '&', '|', ';', '<', '>', '{', '}', '$',
            ],
            "\u{1}",
        ))
        .map(|words| restore(words, rest)) else {
            log.refuse(&field, "opens a quote that never ends");
            continue;
        };
        take_all(&words, place, &mut asked, cluster, log);
    }
    asked
}

/// Puts the characters back that mean something to a shell and nothing to `sbatch`.
fn restore(words: Vec<String>, line: &str) -> Vec<String> {
    let mut special = line.chars().filter(|c| "()[]*&|;<>{}$".contains(*c));
    let put = |word: String| {
        word.chars()
            .map(|c| match c {
                '\u{1}' => special.next().unwrap_or(c),
                c => c,
            })
            .collect()
    };
    words.into_iter().map(put).collect()
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
    let stems = words.iter().map(|word| crate::launch::stem(word));
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

/// How many nodes the script has, and how many tasks and GPUs each.
#[derive(Clone, Debug)]
struct Count {
    nodes: (i64, i64),
    nodes_at: Field<'static>,
    gpus: Option<(i64, Field<'static>)>,
    tasks: i64,
}

impl Count {
    fn of(asked: &Asked, start: &Field<'static>, log: &mut Verdicts) -> Count {
        let (nodes, nodes_at) = match (&asked.nodes, &asked.tasks, &asked.tasks_per_node) {
            (Some((nodes, at)), ..) => {
                log.taken(
                    at,
                    match nodes.0 == nodes.1 {
                        true => "spec.replicas",
                        false => "spec.minReplicas and spec.maxReplicas",
                    },
                );
                (*nodes, at.clone())
            }
            (None, Some((tasks, at)), Some((each, _))) => match tasks % each {
                0 => ((tasks / each, tasks / each), at.clone()),
                _ => {
                    log.refuse(at, format!("is {tasks} tasks, which is no multiple of the {each} of each node; add --nodes"));
                    ((1, 1), at.clone())
                }
            },
            (None, Some((tasks, at)), None) if *tasks > 1 => {
                log.refuse(
                    at,
                    format!("is {tasks} tasks on as many nodes as Slurm likes; add --nodes"),
                );
                ((1, 1), at.clone())
            }
            _ => ((1, 1), start.clone()),
        };
        let tasks = tasks_per_node(asked, nodes, log);
        let mut count = Count {
            nodes,
            nodes_at,
            gpus: None,
            tasks,
        };
        count.gpus = count.gpus(asked, log);
        count
    }

    fn is_fixed(&self) -> bool {
        self.nodes.0 == self.nodes.1
    }

    /// GPUs of each node.
    fn gpus(&self, asked: &Asked, log: &mut Verdicts) -> Option<(i64, Field<'static>)> {
        if let Some((count, at)) = &asked.gpus_per_node {
            log.taken(at, "spec.gpusPerNode");
            return Some((*count, at.clone()));
        }
        if let Some((count, at)) = &asked.gpus {
            let whole = self.is_fixed() && count % self.nodes.1 == 0;
            match whole {
                true => log.taken(at, "spec.gpusPerNode, the same on each node"),
                false => log.refuse(at, format!("is {count} GPUs in all, which is not the same number on each node; give --gpus-per-node instead")),
            }
            return Some((count / self.nodes.1, at.clone()));
        }
        let (each, at) = asked.gpus_per_task.as_ref()?;
        match self.tasks > 1 {
            true => log.warn(at, "is part of spec.gpusPerNode: each rank sees all GPUs of its node, not only its own as device 0; take that of LOCAL_RANK"),
            false => log.taken(at, "spec.gpusPerNode"),
        }
        Some((each.saturating_mul(self.tasks), at.clone()))
    }
}

/// Tasks on each node.
fn tasks_per_node(asked: &Asked, nodes: (i64, i64), log: &mut Verdicts) -> i64 {
    match (&asked.tasks_per_node, &asked.tasks) {
        (Some((each, at)), all) => {
            log.taken(at, "part of spec.procPerNode");
            if let Some((_, at)) = all {
                log.note(at, "is not used: --ntasks-per-node says it");
            }
            *each
        }
        (None, Some((all, at))) => match nodes.0 == nodes.1 && all % nodes.1 == 0 {
            true => {
                log.taken(at, "part of spec.procPerNode, the same on each node");
                all / nodes.1
            }
            false => {
                log.refuse(at, format!("is {all} tasks in all, which is not the same number on each node; give --ntasks-per-node instead"));
                1
            }
        },
        (None, None) => 1,
    }
}

/// The variables of Slurm, as far as they can be said here.
fn of_slurm(
    asked: &Asked,
    count: &Count,
    name: &str,
    options: &Options,
) -> std::collections::BTreeMap<&'static str, OfSlurm> {
    let is = |value: String| OfSlurm::Is(value);
    let fixed = |value: i64| match count.is_fixed() {
        true => is(value.to_string()),
        false => OfSlurm::Rank,
    };
    let tasks = count.nodes.1.saturating_mul(count.tasks);
    let mut known = std::collections::BTreeMap::from([
        ("SLURM_NNODES", fixed(count.nodes.1)),
        ("SLURM_JOB_NUM_NODES", fixed(count.nodes.1)),
        ("SLURM_NTASKS", fixed(tasks)),
        ("SLURM_NPROCS", fixed(tasks)),
        ("SLURM_NTASKS_PER_NODE", is(count.tasks.to_string())),
        ("SLURM_JOB_ID", is(name.to_owned())),
        ("SLURM_JOBID", is(name.to_owned())),
    ]);
    for name in [
        "SLURM_PROCID",
        "SLURM_NODEID",
        "SLURM_LOCALID",
        "SLURM_RESTART_COUNT",
        "SLURMD_NODENAME",
        "SLURM_JOB_USER",
    ] {
        known.insert(name, OfSlurm::Rank);
    }
    if let Some((gpus, _)) = &count.gpus {
        for name in ["SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"] {
            known.insert(name, is(gpus.to_string()));
        }
        if count.is_fixed() {
            let all = gpus.saturating_mul(count.nodes.1);
            known.insert("SLURM_GPUS", is(all.to_string()));
        }
    }
    for (name, value) in [
        ("SLURM_CPUS_PER_TASK", &asked.cpus_per_task),
        ("SLURM_GPUS_PER_TASK", &asked.gpus_per_task),
    ] {
        if let Some((value, _)) = value {
            known.insert(name, is(value.to_string()));
        }
    }
    if let Some((said, _)) = &asked.name {
        known.insert("SLURM_JOB_NAME", is(said.clone()));
    }
    if let Some(partition) = &asked.partition {
        known.insert("SLURM_JOB_PARTITION", is(partition.clone()));
    }
    if !options.here.is_empty() {
        known.insert("SLURM_SUBMIT_DIR", is(options.here.clone()));
    }
    known
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

/// What is known of the job but for its command.
struct Job {
    asked: Asked,
    count: Count,
    shell: (&'static str, bool),
    name: String,
    start: Field<'static>,
}

impl Job {
    fn finish(
        &self,
        body: &Body,
        run: &Run,
        values: &Values,
        options: &Options,
        log: &mut Verdicts,
    ) -> Option<Converted> {
        let (launch, parts) = command::launch(run, values, log);
        let launch = launch?;
        let before = log.refused();
        let tasks = self.tasks(run, &launch, log);
        let gpus = self.count.gpus.as_ref().map_or(0, |(gpus, _)| *gpus);
        let procs = match launch.by {
            By::Itself => tasks,
            _ => procs::count(&launch, None, Procs::Count(1), gpus, &run.at, log).unwrap_or(1),
        };
        if self.count.gpus.is_none() {
            log.warn(&run.at, "gets no GPU, because the script asks for none; say --gpus-per-node, or --gpus-per-node=0 if that is meant");
        }
        let (min, max) = self.count.nodes;
        let size = |count: i64| -> Size<'static> { (count, self.count.nodes_at.clone()) };
        let sizes = Sizes {
            replicas: size(max),
            min: (min != max).then(|| size(min)),
            max: (min != max).then(|| size(max)),
        };
        let sizes = nodes(&launch, sizes, &[], log);
        let most = sizes.max.as_ref().map_or(max, |(max, _)| *max);
        let done = command::made(self, body, run, &launch, &parts, values, log);
        if launch.broken
            || log.refused() > before
            || !may_stay(&launch, most.saturating_mul(procs), log)
        {
            return None;
        }
        let ends = roles::restarts(
            None,
            roles::Policy::Never,
            &RunPolicy::default(),
            launch.max_restarts,
            "",
            log,
        );
        let mut rules = ends.rules;
        if self.asked.no_requeue.is_some() {
            rules.insert(
                0,
                RuleDocument {
                    when: "nodeLost".into(),
                    then: "fail".into(),
                    ..RuleDocument::default()
                },
            );
        }
        let list =
            |list: &asked::At<Vec<String>>| list.clone().map_or(Vec::new(), |(names, _)| names);
        let grace = self
            .asked
            .grace
            .as_ref()
            .map(|(seconds, _)| *seconds)
            .or(launch.grace);
        let document = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata {
                name: self.name.clone(),
                namespace: options.namespace.clone(),
            },
            spec: SpecDocument {
                replicas: Some(sizes.replicas.0),
                min_replicas: sizes.min.map(|(min, _)| min),
                max_replicas: sizes.max.map(|(max, _)| max),
                proc_per_node: Some(procs),
                gpus_per_node: Some(gpus),
                command: done.command,
                args: done.args,
                env: done.env,
                working_dir: done.dir,
                priority: self.asked.priority.as_ref().map(|(priority, _)| *priority),
                restart_policy: ends.policy,
                rules,
                suspend: self.asked.suspend.then_some(true),
                active_deadline_seconds: self.asked.deadline.as_ref().map(|(seconds, _)| *seconds),
                stop_grace_period: grace.map(|seconds| {
                    period::format(Duration::from_secs(
                        seconds.clamp(0, crate::grace::GRACE_MAX) as u64,
                    ))
                }),
                launch: done.lane.map(str::to_owned),
                node_selector: self.asked.selector.iter().cloned().collect(),
                node_list: list(&self.asked.node_list),
                exclude_nodes: list(&self.asked.exclude),
                ..SpecDocument::default()
            },
        };
        self.checked(document, run, log)
    }

    /// Tasks on each node, as the step says them.
    fn tasks(&self, run: &Run, launch: &Launch, log: &mut Verdicts) -> i64 {
        let Some(step) = &run.step else {
            if self.count.nodes.1 > 1 {
                log.refuse(&run.at, format!("runs on the first of {} nodes only, because srun does not stand before it; put it there", self.count.nodes.1));
            }
            return 1;
        };
        if let Some(((_, most), at)) = &step.nodes {
            match *most == self.count.nodes.1 {
                true => log.note(at, "says the same as the job"),
                false => log.refuse(
                    at,
                    format!(
                        "is {most} nodes, and the job has {}; make them the same",
                        self.count.nodes.1
                    ),
                ),
            }
        }
        let said = step.tasks.is_some() || step.tasks_per_node.is_some();
        let tasks = match said {
            true => tasks_per_node(&self.asked, self.count.nodes, log),
            false => self.count.tasks,
        };
        match launch.by {
            By::Itself if launch.is_program() || launch.stays.is_some() => {}
            By::Itself => log.warn(&run.at, "finds no variable of Slurm here (SLURM_PROCID and others): it must read RANK, LOCAL_RANK, WORLD_SIZE and MASTER_ADDR, as under torchrun"),
            _ if tasks > 1 => log.refuse(&run.at, format!("starts {tasks} launchers on each node, each of them with all ranks; say --ntasks-per-node=1")),
            _ => {}
        }
        tasks
    }

    /// The job, if core takes it.
    fn checked(&self, document: JobDocument, run: &Run, log: &mut Verdicts) -> Option<Converted> {
        let mut checked = document.clone();
        // The caller makes a relative directory absolute.
        checked.spec.working_dir = None;
        let errors = checked.check().err().unwrap_or_default();
        let place = |at: Option<&Field<'static>>| at.cloned().unwrap_or_else(|| run.at.clone());
        let asked = &self.asked;
        for error in &errors {
            let path = error.path.as_str();
            let at = match path {
                "spec.replicas" | "spec.minReplicas" | "spec.maxReplicas" => {
                    self.count.nodes_at.clone()
                }
                "spec.gpusPerNode" => place(self.count.gpus.as_ref().map(|(_, at)| at)),
                "spec.activeDeadlineSeconds" => place(asked.deadline.as_ref().map(|(_, at)| at)),
                "spec.stopGracePeriod" => place(asked.grace.as_ref().map(|(_, at)| at)),
                "spec.priority" => place(asked.priority.as_ref().map(|(_, at)| at)),
                _ if path.starts_with("spec.nodeList") => {
                    place(asked.node_list.as_ref().map(|(_, at)| at))
                }
                _ if path.starts_with("spec.excludeNodes") => {
                    place(asked.exclude.as_ref().map(|(_, at)| at))
                }
                _ if path.starts_with("spec.nodeSelector") => place(asked.selector_at.as_ref()),
                _ if path.starts_with("metadata") => {
                    place(asked.name.as_ref().map(|(_, at)| at).or(Some(&self.start)))
                }
                _ => run.at.clone(),
            };
            log.refuse(&at, format!("{path}: {}", error.message));
        }
        errors.is_empty().then_some(Converted {
            place: Place::START,
            kind: "batch script",
            document,
            object: None,
        })
    }
}
