//! `muster queue`

use clap::Args;

use super::get;
use crate::{
    args::Format,
    context::Context,
    fail::Failure,
    output::{self, List, queue, table::Table},
};

/// Show the jobs that wait for nodes, in the order in which they get them.
///
/// The higher priority goes first, then the older job. AHEAD is the job before it that waits; LACKS is what
/// it lacks, as one word: NodesReserved means that there is room, which is kept for a job ahead. A job that
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
    let mut waiting = queue::waiting(&jobs);
    if !args.all_namespaces {
        let namespace = cx.namespace();
        waiting.retain(|job| job.namespace == namespace);
    }
    match cx.format() {
        Format::Json => cx.print(&output::json(&List::new(waiting))),
        Format::Yaml => cx.print(&output::yaml(&List::new(waiting))),
        Format::Name => {
            let names = waiting.iter().map(|job| format!("job/{}\n", job.name));
            cx.print(&names.collect::<String>())
        }
        Format::Table | Format::Wide if waiting.is_empty() => {
            cx.say("No jobs wait for nodes, other jobs or their time.");
            Ok(())
        }
        Format::Table | Format::Wide => {
            let wide = cx.format() == Format::Wide;
            let now = muster_rpc::credentials::now_us();
            let row = |job: &queue::Waiting| job.row(now, wide, args.all_namespaces);
            let rows: Vec<Vec<String>> = waiting.iter().map(row).collect();
            let heads = queue::heads(wide, args.all_namespaces);
            cx.print(&Table::new(heads).render(&rows, !cx.globals.no_headers))
        }
    }
}
