//! `muster get pytorchjobs` and the other kinds that jobs are from: the same jobs, in the words of the
//! system that their file was written for.

use muster_foreign::status::{Shown, Status, shown, status};
use muster_proto::v1::{self, ExplainRequest, GetJobRequest};
use serde::Serialize;

use super::ListFlags;
use crate::{
    args::Format,
    connect::{Client, job_ref},
    context::Context,
    fail::Failure,
    output::{self, List, listing::Listed, table::Table, words},
};
use muster_rpc::credentials::now_us;

mod life;

use life::Story;

/// A job as its own system would show it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    api_version: String,
    kind: String,
    metadata: Metadata,
    status: Status,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    creation_timestamp: String,
}

pub(super) async fn get(
    cx: &Context,
    kind: &Shown,
    name: Option<&str>,
    flags: &ListFlags,
) -> Result<(), Failure> {
    if flags.watch {
        return Err(Failure::usage(format!(
            "-w shows jobs as Muster sees them: muster get jobs -w, without {}",
            kind.plural
        )));
    }
    let client = cx.connect().await?;
    let one = name.is_some();
    let namespaced = flags.all_namespaces && !one;
    let mut jobs = match name {
        Some(name) => vec![named(cx, &client, kind, name).await?],
        None => super::all_jobs(&client, cx, namespaced).await?,
    };
    jobs.retain(|job| is_of(job, kind));
    let whole = matches!(cx.format(), Format::Json | Format::Yaml);
    let mut documents = Vec::new();
    for job in jobs {
        let story = match whole || life::needs_story(&job) {
            true => story(&client, &job).await?,
            false => Story::default(),
        };
        documents.extend(document(&job, &story).map(|document| (job, document)));
    }
    match cx.format() {
        Format::Json if one => cx.print(&first(documents, output::json)),
        Format::Yaml if one => cx.print(&first(documents, output::yaml)),
        Format::Json => cx.print(&output::json(&List::new(bare(documents)))),
        Format::Yaml => cx.print(&output::yaml(&List::new(bare(documents)))),
        Format::Name => {
            let line =
                |(job, _): &(v1::Job, Document)| format!("{}/{}\n", kind.singular(), job.name());
            cx.print(&documents.iter().map(line).collect::<String>())
        }
        Format::Table | Format::Wide if documents.is_empty() => {
            let place = match namespaced {
                true => String::new(),
                false => format!(" in namespace {}", cx.namespace()),
            };
            cx.say(format!("No {} found{place}.", kind.plural));
            Ok(())
        }
        Format::Table | Format::Wide => cx.print(&table(cx, &documents, namespaced)),
    }
}

/// The columns of jobs, with the state in the words of their system.
fn table(cx: &Context, documents: &[(v1::Job, Document)], namespaced: bool) -> String {
    let wide = cx.format() == Format::Wide;
    let heads = v1::Job::heads(wide, namespaced);
    let state = heads.iter().position(|head| *head == "STATE");
    let row = |(job, document): &(v1::Job, Document)| {
        let mut row = job.row(now_us(), wide, namespaced);
        if let Some(cell) = state.and_then(|state| row.get_mut(state)) {
            document.status.state().clone_into(cell);
        }
        row
    };
    let rows: Vec<_> = documents.iter().map(row).collect();
    Table::new(heads).render(&rows, !cx.globals.no_headers)
}

fn bare(documents: Vec<(v1::Job, Document)>) -> Vec<Document> {
    documents
        .into_iter()
        .map(|(_, document)| document)
        .collect()
}

fn first(documents: Vec<(v1::Job, Document)>, text: fn(&Document) -> String) -> String {
    bare(documents).first().map(text).unwrap_or_default()
}

fn origin(job: &v1::Job) -> Option<&v1::Origin> {
    job.spec.as_ref()?.origin.as_ref()
}

fn is_of(job: &v1::Job, kind: &Shown) -> bool {
    origin(job)
        .and_then(|origin| shown(&origin.kind, &origin.api_version))
        .is_some_and(|of| (of.kind, of.group) == (kind.kind, kind.group))
}

/// The job of that name, if it is of this kind.
async fn named(
    cx: &Context,
    client: &Client,
    kind: &Shown,
    name: &str,
) -> Result<v1::Job, Failure> {
    let request = client.ask(GetJobRequest {
        r#ref: Some(job_ref(cx.namespace(), name)),
    });
    let answer = client.jobs().get(request).await;
    let answer = answer.map_err(|status| client.failure(status))?;
    let job = answer.into_inner().job.unwrap_or_default();
    if is_of(&job, kind) {
        return Ok(job);
    }
    let is = match origin(&job) {
        Some(origin) => format!("is from a {} of {}", origin.kind, origin.api_version),
        None => "was submitted as a MusterJob".to_owned(),
    };
    Err(Failure::request(format!(
        "job {name} {is}, not from a {}: muster get job {name}",
        kind.kind
    )))
}

async fn story(client: &Client, job: &v1::Job) -> Result<Story, Failure> {
    let request = client.ask(ExplainRequest {
        r#ref: job.r#ref.clone(),
    });
    let answer = client.jobs().explain(request).await;
    let answer = answer
        .map_err(|status| client.failure(status))?
        .into_inner();
    Ok(Story {
        incidents: answer.incidents,
        events: answer.timeline,
    })
}

fn document(job: &v1::Job, story: &Story) -> Option<Document> {
    let named = job.r#ref.clone().unwrap_or_default();
    let origin = muster_core::spec::Origin {
        api_version: origin(job)?.api_version.clone(),
        kind: origin(job)?.kind.clone(),
        groups: Vec::new(),
    };
    let status = status(&life::of(job, &origin, &named, story))?;
    Some(Document {
        api_version: origin.api_version,
        kind: origin.kind,
        metadata: Metadata {
            name: named.name,
            namespace: named.namespace,
            uid: job.uid.clone(),
            creation_timestamp: words::utc_seconds(job.created_unix_us),
        },
        status,
    })
}
