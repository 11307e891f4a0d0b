//! `muster scale`

use std::time::Duration;

use clap::Args;
use muster_core::period;
use muster_proto::v1::{JobPhase, JobStatus, ScaleRequest};
use tokio::time::Instant;

use super::{follow, get};
use crate::{args::Format, connect::job_ref, context::Context, fail::Failure};

/// Set how many nodes a job shall have.
///
/// The number must lie within the job's own range (minReplicas to maxReplicas). The job goes on
/// from its last checkpoint with the new world; a job that saves its state at SIGTERM loses no
/// step.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Grow or shrink to four nodes
  muster scale digits --nodes 4

  # The same, and return when four nodes train
  muster scale digits --nodes 4 --wait --timeout 5m")]
pub(crate) struct Scale {
    /// Name of the job
    job: String,

    /// Nodes wanted
    #[arg(long, visible_alias = "replicas", value_name = "K")]
    nodes: u32,

    /// Return when the job trains on this many nodes; exit 3 or 6 if it fails or is cancelled
    /// meanwhile
    #[arg(long)]
    wait: bool,

    /// With --wait, give up after this long and exit 4; the request stands
    #[arg(long, requires = "wait", value_parser = period::parse, value_name = "PERIOD")]
    timeout: Option<Duration>,
}

pub(crate) async fn scale(cx: &Context, args: Scale) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let named = job_ref(cx.namespace(), &args.job);
    let name = named.name.clone();
    let request = client.ask(ScaleRequest {
        r#ref: Some(named.clone()),
        nodes: args.nodes,
    });
    let answer = client
        .jobs()
        .scale(request)
        .await
        .map_err(|status| client.failure(status))?
        .into_inner();
    match cx.format() {
        Format::Table | Format::Wide => {
            cx.print(&format!(
                "job/{name} scaled to {}\n",
                crate::output::words::count(args.nodes.into(), "node")
            ))?;
        }
        format => get::print_one(cx, format, answer.job.unwrap_or_default())?,
    }
    if !args.wait {
        return Ok(());
    }
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let done = |status: &JobStatus| follow::is_over(status) || trains_on(status, args.nodes);
    match follow::until(cx, &client, &named, deadline, done).await? {
        Some(job) => follow::outcome(&job, false),
        None => {
            let waited = args.timeout.unwrap_or_default();
            Err(Failure::Timeout(format!(
                "job/{name} does not train on {} nodes after {waited:?}; it is still asked to",
                args.nodes
            )))
        }
    }
}

fn trains_on(status: &JobStatus, nodes: u32) -> bool {
    status.phase() == JobPhase::Running && status.nodes == nodes && status.nodes_running == nodes
}
