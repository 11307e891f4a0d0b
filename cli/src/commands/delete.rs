//! `muster delete`

use clap::Args;
use muster_proto::v1::{DeleteNodeRequest, DeleteRequest};

use super::{
    several,
    target::{self, Kind},
};
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
  muster delete digits letters

  # This machine will not come back
  muster delete node node-3")]
pub(crate) struct Delete {
    /// Kind and names: [job] NAME... | node NAME...
    #[arg(value_name = "[KIND] NAME", required = true)]
    what: Vec<String>,
}

pub(crate) async fn delete(cx: &Context, args: Delete) -> Result<(), Failure> {
    let (kind, names) = target::read_several(&args.what)?;
    let client = match kind {
        Kind::Event => return Err(Failure::usage("events cannot be deleted")),
        Kind::Job | Kind::Node => cx.connect().await?,
    };
    several::each(cx, &names, async |name| {
        if kind == Kind::Node {
            let request = client.ask(DeleteNodeRequest {
                name: name.to_owned(),
            });
            let answer = client.nodes().delete(request).await;
            answer.map_err(|status| client.failure(status))?;
            return cx.print(&format!("node/{name} deleted\n"));
        }
        let request = client.ask(DeleteRequest {
            r#ref: Some(job_ref(cx.namespace(), name)),
        });
        let answer = client.jobs().delete(request).await;
        answer.map_err(|status| client.failure(status))?;
        cx.print(&format!("job/{name} deleted\n"))
    })
    .await
}
