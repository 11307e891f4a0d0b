//! `muster convert`

use clap::Args;
use muster_core::spec::JobDocument;
use muster_foreign::Verdict;

use super::submit::{self, Foreign};
use crate::{
    args::Format,
    context::Context,
    fail::Failure,
    output::{self, List},
};

/// Show the MusterJob that another system's job file becomes.
///
/// Reads the same files as muster submit: PyTorchJob, ElasticJob, TrainJob and more, as they are.
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

  # Keep it as a MusterJob; accept no field without effect
  muster convert -f elasticjob.yaml --site site.yaml --strict > job.yaml")]
pub(crate) struct Convert {
    /// Job file; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: String,

    /// Tell the verdict about every field
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    foreign: Foreign,
}

pub(crate) fn convert(cx: &Context, args: &Convert) -> Result<(), Failure> {
    let jobs = submit::read_jobs(cx, &args.file, &args.foreign)?;
    let from = match args.verbose {
        true => Verdict::Taken,
        false => Verdict::Warning,
    };
    submit::warn_of_fields(cx, &args.file, &jobs, from);
    cx.print(&shown(cx.format(), jobs.documents))
}

fn shown(format: Format, mut documents: Vec<JobDocument>) -> String {
    match format {
        Format::Table | Format::Wide | Format::Yaml => {
            let documents: Vec<String> = documents.iter().map(output::yaml).collect();
            documents.join("---\n")
        }
        Format::Json if documents.len() == 1 => output::json(&documents.remove(0)),
        Format::Json => output::json(&List::new(documents)),
        Format::Name => {
            let name = |document: &JobDocument| format!("job/{}\n", document.metadata.name);
            documents.iter().map(name).collect()
        }
    }
}
