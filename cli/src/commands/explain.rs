//! `muster explain`

use clap::Args;
use muster_proto::v1::{EnvironmentRequest, ExplainRequest};
use muster_rpc::credentials::now_us;

use super::queue;
use crate::{
    args::Format,
    connect::job_ref,
    context::Context,
    fail::Failure,
    output::{
        self,
        document::{Environment, Explanation},
        listing::Listed,
    },
};

/// Tell what happened to a job, why, and what it cost.
///
/// One timeline of everything that was decided about the job. Each incident (a worker failed, a
/// node left or came, somebody scaled) is followed by its receipt: the milliseconds to detect,
/// decide, stop, launch, join and make the first step again, the steps that were trained twice, who
/// caused it and who pays. The last part is the time lost, by cause. Times count from the
/// submission.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Why did it stall, restart, shrink?
  muster explain digits

  # Which network does NCCL use, and who said so?
  muster explain digits --env

  # For a script: the slowest recovery
  muster explain digits -o json | jq '[.incidents[].totalMs] | max'")]
pub(crate) struct Explain {
    /// Name of the job
    job: String,

    /// Show instead the environment variables that the job's ranks get: on which nodes, from where,
    /// and why
    #[arg(long)]
    env: bool,
}

pub(crate) async fn explain(cx: &Context, args: Explain) -> Result<(), Failure> {
    let client = cx.connect().await?;
    if args.env {
        let request = client.ask(EnvironmentRequest {
            r#ref: Some(job_ref(cx.namespace(), &args.job)),
        });
        let mut answer = client
            .jobs()
            .environment(request)
            .await
            .map_err(|status| client.failure(status))?
            .into_inner();
        if !cx.globals.show_env {
            output::environment::hide(&mut answer);
        }
        return match cx.format() {
            Format::Table | Format::Wide => {
                cx.print(&output::environment::render(&args.job, &answer))
            }
            Format::Json => cx.print(&output::json(&Environment::from(answer))),
            Format::Yaml => cx.print(&output::yaml(&Environment::from(answer))),
            Format::Name => Err(Failure::usage("explain has no -o name")),
        };
    }
    let request = client.ask(ExplainRequest {
        r#ref: Some(job_ref(cx.namespace(), &args.job)),
    });
    let mut answer = client
        .jobs()
        .explain(request)
        .await
        .map_err(|status| client.failure(status))?
        .into_inner();
    if !cx.globals.show_env {
        answer.job = answer.job.map(Listed::discreet);
    }
    match cx.format() {
        Format::Table | Format::Wide => {
            let text = output::explain::render(&answer, now_us());
            let job = answer.job.unwrap_or_default();
            cx.print(&(text + &queue::start_line(cx, &client, &job).await))
        }
        Format::Json => cx.print(&output::json(&Explanation::from(answer))),
        Format::Yaml => cx.print(&output::yaml(&Explanation::from(answer))),
        Format::Name => Err(Failure::usage("explain has no -o name")),
    }
}
