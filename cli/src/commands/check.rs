//! `muster check`: small jobs that tell a bad node from a bad network.

use std::time::Duration;

use clap::{Args, Subcommand};
use muster_core::{
    check::{Standing, Subject},
    period,
};

use crate::{
    args::Format, commands::cordon, context::Context, fail::Failure, output, selector::Selector,
};

mod chosen;
mod job;
mod jobs;
mod results;

use jobs::Jobs;

/// Check nodes with small jobs.
///
/// A node that computes wrongly, or does not reach others, costs every job that gets it. Health rules see what the
/// hardware reports; this sees what torch gets from it.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # All nodes that no job uses
  muster check nodes --all

  # Two nodes, and the network between them
  muster check nodes node-1 node-2")]
pub(crate) struct Check {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(alias = "node")]
    Nodes(Nodes),
}

/// Tell bad nodes from bad networks: matmul and all-reduce by torch.
///
/// Submits small jobs named check-..., on pairs of nodes. Each process multiplies matrices with a known product; then all
/// processes of both nodes reduce a tensor with a known sum, over NCCL on GPUs and gloo elsewhere. In the next round each
/// node has another partner, and where that leaves a doubt there is one round more. So a node is bad if it fails alone or
/// with two partners, and a network is bad if two nodes fail only together. Slow is less than half as fast as the median.
///
/// Nodes with a running job are left out, and so are cordoned nodes, unless they are named or with --cordoned. The jobs are deleted at
/// the end, also after Ctrl-C. They have the lowest priority and take no node from any other job.
///
/// Exit 0: all well. 8: a node or a network is bad or slow. 1: a node that was named, or every node, could not be checked.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # After a failure: are these two well, and the network between them?
  muster check nodes node-1 node-2

  # Nodes that are cordoned: are they well again?
  muster check nodes --all --cordoned

  # A rack before it is used, with a cordon for each bad node
  muster check nodes -l rack=r7 --cordon

  # All nodes with 8 GPUs, each with three partners, and with the nodes' own environment
  muster check nodes --all --gpus-per-node 8 --rounds 3 --python /opt/train/bin/python3

  # In a script, before a large job
  muster check nodes --all -q && muster submit -f job.yaml")]
struct Nodes {
    /// Names of the nodes; n[01-10] stands for n01 to n10
    #[arg(value_name = "NODE", conflicts_with_all = ["all", "selector"])]
    nodes: Vec<String>,

    /// All nodes
    #[arg(long, conflicts_with = "selector")]
    all: bool,

    /// Nodes with these labels, as 'rack=r7' or 'zone in (a,b),!spot'
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = Selector::read)]
    selector: Option<Selector>,

    /// GPUs of each node that take part, with one process each; 0: CPUs only [default: all that it has]
    #[arg(long, alias = "gpus_per_node", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=256))]
    gpus_per_node: Option<u32>,

    /// Interpreter with torch on every node [default: that of the shell, if the cluster is on this machine, else python3]
    #[arg(long, value_name = "PATH")]
    python: Option<String>,

    /// With how many partners each node is tried
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    rounds: u32,

    /// How long one job may take; a node that has no result by then has failed
    #[arg(long, value_name = "PERIOD", default_value = "3m", value_parser = read_timeout)]
    timeout: Duration,

    /// Wait so long for nodes with a running job, instead of leaving them out
    #[arg(long, value_name = "PERIOD", value_parser = period::parse)]
    wait: Option<Duration>,

    /// Cordoned nodes, too. Those that are named are checked anyway
    #[arg(long)]
    cordoned: bool,

    /// Cordon bad nodes, with the reason (role operator). Networks and slow nodes are only told
    #[arg(long)]
    cordon: bool,
}

/// Importing torch takes up to 12 s on a slow disk, and a rendezvous a few more.
const TIMEOUT_MIN: Duration = Duration::from_secs(30);

fn read_timeout(text: &str) -> Result<Duration, String> {
    let period = period::parse(text)?;
    match period >= TIMEOUT_MIN && period.subsec_nanos() == 0 {
        true => Ok(period),
        false => Err("must be whole seconds, and 30s at least: torch must be imported".into()),
    }
}

pub(crate) async fn check(cx: &Context, args: Check) -> Result<(), Failure> {
    let Command::Nodes(args) = args.command;
    let names = chosen::names(&args)?;
    let client = cx.connect().await?;
    let jobs = Jobs::new(cx, &client, &args).await?;
    let outcome = tokio::select! {
        outcome = work(cx, &jobs, &args, &names) => outcome,
        _ = asked_to_end() => Err(Failure::Interrupted(
            "interrupted; the jobs of the check are cancelled and deleted".into(),
        )),
    };
    jobs.clean_up().await;
    outcome
}

/// Returns when the user or the system asks this process to end.
async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = term.recv() => {}
    }
}

async fn work(
    cx: &Context,
    jobs: &Jobs<'_>,
    args: &Nodes,
    names: &[String],
) -> Result<(), Failure> {
    let chosen = chosen::choose(cx, jobs, args, names).await?;
    let verdicts = jobs.tournament(&chosen, args.rounds as usize).await?;
    match cx.format() {
        Format::Table => cx.print(&output::check::text(
            &verdicts,
            false,
            !cx.globals.no_headers,
        ))?,
        Format::Wide => cx.print(&output::check::text(
            &verdicts,
            true,
            !cx.globals.no_headers,
        ))?,
        Format::Json => cx.print(&output::json(&output::check::document(&verdicts)))?,
        Format::Yaml => cx.print(&output::yaml(&output::check::document(&verdicts)))?,
        Format::Name => cx.print(&output::check::names(&verdicts))?,
    }
    let bad = output::check::bad_nodes(&verdicts);
    let is_cordoned = |node: &str| chosen.cordoned.iter().any(|one| one.as_str() == node);
    let bad = bad.iter().filter(|(node, _)| !is_cordoned(node));
    for verdict in &verdicts {
        if let (Subject::Node(node), Standing::Good) = (&verdict.subject, verdict.standing)
            && chosen.cordoned.contains(node)
        {
            cx.say(format!("to give it work again: muster uncordon {node}"));
        }
    }
    if args.cordon {
        for (node, reason) in bad {
            cordon::one(jobs.client, node, &format!("muster check nodes: {reason}")).await?;
            cx.say(format!("node/{node} cordoned"));
        }
    } else {
        for (node, reason) in bad {
            let reason = output::words::quoted(&format!("muster check nodes: {reason}"));
            cx.say(format!(
                "to keep work away: muster cordon {node} --reason {reason}"
            ));
        }
    }
    let with = |standing| verdicts.iter().any(|verdict| verdict.standing == standing);
    if with(Standing::Bad) || with(Standing::Slow) {
        return Err(Failure::Unhealthy(
            "not all nodes and networks are well: see above".into(),
        ));
    }
    let named = !args.nodes.is_empty();
    match with(Standing::NotChecked) && (named || !with(Standing::Good)) {
        true => Err(Failure::request(
            "not all nodes could be checked: see above",
        )),
        false => Ok(()),
    }
}
