//! `muster get`, and its short forms `muster nodes` and `muster events`.

use std::{collections::BTreeSet, future::Future};

use clap::Args;
use muster_proto::v1::{
    Event, GetJobRequest, GetNodeRequest, Job, ListEventsRequest, ListJobsRequest,
    ListNodesRequest, Node, WatchEventsRequest, WatchJobsRequest, WatchJobsResponse,
    WatchNodesRequest, WatchNodesResponse,
};
use muster_rpc::credentials::now_us;
use tonic::Status;

use super::{
    follow::{self, Away},
    target::{self, Kind},
};
use crate::{
    args::Format,
    connect::{Client, job_ref},
    context::Context,
    fail::Failure,
    output::{self, List, listing::Listed, table::Table},
};

mod choice;
mod foreign;
mod order;
pub(crate) mod queues;
mod shares;
mod watch;

pub(crate) use choice::Choice;
use watch::{Change, Printer, Source};

/// Show jobs, nodes, queues, shares or events.
///
/// Without a name it lists all objects of the kind; jobs that are over come last. Kinds: jobs (job,
/// mj), nodes (node, mn), queues (queue), shares (share), events (event, ev). Queues are the operator's, with quotas; `muster queue` shows
/// which jobs wait; shares are what everybody has used of late, where it decides whose jobs come first. pytorchjobs, tfjobs, jaxjobs, xgboostjobs, paddlejobs,
/// mpijobs, elasticjobs, aitrainingjobs and trainjobs are the jobs from such files, with STATE and -o
/// yaml in the words of the system that they were written for. NODES is the number of nodes that train over the
/// number wanted; RANGE is the number of nodes the job can train with; RESTARTS counts how often
/// its workers were started again (failures, lost nodes, resizes); REASON says why the job is in
/// this state.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # All jobs of this namespace, and of all
  muster get jobs
  muster get jobs -A

  # One job, as the file it came from plus its status
  muster get job digits -o yaml

  # Those that restarted most, last
  muster get jobs --sort-by restarts

  # Stay and print every change
  muster get jobs -w

  # What runs where
  muster get nodes -o wide

  # The quotas of the queues, and what their jobs hold
  muster get queues

  # Who has used how much of late, and so whose jobs come first
  muster get shares

  # What happened to a job
  muster get events digits

  # Jobs from files of Kubeflow, and one with the conditions that its operator would write
  muster get pytorchjobs
  muster get tfjob recommender -o yaml")]
pub(crate) struct Get {
    /// Kind, and optionally name: jobs | job NAME | job/NAME
    #[arg(value_name = "KIND [NAME]", required = true, num_args = 1..=2)]
    what: Vec<String>,

    #[command(flatten)]
    list: ListFlags,

    /// With jobs: also those that are deleted, as the history has them (muster history says more)
    #[arg(long, conflicts_with = "watch")]
    all: bool,

    #[command(flatten)]
    choice: Choice,
}

/// Show the nodes.
///
/// The same as `muster get nodes`. STATE is Ready, Suspect (silent for some heartbeats), Lost
/// (silent for long) or Unknown (not heard since the coordinator started), with Cordoned added for
/// nodes that take no new work, Excluded if somebody else in Kubernetes keeps it away, and Unhealthy
/// for faulty hardware. SLOTS counts worker groups in use.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # All nodes
  muster nodes

  # One node as JSON
  muster nodes node-1 -o json

  # Those of a rack, the busiest first
  muster nodes -l rack=r7 --sort-by slots

  # Stay and print every change
  muster nodes -w")]
pub(crate) struct Nodes {
    /// Only this node
    name: Option<String>,

    /// Stay and print every change
    #[arg(short, long)]
    watch: bool,

    #[command(flatten)]
    choice: Choice,
}

/// Show what happened, in the order in which it was decided.
///
/// The same as `muster get events`. For one job's story with its incidents and their cost, use
/// `muster explain`. With --audit it shows the audit trail instead: who changed something, read logs
/// or was refused, from where, and with which result. That needs the role operator.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Everything, newest last
  muster events

  # One job's events, then new ones as they happen
  muster events digits -w

  # One node's events
  muster events --node node-2

  # Who did what in the last hour
  muster events --audit --since 1h")]
pub(crate) struct Events {
    /// Only events about this job
    job: Option<String>,

