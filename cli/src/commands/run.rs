//! `muster run`: a job from a command line, with torchrun's flags.

use std::env;

use clap::Args;
use muster_core::{
    period,
    spec::{
        API_VERSION, EnvVar, JobDocument, KIND, Metadata, RuleDocument, SpecDocument, entry::Entry,
    },
};
use muster_proto::v1::JobRef;

use self::{
    flag::flag_of,
    name::{Script, made_from},
};
use super::{
    logs,
    submit::{self, DryRun, Ending},
};
use crate::{context::Context, fail::Failure, jobfile::absolute, local, slurm};

mod behind;
mod flag;
pub(crate) mod home;
mod inside;
mod name;
mod nodes;
mod notify;
pub(crate) mod prefix;
mod python;
mod start;
pub(crate) mod torchrun;
mod variables;

/// Run a training script over many nodes, as torchrun would.
///
/// Takes torchrun's own flags (with - or _) and needs none of its rendezvous flags: Muster brings
/// the nodes together. The script runs unmodified in the current directory unless --workdir says
/// otherwise. Without --wait or --follow the command returns as soon as the job is accepted.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Two to four nodes, one process each; starts with two, grows when more are there
  muster run --nnodes 2:4 --nproc-per-node 1 --name digits -- examples/digits/train.py --epochs 30

  # Three nodes with 8 GPUs each and one process per GPU; print the ranks' output until the end
  muster run --nnodes 3 --gpus-per-node 8 --follow train.py --lr 0.1

  # On this machine alone: a cluster is started for it, and ended with it
  muster run --local --nproc-per-node 2 train.py

  # Train when job prepare has succeeded, and not before tonight
  muster run --name train --after prepare --start-after 2026-11-30T20:00:00Z train.py

  # Mail to me when it has ended, or stands still
  muster run --notify ann@example.org train.py

  # A module, with a variable and another interpreter
  muster run --nnodes 2 --env OMP_NUM_THREADS=4 --python .venv/bin/python -m my.train

  # Show the job file this would submit
  muster run --nnodes 2:4 --dry-run=client -o yaml train.py")]
pub(crate) struct Run {
    /// Nodes wanted: N, or MIN:MAX to start with MIN and grow up to MAX [default: 1; with --slurm, all
    /// of the allocation, and as few as 1 when nodes fail]
    #[arg(long, value_name = "N|MIN:MAX", value_parser = read_nodes)]
    nnodes: Option<Nodes>,

    /// Processes on each node: a number, or gpu for one per GPU [default: one per GPU, or 1]
    #[arg(long, alias = "nproc_per_node", value_name = "N|gpu|auto", value_parser = read_procs)]
    nproc_per_node: Option<Procs>,

    /// GPUs each node must give; 0 for none, and then ranks see none [default: one per process if
    /// enough nodes have them, else none]
    #[arg(long, alias = "gpus_per_node", value_name = "N")]
    gpus_per_node: Option<i64>,

    /// Name of the job [default: made from the script's]
    #[arg(long)]
    name: Option<String>,

    /// Variable for the workers; KEY alone takes its value from here (repeatable)
    #[arg(short, long, value_name = "KEY[=VALUE]")]
    env: Vec<String>,

    /// All variables of this shell, such as `module load` sets, but those of the shell, the login and the
    /// terminal. The coordinator stores them: leave secrets to --env-from-file
    #[arg(long)]
    env_all: bool,

    /// Variable whose value is in a file of each node, for secrets (repeatable)
    #[arg(long, value_name = "KEY=PATH")]
    env_from_file: Vec<String>,

    /// Directory the script runs in, on every node [default: the current one]
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,

    /// Failures of the job itself to survive within an hour
    #[arg(long, alias = "max_restarts", value_name = "N")]
    max_restarts: Option<i64>,

    /// End the job at the Nth same failure of code or data without progress (0: never) [default: 3]
    #[arg(long, value_name = "N")]
    max_same_failures: Option<i64>,

