//! `muster history`: jobs that are over, also those that are deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use clap::{Args, ValueEnum};
use muster_core::{fleet::history, period};
use muster_proto::{
    convert::history as wire,
    v1::{HistoryRecord, Job, JobPhase, ListHistoryRequest},
};
use muster_rpc::credentials::now_us;

use super::get::{self, print_list};
use crate::{
    args::Format,
    connect::Client,
    context::Context,
    fail::Failure,
    output::{
        self, List,
        history::{TotalRow, Totals},
        table::Table,
    },
};

/// Show jobs that are over, also those that are deleted.
///
/// Each job leaves a record when it ends, which is kept for a year or until 10,000 newer ones have come, as the
/// coordinator's operator says (--history-days, --history-records). GPU-HOURS is the time from submission to end
/// for each GPU that the job held; GOODPUT is the part of the time since its first generation in which new steps
/// were made; LOST is the time of re-forms and of steps that were made again. With --by the records are summed
/// up, together with jobs that are not over: who had how many GPU hours, and which node or cause cost how many.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # The jobs of this namespace, the newest last
  muster history

  # What failed in the last week, in all namespaces
  muster history -A --since 7d --state failed -o wide

  # Which node cost this team most GPU time this week?
  muster history --by node --since 7d -n team-a

  # GPU hours and goodput of each owner in November
  muster history -A --by owner --since 2026-11-01 --until 2026-12-01")]
pub(crate) struct History {
    /// Only this job; several jobs may have had the name
    job: Option<String>,

    /// Jobs of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,

    /// Only jobs that ended since then: a period as 7d, or a day or time as 2026-11-20 or
    /// 2026-11-20T18:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = read_when)]
    since: Option<When>,

    /// Only jobs that ended before then
    #[arg(long, value_name = "WHEN", value_parser = read_when)]
    until: Option<When>,

    /// Only jobs of this owner, as column OWNER shows it
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// Only jobs that ran on this node, or that it cost time
    #[arg(long, value_name = "NAME")]
    node: Option<String>,

    /// Only jobs that ended so; separate several with commas
    #[arg(long, value_enum, ignore_case = true, value_delimiter = ',')]
    state: Vec<State>,

    /// Also jobs that are not over, with their time so far
    #[arg(long, conflicts_with = "state")]
    running: bool,

    /// Sum up instead, the dearest first
    #[arg(long, value_enum)]
    by: Option<By>,

    /// The newest so many; 0 means all
    #[arg(long, value_name = "N", default_value = "1000", conflicts_with = "by")]
    limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    #[value(alias = "completed")]
    Succeeded,
    Failed,
    #[value(alias = "canceled")]
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    #[value(alias = "user")]
    Owner,
    Namespace,
    Node,
    Cause,
}

/// A moment that somebody names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Before(Duration),
    At(u64),
}

fn read_when(text: &str) -> Result<When, String> {
    if let Ok(period) = period::parse(text) {
        return Ok(When::Before(period));
    }
    let day = text.parse::<jiff::civil::Date>().ok();
    let day = day.and_then(|day| day.to_zoned(jiff::tz::TimeZone::UTC).ok());
    let at = text
        .parse::<jiff::Timestamp>()
        .ok()
        .or(day.map(|day| day.timestamp()));
    let us = at.and_then(|at| u64::try_from(at.as_microsecond()).ok());
    us.map(When::At).ok_or_else(|| {
        format!("{text:?} is neither a period as 7d nor a day or time as 2026-11-20 or 2026-11-20T18:00:00Z")
    })
}

impl When {
    fn unix_us(self, now_us: u64) -> u64 {
        match self {
            When::Before(period) => {
                let period = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
                // 0 would mean no bound.
                now_us.saturating_sub(period).max(1)
            }
            When::At(us) => us.max(1),
        }
    }
}

pub(crate) async fn history(cx: &Context, args: History) -> Result<(), Failure> {
    let client = cx.connect().await?;
    let now = now_us();
    let state = |state: &State| match state {
        State::Succeeded => JobPhase::Succeeded,
        State::Failed => JobPhase::Failed,
        State::Cancelled => JobPhase::Cancelled,
    };
    let name = args.job.as_deref().unwrap_or_default();
    let request = ListHistoryRequest {
        namespace: match args.all_namespaces {
            true => String::new(),
            false => cx.namespace(),
        },
        name: name.strip_prefix("job/").unwrap_or(name).to_owned(),
        owner: args.owner.clone().unwrap_or_default(),
        node: args.node.clone().unwrap_or_default(),
        phases: args.state.iter().map(|one| state(one).into()).collect(),
        since_unix_us: args.since.map_or(0, |when| when.unix_us(now)),
        until_unix_us: args.until.map_or(0, |when| when.unix_us(now)),
        include_live: args.running || args.by.is_some(),
        ..ListHistoryRequest::default()
    };
    // One more shows whether there are more.
    let limit = args.limit.checked_sub(1).filter(|_| args.by.is_none());
    let most = limit.map_or(usize::MAX, |limit| limit + 2);
    let mut records = list(&client, &request, most).await?;
    if let Some(by) = args.by {
        return sum_up(cx, &records, by);
    }
    if limit.is_some() && records.len() > args.limit {
        records.truncate(args.limit);
        let shown = args.limit;
        cx.say(format!(
            "Only the newest {shown} jobs are shown; --limit 0 shows all."
        ));
    }
    if let Some(node) = &args.node {
        tell_unnamed(cx, &client, &request, node).await?;
    }
    records.reverse();
    print_list(cx, records, args.all_namespaces, "No jobs found.")
}

