//! `muster submit`

use std::{fs, io::Read, path::Path, time::Duration};

use clap::{Args, ValueEnum};
use muster_core::{nccl::lint, period, spec::JobDocument};
use muster_proto::{
    convert::jobs,
    v1::{self, JobRef, SubmitRequest},
};

use super::{follow, get};
use crate::{
    args::Format,
    context::Context,
    fail::Failure,
    jobfile::{self, FILE_MAX},
    output::listing::HIDDEN,
};

/// Submit a job from a file.
///
/// The file is a MusterJob document in YAML or JSON, the same that Kubernetes takes. It is checked
/// here first; everything that is wrong is reported at once with file, line and field. A workingDir
/// that is relative, or not given, is taken from the current directory of this command, as torchrun
/// would.
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
  muster submit -f job.yaml --dry-run=server")]
pub(crate) struct Submit {
    /// Job file; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: String,

    /// Check only: here (client), or also with the coordinator (server)
    #[arg(long, value_enum, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "client")]
    dry_run: Option<DryRun>,

    #[command(flatten)]
    end: Ending,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DryRun {
    Client,
    Server,
}

/// What to do after a job was accepted.
#[derive(Debug, Args)]
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
    let document = read_job(cx, &args.file)?;
    send(cx, document, args.dry_run, &args.end).await
}

/// Reads and checks a job file. The failure tells everything that is wrong with it.
pub(crate) fn read_job(cx: &Context, file: &str) -> Result<JobDocument, Failure> {
    let text = read_file(file).map_err(|error| Failure::usage(format!("{file}: {error}")))?;
    let here = here()?;
    let name = if file == "-" { "<stdin>" } else { file };
    jobfile::read(
        name,
        &text,
        Path::new(&here),
        cx.globals.namespace.as_deref(),
    )
    .map_err(|bad| Failure::BadJob(bad.to_string()))
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
    if let Some(var) = document.spec.env.iter().find(|var| var.value == HIDDEN) {
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
    let named = JobRef {
        namespace: document
            .metadata
            .namespace
            .unwrap_or_else(|| cx.namespace()),
        name: name.clone(),
    };
    let request = SubmitRequest {
        r#ref: Some(named.clone()),
        spec: Some(jobs::spec_to_wire(document.spec)),
        // The second attempt uses the same id, so that a lost answer cannot make two jobs.
        request_id: uuid::Uuid::now_v7().to_string(),
        validate_only,
    };
    let client = cx.connect().await?;
    let answer = client
        .twice(|| {
            let (mut jobs, request) = (client.jobs(), client.ask(request.clone()));
            async move { jobs.submit(request).await }
        })
        .await?;
    let outcome = match (validate_only, answer.existed) {
        (true, _) => "is valid (checked by the coordinator, not submitted)",
        (false, true) => "exists already with the same content",
        (false, false) => "submitted",
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
