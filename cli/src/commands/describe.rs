//! `muster describe`

use clap::Args;
use muster_proto::v1::{
    GetJobRequest, GetNodeRequest, HistoryRecord, JobRef, ListEventsRequest, ListHistoryRequest,
};
use muster_rpc::credentials::now_us;

use super::{
    get, queue,
    target::{self, Kind},
};
use tonic::Code;

use crate::{
    args::Format,
    connect::{Client, job_ref},
    context::Context,
    fail::Failure,
    output::{self, describe},
};

/// Show everything about one job or node.
///
/// For a job: its specification, the members of its world, every rank with its process and last
/// step, and its latest events. For a node: its facts, GPUs, runs and latest events. The values of
/// environment variables are shown with --show-env. Of a job that is deleted it shows what is left of it in the
/// history.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # A job
  muster describe job digits

  # A node
  muster describe node node-1")]
pub(crate) struct Describe {
    /// Kind and name: job NAME | node NAME | job/NAME
    #[arg(value_name = "KIND NAME", required = true, num_args = 1..=2)]
    what: Vec<String>,
}

pub(crate) async fn describe(cx: &Context, args: Describe) -> Result<(), Failure> {
    let target = target::read_or_job(&args.what)?;
    let Some(name) = target.name else {
        return Err(Failure::usage(
            "describe what? KIND NAME, as in: muster describe job digits",
        ));
    };
    let client = cx.connect().await?;
    let text = matches!(cx.format(), Format::Table | Format::Wide);
    match target.kind {
        Kind::Job => {
            let named = job_ref(cx.namespace(), &name);
            let request = client.ask(GetJobRequest {
                r#ref: Some(named.clone()),
            });
            let job = match client.jobs().get(request).await {
                Ok(answer) => answer.into_inner().job.unwrap_or_default(),
                Err(status) if status.code() == Code::NotFound => {
                    let Some(left) = left_of(&client, &named).await else {
                        return Err(client.failure(status));
                    };
                    cx.say("This job is deleted. What is left of it:");
                    return match text {
                        true => cx.print(&output::history::describe(&left)),
                        false => get::print_one(cx, cx.format(), left),
                    };
                }
                Err(status) => return Err(client.failure(status)),
            };
            if !text {
                return get::print_one(cx, cx.format(), job);
            }
            let about = ListEventsRequest {
                namespace: named.namespace,
                job: named.name,
                ..ListEventsRequest::default()
            };
            let events = get::list_events(&client, &about).await?;
            let text = describe::job(&job, &events, now_us(), cx.globals.show_env);
            cx.print(&(text + &queue::start_line(cx, &client, &job).await))
        }
        Kind::Node => {
            let request = client.ask(GetNodeRequest { name: name.clone() });
            let node = client
                .nodes()
                .get(request)
                .await
                .map_err(|status| client.failure(status))?
                .into_inner()
                .node
                .unwrap_or_default();
            if !text {
                return get::print_one(cx, cx.format(), node);
            }
            let events = get::list_events(
                &client,
                &ListEventsRequest {
                    node: name,
                    ..ListEventsRequest::default()
                },
            )
            .await?;
            cx.print(&describe::node(&node, &events, now_us()))
        }
        Kind::Event => Err(Failure::usage(
            "events have no description; see: muster events -o yaml",
        )),
    }
}

/// The newest record of a job of this name. `None`: there is none, or this coordinator keeps no history.
async fn left_of(client: &Client, named: &JobRef) -> Option<HistoryRecord> {
    let request = ListHistoryRequest {
        namespace: named.namespace.clone(),
        name: named.name.clone(),
        page_size: 1,
        ..ListHistoryRequest::default()
    };
    let answer = client.history().list(client.ask(request)).await.ok()?;
    answer.into_inner().records.into_iter().next()
}
