//! `muster topology`

use clap::Args;
use muster_proto::v1::GetNodeRequest;

use crate::{context::Context, fail::Failure, output::hardware};

/// Show how far a node's GPUs and NICs are from each other.
///
/// The matrix of `nvidia-smi topo -m`, from the node's own report.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster topology node-1")]
pub(crate) struct Topology {
    /// Name of the node
    #[arg(value_name = "NODE")]
    name: String,
}

pub(crate) async fn topology(cx: &Context, args: Topology) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let request = client.ask(GetNodeRequest { name: args.name });
    let node = client
        .nodes()
        .get(request)
        .await
        .map_err(|status| client.failure(status))?
        .into_inner()
        .node
        .unwrap_or_default();
    cx.print(&hardware::topology(&node))
}
