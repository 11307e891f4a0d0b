//! `muster get pytorchjobs` and the other kinds that jobs are from: the same jobs, in the words of the
//! system that their file was written for.

use std::collections::BTreeSet;

use muster_foreign::status::{Shown, Status, shown, status};
use muster_proto::v1::{self, ExplainRequest, GetJobRequest};
use serde::Serialize;
use tonic::{Code, Status as Answer};

use super::{
    Jobs, ListFlags,
    watch::{self, Change, Source},
};
use crate::{
    args::Format,
    connect::{Client, job_ref},
    context::Context,
    fail::Failure,
    output::{listing::Listed, words},
};

mod life;

use life::Story;

/// A job as its own system would show it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    api_version: String,
    kind: String,
    metadata: Metadata,
    status: Status,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    creation_timestamp: String,
}

/// A job of another system's kind, as a list shows it.
#[derive(Clone, Debug)]
struct Told {
    job: v1::Job,
    document: Document,
    /// As `pytorchjob`.
    kind: &'static str,
}

impl From<Told> for Document {
    fn from(told: Told) -> Self {
        told.document
    }
}

/// The columns are those of jobs, with the state in the words of their system.
impl Listed for Told {
    type Document = Document;

    fn kind(&self) -> &'static str {
        self.kind
    }

    fn heads(wide: bool, namespaced: bool) -> Vec<&'static str> {
        v1::Job::heads(wide, namespaced)
    }

    fn row(&self, now_us: u64, wide: bool, namespaced: bool) -> Vec<String> {
        let mut row = self.job.row(now_us, wide, namespaced);
        let state = Self::heads(wide, namespaced)
            .iter()
            .position(|head| *head == "STATE");
        if let Some(cell) = state.and_then(|state| row.get_mut(state)) {
            self.document.status.state().clone_into(cell);
        }
        row
    }

    fn calm(&self) -> Self {
        Self {
            job: self.job.calm(),
            ..self.clone()
        }
    }

    fn name(&self) -> String {
        self.job.name()
    }

    fn key(&self) -> String {
        self.job.key()
    }
}

pub(super) async fn get(
    cx: &Context,
    kind: &Shown,
    name: Option<&str>,
    flags: &ListFlags,
) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let namespaced = flags.all_namespaces && name.is_none();
    let namespace = match namespaced {
        true => String::new(),
        false => cx.namespace(),
    };
    let whole = matches!(cx.format(), Format::Json | Format::Yaml);
    if flags.watch {
        if let Some(name) = name {
            is_none_or_of(cx, &client, kind, name).await?;
        }
        let jobs = Watched {
            jobs: Jobs {
                client: &client,
                namespace,
                name: name.unwrap_or_default().to_owned(),
            },
            kind,
            whole,
        };
        return watch::print(cx, &client, namespaced, &jobs).await;
    }
    let jobs = match name {
        Some(name) => vec![named(cx, &client, kind, name).await?],
        None => super::all_jobs(&client, &namespace).await?,
    };
    let mut all = Vec::new();
    for job in jobs {
        let told = told(&client, job, kind, whole).await;
        all.extend(told.map_err(|status| client.failure(status))?);
    }
    match name {
        Some(_) => all
            .into_iter()
            .try_for_each(|one| super::print_one(cx, cx.format(), one)),
        None => {
            let place = match namespaced {
                true => String::new(),
                false => format!(" in namespace {namespace}"),
            };
            let none = format!("No {} found{place}.", kind.plural);
            super::print_list(cx, all, namespaced, &none)
        }
    }
}

/// Changes of the jobs of one kind.
struct Watched<'a> {
    jobs: Jobs<'a>,
    kind: &'a Shown,
    whole: bool,
}

impl Source for Watched<'_> {
    type Item = Told;
    type Message = v1::WatchJobsResponse;

    async fn watch(&self) -> Result<tonic::Streaming<v1::WatchJobsResponse>, Answer> {
        self.jobs.watch().await
    }

    async fn read(&self, message: v1::WatchJobsResponse) -> Result<Change<Told>, Answer> {
        let job = match self.jobs.read(message).await? {
            Change::Is(job) => job,
            Change::Gone(key) => return Ok(Change::Gone(key)),
            Change::Other => return Ok(Change::Other),
        };
        match told(self.jobs.client, job, self.kind, self.whole).await {
            Ok(told) => Ok(told.map_or(Change::Other, Change::Is)),
            // It was deleted since. The watch says so next.
            Err(status) if status.code() == Code::NotFound => Ok(Change::Other),
            Err(status) => Err(status),
        }
    }

    async fn keys(&self) -> Result<BTreeSet<String>, Failure> {
        self.jobs.keys().await
    }
}

/// `None`: it is not of this kind.
async fn told(
    client: &Client,
    job: v1::Job,
    kind: &Shown,
    whole: bool,
) -> Result<Option<Told>, Answer> {
    if !is_of(&job, kind) {
        return Ok(None);
    }
    let story = match whole || life::needs_story(&job) {
        true => story(client, &job).await?,
        false => Story::default(),
    };
    Ok(document(&job, &story).map(|document| Told {
        job,
        document,
        kind: kind.singular(),
    }))
}

fn origin(job: &v1::Job) -> Option<&v1::Origin> {
    job.spec.as_ref()?.origin.as_ref()
}

fn is_of(job: &v1::Job, kind: &Shown) -> bool {
    origin(job)
        .and_then(|origin| shown(&origin.kind, &origin.api_version))
        .is_some_and(|of| (of.kind, of.group) == (kind.kind, kind.group))
}

/// Whether a watch may wait for the job of that name: there is none yet, or it is of this kind.
async fn is_none_or_of(
    cx: &Context,
    client: &Client,
    kind: &Shown,
    name: &str,
) -> Result<(), Failure> {
    let request = client.ask(GetJobRequest {
        r#ref: Some(job_ref(cx.namespace(), name)),
    });
    match client.jobs().get(request).await {
        Ok(answer) => checked(answer.into_inner(), kind, name).map(drop),
        Err(status) if status.code() == Code::NotFound => Ok(()),
        Err(status) => Err(client.failure(status)),
    }
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
    checked(answer.into_inner(), kind, name)
}

fn checked(answer: v1::GetJobResponse, kind: &Shown, name: &str) -> Result<v1::Job, Failure> {
    let job = answer.job.unwrap_or_default();
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

async fn story(client: &Client, job: &v1::Job) -> Result<Story, Answer> {
    let request = client.ask(ExplainRequest {
        r#ref: job.r#ref.clone(),
    });
    let answer = client.jobs().explain(request).await?.into_inner();
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