    /// Stop workers that have heard nothing of the coordinator for this period, as 60s; 10s to 1h
    /// [default: never]
    #[arg(long, alias = "fence_after", value_name = "PERIOD")]
    fence_after: Option<String>,

    /// How ranks are started: auto, cold, parked, fork, direct or exec [default: auto, the fastest
    /// that is proven for the interpreter]
    #[arg(long, value_name = "LANE")]
    launch: Option<String>,

    /// Whether a process waits beside each rank with its GPU open, for the next start: auto, open,
    /// parked (without its GPU's memory) or off [default: auto]
    #[arg(long, value_name = "WORD")]
    standbys: Option<String>,

    /// What muster stacks can ask forked ranks for: stacks, collectives (also the collective of each; some
    /// threads in each rank) or off [default: stacks]
    #[arg(long, value_name = "WORD")]
    inspect: Option<String>,

    /// What is done if nothing of the job moves any more: restart (after twice the limit) or report
    /// [default: restart]
    #[arg(long, alias = "on_stall", value_name = "WORD")]
    on_stall: Option<String>,

    /// How long nothing of the job may move, from 5s to 24h [default: by how it has moved so far]
    #[arg(long, alias = "stall_after", value_name = "PERIOD")]
    stall_after: Option<String>,

    /// What is done about a rank that makes the others wait (a straggler): report, or replace (the job
    /// leaves its node if there is as much room elsewhere; needs --inspect collectives) [default: report]
    #[arg(long, alias = "on_slow_rank", value_name = "WORD")]
    on_slow_rank: Option<String>,

    /// Regular expression whose first group is the step in a line of output [default: as the usual
    /// trainers print it]
    #[arg(long, alias = "step_pattern", value_name = "REGEX")]
    step_pattern: Option<String>,

    /// Files that the script saves, such as 'out/*.pt': a change of one is progress for a script
    /// that shows no steps
    #[arg(long, alias = "checkpoint_pattern", value_name = "PATH")]
    checkpoint_pattern: Option<String>,

