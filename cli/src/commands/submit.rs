//! `muster submit`

use std::{fs, io::Read, time::Duration};

use clap::{Args, ValueEnum};
use muster_core::{
    nccl::lint,
    period,
    spec::{Affinity, JobDocument, SpecDocument},
};
use muster_foreign::{Options, Remark, Site, Verdict, split_words, tree::parse_all};
use muster_proto::{
    convert::jobs,
    v1::{self, JobRef, SubmitRequest},
};

use super::{follow, get};
use crate::{
    args::Format,
    connect::Client,
    context::Context,
    fail::Failure,
    jobfile::{self, FILE_MAX, Jobs, Reader},
    output::{listing::HIDDEN, plan},
};

/// Submit the jobs of a file.
///
/// The file has MusterJob documents in YAML or JSON, or jobs of other systems as they are:
/// PyTorchJob, ElasticJob, TrainJob and more, and batch scripts of Slurm with their #SBATCH lines (muster
/// convert shows what becomes of them). It is checked here first; everything that is wrong is reported at once with file, line and field, and
/// then no job of the file is submitted. A workingDir that is relative, or not given, is taken from
/// the current directory of this command, as torchrun would.
///
/// A job that exists already with the same content is not an error, so a script may be run again.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Submit a job
  muster submit -f job.yaml

  # Submit, wait for the end, and fail if the job fails
  muster submit -f job.yaml --wait

  # Read the job from standard input
  sed 's/replicas: 2/replicas: 4/' job.yaml | muster submit -f -

  # Let the coordinator check the job without running it
  muster submit -f job.yaml --dry-run=server

  # A PyTorchJob of a cluster; the map says what its images and claims are on these nodes
  muster submit -f pytorchjob.yaml --site site.yaml

  # A batch script of Slurm, on nodes of Muster; each submission is another job
  muster submit -f train.sbatch")]
pub(crate) struct Submit {
    /// Job file; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: String,

    /// Check only: here (client), or also with the coordinator (server)
    #[arg(long, value_enum, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "client")]
    dry_run: Option<DryRun>,

    #[command(flatten)]
    foreign: Foreign,

    #[command(flatten)]
    end: Ending,
}

/// How to read the job files of other systems.
#[derive(Debug, Default, Args)]
pub(crate) struct Foreign {
    /// Site map: what the images, claims and classes of a cluster are on these nodes
    #[arg(long, value_name = "FILE")]
    site: Option<String>,

    /// What to run where a file only names an image, as 'python3 /opt/train.py'
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,

    /// Refuse a file of another system if any of its fields has no effect here
    #[arg(long)]
    strict: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DryRun {
    Client,
    Server,
}

/// What to do after a job was accepted.
#[derive(Debug, Default, Args)]
pub(crate) struct Ending {
    /// Wait until the job is over; exit 0, 3 (failed) or 6 (cancelled)
    #[arg(long)]
    pub(crate) wait: bool,

    /// With --wait, exit with the failing rank's own exit code
    #[arg(long, requires = "wait")]
    pub(crate) mirror_exit_code: bool,

