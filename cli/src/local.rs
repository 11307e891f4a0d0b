//! A whole cluster of real processes on this machine: one coordinator and several agents, as on
//! several machines.
//!
//! Its directory holds everything: `cluster.json` (the processes and settings), `coordinator/` and
//! `nodes/NAME/`, each with `state/`, `log` and `ready.json`. A process is identified by boot, pid
//! and start time, never by its pid alone. So a directory from before a reboot does no harm. A
//! command that changes the cluster holds a lock on the directory.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};
use muster_core::period;

use crate::{context::Context, fail::Failure};

mod cluster;
pub(crate) mod daemon;
pub(crate) mod down;
mod hardware;
pub(crate) mod nodes;
mod one_run;
pub(crate) mod process;
pub(crate) mod secure;
mod start;
mod status;

pub(crate) use cluster::make_private;
pub(crate) use daemon::{DETACH, Detach, detach};
pub(crate) use one_run::{Stops, around};

/// Run a whole cluster on this machine.
///
/// Starts one coordinator and several agents as real processes on loopback, each node with its own
/// name and state. Its commands do what happens to real machines: add a node, cut its power, kill
/// its agent or the coordinator, and start them again.
///
/// Other commands find the cluster by themselves. Its directory is --dir, else $MUSTER_LOCAL_DIR,
/// else ~/.local/state/muster/local.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Three nodes
  muster local up --nodes 3
  muster nodes

  # Cut the power of one, and watch a job go on without it
  muster local kill-node node-2
  muster explain digits

  # Stop everything and leave nothing behind
  muster local down")]
pub(crate) struct Local {
    #[command(subcommand)]
    command: LocalCommand,
}

#[derive(Debug, Subcommand)]
enum LocalCommand {
    Up(Up),
    AddNode(AddNode),
    KillNode(KillNode),
    StartNode(StartNode),
    KillAgent(KillAgent),
    StartAgent(StartAgent),
    KillCoordinator(KillCoordinator),
    StartCoordinator(StartCoordinator),
    Inject(Inject),
    Status(Status),
    Down(Down),
}

/// Start a coordinator and agents on this machine.
///
/// Returns when all nodes are Ready. The processes go on after the terminal is closed. State kept
/// by an earlier cluster in the same directory is used again.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Three nodes
  muster local up --nodes 3

  # With TLS and certificates
  muster local up --tls

  # In another directory, two worker groups per node
  muster local up --nodes 2 --slots 2 --dir /tmp/try")]
struct Up {
    /// Nodes to start
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: u32,

    /// Use TLS and certificates between all parts, as between machines
    #[arg(long)]
    tls: bool,

    #[command(flatten)]
    node: NodeFlags,

    #[command(flatten)]
    start: StartFlags,
}

#[derive(Clone, Debug, Args)]
struct NodeFlags {
    /// Members of jobs, without GPUs, that a node takes at a time
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    slots: u32,

    /// Label of the node (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    label: Vec<String>,

    /// Make the node look like a GPU machine, for example 8xh100 (`muster-hardware list`)
    #[arg(long, value_name = "SCENARIO")]
    hardware: Option<String>,

    /// How many launchers a node keeps ready for jobs to come, each of 250 to 350 MiB
    /// (`muster-agent --help`)
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=8))]
    warm_pool: u32,
}

#[derive(Debug, Args)]
struct StartFlags {
    /// Directory of the daemons' binaries [default: this program's own]
    #[arg(
        long,
        env = "MUSTER_BIN_DIR",
        value_name = "DIR",
        hide_env_values = true
    )]
    bin_dir: Option<PathBuf>,

    /// How long to wait until everything that was started is ready
    #[arg(long, default_value = "60s", value_parser = period::parse, value_name = "PERIOD")]
    timeout: Duration,
}

/// Start one more node.
///
/// Returns when the node is Ready. A job below its wanted number of nodes grows onto it by itself.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # The next free name
  muster local add-node

  # A name of your own
  muster local add-node spare --label rack=b")]
struct AddNode {
    /// Name of the node [default: node-N, the next free number]
    name: Option<String>,

    #[command(flatten)]
    node: NodeFlags,

    #[command(flatten)]
    start: StartFlags,
}

/// Cut the power of a node: SIGKILL to all its processes at once.
///
/// Agent, runners, torchrun and workers are frozen first and then killed together, so that none of
/// them can tell of another's death.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster local kill-node node-2")]
struct KillNode {
    /// Name of the node
    name: String,
}

/// Start a node again after kill-node.
///
/// The agent comes back with the state it had, as a machine does after a power cut.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster local start-node node-2")]
struct StartNode {
    /// Name of the node
    name: String,

    #[command(flatten)]
    start: StartFlags,
}