    /// Time to save a checkpoint at a planned stop, from SIGTERM to SIGKILL; torchrun's
    /// --shutdown-timeout [default: 30s]
    #[arg(
        long,
        aliases = ["stop_grace_period", "shutdown-timeout", "shutdown_timeout"],
        value_name = "PERIOD"
    )]
    stop_grace_period: Option<String>,

    /// How long the job trains before it grows onto a new node [default: until that pays, 30s to 30m]
    #[arg(long, alias = "scale_up_cooldown", value_name = "PERIOD")]
    scale_up_cooldown: Option<String>,

    /// Interpreter on every node [default: that of the active environment (VIRTUAL_ENV, CONDA_PREFIX),
    /// of the script's project (.venv), or of pyenv, if the cluster is on this machine, else python3]. With --no-python, the path of the python3 that
    /// runs torchrun
    #[arg(long, value_name = "PATH")]
    python: Option<String>,

    /// SCRIPT is the name of a Python module
    #[arg(short, long)]
    module: bool,

    /// SCRIPT is a program of its own, not for Python
    #[arg(long, alias = "no_python", conflicts_with = "module")]
    no_python: bool,

    /// What to do about nodes that are known not to go together (CUDA major, GPU model): warn and
    /// use them, or refuse to mix them [default: warn]
    #[arg(long, alias = "node_mix", value_name = "warn|refuse")]
    node_mix: Option<String>,

    /// Put several members on a node if it has room (pack), or one on each node (spread). With pack,
    /// --nnodes counts members, and each has --gpus-per-node and --nproc-per-node [default: spread]
    #[arg(long, value_name = "pack|spread")]
    placement: Option<String>,

    #[command(flatten)]
    inside: inside::Inside,

    #[command(flatten)]
    nodes: nodes::ChosenNodes,

    /// Priority among jobs that wait; the higher number goes first
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i64>,

    /// What may be done to the job for one of higher priority: evict, shrink or never [default: evict, as
    /// far as the coordinator allows]
    #[arg(long, value_name = "WORD")]
    preemption: Option<String>,

    #[command(flatten)]
    start: start::StartsWhen,

    #[command(flatten)]
    told: notify::Told,

    /// Begin suspended: the job holds no nodes until `muster resume`
    #[arg(long)]
    suspend: bool,

    /// The job fails if it is not over after this period, as 4h, counted from now or from when it was
    /// last resumed [default: no limit]
    #[arg(long, alias = "active_deadline", value_name = "PERIOD", value_parser = read_seconds)]
    active_deadline: Option<i64>,

    /// The job fails if it waits longer than this period for its first start [default: no limit]
    #[arg(long, alias = "start_deadline", value_name = "PERIOD", value_parser = read_seconds)]
    start_deadline: Option<i64>,

    /// Delete the job, with its logs, this long after its end [default: it is kept]
    #[arg(long, value_name = "PERIOD", value_parser = read_seconds)]
    ttl: Option<i64>,

    /// What an end means, as 'exit codes 3,64-78: fail', 'signal SIGUSR1: restart, at most 5 in 1h' or
    /// 'success of any: succeed' (repeatable; the first that matches decides; see docs/run-a-job.md)
    #[arg(long, value_name = "RULE", value_parser = RuleDocument::read)]
    rule: Vec<RuleDocument>,

    /// Return when the job is accepted (this is the default)
    #[arg(long, conflicts_with_all = ["wait", "follow"])]
    detach: bool,

    /// Print what the ranks write until the job is over; exit as --wait does
    #[arg(short, long)]
    follow: bool,

    /// Check only: here (client), or also with the coordinator (server)
    #[arg(long, value_enum, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "client")]
    dry_run: Option<DryRun>,

    /// Start a cluster on this machine for this run, print what the ranks write, and end the cluster
    /// with the job
    #[arg(long = "local", conflicts_with_all = ["detach", "dry_run"])]
    on_own_cluster: bool,

    /// Within an allocation of Slurm: start a cluster on its nodes for this run, print what the ranks
    /// write, and end the cluster with the job (`muster slurm --help`). Ranks get all variables of this
    /// shell, as with --env-all
    #[arg(long, conflicts_with_all = ["detach", "dry_run", "on_own_cluster"])]
    slurm: bool,

    /// With --slurm, in a batch job: when the job is stopped before its end, or has too few nodes left, let
    /// Slurm start the batch job again, without the nodes that failed
    #[arg(long, requires = "slurm")]
    requeue: bool,

    #[command(flatten)]
    end: Ending,

    /// Script and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "SCRIPT [ARG]..."
    )]
    script: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Nodes {
    min: i64,
    max: i64,
}

#[derive(Debug, Clone, Copy)]
enum Procs {
    Count(i64),
    PerGpu,
    Auto,
}

fn read_nodes(text: &str) -> Result<Nodes, String> {
    let number = |text: &str| {
        text.parse::<i64>()
            .map_err(|_| "write N or MIN:MAX, as in 2:4".to_owned())
    };
    match text.split_once(':') {
        Some((min, max)) => Ok(Nodes {
            min: number(min)?,
            max: number(max)?,
        }),
        None => number(text).map(|n| Nodes { min: n, max: n }),
    }
}

fn read_procs(text: &str) -> Result<Procs, String> {
    match text {
        "gpu" => Ok(Procs::PerGpu),
        "auto" => Ok(Procs::Auto),
        "cpu" => Err("one process per CPU depends on the node; give the number".into()),
        number => number
            .parse()
            .map(Procs::Count)
            .map_err(|_| "write a number, gpu or auto".into()),
    }
}

/// A period in whole seconds.
fn read_seconds(text: &str) -> Result<i64, String> {
    let period = period::parse(text)?;
    match period.subsec_nanos() {
        0 => Ok(period.as_secs() as i64),
        _ => Err("must be whole seconds".into()),
    }
}