    /// With --wait, give up after this long and exit 4; the job goes on
    #[arg(long, requires = "wait", value_parser = period::parse, value_name = "PERIOD")]
    pub(crate) timeout: Option<Duration>,
}

pub(crate) async fn submit(cx: &Context, args: Submit) -> Result<(), Failure> {
    let jobs = read_jobs(cx, &args.file, &args.foreign)?;
    warn_of_fields(cx, &args.file, &jobs, Verdict::Warning);
    let mut documents = jobs.documents;
    if documents.len() == 1 {
        return Box::pin(send(cx, documents.remove(0), args.dry_run, &args.end)).await;
    }
    let documents = those_waited_for_first(documents, &cx.namespace());
    if args.dry_run != Some(DryRun::Client) {
        // All or none: what the coordinator would refuse is refused before the first is submitted.
        let client = cx.connect().await?;
        for document in &documents {
            let alone = without_neighbours(document, &documents, &cx.namespace());
            match args.dry_run {
                None => Box::pin(ask(cx, &client, alone, true)).await.map(|_| ())?,
                _ => Box::pin(send(cx, alone, args.dry_run, &Ending::default())).await?,
            }
        }
    }
    if args.dry_run == Some(DryRun::Server) {
        return Ok(());
    }
    let mut named = Vec::new();
    for document in documents {
        named.push(reference(cx, &document));
        Box::pin(send(cx, document, args.dry_run, &Ending::default())).await?;
    }
    if args.dry_run.is_none() && args.end.wait {
        let client = cx.connect().await?;
        for job in &named {
            follow::until_over(cx, &client, job, &args.end).await?;
        }
    }
    Ok(())
}

fn is_of(document: &JobDocument, namespace: &str, of: &JobDocument) -> bool {
    let space = |document: &JobDocument| {
        let own = document.metadata.namespace.clone();
        own.unwrap_or_else(|| namespace.to_owned())
    };
    space(document) == space(of)
}

/// Jobs of one file in the order in which the coordinator takes them: those that others wait for come first. The rest keeps its order, also
/// where jobs wait for each other, which the coordinator refuses.
fn those_waited_for_first(documents: Vec<JobDocument>, namespace: &str) -> Vec<JobDocument> {
    let (mut left, mut ordered) = (documents, Vec::new());
    while !left.is_empty() {
        let waits = |document: &JobDocument| {
            let names = document.spec.after.iter();
            names.clone().any(|after| {
                left.iter().any(|other| {
                    after.job == other.metadata.name
                        && is_of(document, namespace, other)
                        && document.metadata.name != other.metadata.name
                })
            })
        };
        let first = left.iter().position(|document| !waits(document));
        ordered.push(left.remove(first.unwrap_or(0)));
    }
    ordered
}

/// A job as it is when the others of its file are there: it need not be found that they are.
fn without_neighbours(document: &JobDocument, all: &[JobDocument], namespace: &str) -> JobDocument {
    let mut alone = document.clone();
    let neighbours: Vec<&JobDocument> = all
        .iter()
        .filter(|other| is_of(document, namespace, other))
        .collect();
    alone.spec.after.retain(|after| {
        let is_one = |other: &&JobDocument| other.metadata.name == after.job;
        after.job == document.metadata.name || !neighbours.iter().any(is_one)
    });
    alone
}

/// Reads and checks a job file. The failure tells everything that is wrong with it.
pub(crate) fn read_jobs(cx: &Context, file: &str, foreign: &Foreign) -> Result<Jobs, Failure> {
    read_jobs_for(cx, file, foreign, false)
}

/// The same. `pods`: for a cluster, as objects whose workers are in pods of their own.
pub(crate) fn read_jobs_for(
    cx: &Context,
    file: &str,
    foreign: &Foreign,
    pods: bool,
) -> Result<Jobs, Failure> {
    let text = read_file(file).map_err(|error| Failure::usage(format!("{file}: {error}")))?;
    let here = here()?;
    let options = Options {
        site: foreign
            .site
            .as_deref()
            .map_or(Ok(Site::default()), read_site)?,
        namespace: cx.globals.namespace.clone(),
        command: foreign.command.as_deref().map_or(Ok(Vec::new()), split)?,
        pods,
        adopted: false,
        runtime_later: false,
        suffix: suffix(),
        file: file.trim_start_matches('-').to_owned(),
        here: here.clone(),
    };
    let reader = Reader {
        here: here.into(),
        options,
        strict: foreign.strict,
    };
    jobfile::read(shown(file), &text, &reader).map_err(|bad| Failure::BadJob(bad.to_string()))
}

/// Tells the verdicts about fields of other systems' files, from this one on.
pub(crate) fn warn_of_fields(cx: &Context, file: &str, jobs: &Jobs, from: Verdict) {
    let told = jobs.remarks.iter().filter(|remark| remark.verdict >= from);
    told.for_each(|remark| cx.warn(format!("{}:{remark}", shown(file))));
}

fn shown(file: &str) -> &str {
    if file == "-" { "<stdin>" } else { file }
}

fn read_site(file: &str) -> Result<Site, Failure> {
    let wrong = |lines: Vec<Remark>| {
        let lines = lines.iter().map(|remark| format!("{file}:{remark}"));
        Failure::BadJob(lines.collect::<Vec<_>>().join("\n"))
    };
    let text = read_file(file).map_err(|error| Failure::usage(format!("{file}: {error}")))?;
    let text = String::from_utf8(text)
        .map_err(|_| Failure::usage(format!("{file}: is not UTF-8 text")))?;
    let trees = parse_all(&text)
        .map_err(|(place, message)| wrong(vec![Remark::refusal(place, "", message)]))?;
    match &trees[..] {
        [tree] => Site::read(tree).map_err(wrong),
        _ => Err(Failure::usage(format!(
            "{file}: must have one document, the site map"
        ))),
    }
}

fn split(command: &str) -> Result<Vec<String>, Failure> {
    split_words(command)
        .filter(|words| !words.is_empty())
        .ok_or_else(|| {
            Failure::usage("--command: must be one plain command, without variables and pipes")
        })
}

/// Five letters that a cluster would put behind a `generateName`.
fn suffix() -> String {
    let unique = uuid::Uuid::now_v7().simple().to_string();
    // The end of a version 7 UUID is random.
    unique[unique.len() - 5..].to_owned()
}

/// The absolute current directory.
pub(crate) fn here() -> Result<String, Failure> {
    let here = std::env::current_dir()
        .map_err(|error| Failure::request(format!("current directory: {error}")))?;
    Ok(here.to_string_lossy().into_owned())
}

fn read_file(file: &str) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let read = match file {
        "-" => std::io::stdin()
            .lock()
            .take(FILE_MAX + 1)
            .read_to_end(&mut text),
        path => {
            fs::File::open(path).and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut text))
        }
    };
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > FILE_MAX {
        return Err(format!(
            "is larger than {} KiB, too large for a job",
            FILE_MAX >> 10
        ));
    }
    Ok(text)
}

