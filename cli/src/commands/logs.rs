//! `muster logs`

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use muster_core::period;
use muster_proto::v1::{GetJobRequest, JobRef, LogsRequest, LogsResponse};
use muster_rpc::credentials::now_us;
use tokio::time::timeout_at;

use super::follow::Away;
use crate::{
    connect::{Client, job_ref},
    context::Context,
    fail::Failure,
};

mod member;
mod merge;
mod screen;
mod steps;
mod wanted;

use merge::{Merge, Source, Style};
use steps::Steps;
use wanted::Wanted;

/// Print what the ranks of a job wrote.
///
/// Lines of all ranks are merged by time; stdout and stderr of the workers both go to stdout. With
/// -f the log goes on through restarts and resizes of the job until the job is over. Messages of
/// Muster about the log (a node cannot be asked, a part is no longer kept) go to stderr.
///
/// A node keeps the newest 64 to 128 MiB of each log, for a job's four newest generations and for
/// the first that failed, and so much of runs that are over as its operator allows (20 GiB). What is
/// gone is said; if nothing could be shown, the exit code is 1.
///
/// On a terminal, colours are kept, sequences that move the cursor are left out, and other control
/// characters are shown as ^[ and the like. In a pipe or a file the text is printed as it was
/// written. A line that has not ended, such as a progress bar, is printed as far as it goes; if
/// another rank's line follows, the rest goes on in a new line. With --raw nothing is added but what
/// --prefix and --timestamps ask for, not even that newline: what is printed of a rank is byte for
/// byte what it wrote.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # All ranks of the current generation
  muster logs digits --prefix

  # Follow rank 0 from its last 20 lines
  muster logs digits --rank 0 --tail 20 -f

  # Errors of all ranks in the last ten minutes
  muster logs digits --since 10m --grep '(?i)error|nan' --prefix

  # What the world before the last incident said
  muster logs digits --previous

  # Which lines told the step, and which format found it; try a pattern on the same lines
  muster logs digits --steps
  muster logs digits --steps --step-pattern 'update (\\d+)'

  # One member of a job with roles, or of a job from another system's file: both are the same
  muster logs recommender --member worker-1
  muster logs recommender-worker-1

  # What started the ranks on one node, for a job whose ranks never ran
  muster logs digits --launcher --node node-2")]
pub(crate) struct Logs {
    /// Name of the job, or of one of its members: JOB-worker-1, as its pod is called elsewhere
    #[arg(value_name = "JOB")]
    job: String,

    /// Go on printing as the job writes, until it is over
    #[arg(short, long)]
    follow: bool,

    /// Only this global rank
    #[arg(short, long)]
    rank: Option<u32>,

    /// Only what ranks on this node wrote
    #[arg(long, value_name = "NODE")]
    node: Option<String>,

    /// Only what this member wrote, as worker-1: its role or replica group, and its number there
    #[arg(short, long, value_name = "MEMBER", conflicts_with = "rank")]
    member: Option<String>,

    /// Print the log of what starts the ranks on each node (torchrun or Muster's launcher) instead
    /// of the ranks' own
    #[arg(long, conflicts_with = "rank")]
    launcher: bool,

    /// The generation before the current one
    #[arg(short, long, conflicts_with_all = ["generation", "follow"])]
    previous: bool,

    /// Only this generation [default: the current one, or the last that ran]
    #[arg(short, long, value_name = "G", value_parser = clap::value_parser!(u64).range(1..))]
    generation: Option<u64>,

    /// Only the last N lines of each rank
    #[arg(long, value_name = "N")]
    tail: Option<u32>,

    /// Only lines that match this pattern; (?i) at its beginning ignores case
    #[arg(long, value_name = "REGEX", conflicts_with_all = ["raw", "steps"])]
    grep: Option<String>,

    /// Only lines that were written within this period, as 10m, by the clocks of their nodes
    #[arg(long, value_name = "PERIOD", value_parser = period::parse, conflicts_with = "raw")]
    since: Option<Duration>,

    /// Put the time of writing before each line
    #[arg(long)]
    timestamps: bool,

    /// Put the rank before each line; with --launcher, the node
    #[arg(long)]
    prefix: bool,

    /// Print every byte as it was written, also on a terminal
    #[arg(long)]
    raw: bool,

    /// Only lines in which a step was recognised, with the step and the format that found it
    #[arg(long, conflicts_with_all = ["launcher", "raw"])]
    steps: bool,

    /// With --steps: search with this pattern instead of the job's own
    #[arg(long, value_name = "REGEX", requires = "steps")]
    step_pattern: Option<String>,

    /// With --steps: search with this file of formats, as muster-agent --step-formats does
    #[arg(
        long,
        value_name = "FILE",
        requires = "steps",
        conflicts_with = "step_pattern"
    )]
    step_formats: Option<PathBuf>,
}

pub(crate) async fn logs(cx: &Context, args: Logs) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let (job, member) = member::find(cx, &client, &args).await?;
    let named = job_ref(cx.namespace(), &job);
    let args = Logs { member, ..args };
    print(cx, &client, &named, &args, 0).await
}

