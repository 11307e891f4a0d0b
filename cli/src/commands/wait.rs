//! `muster wait`

use std::time::Duration;

use clap::{Args, ValueEnum};
use muster_core::period;
use muster_proto::v1::{JobPhase, WaitFor, WaitRequest};
use tokio::time::Instant;
use tonic::Code;

use super::follow::{self, Away};
use crate::{connect::job_ref, context::Context, fail::Failure};

/// Wait until a job trains, is over, or is deleted.
///
/// Exits 0 when it happened, 3 if the job failed, 6 if it was cancelled, 4 if the time ran out. The
/// coordinator may restart meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Until all members train
  muster wait digits --for=running --timeout 1m

  # Until it is over, whatever the end
  muster wait digits")]
pub(crate) struct Wait {
    /// Name of the job
    job: String,

    /// What to wait for: running (all members train), complete (the job is over, however it ended)
    /// or deleted
    #[arg(
        long = "for",
        value_enum,
        ignore_case = true,
        default_value = "complete",
        value_name = "STATE"
    )]
    wait_for: State,

    /// Give up after this long and exit 4
    #[arg(long, value_parser = period::parse, value_name = "PERIOD")]
    timeout: Option<Duration>,

    /// If the job failed, exit with the failing rank's own exit code
    #[arg(long)]
    mirror_exit_code: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum State {
    // As `kubectl wait` spells them.
    #[value(alias = "condition=running")]
    Running,
    #[value(alias = "condition=complete")]
    Complete,
    #[value(aliases = ["delete", "condition=deleted"])]
    Deleted,
}

/// The longest time for one request, so that a coordinator that hangs is noticed.
const ONE_REQUEST: Duration = Duration::from_secs(60);
/// The coordinator answers by itself when the time is over. The client's own deadline comes later,
/// and is only for a coordinator that does not answer.
const ANSWER_SLACK: Duration = Duration::from_secs(5);

pub(crate) async fn wait(cx: &Context, args: Wait) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let named = job_ref(cx.namespace(), &args.job);
    let wait_for = match args.wait_for {
        State::Running => WaitFor::Running,
        State::Complete => WaitFor::Complete,
        State::Deleted => WaitFor::Deleted,
    };
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let mut away = Away::default();
    let job = loop {
        let left = deadline.map_or(ONE_REQUEST, |at| {
            at.saturating_duration_since(Instant::now())
                .min(ONE_REQUEST)
        });
        let timeout_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut request = tonic::Request::new(WaitRequest {
            r#ref: Some(named.clone()),
            wait_for: wait_for.into(),
            timeout_ms,
        });
        request.set_timeout(left + ANSWER_SLACK);
        match client.jobs().wait(request).await {
            Ok(answer) => break answer.into_inner().job.unwrap_or_default(),
            Err(status) => {
                let out_of_time = deadline.is_some_and(|at| Instant::now() >= at);
                if out_of_time && status.code() != Code::NotFound {
                    let what = args
                        .wait_for
                        .to_possible_value()
                        .map(|value| value.get_name().to_owned())
                        .unwrap_or_default();
                    let after = period::format(args.timeout.unwrap_or_default());
                    return Err(Failure::Timeout(format!(
                        "job/{} is not {what} after {after}",
                        named.name
                    )));
                }
                match status.code() {
                    // The job is gone, as the user asked for; it may have been gone before.
                    Code::NotFound if args.wait_for == State::Deleted => {
                        return say_done(cx, &args, &named.name);
                    }
                    Code::DeadlineExceeded => continue,
                    Code::Cancelled if status.message().contains("Timeout expired") => continue,
                    _ => away.wait(cx, &client, status).await?,
                }
            }
        }
    };
    let phase = job
        .status
        .as_ref()
        .map(|status| status.phase())
        .unwrap_or_default();
    if args.wait_for != State::Deleted && matches!(phase, JobPhase::Failed | JobPhase::Cancelled) {
        return follow::outcome(&job, args.mirror_exit_code);
    }
    say_done(cx, &args, &named.name)
}

fn say_done(cx: &Context, args: &Wait, name: &str) -> Result<(), Failure> {
    let state = args
        .wait_for
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default();
    cx.print(&format!("job/{name} {state}\n"))
}