/// Kill the agent of a node and nothing else.
///
/// The workers train on: their runner holds them, and the next agent finds them.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster local kill-agent node-1
  muster local start-agent node-1")]
struct KillAgent {
    /// Name of the node
    name: String,
}

/// Start a node's agent again after kill-agent.
///
/// It finds the workers that are still running and carries on with them.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster local start-agent node-1")]
struct StartAgent {
    /// Name of the node
    name: String,

    #[command(flatten)]
    start: StartFlags,
}

/// Kill the coordinator and nothing else.
///
/// No worker notices. Requests fail until it is started again.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster local kill-coordinator
  muster local start-coordinator")]
struct KillCoordinator {}

/// Start the coordinator again, on the port it had.
///
/// It reads its store, listens to the agents and carries on with what runs.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster local start-coordinator")]
struct StartCoordinator {
    #[command(flatten)]
    start: StartFlags,
}

/// Break the hardware of a node made with --hardware, or repair it.
///
/// The agent detects it as it would detect a real fault. `muster-hardware --help` lists all faults.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # GPU 3 falls off the bus
  muster local inject node-1 gpu3 xid=79

  # Mend it
  muster local inject node-1 gpu3 healthy

  # The driver hangs
  muster local inject node-1 driver hang")]
struct Inject {
    /// Name of the node
    name: String,

    /// What breaks: gpuN, driver, kernel, or the name of a NIC
    target: String,

    /// How: xid=79, lost, ecc=1, link=3:down, hang, down, ...
    fault: String,

    /// Directory of the daemons' binaries [default: this program's own]
    #[arg(
        long,
        env = "MUSTER_BIN_DIR",
        value_name = "DIR",
        hide_env_values = true
    )]
    bin_dir: Option<PathBuf>,
}

/// Show the processes of the local cluster.
///
/// PROCESS is the state of the process on this machine (Running, Dead), STATE is the node's state
/// according to the coordinator. Exits 1 if no cluster is up.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster local status
  muster local status -o json")]
struct Status {}

/// Stop the local cluster and leave nothing behind.
///
/// Workers get SIGTERM and the grace period, then everything is killed, and it is verified that no
/// process and no socket is left. The directory is removed unless --keep is given.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster local down

  # Keep logs and state; the next `local up` carries on with them
  muster local down --keep")]
struct Down {
    /// Keep the directory with logs and state
    #[arg(long)]
    keep: bool,

    /// Time for workers to save their state
    #[arg(long, default_value = "5s", value_parser = period::parse, value_name = "PERIOD")]
    grace: Duration,
}

pub(crate) async fn run(cx: &Context, args: Local) -> Result<(), Failure> {
    let dir = std::path::absolute(cx.local_dir())
        .map_err(|error| Failure::request(format!("current directory: {error}")))?;
    match args.command {
        LocalCommand::Up(args) => start::up(cx, &dir, args).await,
        LocalCommand::AddNode(args) => start::add_node(cx, &dir, args).await,
        LocalCommand::StartNode(args) => {
            start::start_agent(cx, &dir, &args.name, &args.start).await
        }
        LocalCommand::StartAgent(args) => {
            start::start_agent(cx, &dir, &args.name, &args.start).await
        }
        LocalCommand::StartCoordinator(args) => {
            start::start_coordinator(cx, &dir, &args.start).await
        }
        LocalCommand::KillNode(args) => nodes::kill_node(cx, &dir, &args.name).await,
        LocalCommand::KillAgent(args) => nodes::kill_agent(cx, &dir, &args.name).await,
        LocalCommand::KillCoordinator(_) => nodes::kill_coordinator(cx, &dir).await,
        LocalCommand::Inject(args) => hardware::inject(cx, &dir, &args),
        LocalCommand::Status(_) => status::status(cx, &dir).await,
        LocalCommand::Down(args) => down::down(cx, &dir, &args).await,
    }
}

/// `$XDG_STATE_HOME/muster/local`, the place of state in the XDG base directory specification.
pub(crate) fn default_dir() -> PathBuf {
    let from = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state =
        from("XDG_STATE_HOME").or_else(|| from("HOME").map(|home| home.join(".local/state")));
    state.unwrap_or_else(env::temp_dir).join("muster/local")
}

/// The endpoint of the cluster in this directory, if any of its processes lives, and the file of
/// what its user shows there.
pub(crate) fn endpoint_of(dir: &Path) -> Option<(String, Option<PathBuf>)> {
    let dir = std::path::absolute(dir).ok()?;
    let cluster = cluster::Cluster::load(&dir).ok()??;
    let is_up = cluster.daemons().any(process::Identity::is_alive) && !cluster.server.is_empty();
    let credentials = secure::credentials(&dir, &cluster.server);
    is_up.then_some((cluster.server, credentials))
}