    /// Only events about this node
    #[arg(long)]
    node: Option<String>,

    #[command(flatten)]
    trail: super::audit::Flags,

    #[command(flatten)]
    list: ListFlags,
}

#[derive(Debug, Args)]
pub(crate) struct ListFlags {
    /// Show jobs and events of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,

    /// Stay and print every change
    #[arg(short, long)]
    watch: bool,
}

pub(crate) async fn get(cx: &Context, args: Get) -> Result<(), Failure> {
    if let Some(name) = queues::asked(&args.what) {
        return queues::get(cx, &args, name).await;
    }
    if shares::asked(&args.what)? {
        return shares::get(cx, &args).await;
    }
    let target = target::read(&args.what)?;
    args.choice.is_of_a_list(target.name.as_deref())?;
    let Choice { selector, sort_by } = &args.choice;
    let is_node = target.kind == Kind::Node;
    if selector.is_some() && !is_node {
        return Err(Failure::usage(
            "--selector: only nodes have labels; jobs are found by namespace (-n) and name",
        ));
    }
    if sort_by.is_some() && !is_node && (target.kind != Kind::Job || target.origin.is_some()) {
        return Err(Failure::usage(
            "--sort-by: `get jobs` and `get nodes` can be sorted; events are in the order in which things happened",
        ));
    }
    if args.all && !target.is_all_jobs() {
        return Err(Failure::usage(
            "--all is for `muster get jobs`; one job that is deleted is shown by muster describe job NAME",
        ));
    }
    if let Some(kind) = target.origin {
        return foreign::get(cx, kind, target.name.as_deref(), &args.list).await;
    }
    match target.kind {
        Kind::Job => jobs(cx, target.name, &args.list, args.all, sort_by.as_deref()).await,
        Kind::Node => {
            nodes(
                cx,
                Nodes {
                    name: target.name,
                    watch: args.list.watch,
                    choice: args.choice,
                },
            )
            .await
        }
        Kind::Event => {
            events(
                cx,
                Events {
                    job: target.name,
                    node: None,
                    trail: super::audit::Flags::default(),
                    list: args.list,
                },
            )
            .await
        }
    }
}

async fn jobs(
    cx: &Context,
    name: Option<String>,
    flags: &ListFlags,
    deleted: bool,
    sort_by: Option<&str>,
) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let namespaced = flags.all_namespaces && name.is_none();
    let namespace = if namespaced {
        String::new()
    } else {
        cx.namespace()
    };
    if flags.watch {
        let jobs = Jobs {
            client: &client,
            namespace,
            name: name.unwrap_or_default(),
        };
        return watch::print(cx, &client, namespaced, &jobs).await;
    }
    if let Some(name) = name {
        let request = client.ask(GetJobRequest {
            r#ref: Some(job_ref(namespace, &name)),
        });
        let answer = client
            .jobs()
            .get(request)
            .await
            .map_err(|status| client.failure(status))?;
        return print_one(cx, cx.format(), answer.into_inner().job.unwrap_or_default());
    }
    let mut listed = all_jobs(&client, &namespace).await?;
    if deleted {
        super::history::add_deleted(cx, &client, &namespace, &mut listed).await?;
    }
    if let Some(column) = sort_by {
        order::jobs(&mut listed, column)?;
    }
    let place = if namespaced {
        String::new()
    } else {
        format!(" in namespace {namespace}")
    };
    print_list(cx, listed, namespaced, &format!("No jobs found{place}."))
}

/// Changes of jobs.
struct Jobs<'a> {
    client: &'a Client,
    /// Empty: all.
    namespace: String,
    /// Empty: all.
    name: String,
}

impl Source for Jobs<'_> {
    type Item = Job;
    type Message = WatchJobsResponse;

    async fn watch(&self) -> Result<tonic::Streaming<WatchJobsResponse>, Status> {
        let request = WatchJobsRequest {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        };
        Ok(self.client.jobs().watch(request).await?.into_inner())
    }

    async fn read(&self, message: WatchJobsResponse) -> Result<Change<Job>, Status> {
        Ok(Change::of(message.job, message.deleted))
    }

    async fn keys(&self) -> Result<BTreeSet<String>, Failure> {
        let jobs = all_jobs(self.client, &self.namespace).await?;
        Ok(jobs.iter().map(Listed::key).collect())
    }
}

