//! A cluster inside an allocation of Slurm, as its user and without root.
//!
//! Two steps of the allocation make it: one with the coordinator, on one node, and one with an agent on
//! each node. The steps are Slurm's, so whatever ends the allocation ends everything here, and no process is
//! left on a node. This command starts the steps, and ends them. What they are and where the coordinator is
//! is recorded in a directory of the user, one for each allocation. Every machine that sees it can use the
//! cluster.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};
use muster_core::period;

use crate::{args::Globals, context::Context, fail::Failure, local};

mod allocation;
mod around;
mod end;
mod folder;
mod join;
mod record;
mod requeue;
mod start;
mod step;

pub(crate) use allocation::nodes_here;
pub(crate) use around::around;

/// Run a cluster inside an allocation of Slurm, without root.
///
/// Within an sbatch script or salloc: starts a coordinator and an agent on each node of the allocation, as
/// steps of it. Other commands in the allocation find the cluster by themselves; elsewhere it is the context
/// slurm-JOBID. `muster run --slurm` does the whole for one job.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # job.sbatch, which goes on when a node fails, and saves before its time is up
  #SBATCH --nodes=4 --gpus-per-node=8 --no-kill --signal=B:TERM@120
  exec muster run --slurm train.py --epochs 30

  # In salloc: several jobs, one after another
  muster slurm up
  muster run --nnodes 2:4 --follow train.py
  muster slurm down

  # In another allocation: lend its nodes to the jobs of the first
  muster slurm join 4711

  # From a login node
  muster get jobs --context slurm-4711")]
pub(crate) struct Slurm {
    #[command(subcommand)]
    command: SlurmCommand,
}

#[derive(Debug, Subcommand)]
enum SlurmCommand {
    Up(Up),
    Join(Join),
    Down(Down),
    /// Not for people: the coordinator, in its step
    #[command(hide = true)]
    Coordinator(step::CoordinatorStep),
    /// Not for people: the agent of a node, in its step
    #[command(hide = true)]
    Agent(step::AgentStep),
}

/// Start a coordinator and an agent on each node of the allocation.
///
/// Returns when all nodes are ready. After --timeout it goes on with those that are. A node has the GPUs that
/// Slurm gave.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster slurm up

  # A site whose Slurm does not count GPUs
  muster slurm up --gpus all")]
struct Up {
    #[command(flatten)]
    node: NodeFlags,

    /// How long to wait until all nodes are ready
    #[arg(long, default_value = "120s", value_parser = period::parse, value_name = "PERIOD")]
    timeout: Duration,
}

/// Lend the nodes of this allocation to the cluster of another one.
///
/// An agent on each node joins the cluster that `muster run --slurm` or `muster slurm up` has started in
/// allocation JOBID, and elastic jobs grow onto them. Stays until the cluster ends, or until it is told to end
/// (Ctrl-C, SIGTERM): then the jobs leave these nodes as planned, with time to save, and go on without
/// them. The coordinator is in JOBID: when that allocation ends, all jobs end, and this command with them.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # more-nodes.sbatch, for a job that allocation 4711 has begun with --nnodes 2:6
  #SBATCH --nodes=2 --gpus-per-node=8 --no-kill --signal=B:TERM@120
  exec muster slurm join 4711")]
struct Join {
    /// The number of the allocation with the coordinator
    #[arg(value_name = "JOBID")]
    job: String,

    #[command(flatten)]
    node: NodeFlags,

    /// How long to wait until all nodes are ready
    #[arg(long, default_value = "120s", value_parser = period::parse, value_name = "PERIOD")]
    timeout: Duration,
}

#[derive(Clone, Debug, Default, Args)]
struct NodeFlags {
    /// How many job members without GPUs a node runs at once
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    slots: u32,

    /// GPUs of each node: all, none, or UUIDs and indices [default: those that Slurm gave]
    #[arg(
        long,
        env = "MUSTER_GPUS",
        value_name = "WHICH",
        hide_env_values = true
    )]
    gpus: Option<String>,
}

/// Stop the jobs and the cluster of this allocation. The allocation stays.
///
/// Workers get SIGTERM and their job's grace period. Nothing is left on the nodes.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster slurm down")]
struct Down {
    /// How long jobs may take to end
    #[arg(long, default_value = "60s", value_parser = period::parse, value_name = "PERIOD")]
    grace: Duration,
}

pub(crate) async fn run(cx: &Context, args: Slurm) -> Result<(), Failure> {
    match args.command {
        SlurmCommand::Up(args) => start::up(cx, &args).await,
        SlurmCommand::Join(args) => join::join(cx, &args).await,
        SlurmCommand::Down(args) => end::down(cx, args.grace).await,
        SlurmCommand::Coordinator(args) => step::coordinator(cx, &args).await,
        SlurmCommand::Agent(args) => step::agent(cx, &args).await,
    }
}

/// The labels of a node: the allocation that it is of, and its name in Slurm.
const LABEL_JOB: &str = "muster.dev/slurm-job";
const LABEL_NODE: &str = "muster.dev/slurm-node";

/// The beginning of the name of a context that means the cluster of an allocation. The rest is the
/// allocation's number.
const CONTEXT: &str = "slurm-";

/// The context of the allocation in which this command runs, if a cluster is up there.
pub(crate) fn context_here() -> Option<String> {
    let job = allocation::job_here()?;
    let record = record::Record::load(&dir(&job)).ok()??;
    record.is_of_this_start().then(|| format!("{CONTEXT}{job}"))
}

/// What the commands of `muster slurm` ask: the coordinator of this allocation, whatever else the user has
/// named.
fn own(cx: &Context, job: &str) -> Context {
    Context::new(Globals {
        server: None,
        context: Some(format!("{CONTEXT}{job}")),
        ..cx.globals.clone()
    })
}

/// The number of the allocation that a context means.
fn allocation_of(context: &str) -> Option<&str> {
    let job = context.strip_prefix(CONTEXT)?;
    allocation::is_number(job).then_some(job)
}

/// The endpoint of the cluster that a context means, and the file of what its user shows there. `None`: the
/// context means something else.
pub(crate) fn endpoint_of(context: &str) -> Option<Result<(String, PathBuf), Failure>> {
    let job = allocation_of(context)?;
    let dir = dir(job);
    Some(match record::Record::load(&dir) {
        Ok(Some(record)) if !record.server.is_empty() => {
            // A guest shows what the host's user shows: both are one.
            let host = record.joined.as_deref().map(self::dir);
            Ok((record.server, record::credentials(&host.unwrap_or(dir))))
        }
        Ok(_) => Err(Failure::request(format!(
            "no cluster is up in allocation {job}; `muster slurm up` there starts one ({})",
            dir.display()
        ))),
        Err(failure) => Err(failure),
    })
}

/// Whether a context means the cluster of an allocation: its nodes see the files that this machine sees.
pub(crate) fn is_context(context: &str) -> bool {
    allocation_of(context).is_some()
}

/// The directory of an allocation's cluster, which all its machines see.
fn dir(job: &str) -> PathBuf {
    let base = env::var_os("MUSTER_SLURM_DIR").map(PathBuf::from);
    let base = base.unwrap_or_else(|| {
        let local = local::default_dir();
        local.parent().unwrap_or(Path::new("/")).join("slurm")
    });
    base.join(job)
}