/// Warns of the job's variables that will not have the effect that they ask for. A warning here is
/// better than one in a log of NCCL.
fn warn_of(cx: &Context, document: &JobDocument) {
    let Ok((_, spec)) = document.check() else {
        return;
    };
    let env = spec
        .env
        .into_iter()
        .map(|var| (var.name, var.value))
        .collect();
    for remark in lint::values(&env, spec.max_replicas) {
        cx.warn(format!("Warning: spec.env: {}", remark.message));
    }
}

/// Sends a checked job and then does what the flags in `end` ask for.
pub(crate) async fn send(
    cx: &Context,
    document: JobDocument,
    dry_run: Option<DryRun>,
    end: &Ending,
) -> Result<(), Failure> {
    let name = document.metadata.name.clone();
    let of_roles = document.spec.roles.iter().flat_map(|role| &role.env);
    let mut variables = document.spec.env.iter().chain(of_roles);
    if let Some(var) = variables.find(|var| var.value == HIDDEN) {
        return Err(Failure::BadJob(format!(
            "spec.env: {} is {HIDDEN}, which stands for a value that was not shown; write the value, or get the job with --show-env",
            var.name
        )));
    }
    warn_of(cx, &document);
    if dry_run == Some(DryRun::Client) {
        return match cx.format() {
            Format::Table | Format::Wide => {
                cx.print(&format!("job/{name} is valid (checked here only)\n"))
            }
            Format::Name => cx.print(&format!("job/{name}\n")),
            Format::Json => cx.print(&crate::output::json(&document)),
            Format::Yaml => cx.print(&crate::output::yaml(&document)),
        };
    }
    let validate_only = dry_run == Some(DryRun::Server);
    let named = reference(cx, &document);
    let client = cx.connect().await?;
    let spec = &document.spec;
    let asked_first = !spec.tolerations.is_empty()
        || spec.image.is_some()
        || spec.queue.is_some()
        || !spec.notify.is_empty();
    if !validate_only && (chooses_nodes(&document) || asked_first || waits(&document.spec)) {
        Box::pin(ask(cx, &client, document.clone(), true)).await?;
    }
    let answer = Box::pin(ask(cx, &client, document, validate_only)).await?;
    let outcome = match (validate_only, answer.existed, &answer.plan) {
        (true, _, Some(plan)) => &format!(
            "is valid and {} (checked by the coordinator, not submitted; muster plan says more)",
            plan::sentence(plan)
        ),
        (true, ..) => "is valid (checked by the coordinator, not submitted)",
        (false, true, _) => "exists already with the same content",
        (false, false, _) => "submitted",
    };
    let job = answer.job.unwrap_or_else(|| v1::Job {
        r#ref: Some(named.clone()),
        ..v1::Job::default()
    });
    match cx.format() {
        Format::Table | Format::Wide => cx.print(&format!("job/{name} {outcome}\n"))?,
        format => get::print_one(cx, format, job)?,
    }
    if validate_only || !end.wait {
        return Ok(());
    }
    follow::until_over(cx, &client, &named, end).await
}

/// The name under which the coordinator knows a job.
pub(crate) fn reference(cx: &Context, document: &JobDocument) -> JobRef {
    let metadata = document.metadata.clone();
    JobRef {
        namespace: metadata.namespace.unwrap_or_else(|| cx.namespace()),
        name: metadata.name,
    }
}

