//! `muster queue`

use clap::Args;
use muster_page::waiting::{self, Waiting};
use muster_proto::v1::{Job, JobStatus, ListQueuesRequest, ListQueuesResponse};
use muster_rpc::credentials::now_us;

use super::get::{self, queues};
use crate::{
    args::Format,
    connect::Client,
    context::Context,
    fail::Failure,
    output::{self, List, queue, start, table::Table},
};

/// Said before the reason.
pub(crate) const NO_STARTS: &str = "No estimates of starts";

/// Show the jobs that wait for nodes, in the order in which they get them.
///
/// The higher priority goes first, then the older job; where the operator wants fair shares (`muster get shares`), of
/// equal priorities whoever has used less of late, and then the older job. AHEAD is the job before it that waits; LACKS is what
/// it lacks, as one word: NodesReserved means that there is room, which is kept for a job ahead. START is an estimate
/// of when it starts, if jobs end at their deadlines or as jobs like them did, and nothing comes between; -o wide
/// says on what it is based, or why there is none. A job that
/// waits for other jobs or its time (--after, --start-after) is not eligible: it has no position, LACKS is
/// Dependency or BeginTime, and AHEAD is what it waits for. Jobs that wait for something else, as for their
/// back-off or for `muster resume`, are not in it, nor are jobs with pods, which Kubernetes places. Positions count the jobs of all namespaces that you may see.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Who waits in this namespace, and for what?
  muster queue

  # In all namespaces, with the whole reason
  muster queue -A -o wide

  # What would a job wait for, and who would make room?
  muster plan -f job.yaml")]
pub(crate) struct Queue {
    /// Jobs of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
}

pub(crate) async fn queue(cx: &Context, args: Queue) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let jobs = get::all_jobs(&client, "").await?;
    let namespace = match args.all_namespaces {
        true => String::new(),
        false => cx.namespace(),
    };
    let said = match waiting::in_order(&jobs, &[], &namespace).is_empty() {
        true => ListQueuesResponse::default(),
        false => said(cx, &client).await,
    };
    let mut waiting = waiting::in_order(&jobs, &said.order, &namespace);
    waiting::add_starts(&mut waiting, &said.starts);
    match cx.format() {
        Format::Json => cx.print(&output::json(&List::new(queue::documents(&waiting)))),
        Format::Yaml => cx.print(&output::yaml(&List::new(queue::documents(&waiting)))),
        Format::Name => {
            let names = waiting.iter().map(|job| format!("job/{}\n", job.name));
            cx.print(&names.collect::<String>())
        }
        Format::Table | Format::Wide if waiting.is_empty() => {
            cx.say(waiting::NOBODY);
            Ok(())
        }
        Format::Table | Format::Wide => {
            let wide = cx.format() == Format::Wide;
            let now = now_us();
            let row = |job: &Waiting<'_>| queue::row(job, now, wide, args.all_namespaces);
            let rows: Vec<Vec<String>> = waiting.iter().map(row).collect();
            let heads = queue::heads(wide, args.all_namespaces);
            cx.print(&Table::new(heads).render(&rows, !cx.globals.no_headers))
        }
    }
}

/// The order of the jobs that wait, and when they will start. The queue is of use without, so it is no failure if nobody says it.
async fn said(cx: &Context, client: &Client) -> ListQueuesResponse {
    let (said, missing) = queues::of_waiting(client, cx.format() != Format::Name).await;
    missing.into_iter().for_each(|missing| cx.say(missing));
    said
}

/// A line for a job that waits. Empty: it does not, or nothing is said of it.
pub(super) async fn start_line(cx: &Context, client: &Client, job: &Job) -> String {
    let (named, status) = (job.r#ref.clone().unwrap_or_default(), job.status.as_ref());
    let waits =
        |status: &JobStatus| status.waits_for_room.is_some() || status.not_eligible.is_some();
    if !status.is_some_and(|status| waits(status) && !status.suspended) {
        return String::new();
    }
    let request = ListQueuesRequest {
        start_estimates: true,
        ..ListQueuesRequest::default()
    };
    let starts = match queues::list(client, request).await {
        Ok(answer) => answer.starts,
        Err(status) => {
            cx.say(format!("{NO_STARTS}: {}", client.failure(status)));
            return String::new();
        }
    };
    let start = start::of(&starts, &named.namespace, &named.name);
    start.map_or(String::new(), |start| {
        start::sentence(start, now_us()) + "\n"
    })
}