impl Run {
    /// Whether the command ends what it has started when it is interrupted.
    pub(crate) fn ends_its_cluster(&self) -> bool {
        self.on_own_cluster || self.slurm
    }

    fn sizes(&self) -> Nodes {
        self.nnodes.unwrap_or(Nodes { min: 1, max: 1 })
    }
}

pub(crate) async fn run(cx: &Context, mut args: Run) -> Result<(), Failure> {
    if args.slurm {
        args.follow = true;
        // As srun does by default, but for Slurm's own: trainers that find those take each rank for a task.
        args.env_all = true;
        if args.nnodes.is_none() {
            let max = slurm::nodes_here()?;
            args.nnodes = Some(Nodes { min: 1, max });
        }
        let work = slurm::around(cx, args.requeue, async |cx| run_there(cx, args).await);
        return Box::pin(work).await;
    }
    if !args.on_own_cluster {
        return run_there(cx, args).await;
    }
    args.follow = true;
    let nodes = match u32::try_from(args.sizes().max) {
        Ok(nodes @ 1..=64) => nodes,
        _ => {
            return Err(Failure::usage(
                "--local: --nnodes is 1 to 64 on one machine",
            ));
        }
    };
    Box::pin(local::around(cx, nodes, async |cx| {
        run_there(cx, args).await
    }))
    .await
}

async fn run_there(cx: &Context, mut args: Run) -> Result<(), Failure> {
    if let Some(note) = behind::note(&args.script) {
        cx.say(note);
    }
    let here = submit::here()?;
    home::at_home(cx, &mut args, &here).await?;
    let mut document = document(&args, &here, cx.globals.namespace.clone(), |name| {
        env::var(name).ok()
    })?;
    if args.env_all {
        let texts = env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let sent = variables::all(texts, &document.spec.env);
        document.spec.env.extend(sent);
        checked(&document)?;
    }
    let named = JobRef {
        namespace: document
            .metadata
            .namespace
            .clone()
            .unwrap_or_else(|| cx.namespace()),
        name: document.metadata.name.clone(),
    };
    if !args.follow || args.dry_run.is_some() {
        return Box::pin(submit::send(cx, document, args.dry_run, &args.end)).await;
    }
    let accepted = Ending {
        wait: false,
        mirror_exit_code: false,
        timeout: None,
    };
    Box::pin(submit::send(cx, document, None, &accepted)).await?;
    let client = cx.connect().await?;
    let told = async {
        logs::follow_all(cx, &client, &named).await?;
        super::follow::until_over(
            cx,
            &client,
            &named,
            &Ending {
                timeout: None,
                ..args.end
            },
        )
        .await
    };
    match args.end.timeout {
        None => told.await,
        Some(timeout) => match tokio::time::timeout(timeout, told).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::Timeout(format!(
                "job/{} is not over yet; it goes on",
                named.name
            ))),
        },
    }
}