/// Follows all ranks of a job from its first line to its last.
pub(crate) async fn follow_all(
    cx: &Context,
    client: &Client,
    named: &JobRef,
) -> Result<(), Failure> {
    let args = Logs {
        job: named.name.clone(),
        follow: true,
        rank: None,
        node: None,
        member: None,
        launcher: false,
        previous: false,
        generation: None,
        tail: None,
        grep: None,
        since: None,
        timestamps: false,
        prefix: true,
        raw: false,
        steps: false,
        step_pattern: None,
        step_formats: None,
    };
    // The first generation may be over before this request.
    match print(cx, client, named, &args, 1).await {
        // Whoever follows a job wants to know of the job, and has read what is missing.
        Err(Failure::Request(why)) if why == NOTHING => Ok(()),
        outcome => outcome,
    }
}

/// Said after the notices that tell why.
const NOTHING: &str = "nothing of the log could be shown";

/// `since`: the generation to follow from. 0: the current one.
async fn print(
    cx: &Context,
    client: &Client,
    named: &JobRef,
    args: &Logs,
    since: u64,
) -> Result<(), Failure> {
    let screen = !args.raw && io::stdout().is_terminal();
    let style = Style {
        prefix: args.prefix,
        timestamps: args.timestamps,
        launcher: args.launcher,
        screen,
        exact: args.raw,
    };
    let mut merge = Merge::new(style, Instant::now());
    merge.steps = steps(client, named, args).await?;
    merge.wanted =
        Wanted::new(now_us(), args.since, args.grep.as_deref()).map_err(Failure::usage)?;
    if args.raw && !args.follow {
        // Every line is printed whole, whatever other ranks write meanwhile.
        merge.hold();
    }
    let mut away = Away::default();
    // Something of the log is missing, and nothing of it was shown.
    let (mut lacks, mut shown) = (false, false);
    loop {
        let positions = merge.positions();
        let fixed = args.generation.is_some() || !args.follow;
        let request = LogsRequest {
            r#ref: Some(named.clone()),
            rank: args.rank,
            node: args.node.clone().unwrap_or_default(),
            member: args.member.clone().unwrap_or_default(),
            raw: !screen && !args.steps,
            launcher: args.launcher,
            generation: args.generation.unwrap_or(0),
            previous: args.previous,
            follow: args.follow,
            tail: args.tail.filter(|_| positions.is_empty()),
            // After a lost connection each log goes on at its last position.
            since_generation: if fixed {
                0
            } else {
                merge.since().unwrap_or(since)
            },
            positions,
        };
        let ended = match client.jobs().logs(request).await {
            Err(status) => status,
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    let due = merge.due();
                    if args.follow && due.is_some_and(|due| due <= Instant::now()) {
                        cx.print_bytes(&merge.flush(Instant::now()))?;
                        continue;
                    }
                    let next = match due {
                        Some(due) => timeout_at(due.into(), stream.message()).await,
                        None => Ok(stream.message().await),
                    };
                    match next {
                        Ok(Ok(Some(part))) => {
                            away.is_back(cx);
                            lacks |= !part.notice.is_empty();
                            shown |= !(part.lines.is_empty() && part.raw.is_empty());
                            take(cx, &mut merge, part)?;
                            if merge.is_full() {
                                cx.print_bytes(&merge.flush(Instant::now()))?;
                            }
                        }
                        Ok(Ok(None)) => {
                            cx.print_bytes(&merge.finish(Instant::now()))?;
                            if let Some(advice) = merge.steps.as_ref().and_then(Steps::advice) {
                                cx.warn(advice);
                            }
                            return match lacks && !shown {
                                true => Err(Failure::request(NOTHING)),
                                false => Ok(()),
                            };
                        }
                        Ok(Err(status)) => break status,
                        // All ranks pause. Without -f a slow node must not break the order, so wait
                        // for the end.
                        Err(_) if args.follow => cx.print_bytes(&merge.flush(Instant::now()))?,
                        Err(_) => merge.hold(),
                    }
                }
            }
        };
        cx.print_bytes(&merge.flush(Instant::now()))?;
        if !args.follow {
            return Err(client.failure(ended));
        }
        cx.print(merge.end_line())?;
        away.wait(cx, client, ended).await?;
    }
}

/// The search for steps, if it was asked for: by the job's own pattern unless another is given.
async fn steps(
    client: &Client,
    named: &JobRef,
    args: &Logs,
) -> Result<Option<Steps<Source>>, Failure> {
    if !args.steps {
        return Ok(None);
    }
    let mut pattern = args.step_pattern.clone();
    if pattern.is_none() && args.step_formats.is_none() {
        let request = client.ask(GetJobRequest {
            r#ref: Some(named.clone()),
        });
        let job = client.jobs().get(request).await;
        let job = job.map_err(|e| client.failure(e))?.into_inner();
        pattern = job.job.and_then(|job| job.spec?.step_pattern);
    }
    let formats =
        steps::formats(pattern.as_deref(), args.step_formats.as_deref()).map_err(Failure::usage)?;
    Ok(Some(Steps::new(formats)))
}

fn take(cx: &Context, merge: &mut Merge, part: LogsResponse) -> Result<(), Failure> {
    if !part.notice.is_empty() {
        cx.print(merge.end_line())?;
        cx.warn(crate::output::table::plain(&part.notice));
    }
    merge.add(part, Instant::now());
    for remark in merge.take_remarks() {
        cx.warn(crate::output::table::plain(&remark));
    }
    Ok(())
}
