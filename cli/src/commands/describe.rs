//! `muster describe`

use clap::Args;
use muster_proto::v1::{GetJobRequest, GetNodeRequest, ListEventsRequest};
use muster_rpc::credentials::now_us;

use super::{
    get,
    target::{self, Kind},
};
use crate::{args::Format, connect::job_ref, context::Context, fail::Failure, output::describe};

/// Show everything about one job or node.
///
/// For a job: its specification, the members of its world, every rank with its process and last
/// step, and its latest events. For a node: its facts, GPUs, runs and latest events. The values of
/// environment variables are shown with --show-env.
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
            let job = client
                .jobs()
                .get(request)
                .await
                .map_err(|status| client.failure(status))?
                .into_inner()
                .job
                .unwrap_or_default();
            if !text {
                return get::print_one(cx, cx.format(), job);
            }
            let about = ListEventsRequest {
                namespace: named.namespace,
                job: named.name,
                ..ListEventsRequest::default()
            };
            let events = get::list_events(&client, &about).await?;
            cx.print(&describe::job(&job, &events, now_us(), cx.globals.show_env))
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
