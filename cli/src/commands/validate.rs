//! `muster validate`

use clap::Args;
use muster_foreign::Verdict;

use super::submit::{self, Foreign};
use crate::{context::Context, fail::Failure};

/// Check a job file without a coordinator.
///
/// Reports everything that is wrong at once, as FILE:LINE:COLUMN: field: message, and exits 2.
/// Several files may be given, MusterJobs and jobs of other systems.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # One file
  muster validate -f job.yaml

  # All of a directory, in a CI job
  muster validate jobs/*.yaml")]
pub(crate) struct Validate {
    /// Job file; - is standard input
    #[arg(short, long = "file", value_name = "FILE")]
    file: Vec<String>,

    /// More job files
    #[arg(value_name = "FILE", required_unless_present = "file")]
    files: Vec<String>,

    #[command(flatten)]
    foreign: Foreign,
}

pub(crate) fn validate(cx: &Context, args: Validate) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    for file in args.file.iter().chain(&args.files) {
        match submit::read_jobs(cx, file, &args.foreign) {
            Ok(jobs) => {
                submit::warn_of_fields(cx, file, &jobs, Verdict::Warning);
                for document in &jobs.documents {
                    let name = &document.metadata.name;
                    cx.print(&format!("{file}: job/{name} is valid\n"))?;
                }
            }
            Err(Failure::BadJob(text)) => wrong.push(text),
            Err(other) => return Err(other),
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(Failure::BadJob(wrong.join("\n")))
    }
}
