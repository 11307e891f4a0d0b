//! `muster convert`

use clap::Args;
use muster_core::spec::{JobDocument, shape};
use muster_foreign::{ObjectOnly, Verdict};
use serde::Serialize;
use serde_json::Value;

use super::submit::{self, Foreign};
use crate::{
    args::Format,
    context::Context,
    fail::Failure,
    output::{self, List},
};

/// Show the MusterJob that another system's job file becomes.
///
/// Reads the same files as muster submit: PyTorchJob, ElasticJob, TrainJob and more, and batch scripts of Slurm.
/// Prints the MusterJob on stdout, and on stderr what becomes of the fields, as FILE:LINE:COLUMN:
/// warning: field: reason. A file that would mean something else here is refused with every reason,
/// and exits 2. Nothing is submitted.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # What would Muster run?
  muster convert -f pytorchjob.yaml

  # What becomes of every single field?
  muster convert -f pytorchjob.yaml -v

  # What becomes of a batch script of Slurm, line by line?
  muster convert -f train.sbatch -v

  # In Kubernetes: the same job in its own image, as a MusterJob object with its template
  muster convert -f pytorchjob.yaml --pods | kubectl apply -f -

  # Keep it as a MusterJob; accept no field without effect
  muster convert -f elasticjob.yaml --site site.yaml --strict > job.yaml")]
pub(crate) struct Convert {
    /// Job file; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: String,

    /// For Kubernetes: keep the file's pod template, so that the job runs in pods of its own
    #[arg(long)]
    pods: bool,

    /// Tell the verdict about every field
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    foreign: Foreign,
}

pub(crate) fn convert(cx: &Context, args: &Convert) -> Result<(), Failure> {
    let jobs = submit::read_jobs_for(cx, &args.file, &args.foreign, args.pods)?;
    let from = match args.verbose {
        true => Verdict::Taken,
        false => Verdict::Warning,
    };
    submit::warn_of_fields(cx, &args.file, &jobs, from);
    match args.pods {
        false => cx.print(&shown(cx.format(), jobs.documents, name)),
        true => {
            let both = jobs.documents.iter().zip(&jobs.objects);
            let objects: Vec<Value> = both.map(|(job, own)| object(job, own.as_ref())).collect();
            let name = |object: &Value| {
                let name = object["metadata"]["name"].as_str();
                name.unwrap_or_default().to_owned()
            };
            cx.print(&shown(cx.format(), objects, name))
        }
    }
}

fn name(document: &JobDocument) -> String {
    document.metadata.name.clone()
}

/// The job as an object of a cluster.
fn object(job: &JobDocument, own: Option<&ObjectOnly>) -> Value {
    let mut object = output::value(job);
    if let Some(own) = own {
        object["spec"][shape::TEMPLATE] = output::value(&own.template);
    }
    object
}

fn shown<T: Serialize>(
    format: Format,
    mut documents: Vec<T>,
    name: impl Fn(&T) -> String,
) -> String {
    match format {
        Format::Table | Format::Wide | Format::Yaml => {
            let documents: Vec<String> = documents.iter().map(|job| output::yaml(job)).collect();
            documents.join("---\n")
        }
        Format::Json if documents.len() == 1 => output::json(&documents.remove(0)),
        Format::Json => output::json(&List::new(documents)),
        Format::Name => {
            let names = documents.iter().map(|job| format!("job/{}\n", name(job)));
            names.collect()
        }
    }
}
