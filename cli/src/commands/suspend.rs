//! `muster suspend` and `muster resume`

use std::time::Duration;

use clap::Args;
use muster_core::period;
use muster_proto::v1::{Job, JobStatus, ResumeRequest, SuspendRequest};
use tokio::time::Instant;

use super::{follow, get};
use crate::{args::Format, connect::job_ref, context::Context, fail::Failure};

/// Hold a job back.
///
/// Its workers get SIGTERM and the job's grace period to save their state, and its nodes are free for
/// other jobs. It stays listed as Pending, with the reason Suspended, until it is resumed. Then it goes
/// on from its last checkpoint, with the next generation.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Give the nodes of a job to others for a while
  muster suspend digits --wait
  muster resume digits")]
pub(crate) struct Suspend {
    /// Name of the job
    job: String,

    /// Return when no worker is left
    #[arg(long)]
    wait: bool,

    /// With --wait, give up after this long and exit 4; the request stands
    #[arg(long, requires = "wait", value_parser = period::parse, value_name = "PERIOD")]
    timeout: Option<Duration>,
}

/// Let a suspended job go on.
///
/// It starts its next generation when there are nodes for it. Its deadlines (activeDeadlineSeconds,
/// startDeadlineSeconds) count anew from now.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster resume digits")]
pub(crate) struct Resume {
    /// Name of the job
    job: String,
}

pub(crate) async fn suspend(cx: &Context, args: Suspend) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let named = job_ref(cx.namespace(), &args.job);
    let request = client.ask(SuspendRequest {
        r#ref: Some(named.clone()),
    });
    let answer = client
        .jobs()
        .suspend(request)
        .await
        .map_err(|status| client.failure(status))?
        .into_inner();
    told(cx, &args.job, "suspended", answer.job)?;
    if !args.wait {
        return Ok(());
    }
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    // A job that was about to end may end in place of being suspended.
    let rests = |status: &JobStatus| follow::is_over(status) || holds_nothing(status);
    match follow::until(cx, &client, &named, deadline, rests).await? {
        Some(_) => Ok(()),
        None => Err(Failure::Timeout(format!(
            "job/{} is still stopping after {:?}",
            args.job,
            args.timeout.unwrap_or_default()
        ))),
    }
}

pub(crate) async fn resume(cx: &Context, args: Resume) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let request = client.ask(ResumeRequest {
        r#ref: Some(job_ref(cx.namespace(), &args.job)),
    });
    let answer = client
        .jobs()
        .resume(request)
        .await
        .map_err(|status| client.failure(status))?
        .into_inner();
    told(cx, &args.job, "resumed", answer.job)
}

fn told(cx: &Context, name: &str, what: &str, job: Option<Job>) -> Result<(), Failure> {
    match cx.format() {
        Format::Table | Format::Wide => cx.print(&format!("job/{name} {what}\n")),
        format => get::print_one(cx, format, job.unwrap_or_default()),
    }
}

/// Whether a suspended job has no worker any more. Its members are those of its latest generation.
fn holds_nothing(status: &JobStatus) -> bool {
    let dead = |phase: &str| phase == "Dead" || phase.starts_with("Refused");
    status.suspended && status.members.iter().all(|member| dead(&member.phase))
}
