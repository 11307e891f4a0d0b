//! `muster scale`

use clap::Args;
use muster_proto::v1::ScaleRequest;

use super::get;
use crate::{args::Format, connect::job_ref, context::Context, fail::Failure};

/// Set how many nodes a job shall have.
///
/// The number must lie within the job's own range (minReplicas to maxReplicas). The job goes on from its last checkpoint with the new
/// world; a job that saves its state at SIGTERM loses no step.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Grow or shrink to four nodes
  muster scale digits --nodes 4")]
pub(crate) struct Scale {
    /// Name of the job
    job: String,

    /// Nodes wanted
    #[arg(long, visible_alias = "replicas", value_name = "K")]
    nodes: u32,
}

pub(crate) async fn scale(cx: &Context, args: Scale) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let named = job_ref(cx.namespace(), &args.job);
    let name = named.name.clone();
    let request = client.ask(ScaleRequest { r#ref: Some(named), nodes: args.nodes });
    let answer = client.jobs().scale(request).await.map_err(|status| client.failure(status))?.into_inner();
    match cx.format() {
        Format::Table | Format::Wide => {
            cx.print(&format!("job/{name} scaled to {}\n", crate::output::words::count(args.nodes.into(), "node")))
        }
        format => get::print_one(cx, format, answer.job.unwrap_or_default()),
    }
}