/// Changes of nodes.
struct WatchedNodes<'a> {
    client: &'a Client,
    /// Empty: all.
    name: String,
}

impl Source for WatchedNodes<'_> {
    type Item = Node;
    type Message = WatchNodesResponse;

    async fn watch(&self) -> Result<tonic::Streaming<WatchNodesResponse>, Status> {
        let name = self.name.clone();
        let request = WatchNodesRequest { name };
        Ok(self.client.nodes().watch(request).await?.into_inner())
    }

    async fn read(&self, message: WatchNodesResponse) -> Result<Change<Node>, Status> {
        Ok(Change::of(message.node, message.deleted))
    }

    async fn keys(&self) -> Result<BTreeSet<String>, Failure> {
        let nodes = all_nodes(self.client).await?;
        Ok(nodes.iter().map(Listed::key).collect())
    }
}

/// The jobs of one namespace, or of all if it is empty. Those that are over come last.
pub(crate) async fn all_jobs(client: &Client, namespace: &str) -> Result<Vec<Job>, Failure> {
    let mut listed = all_pages(client, |page_token| {
        let request = client.ask(ListJobsRequest {
            namespace: namespace.to_owned(),
            page_size: 0,
            page_token,
        });
        let mut jobs = client.jobs();
        async move {
            jobs.list(request)
                .await
                .map(|answer| answer.into_inner())
                .map(|page| (page.jobs, page.next_page_token))
        }
    })
    .await?;
    // The sort is stable, so each half keeps the order of names.
    listed.sort_by_key(|job| job.status.as_ref().is_some_and(follow::is_over));
    Ok(listed)
}

pub(crate) async fn nodes(cx: &Context, args: Nodes) -> Result<(), Failure> {
    args.choice.is_of_a_list(args.name.as_deref())?;
    let client = cx.connect().await?;
    let name = args.name.map(|name| {
        name.strip_prefix("node/")
            .map(str::to_owned)
            .unwrap_or(name)
    });
    if args.watch {
        let nodes = WatchedNodes {
            client: &client,
            name: name.unwrap_or_default(),
        };
        return watch::print(cx, &client, false, &nodes).await;
    }
    if let Some(name) = name {
        let answer = client
            .nodes()
            .get(client.ask(GetNodeRequest { name }))
            .await
            .map_err(|status| client.failure(status))?;
        return print_one(
            cx,
            cx.format(),
            answer.into_inner().node.unwrap_or_default(),
        );
    }
    let mut listed = all_nodes(&client).await?;
    if let Some(selector) = &args.choice.selector {
        listed.retain(|node| selector.takes(&node.labels));
    }
    if let Some(column) = &args.choice.sort_by {
        order::nodes(&mut listed, column)?;
    }
    print_list(cx, listed, false, "No nodes found.")
}

pub(crate) async fn all_nodes(client: &Client) -> Result<Vec<Node>, Failure> {
    all_pages(client, |page_token| {
        let request = client.ask(ListNodesRequest {
            page_token,
            ..ListNodesRequest::default()
        });
        let mut nodes = client.nodes();
        async move {
            nodes
                .list(request)
                .await
                .map(|answer| answer.into_inner())
                .map(|page| (page.nodes, page.next_page_token))
        }
    })
    .await
}

pub(crate) async fn events(cx: &Context, args: Events) -> Result<(), Failure> {
    if args.trail.audit {
        return super::audit::audit(cx, &args.trail).await;
    }
    let client = cx.connect().await?;
    let job = args
        .job
        .as_deref()
        .map(|job| job.strip_prefix("job/").unwrap_or(job).to_owned())
        .unwrap_or_default();
    let node = args
        .node
        .as_deref()
        .map(|node| node.strip_prefix("node/").unwrap_or(node).to_owned())
        .unwrap_or_default();
    // Events of nodes belong to no namespace. So without a job's name all events are shown, unless
    // the user asks for a namespace.
    let namespace = match (&cx.globals.namespace, job.is_empty()) {
        (_, _) if args.list.all_namespaces => String::new(),
        (Some(namespace), _) => namespace.clone(),
        (None, false) => cx.namespace(),
        (None, true) => String::new(),
    };
    let about = ListEventsRequest {
        namespace,
        job,
        node,
        page_size: 0,
        page_token: String::new(),
    };
    let listed = list_events(&client, &about).await?;
    let after = listed.last().map_or(0, |event| event.sequence);
    if !args.list.watch {
        return print_list(cx, listed, args.list.all_namespaces, "No events found.");
    }
    let mut printer = Printer::new(cx, args.list.all_namespaces);
    for event in listed {
        printer.print(cx, &event)?;
    }
    let mut seen = after;
    let mut away = Away::default();
    loop {
        let ListEventsRequest {
            namespace,
            job,
            node,
            ..
        } = about.clone();
        let request = WatchEventsRequest {
            namespace,
            job,
            node,
            after: seen,
        };
        let ended = match client.events().watch(request).await {
            Err(status) => status,
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match stream.message().await {
                        Ok(Some(change)) => {
                            away.is_back(cx);
                            let Some(event) = change.event else { continue };
                            seen = seen.max(event.sequence);
                            printer.print(cx, &event)?;
                        }
                        Ok(None) => break Status::unavailable("the coordinator ended the watch"),
                        Err(status) => break status,
                    }
                }
            }
        };
        away.wait(cx, &client, ended).await?;
    }
}

