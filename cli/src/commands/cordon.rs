//! `muster cordon` and `muster uncordon`

use std::env;

use clap::Args;
use muster_foreign::names;
use muster_proto::v1::{CordonRequest, UncordonRequest};

use super::several;
use crate::{connect::Client, context::Context, fail::Failure};

/// Give a node no new work.
///
/// Workers that run there go on. The node stays cordoned until it is uncordoned, also if the node or the
/// coordinator restarts.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Before a repair
  muster cordon node-2 --reason 'fan fails, ticket 4711'

  # A whole rack
  muster cordon 'r7n[01-16]' --reason 'power, ticket 4712'")]
pub(crate) struct Cordon {
    /// Names of the nodes; n[01-10] stands for n01 to n10
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,

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
    /// Names of the nodes; n[01-10] stands for n01 to n10
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
}

fn node_names(words: &[String]) -> Result<Vec<String>, Failure> {
    let bare = |word| str::strip_prefix(word, "node/").unwrap_or(word);
    names::expand_all(words.iter().map(|word| bare(word.as_str()))).map_err(Failure::usage)
}

pub(crate) async fn cordon(cx: &Context, args: Cordon) -> Result<(), Failure> {
    let nodes = node_names(&args.nodes)?;
    let client = cx.connect().await?;
    several::each(cx, &nodes, async |name| {
        one(&client, name, &args.reason).await?;
        cx.print(&format!("node/{name} cordoned\n"))
    })
    .await
}

/// Cordons a node in the name of this user.
pub(crate) async fn one(client: &Client, node: &str, reason: &str) -> Result<(), Failure> {
    // For a coordinator that cannot tell who asks. One that can ignores it.
    let by = env::var("USER")
        .or_else(|_| env::var("LOGNAME"))
        .unwrap_or_else(|_| "unknown user".into());
    let request = client.ask(CordonRequest {
        name: node.to_owned(),
        reason: reason.to_owned(),
        by,
    });
    let answer = client.nodes().cordon(request).await;
    answer.map_err(|status| client.failure(status))?;
    Ok(())
}

pub(crate) async fn uncordon(cx: &Context, args: Uncordon) -> Result<(), Failure> {
    let nodes = node_names(&args.nodes)?;
    let client = cx.connect().await?;
    several::each(cx, &nodes, async |name| {
        let request = client.ask(UncordonRequest {
            name: name.to_owned(),
        });
        let answer = client.nodes().uncordon(request).await;
        answer.map_err(|status| client.failure(status))?;
        cx.print(&format!("node/{name} uncordoned\n"))
    })
    .await
}
