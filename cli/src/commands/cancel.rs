//! `muster cancel`

use std::time::Duration;

use clap::Args;
use muster_core::period;
use muster_proto::v1::CancelRequest;
use tokio::time::Instant;

use super::{follow, get};
use crate::{args::Format, connect::job_ref, context::Context, fail::Failure};

/// Stop a job for good.
///
/// Its workers get SIGTERM and the job's grace period to save their state. The job stays listed as
/// Cancelled, with its logs, until it is deleted. It cannot be started again; submit it anew.
#[derive(Debug, Args)]
#[command(
    visible_alias = "stop",
    after_help = "\
EXAMPLES:
  # Stop a job
  muster cancel digits

  # Stop it and wait until no worker is left
  muster cancel digits --wait"
)]
pub(crate) struct Cancel {
    /// Name of the job
    job: String,

    /// Return when no worker is left
    #[arg(long)]
    wait: bool,

    /// With --wait, give up after this long and exit 4
    #[arg(long, requires = "wait", value_parser = period::parse, value_name = "PERIOD")]
    timeout: Option<Duration>,
}

pub(crate) async fn cancel(cx: &Context, args: Cancel) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let named = job_ref(cx.namespace(), &args.job);
    let name = named.name.clone();
    let request = client.ask(CancelRequest {
        r#ref: Some(named.clone()),
    });
    let answer = client
        .jobs()
        .cancel(request)
        .await
        .map_err(|status| client.failure(status))?
        .into_inner();
    match cx.format() {
        Format::Table | Format::Wide => cx.print(&format!("job/{name} cancelled\n"))?,
        format => get::print_one(cx, format, answer.job.unwrap_or_default())?,
    }
    if !args.wait {
        return Ok(());
    }
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    // Any end is accepted: the job may have ended before the request.
    match follow::until(cx, &client, &named, deadline, follow::is_over).await? {
        Some(_) => Ok(()),
        None => Err(Failure::Timeout(format!(
            "job/{name} is still stopping after {:?}",
            args.timeout.unwrap_or_default()
        ))),
    }
}
