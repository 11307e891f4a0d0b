//! `muster cancel`

use std::time::Duration;

use clap::Args;
use muster_core::period;
use muster_proto::v1::CancelRequest;
use tokio::time::Instant;

use super::{follow, get, several};
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

  # Stop two, and wait until no worker of them is left
  muster cancel digits letters --wait"
)]
pub(crate) struct Cancel {
    /// Names of the jobs
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<String>,

    /// Return when no worker is left
    #[arg(long)]
    wait: bool,

    /// With --wait, give up after this long and exit 4
    #[arg(long, requires = "wait", value_parser = period::parse, value_name = "PERIOD")]
    timeout: Option<Duration>,
}

pub(crate) async fn cancel(cx: &Context, args: Cancel) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let (mut cancelled, mut names) = (Vec::new(), Vec::new());
    let asked = several::each(cx, &args.jobs, async |job| {
        let request = client.ask(CancelRequest {
            r#ref: Some(job_ref(cx.namespace(), job)),
        });
        let answer = client.jobs().cancel(request).await;
        let answer = answer.map_err(|status| client.failure(status))?;
        if let Format::Table | Format::Wide = cx.format() {
            let name = job_ref(cx.namespace(), job).name;
            cx.print(&format!("job/{name} cancelled\n"))?;
        }
        names.push(job.to_owned());
        cancelled.push(answer.into_inner().job.unwrap_or_default());
        Ok(())
    })
    .await;
    match (cx.format(), args.jobs.len()) {
        (Format::Table | Format::Wide, _) => {}
        (format, 1) => {
            if let Some(job) = cancelled.pop() {
                get::print_one(cx, format, job)?;
            }
        }
        _ => get::print_list(cx, cancelled, false, "")?,
    }
    if !args.wait {
        return asked;
    }
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    for job in &names {
        let named = job_ref(cx.namespace(), job);
        // Any end is accepted: the job may have ended before the request.
        if follow::until(cx, &client, &named, deadline, follow::is_over)
            .await?
            .is_none()
        {
            return Err(Failure::Timeout(format!(
                "job/{} is still stopping after {:?}",
                named.name,
                args.timeout.unwrap_or_default()
            )));
        }
    }
    asked
}