/// The job file that this command line stands for.
fn document(
    args: &Run,
    here: &str,
    namespace: Option<String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<JobDocument, Failure> {
    let (script, script_args) = args
        .script
        .split_first()
        .ok_or_else(|| Failure::usage("which script? give its path"))?;
    if !args.no_python
        && !args.module
        && let Some(hint) = launcher::hint(&args.script)
    {
        return Err(Failure::usage(format!("SCRIPT: {hint}")));
    }
    let interpreter = match &args.python {
        // A relative path must mean the same file when the workers start in another directory.
        Some(python) => home::named(python, here),
        None => "python3".into(),
    };
    let (command, words) = match (args.no_python, args.module) {
        (true, _) => (vec![script.clone()], script_args.to_vec()),
        (false, true) => (
            vec![interpreter],
            [&["-m".to_owned(), script.clone()], script_args].concat(),
        ),
        (false, false) => (vec![interpreter], args.script.clone()),
    };
    let mut env: Vec<EnvVar> = args
        .env
        .iter()
        .map(|text| variables::read(text, &variable))
        .chain(
            args.env_from_file
                .iter()
                .map(|text| variables::read_file(text)),
        )
        .collect::<Result<_, _>>()?;
    if args.no_python
        && let Some(python) = &args.python
    {
        env.push(variables::path_to(
            &absolute(python, here.as_ref()),
            &env,
            &variable,
        )?);
    }
    let proc_per_node = match (args.nproc_per_node, args.gpus_per_node) {
        (Some(Procs::Count(count)), _) => Some(count),
        (Some(Procs::PerGpu), None | Some(0)) => {
            return Err(Failure::usage(
                "--nproc-per-node gpu: say how many with --gpus-per-node",
            ));
        }
        (Some(Procs::PerGpu | Procs::Auto) | None, _) => None,
    };
    let mut document = JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: args
                .name
                .clone()
                .unwrap_or_else(|| name_from(&command, &words, here)),
            namespace,
        },
        spec: SpecDocument {
            replicas: Some(args.sizes().max),
            min_replicas: Some(args.sizes().min),
            max_replicas: Some(args.sizes().max),
            proc_per_node,
            gpus_per_node: args.gpus_per_node,
            command,
            args: words,
            env,
            working_dir: Some(absolute(
                args.workdir.as_deref().unwrap_or("."),
                here.as_ref(),
            )),
            image: args.inside.image.clone(),
            priority: args.priority,
            preemption: args.preemption.clone(),
            node_mix: args.node_mix.clone(),
            placement: args.placement.clone(),
            restart_policy: restarts::policy(args),
            fence_after: args.fence_after.clone(),
            launch: args.launch.clone(),
            standbys: args.standbys.clone(),
            inspect: args.inspect.clone(),
            on_stall: args.on_stall.clone(),
            stall_after: args.stall_after.clone(),
            on_slow_rank: args.on_slow_rank.clone(),
            step_pattern: args.step_pattern.clone(),
            checkpoint_pattern: args.checkpoint_pattern.clone(),
            stop_grace_period: args.stop_grace_period.clone(),
            scale_up_cooldown: args.scale_up_cooldown.clone(),
            rules: args.rule.clone(),
            suspend: args.suspend.then_some(true),
            active_deadline_seconds: args.active_deadline,
            start_deadline_seconds: args.start_deadline,
            ttl_seconds_after_finished: args.ttl,
            ..SpecDocument::default()
        },
    };
    let now = muster_rpc::credentials::now_us();
    args.start.write(&mut document.spec, now);
    args.told.write(&mut document.spec);
    let chosen = args.nodes.write(&mut document.spec);
    chosen.map_err(Failure::Usage)?;
    checked(&document)?;
    Ok(document)
}

fn checked(document: &JobDocument) -> Result<(), Failure> {
    match document.check() {
        Ok(_) => Ok(()),
        Err(errors) => {
            let lines = errors
                .iter()
                .map(|error| format!("error: {}", flag_of(error)));
            let mut lines: Vec<String> = lines.collect();
            // One flag fills several fields.
            lines.dedup();
            Err(Failure::BadJob(lines.join("\n")))
        }
    }
}

/// A name for a job without one.
fn name_from(command: &[String], words: &[String], here: &str) -> String {
    let script = match Entry::read(command, words) {
        Ok(Entry::Module { module, .. }) => return made_from(Script::Module(&module), &end()),
        Ok(Entry::Script { script, .. }) => script,
        Ok(Entry::Program { program, .. }) => program,
        // The check of the job tells what is wrong.
        Err(_) => String::new(),
    };
    let path = &script;
    made_from(Script::Path { path, here }, &end())
}

/// What makes the next run another job: the end of a version 7 UUID is random.
fn end() -> String {
    let unique = uuid::Uuid::now_v7().simple().to_string();
    unique[unique.len() - 5..].to_owned()
}

mod launcher;
mod restarts;

#[cfg(test)]
mod tests;
