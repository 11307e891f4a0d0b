//! What the pages ask of the coordinator.

use muster_core::fleet::node_list::{self, Wanted};
use muster_page::{Choice, FleetStory, JobStory, Line, ROWS, waiting::QueueStory};
use muster_proto::{
    convert::{jobs, node_list::sums},
    v1::{
        Event, ExplainRequest, GetNodeRequest, Job, JobRef, ListEventsRequest, ListNodesRequest,
        ListQueuesRequest, LogsRequest, Node, NodeSearch, Queue,
    },
};
use tonic::Status;

use crate::{
    commands::get,
    connect::Client,
    fail::Failure,
    output::{self, listing::Listed},
};

/// Lines of each rank on a page of output.
const LINES: u32 = 200;
/// Bytes of output on one page.
const OUTPUT_MAX: usize = 1 << 20;

/// Why there is nothing to show.
pub(crate) enum Unanswered {
    NotFound(String),
    Refused(String),
    Failed(String),
}

impl Unanswered {
    fn of(client: &Client, status: Status) -> Self {
        let code = status.code();
        let why = client.failure(status).to_string();
        match code {
            tonic::Code::NotFound => Self::NotFound(why),
            tonic::Code::PermissionDenied | tonic::Code::Unauthenticated => Self::Refused(why),
            _ => Self::Failed(why),
        }
    }
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(why) => Self::Refused(why),
            other => Self::Failed(other.to_string()),
        }
    }
}

type Answer<T> = Result<T, Unanswered>;

/// The jobs of a namespace, or of all if it is empty, without the values of their environment.
pub(crate) async fn jobs(client: &Client, namespace: &str) -> Answer<Vec<Job>> {
    let jobs = get::all_jobs(client, namespace).await?;
    Ok(jobs.into_iter().map(Listed::discreet).collect())
}

/// Who waits, for whom, and until when; and the queues with quotas. The order is of use without estimates and without quotas.
pub(crate) async fn queue(client: &Client, namespace: &str) -> Answer<QueueStory> {
    let mut story = QueueStory {
        // Positions count the jobs of all namespaces.
        jobs: jobs(client, "").await?,
        namespace: namespace.to_owned(),
        ..QueueStory::default()
    };
    let (queues, missing) = get::queues::of_waiting(client, true).await;
    story.queues = queues;
    story.missing = missing.unwrap_or_default();
    Ok(story)
}

pub(crate) async fn queues(client: &Client) -> Answer<Vec<Queue>> {
    let answer = get::queues::list(client, ListQueuesRequest::default()).await;
    let answer = answer.map_err(|status| Unanswered::of(client, status))?;
    Ok(answer.queues)
}

/// The nodes of one page, as the coordinator finds them.
pub(crate) async fn fleet(client: &Client, choice: &Choice) -> Answer<FleetStory> {
    let (mut nodes, mut skip) = (Vec::new(), choice.first(usize::MAX));
    loop {
        let request = client.ask(ListNodesRequest {
            page_size: (ROWS - nodes.len()) as u32,
            page_token: String::new(),
            search: Some(NodeSearch {
                text: choice.text.clone(),
                skip: u32::try_from(skip + nodes.len()).unwrap_or(u32::MAX),
            }),
        });
        let answer = client.nodes().list(request).await;
        let answer = answer
            .map_err(|status| Unanswered::of(client, status))?
            .into_inner();
        let Some(sums) = answer.sums else {
            return searched_here(client, choice).await;
        };
        let all = sums.matching as usize;
        if choice.first(all) < skip {
            skip = choice.first(all);
            nodes.clear();
            continue;
        }
        // An answer has a bounded size, and may hold fewer nodes than were asked for.
        let is_last = answer.nodes.is_empty();
        nodes.extend(answer.nodes);
        if is_last || nodes.len() >= ROWS.min(all - skip) {
            return Ok(FleetStory { nodes, sums });
        }
    }
}

