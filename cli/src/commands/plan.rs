//! `muster plan`

use clap::Args;
use muster_foreign::Verdict;
use muster_rpc::credentials::now_us;

use super::submit::{self, Foreign};
use crate::{
    args::Format,
    context::Context,
    fail::Failure,
    output::{self, List, plan},
};

/// Say what would happen to the jobs of a file, without submitting them.
///
/// The coordinator asks its placement, as for a job that was submitted now, and changes nothing. Each
/// job is asked about by itself: what the others would take is not counted. Exit 0: all would start. 7:
/// some would wait; the output says why. A job that exists already cannot be planned.
///
/// `muster run --dry-run=server SCRIPT` says it of a script in one line, and exits 0 in both cases.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # Where would it run, or why would it wait?
  muster plan -f job.yaml

  # In a script: submit only what starts now
  muster plan -q -f job.yaml && muster submit -f job.yaml")]
pub(crate) struct PlanArgs {
    /// Job file; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: String,

    #[command(flatten)]
    foreign: Foreign,
}

pub(crate) async fn plan(cx: &Context, args: PlanArgs) -> Result<(), Failure> {
    let jobs = submit::read_jobs(cx, &args.file, &args.foreign)?;
    submit::warn_of_fields(cx, &args.file, &jobs, Verdict::Warning);
    let client = cx.connect().await?;
    let (mut documents, mut waiting, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for job in jobs.documents {
        let named = submit::reference(cx, &job);
        let name = named.name.clone();
        let answer = Box::pin(submit::ask(cx, &client, job, true)).await?;
        let Some(found) = answer.plan else {
            let why = match answer.existed {
                true => format!(
                    "job/{name} exists already with the same content: muster describe {name}"
                ),
                false => "this coordinator is older than muster plan: upgrade it".to_owned(),
            };
            wrong.push(why);
            continue;
        };
        if !plan::starts(&found) {
            waiting.push(format!("job/{name}"));
        }
        match cx.format() {
            Format::Table | Format::Wide => {
                cx.print(&plan::text(&name, &found, !cx.globals.no_headers, now_us()))?;
            }
            Format::Name => cx.print(&format!("job/{name}\n"))?,
            Format::Json | Format::Yaml => documents.push(plan::document(&named, &found)),
        }
    }
    let one = documents.len() == 1;
    match cx.format() {
        Format::Json if one => cx.print(&output::json(&documents.remove(0)))?,
        Format::Yaml if one => cx.print(&output::yaml(&documents.remove(0)))?,
        Format::Json if !documents.is_empty() => cx.print(&output::json(&List::new(documents)))?,
        Format::Yaml if !documents.is_empty() => cx.print(&output::yaml(&List::new(documents)))?,
        _ => {}
    }
    if !wrong.is_empty() {
        return Err(Failure::Request(wrong.join("\n")));
    }
    match waiting.is_empty() {
        true => Ok(()),
        false => Err(Failure::WouldWait(format!(
            "{} would wait",
            waiting.join(", ")
        ))),
    }
}