/// The records of a node may not be all: a large job names only some of its nodes.
async fn tell_unnamed(
    cx: &Context,
    client: &Client,
    request: &ListHistoryRequest,
    node: &str,
) -> Result<(), Failure> {
    let all = ListHistoryRequest {
        node: String::new(),
        ..request.clone()
    };
    let records = list(client, &all, usize::MAX).await?;
    let names_it = |record: &HistoryRecord| {
        let mut culprits = record.culprits.iter();
        record.nodes.iter().any(|one| one == node) || culprits.any(|one| one.node == node)
    };
    let is_cut = |record: &&HistoryRecord| record.nodes_used as usize > record.nodes.len();
    let unnamed = records
        .iter()
        .filter(is_cut)
        .filter(|record| !names_it(record))
        .count();
    if unnamed > 0 {
        cx.say(format!(
            "{} may have run on {node}, too: a record names only some of a large job's nodes.",
            output::words::count(unnamed as u64, "other job")
        ));
    }
    Ok(())
}

/// The newest records that match, jobs that are not over first. At most about so many.
pub(crate) async fn list(
    client: &Client,
    request: &ListHistoryRequest,
    most: usize,
) -> Result<Vec<HistoryRecord>, Failure> {
    let records = get::pages(client, most, |page_token| {
        let request = client.ask(ListHistoryRequest {
            page_token,
            ..request.clone()
        });
        let mut history = client.history();
        async move {
            let page = history.list(request).await?.into_inner();
            Ok((page.records, page.next_page_token))
        }
    });
    Ok(once(records.await?))
}

/// Adds jobs that are deleted to those of a namespace, or of all if it is empty.
pub(crate) async fn add_deleted(
    cx: &Context,
    client: &Client,
    namespace: &str,
    jobs: &mut Vec<Job>,
) -> Result<(), Failure> {
    if matches!(cx.format(), Format::Json | Format::Yaml) {
        return Err(Failure::usage(
            "--all: a deleted job has no spec any more; its record is shown by muster history -o json",
        ));
    }
    let request = ListHistoryRequest {
        namespace: namespace.to_owned(),
        ..ListHistoryRequest::default()
    };
    let known: BTreeSet<String> = jobs.iter().map(|job| job.uid.clone()).collect();
    let left = list(client, &request, usize::MAX).await?;
    let gone = left
        .into_iter()
        .filter(|record| !known.contains(&record.uid));
    jobs.extend(gone.map(output::history::as_job));
    Ok(())
}

/// A job that ended between two pages is in both, and the record of its end counts.
fn once(records: Vec<HistoryRecord>) -> Vec<HistoryRecord> {
    let ended = records.iter().filter(|record| record.number > 0);
    let ended: BTreeMap<String, u64> = ended.map(|one| (one.uid.clone(), one.number)).collect();
    let mut records = records;
    records.retain(|record| record.number > 0 || !ended.contains_key(&record.uid));
    records
}

fn sum_up(cx: &Context, records: &[HistoryRecord], by: By) -> Result<(), Failure> {
    let by = match by {
        By::Owner => history::By::Owner,
        By::Namespace => history::By::Namespace,
        By::Node => history::By::Node,
        By::Cause => history::By::Cause,
    };
    let who: Vec<history::Who> = records.iter().map(wire::who).collect();
    let rows: Vec<TotalRow> = history::totals(&who, by)
        .into_iter()
        .map(TotalRow::from)
        .collect();
    match cx.format() {
        Format::Json => cx.print(&output::json(&List::new(rows))),
        Format::Yaml => cx.print(&output::yaml(&List::new(rows))),
        Format::Name => cx.print(
            &rows
                .iter()
                .map(|row| format!("{}\n", row.name()))
                .collect::<String>(),
        ),
        Format::Table | Format::Wide if rows.is_empty() => {
            cx.say("No jobs found.");
            Ok(())
        }
        Format::Table | Format::Wide => {
            let totals = Totals { by };
            let cells: Vec<_> = rows.iter().map(|row| totals.row(row)).collect();
            cx.print(&Table::new(totals.heads()).render(&cells, !cx.globals.no_headers))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_period_a_day_or_a_time() {
        assert_eq!(
            read_when("7d"),
            Ok(When::Before(Duration::from_secs(7 * 86_400)))
        );
        assert_eq!(read_when("1970-01-02"), Ok(When::At(86_400_000_000)));
        assert_eq!(read_when("1970-01-01T00:00:02Z"), Ok(When::At(2_000_000)));
        assert!(
            read_when("yesterday")
                .unwrap_err()
                .contains("\"yesterday\" is neither")
        );
        assert_eq!(
            When::Before(Duration::from_secs(9)).unix_us(5_000_000),
            1,
            "no bound is none"
        );
        assert_eq!(
            When::Before(Duration::from_secs(2)).unix_us(5_000_000),
            3_000_000
        );
    }

    #[test]
    fn a_job_that_ended_between_two_pages_counts_once() {
        let record = |uid: &str, number| HistoryRecord {
            uid: uid.into(),
            number,
            ..HistoryRecord::default()
        };
        let all = once(vec![
            record("a", 0),
            record("b", 0),
            record("b", 7),
            record("c", 6),
        ]);
        let left: Vec<(&str, u64)> = all
            .iter()
            .map(|one| (one.uid.as_str(), one.number))
            .collect();
        assert_eq!(left, [("a", 0), ("b", 7), ("c", 6)]);
    }
}
