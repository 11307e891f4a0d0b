//! `muster stacks`

use clap::Args;
use muster_proto::v1::StacksRequest;

use crate::{
    args::Format,
    connect::job_ref,
    context::Context,
    fail::Failure,
    output::{self, stacks::Stacks as Document},
};

/// Show where the ranks of a running job are: stacks and collectives.
///
/// Equal places are shown together. It works at any time and for any script: ranks that Muster forks
/// are asked through torch's own worker server, and of all others it says what the kernel knows. A rank
/// that does not answer is shown with what is known of its process, and so is a node.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # The job makes no steps: where does each rank stand?
  muster stacks digits

  # All threads of one rank
  muster stacks digits --rank 3

  # For a script: the ranks that keep others waiting in a collective
  muster stacks digits -o json | jq '[.waits[].behind[]] | unique'")]
pub(crate) struct Stacks {
    /// Name of the job
    job: String,

    /// Only this global rank, with all its threads [default: all]
    #[arg(short, long)]
    rank: Option<u32>,

    /// Only ranks on this node
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

pub(crate) async fn stacks(cx: &Context, args: Stacks) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let request = client.ask(StacksRequest {
        r#ref: Some(job_ref(cx.namespace(), &args.job)),
        rank: args.rank,
        node: args.node.unwrap_or_default(),
    });
    let answer = client.jobs().stacks(request).await;
    let answer = answer
        .map_err(|status| client.failure(status))?
        .into_inner();
    match cx.format() {
        Format::Table | Format::Wide => cx.print(&output::stacks::render(
            &args.job,
            &answer,
            args.rank.is_some(),
        )),
        Format::Json => cx.print(&output::json(&Document::from(answer))),
        Format::Yaml => cx.print(&output::yaml(&Document::from(answer))),
        Format::Name => Err(Failure::usage("stacks has no -o name")),
    }
}