/// All events that match, oldest first.
pub(crate) async fn list_events(
    client: &Client,
    about: &ListEventsRequest,
) -> Result<Vec<Event>, Failure> {
    all_pages(client, |page_token| {
        let request = client.ask(ListEventsRequest {
            page_token,
            ..about.clone()
        });
        let mut events = client.events();
        async move {
            events
                .list(request)
                .await
                .map(|answer| answer.into_inner())
                .map(|page| (page.events, page.next_page_token))
        }
    })
    .await
}

/// The most objects that one list shows: the coordinator keeps at most 10,000 jobs and some 110,000
/// events.
const LIST_MAX: usize = 120_000;

async fn all_pages<T, F, Fut>(client: &Client, page: F) -> Result<Vec<T>, Failure>
where
    F: FnMut(String) -> Fut,
    Fut: Future<Output = Result<(Vec<T>, String), Status>>,
{
    pages(client, LIST_MAX, page).await
}

/// The first pages of a list, with at least so many objects if there are so many.
pub(crate) async fn pages<T, F, Fut>(
    client: &Client,
    most: usize,
    mut page: F,
) -> Result<Vec<T>, Failure>
where
    F: FnMut(String) -> Fut,
    Fut: Future<Output = Result<(Vec<T>, String), Status>>,
{
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let (items, next) = page(token).await.map_err(|status| client.failure(status))?;
        all.extend(items);
        if next.is_empty() || all.len() >= most.min(LIST_MAX) {
            return Ok(all);
        }
        token = next;
    }
}

/// The document of a whole object, without secrets unless the user asks for them.
fn document<T: Listed>(cx: &Context, item: T) -> T::Document {
    if cx.globals.show_env {
        item.into()
    } else {
        item.discreet().into()
    }
}

/// Prints one object in any format.
pub(crate) fn print_one<T: Listed>(cx: &Context, format: Format, item: T) -> Result<(), Failure> {
    match format {
        Format::Json => cx.print(&output::json(&document(cx, item))),
        Format::Yaml => cx.print(&output::yaml(&document(cx, item))),
        _ => print_list(cx, vec![item], false, ""),
    }
}

pub(crate) fn print_list<T: Listed>(
    cx: &Context,
    items: Vec<T>,
    namespaced: bool,
    none: &str,
) -> Result<(), Failure> {
    let wide = cx.format() == Format::Wide;
    match cx.format() {
        Format::Json => cx.print(&output::json(&List::new(
            items.into_iter().map(|item| document(cx, item)).collect(),
        ))),
        Format::Yaml => cx.print(&output::yaml(&List::new(
            items.into_iter().map(|item| document(cx, item)).collect(),
        ))),
        Format::Name => cx.print(&items.iter().map(name_line).collect::<String>()),
        Format::Table | Format::Wide if items.is_empty() => {
            cx.say(none);
            Ok(())
        }
        Format::Table | Format::Wide => {
            let now = now_us();
            let rows: Vec<_> = items
                .iter()
                .map(|item| item.row(now, wide, namespaced))
                .collect();
            cx.print(&Table::new(T::heads(wide, namespaced)).render(&rows, !cx.globals.no_headers))
        }
    }
}

fn name_line<T: Listed>(item: &T) -> String {
    format!("{}/{}\n", item.kind(), item.name())
}
