//! `muster logs`

use clap::Args;
use muster_proto::v1::{JobRef, LogsRequest, LogsResponse};
use std::time::Duration;
use tokio::time::timeout;

use super::follow::Away;
use crate::{
    connect::{Client, job_ref},
    context::Context,
    fail::Failure,
};

mod merge;

use merge::Merge;

/// Print what the ranks of a job wrote.
///
/// Lines of all ranks are merged by time; stdout and stderr of the workers both go to stdout. With -f the log goes on over restarts
/// and resizes of the job until it is over. What Muster has to say about the log (a node that cannot be asked) goes to stderr.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # All ranks of the current generation
  muster logs digits --prefix

  # Follow rank 0 from its last 20 lines
  muster logs digits --rank 0 --tail 20 -f

  # What the world before the last incident said
  muster logs digits --previous")]
pub(crate) struct Logs {
    /// Name of the job
    job: String,

    /// Go on printing as the job writes, until it is over
    #[arg(short, long)]
    follow: bool,

    /// Only this global rank
    #[arg(short, long)]
    rank: Option<u32>,

    /// The generation before the current one
    #[arg(short, long, conflicts_with_all = ["generation", "follow"])]
    previous: bool,

    /// This generation [default: the current one, or the last that ran]
    #[arg(short, long, value_name = "G", value_parser = clap::value_parser!(u64).range(1..))]
    generation: Option<u64>,

    /// Only the last N lines of each rank
    #[arg(long, value_name = "N")]
    tail: Option<u32>,

    /// Put the time of writing before each line
    #[arg(long)]
    timestamps: bool,

    /// Put the rank before each line
    #[arg(long)]
    prefix: bool,
}

pub(crate) async fn logs(cx: &Context, args: Logs) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let named = job_ref(cx.namespace(), &args.job);
    print(cx, &client, &named, &args, 0).await
}

/// Follows all ranks of a job from its first line to its last.
pub(crate) async fn follow_all(cx: &Context, client: &Client, named: &JobRef) -> Result<(), Failure> {
    let args = Logs {
        job: named.name.clone(),
        follow: true,
        rank: None,
        previous: false,
        generation: None,
        tail: None,
        timestamps: false,
        prefix: true,
    };
    // The first generation may be over before this is asked.
    print(cx, client, named, &args, 1).await
}

/// Lines are held back this long to put the ranks' lines in order of time: a step of training is longer, a person's patience too.
const ORDER_WINDOW: Duration = Duration::from_millis(50);

/// `since`: the generation to follow from; 0 for the current one.
async fn print(cx: &Context, client: &Client, named: &JobRef, args: &Logs, since: u64) -> Result<(), Failure> {
    let mut merge = Merge::new(args.prefix, args.timestamps);
    let mut away = Away::default();
    loop {
        let request = LogsRequest {
            r#ref: Some(named.clone()),
            rank: args.rank,
            generation: args.generation.unwrap_or(0),
            previous: args.previous,
            follow: args.follow,
            // After a lost connection everything is asked for again; what was printed already is left out.
            tail: if merge.has_printed() { None } else { args.tail },
            since_generation: since,
        };
        let ended = match client.jobs().logs(request).await {
            Err(status) => status,
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    let next = match merge.is_pending() {
                        true => timeout(ORDER_WINDOW, stream.message()).await,
                        false => Ok(stream.message().await),
                    };
                    match next {
                        Ok(Ok(Some(part))) => {
                            away.is_back(cx);
                            take(cx, &mut merge, part);
                            if merge.is_full() {
                                cx.print(&merge.flush())?;
                            }
                        }
                        Ok(Ok(None)) => {
                            cx.print(&merge.finish())?;
                            return Ok(());
                        }
                        Ok(Err(status)) => break status,
                        // A pause of all ranks. Without -f a slow node must not break the order: wait for the end.
                        Err(_) if args.follow => cx.print(&merge.flush())?,
                        Err(_) => merge.hold(),
                    }
                }
            }
        };
        cx.print(&merge.flush())?;
        if !args.follow {
            return Err(client.failure(ended));
        }
        merge.reconnected();
        away.wait(cx, client, ended).await?;
    }
}

fn take(cx: &Context, merge: &mut Merge, part: LogsResponse) {
    if !part.notice.is_empty() {
        cx.warn(crate::output::table::plain(&part.notice));
    }
    merge.add(part);
}