pub(crate) async fn ask(
    cx: &Context,
    client: &Client,
    document: JobDocument,
    validate_only: bool,
) -> Result<v1::SubmitResponse, Failure> {
    let (chooses, waiting) = (chooses_nodes(&document), waits(&document.spec));
    let tolerates = !document.spec.tolerations.is_empty();
    let queued = document.spec.queue.is_some();
    let tells = !document.spec.notify.is_empty();
    let in_image = document.spec.image.is_some();
    let request = SubmitRequest {
        r#ref: Some(reference(cx, &document)),
        spec: Some(jobs::spec_to_wire(document.spec)),
        // The second attempt uses the same id, so that a lost answer cannot make two jobs.
        request_id: uuid::Uuid::now_v7().to_string(),
        validate_only,
    };
    let answer = client
        .twice(|| {
            let (mut jobs, request) = (client.jobs(), client.ask(request.clone()));
            async move { jobs.submit(request).await }
        })
        .await?;
    let spec = answer.job.as_ref().and_then(|job| job.spec.clone());
    let heard = spec.map(jobs::spec_document).unwrap_or_default();
    // Its messages have no such fields, so the job would get any nodes, start at once, run outside of its image, or tell nobody.
    let older = |than: &str| {
        let message =
            format!("this coordinator is older than {than}: upgrade it, or leave them out");
        Err(Failure::Request(message))
    };
    if chooses && !chooses_spec(&heard) {
        return older(
            "the fields that choose nodes (nodeSelector, affinity, nodeList, excludeNodes, requiredTopology, preferredTopology)",
        );
    }
    if tolerates && heard.tolerations.is_empty() {
        return older("tolerations");
    }
    if queued && heard.queue.is_none() {
        return older("queue");
    }
    if tells && heard.notify.is_empty() {
        return older("notify");
    }
    if in_image && heard.image.is_none() {
        return older("images");
    }
    if waiting && !waits(&heard) {
        return older("the fields for which a job waits (after, startAfter)");
    }
    Ok(answer)
}

fn waits(spec: &SpecDocument) -> bool {
    !spec.after.is_empty() || spec.start_after.is_some()
}

fn chooses_nodes(document: &JobDocument) -> bool {
    chooses_spec(&document.spec)
}

fn chooses_spec(spec: &SpecDocument) -> bool {
    let affinity = spec.affinity.as_ref();
    !spec.node_selector.is_empty()
        || affinity.is_some_and(|all| *all != Affinity::default())
        || !spec.node_list.is_empty()
        || !spec.exclude_nodes.is_empty()
        || spec.required_topology.is_some()
        || !spec.preferred_topology.is_empty()
}

#[cfg(test)]
mod tests {
    use muster_core::spec::AfterDocument;

    use super::*;

    fn job(name: &str, after: &[&str]) -> JobDocument {
        let mut document = JobDocument::default();
        document.metadata.name = name.into();
        let names = after.iter().map(|name| AfterDocument::read(name));
        document.spec.after = names.collect();
        document
    }

    #[test]
    fn those_that_others_of_the_file_wait_for_come_first() {
        let order = |documents| -> Vec<String> {
            let ordered = those_waited_for_first(documents, "default");
            ordered.into_iter().map(|one| one.metadata.name).collect()
        };
        let pipeline = vec![
            job("c", &["b", "a"]),
            job("b", &["a:ended"]),
            job("a", &["x"]),
        ];
        assert_eq!(order(pipeline), ["a", "b", "c"]);
        assert_eq!(order(vec![job("b", &[]), job("a", &[])]), ["b", "a"]);
        let circle = vec![job("a", &["b"]), job("b", &["a"]), job("c", &["c"])];
        assert_eq!(order(circle).len(), 3, "it ends");
        let mut elsewhere = job("a", &[]);
        elsewhere.metadata.namespace = Some("team".into());
        assert_eq!(order(vec![job("b", &["a"]), elsewhere]), ["b", "a"]);
    }

    #[test]
    fn only_jobs_of_the_same_file_need_not_be_there() {
        let all = [job("a", &[]), job("b", &["a", "x", "b"])];
        let alone = without_neighbours(&all[1], &all, "default");
        let left: Vec<&str> = alone
            .spec
            .after
            .iter()
            .map(|one| one.job.as_str())
            .collect();
        assert_eq!(left, ["x", "b"]);
    }
}
