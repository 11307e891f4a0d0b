//! `muster delete`

use clap::Args;
use muster_proto::v1::{DeleteNodeRequest, DeleteRequest};

use super::target::{self, Kind};
use crate::{connect::job_ref, context::Context, fail::Failure};

/// Forget a job that is over, or a node that is dead.
///
/// Deleting a job removes its record and its logs on the nodes; cancel it first if it still runs.
/// Deleting a node is your word that the machine is dead for good: what ran there counts as proven
/// dead, and its jobs go on elsewhere. It is refused while the node's agent is connected.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Forget a job that is over
  muster delete job digits
  muster delete digits

  # This machine will not come back
  muster delete node node-3")]
pub(crate) struct Delete {
    /// Kind and name: [job] NAME | node NAME
    #[arg(value_name = "[KIND] NAME", required = true, num_args = 1..=2)]
    what: Vec<String>,
}

pub(crate) async fn delete(cx: &Context, args: Delete) -> Result<(), Failure> {
    let target = target::read_or_job(&args.what)?;
    let Some(name) = target.name else {
        return Err(Failure::usage(
            "delete what? KIND NAME, as in: muster delete job digits",
        ));
    };
    let client = match target.kind {
        Kind::Event => return Err(Failure::usage("events cannot be deleted")),
        Kind::Job | Kind::Node => cx.connect().await?,
    };
    if target.kind == Kind::Node {
        let request = client.ask(DeleteNodeRequest { name: name.clone() });
        client
            .nodes()
            .delete(request)
            .await
            .map_err(|status| client.failure(status))?;
        return cx.print(&format!("node/{name} deleted\n"));
    }
    let request = client.ask(DeleteRequest {
        r#ref: Some(job_ref(cx.namespace(), &name)),
    });
    client
        .jobs()
        .delete(request)
        .await
        .map_err(|status| client.failure(status))?;
    cx.print(&format!("job/{name} deleted\n"))
}
