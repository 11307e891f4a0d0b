//! `muster report`

use clap::Args;
use muster_page::Frame;
use muster_rpc::credentials::now_us;

use crate::{
    args::Format,
    connect::job_ref,
    context::Context,
    fail::Failure,
    output::{self, document::Explanation},
    web::asked::{self, Unanswered},
};

/// Write the whole story of a job as one HTML file.
///
/// Its state, where its time went, a timeline, every incident with its culprit and what it cost,
/// ranks with their first errors, events, and the job's file. The file loads nothing and needs no
/// script, so it can be sent to somebody who cannot ask the coordinator. Values of environment
/// variables are left out. With -o json it is what `muster explain` says. With --trace it is the
/// timeline in Chrome's Trace Event format, for ui.perfetto.dev or chrome://tracing; with --otlp it
/// is a trace for OpenTelemetry, as a collector takes it.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster report digits > digits.html

  # States, phases and nodes as rows in Perfetto (https://ui.perfetto.dev, Open trace file)
  muster report digits --trace > digits.trace.json

  # As spans, to a collector of OpenTelemetry
  muster report digits --otlp | curl -H 'content-type: application/json' \\
    --data-binary @- http://collector:4318/v1/traces")]
pub(crate) struct Report {
    /// Name of the job
    job: String,

    /// Write instead a trace, for Perfetto or chrome://tracing
    #[arg(long)]
    trace: bool,

    /// Write instead a trace for OpenTelemetry: a request in OTLP/JSON
    #[arg(long, conflicts_with = "trace")]
    otlp: bool,
}

pub(crate) async fn report(cx: &Context, args: Report) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let story = asked::story(&client, job_ref(cx.namespace(), &args.job)).await;
    let story = story.map_err(|why| match why {
        Unanswered::NotFound(why) => Failure::Request(why),
        Unanswered::Refused(why) => Failure::Unreachable(why),
        Unanswered::Failed(why) => Failure::Request(why),
    })?;
    let server = client.server().to_string();
    let frame = Frame {
        server: &server,
        now_us: now_us(),
        path: "",
    };
    if args.trace || args.otlp {
        if matches!(cx.format(), Format::Yaml | Format::Name) {
            return Err(Failure::usage("a trace is always JSON"));
        }
        let (explained, now_us) = (&story.explained, frame.now_us);
        return cx.print(&match args.otlp {
            true => output::json_line(&output::otlp::export(explained, now_us)),
            false => output::json(&output::trace::trace(explained, now_us)),
        });
    }
    match cx.format() {
        Format::Table | Format::Wide => cx.print(&muster_page::report(frame, &story)),
        Format::Json => cx.print(&output::json(&Explanation::from(story.explained))),
        Format::Yaml => cx.print(&output::yaml(&Explanation::from(story.explained))),
        Format::Name => Err(Failure::usage("report has no -o name")),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Parser, error::ErrorKind};

    use crate::args::Cli;

    #[test]
    fn a_report_has_one_format() {
        let report = |flags: &[&str]| {
            let words = ["muster", "report", "digits"].iter().chain(flags);
            Cli::try_parse_from(words).map(drop).map_err(|e| e.kind())
        };
        assert_eq!(report(&["--trace"]), Ok(()));
        assert_eq!(report(&["--otlp"]), Ok(()));
        let both = report(&["--trace", "--otlp"]);
        assert_eq!(both, Err(ErrorKind::ArgumentConflict));
    }
}