/// The same of a coordinator that is too old to search: it is asked for all nodes.
async fn searched_here(client: &Client, choice: &Choice) -> Answer<FleetStory> {
    let wanted = Wanted {
        text: &choice.text,
        skip: 0,
        most: usize::MAX,
    };
    let found = node_list::find(nodes(client).await?, wanted);
    let (sums, first) = (sums(&found), choice.first(found.matching));
    let nodes = found.nodes.into_iter().skip(first).take(ROWS).collect();
    Ok(FleetStory { nodes, sums })
}

pub(crate) async fn nodes(client: &Client) -> Answer<Vec<Node>> {
    Ok(get::all_nodes(client).await?)
}

/// Events of a namespace or about a node; about everything if both are empty. Oldest first.
pub(crate) async fn events(client: &Client, namespace: &str, node: &str) -> Answer<Vec<Event>> {
    let about = ListEventsRequest {
        namespace: namespace.to_owned(),
        node: node.to_owned(),
        ..ListEventsRequest::default()
    };
    Ok(get::list_events(client, &about).await?)
}

pub(crate) async fn node(client: &Client, name: &str) -> Answer<Node> {
    let request = client.ask(GetNodeRequest {
        name: name.to_owned(),
    });
    let answer = client.nodes().get(request).await;
    let answer = answer.map_err(|status| Unanswered::of(client, status))?;
    Ok(answer.into_inner().node.unwrap_or_default())
}

/// The whole story of a job, without the values of its environment.
pub(crate) async fn story(client: &Client, job: JobRef) -> Answer<JobStory> {
    let request = client.ask(ExplainRequest { r#ref: Some(job) });
    let answer = client.jobs().explain(request).await;
    let mut explained = answer
        .map_err(|status| Unanswered::of(client, status))?
        .into_inner();
    explained.job = explained.job.map(Listed::discreet);
    let job = explained.job.clone().unwrap_or_default();
    Ok(JobStory {
        explained,
        spec: output::yaml(&jobs::document(job.r#ref, job.spec)),
    })
}

/// The last lines of all ranks, or of one, in the order in which they were written.
pub(crate) async fn logs(client: &Client, job: JobRef, rank: Option<u32>) -> Answer<Vec<Line>> {
    let request = client.ask(LogsRequest {
        r#ref: Some(job),
        rank,
        tail: Some(LINES),
        ..LogsRequest::default()
    });
    let refused = |status| Unanswered::of(client, status);
    let mut stream = client
        .jobs()
        .logs(request)
        .await
        .map_err(refused)?
        .into_inner();
    let mut lines: Vec<(String, Line)> = Vec::new();
    let mut bytes = 0;
    while let Some(part) = stream.message().await.map_err(refused)? {
        for written in &part.lines {
            bytes += written.len();
            lines.push(line(written, part.rank, &part.node, part.generation));
        }
        if bytes > OUTPUT_MAX {
            break;
        }
    }
    // The sort is stable, and times have one width: the lines of one rank keep their order.
    lines.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(lines.into_iter().map(|(_, line)| line).collect())
}

/// A line as a node keeps it: `2026-11-27T09:10:59.250637007Z stdout F step=1569`.
fn line(written: &str, rank: u32, node: &str, generation: u64) -> (String, Line) {
    let mut parts = written.splitn(4, ' ');
    let (time, _, _) = (parts.next(), parts.next(), parts.next());
    let text = parts.next().unwrap_or_default().chars();
    let line = Line {
        rank,
        node: node.to_owned(),
        generation,
        text: text.map(|c| if c.is_control() { ' ' } else { c }).collect(),
    };
    (time.unwrap_or_default().to_owned(), line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_line_is_a_time_and_a_text() {
        let (time, line) = line(
            "2026-11-27T09:10:59.250637007Z stdout F step=1 a=b",
            3,
            "n1",
            2,
        );
        assert_eq!(time, "2026-11-27T09:10:59.250637007Z");
        assert_eq!(line.text, "step=1 a=b");
        let (time, line) = super::line("", 3, "n1", 2);
        assert_eq!((time.as_str(), line.text.as_str()), ("", ""));
    }
}
