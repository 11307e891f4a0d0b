//! `muster cordon` and `muster uncordon`

use std::env;

use clap::Args;
use muster_proto::v1::{CordonRequest, UncordonRequest};

use crate::{context::Context, fail::Failure};

/// Give a node no new work.
///
/// Workers that run there go on. The node stays cordoned until it is uncordoned, also if the node or the
/// coordinator restarts.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Before a repair
  muster cordon node-2 --reason 'fan fails, ticket 4711'")]
pub(crate) struct Cordon {
    /// Name of the node
    node: String,

    /// The reason; shown to everybody who asks about the node
    #[arg(long, default_value = "by hand", value_name = "TEXT")]
    reason: String,
}

/// Let a node take work again.
///
/// Removes any cordon, also one that Muster itself set. If somebody else has cordoned the node in
/// Kubernetes, it stays Excluded until that ends (kubectl uncordon).
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # After the repair
  muster uncordon node-2")]
pub(crate) struct Uncordon {
    /// Name of the node
    node: String,
}

fn node_name(name: &str) -> String {
    name.strip_prefix("node/").unwrap_or(name).to_owned()
}

pub(crate) async fn cordon(cx: &Context, args: Cordon) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let name = node_name(&args.node);
    // For a coordinator that cannot tell who asks. One that can ignores it.
    let by = env::var("USER")
        .or_else(|_| env::var("LOGNAME"))
        .unwrap_or_else(|_| "unknown user".into());
    let request = client.ask(CordonRequest {
        name: name.clone(),
        reason: args.reason,
        by,
    });
    client
        .nodes()
        .cordon(request)
        .await
        .map_err(|status| client.failure(status))?;
    cx.print(&format!("node/{name} cordoned\n"))
}

pub(crate) async fn uncordon(cx: &Context, args: Uncordon) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let name = node_name(&args.node);
    let request = client.ask(UncordonRequest { name: name.clone() });
    client
        .nodes()
        .uncordon(request)
        .await
        .map_err(|status| client.failure(status))?;
    cx.print(&format!("node/{name} uncordoned\n"))
}
