//! `muster top`

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use clap::{Args, ValueEnum};
use muster_proto::v1::GetJobRequest;
use muster_rpc::credentials::now_us;

use super::get;
use crate::{
    args::Format,
    connect::{Client, job_ref},
    context::Context,
    fail::Failure,
    output::{
        table::Table,
        top::{self, Use},
    },
};

/// Agents read what is in use every 10 s; steps come sooner.
const AGAIN: Duration = Duration::from_secs(2);
/// Moves to the upper left corner, clears what is below, and clears what was scrolled away (ECMA-48: CUP, ED; xterm: 3).
const CLEAR: &str = "\x1b[H\x1b[J\x1b[3J";

/// Show what nodes, jobs or ranks use now.
///
/// Nodes: processors, memory and GPUs in use, the busiest first. Jobs that are not over: the GPUs
/// that they hold and how busy these are, their ranks' processors and memory, step, time of a step
/// and goodput, those with most GPUs first. Ranks of one job: those that are furthest behind first.
/// READ is the age of the reading; agents read every 10 s.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Nodes, again every 2 s until Ctrl-C
  muster top nodes -w

  # Jobs of all namespaces
  muster top jobs

  # Which rank of this job is behind, or uses most memory?
  muster top ranks digits")]
pub(crate) struct Top {
    /// What is shown
    #[arg(
        value_enum,
        value_name = "nodes|jobs|ranks",
        default_value = "nodes",
        hide_default_value = true,
        hide_possible_values = true
    )]
    kind: Kind,

    /// The job whose ranks are shown
    #[arg(required_if_eq("kind", "ranks"))]
    job: Option<String>,

    /// Show it again every 2 s
    #[arg(short, long)]
    watch: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    #[value(alias = "node")]
    Nodes,
    #[value(alias = "job")]
    Jobs,
    #[value(alias = "rank")]
    Ranks,
}

pub(crate) async fn top(cx: &Context, args: Top) -> Result<(), Failure> {
    if cx.format() != Format::Table {
        return Err(Failure::usage(
            "top is a table; for programs: muster get nodes -o json, muster get job NAME -o json",
        ));
    }
    if args.kind != Kind::Ranks && args.job.is_some() {
        return Err(Failure::usage(
            "only ranks are of one job: muster top ranks JOB",
        ));
    }
    let client = cx.connect().await?;
    let redraws = args.watch && io::stdout().is_terminal();
    loop {
        let Use { heads, rows } = look(cx, &client, &args).await?;
        let text = Table::new(heads).render(&rows, !cx.globals.no_headers);
        let clear = if redraws { CLEAR } else { "" };
        cx.print(&format!("{clear}{text}"))?;
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn look(cx: &Context, client: &Client, args: &Top) -> Result<Use, Failure> {
    match (args.kind, &args.job) {
        (Kind::Jobs, _) => {
            let namespace = cx.globals.namespace.clone().unwrap_or_default();
            let jobs = get::all_jobs(client, &namespace).await?;
            Ok(top::jobs(&jobs, &get::all_nodes(client).await?))
        }
        (Kind::Ranks, Some(job)) => {
            let request = client.ask(GetJobRequest {
                r#ref: Some(job_ref(cx.namespace(), job)),
            });
            let answer = client.jobs().get(request).await;
            let answer = answer.map_err(|status| client.failure(status))?;
            let job = answer.into_inner().job.unwrap_or_default();
            Ok(top::ranks(&job, now_us()))
        }
        (Kind::Nodes | Kind::Ranks, _) => Ok(top::nodes(&get::all_nodes(client).await?, now_us())),
    }
}
