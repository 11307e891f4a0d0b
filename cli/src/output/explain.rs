//! `muster explain`: one timeline of a job, with the receipt of each incident below it.
//!
//! Times count from the submission, because people tell the story of a run that way. A phase that
//! was not measured is shown as such, never as zero.

use muster_proto::v1::{Event, ExplainResponse, Incident, Job};

use super::{
    document::severity,
    stall,
    table::{Table, plain},
    words,
};

pub(super) mod phases;

const NOT_MEASURED: &str = "not measured";

pub(crate) fn render(answer: &ExplainResponse, now_us: u64) -> String {
    let job = answer.job.clone().unwrap_or_default();
    let mut out = headline(&job, now_us);
    out.push_str("\nTimeline:\n");
    if answer.incidents_dropped > 0 {
        out.push_str(&format!(
            "  ({} no longer kept)\n",
            words::count(answer.incidents_dropped.into(), "older incident")
        ));
    }
    let start = job.created_unix_us;
    let mut lines: Vec<(u64, String)> = Vec::new();
    let reasons = answer
        .timeline
        .iter()
        .map(|event| event.reason.len())
        .chain(answer.incidents.iter().map(|i| i.cause.len() + 5));
    let width = reasons.max().unwrap_or(0);
    // The event that announced an incident would repeat the incident's text.
    let told = |event: &Event| {
        answer.incidents.iter().any(|i| {
            (&i.cause, i.from_generation, &i.message)
                == (&event.reason, event.generation, &event.message)
        })
    };
    for event in answer.timeline.iter().filter(|event| !told(event)) {
        lines.push((event.at_unix_us, event_line(event, start, width)));
    }
    for (i, incident) in answer.incidents.iter().enumerate() {
        lines.push((
            incident.at_unix_us,
            receipt(
                incident,
                i as u32 + 1 + answer.incidents_dropped,
                start,
                width,
                &job,
            ),
        ));
    }
    // The sort is stable, so an incident stands behind the events of the same moment.
    lines.sort_by_key(|(at, _)| *at);
    if lines.is_empty() {
        out.push_str("  nothing has happened yet\n");
    }
    out.extend(lines.into_iter().map(|(_, text)| text));
    out.push_str(&lost(answer));
    out
}

fn headline(job: &Job, now_us: u64) -> String {
    let named = job.r#ref.clone().unwrap_or_default();
    let status = job.status.clone().unwrap_or_default();
    let end = if status.finished_unix_us == 0 {
        now_us
    } else {
        status.finished_unix_us
    };
    let over = if status.finished_unix_us == 0 {
        "so far"
    } else {
        "in all"
    };
    let why = match (status.reason.as_str(), status.message.as_str()) {
        ("", "") => String::new(),
        (reason, "") => format!(" ({})", plain(reason)),
        ("", message) => format!(": {}", plain(message)),
        (reason, message) => format!(" ({}): {}", plain(reason), plain(message)),
    };
    format!(
        "Job {}/{} is {}{why}\nSubmitted {}, {} {over}, generation {}, {} of {} running, {}{}\n",
        named.namespace,
        named.name,
        words::phase(status.phase),
        words::utc(job.created_unix_us),
        span(end.saturating_sub(job.created_unix_us)),
        status.generation,
        status.nodes_running,
        words::count(status.replicas.into(), "wanted node"),
        words::count(status.restarts.into(), "restart"),
        status
            .last_step
            .map_or_else(String::new, |step| format!(", step {step}")),
    )
}

fn event_line(event: &Event, start: u64, width: usize) -> String {
    let mark = if severity(event) == "Warning" {
        '!'
    } else {
        ' '
    };
    let node = if event.node.is_empty() || event.message.contains(&event.node) {
        String::new()
    } else {
        format!(" [{}]", event.node)
    };
    format!(
        "{}{:>12} {mark} {:width$}  {}{node}\n",
        "  ",
        clock(event.at_unix_us, start),
        event.reason,
        plain(&event.message)
    )
}

/// Whether a receipt has nothing but its headline to tell: nothing was started that could be measured, and
/// nothing will be.
fn is_brief(incident: &Incident, job: &Job) -> bool {
    let status = job.status.clone().unwrap_or_default();
    let nothing = [
        incident.stop_us,
        incident.launch_us,
        incident.join_us,
        incident.first_step_us,
        incident.total_us,
    ]
    .iter()
    .all(Option::is_none);
    status.reason == "CannotStart" || status.finished_unix_us != 0 && nothing
}

fn receipt(incident: &Incident, number: u32, start: u64, width: usize, job: &Job) -> String {
    let head = format!("#{number} {}", incident.cause);
    let mut out = format!(
        "{}{:>12} > {head:width$}  {}\n",
        "  ",
        clock(incident.at_unix_us, start),
        plain(&incident.message)
    );
    if is_brief(incident, job) {
        return out;
    }
    let generations = match (incident.from_generation, incident.to_generation) {
        (0, 0) => "none formed".into(),
        (0, to) => format!("{to}"),
        (from, 0) => format!("{from} -> none yet"),
        (from, to) if from == to => format!("{from} goes on"),
        (from, to) => format!("{from} -> {to}"),
    };
    let alone: Vec<String> = incident
        .restarted_ranks
        .iter()
        .map(u32::to_string)
        .collect();
    let mut rows: Vec<(&str, String)> = vec![
        ("generation", generations),
        (
            "nodes",
            format!("{} -> {}", incident.from_nodes, incident.to_nodes),
        ),
    ];
    rows.extend(phases::rows(incident, job));
    if alone.is_empty() {
        rows.push((
            "steps lost",
            incident
                .steps_lost
                .map_or_else(|| NOT_MEASURED.into(), |steps| steps.to_string()),
        ));
    }
    for (name, text) in [
        ("restarted alone", &alone.join(", ")),
        ("error class", &incident.error_class),
        ("charged to", &incident.charged),
        ("culprit", &incident.culprit),
        ("decided by", &incident.rule),
    ] {
        if !text.is_empty() {
            rows.push((name, plain(text)));
        }
    }
    rows.extend(incident.stall.iter().flat_map(stall::rows));
    if !incident.collateral.is_empty() {
        let more = match incident.collateral_more {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names = incident.collateral.join(", ");
        rows.push(("collateral", plain(&format!("{names}{more}"))));
    }
    for (name, text) in rows {
        // Figures are right-aligned on the decimal point, words are left-aligned.
        let is_figure = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let text = match text.split_once(" ms") {
            Some((figure, more)) if is_figure(figure) => {
                format!("{:>15}{more}", format!("{figure} ms"))
            }
            _ => format!("   {text}"),
        };
        out.push_str(&format!("{:16}{name:12}{text}\n", ""));
    }
    out
}

fn lost(answer: &ExplainResponse) -> String {
    if answer.lost.is_empty() {
        return "\nLost time: none\n".into();
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    let (mut total, mut incidents) = (0, 0);
    for lost in &answer.lost {
        rows.push(vec![
            lost.cause.clone(),
            lost.incidents.to_string(),
            seconds(lost.lost_us),
        ]);
        total += lost.lost_us;
        incidents += lost.incidents;
    }
    rows.push(vec!["total".into(), incidents.to_string(), seconds(total)]);
    let text = Table::new(vec!["CAUSE", "INCIDENTS", "LOST"]).render(&rows, true);
    let indented: String = text.lines().map(|line| format!("  {line}\n")).collect();
    format!("\nLost time:\n{indented}")
}

/// The time since the start, as `+1234.567s`. An event from before the start (after a clock was
/// set) has a minus.
fn clock(at: u64, start: u64) -> String {
    let (sign, us) = if at >= start {
        ('+', at - start)
    } else {
        ('-', start - at)
    };
    format!("{sign}{}", seconds(us))
}

fn seconds(us: u64) -> String {
    format!("{}.{:03}s", us / 1_000_000, us / 1_000 % 1_000)
}

pub(super) fn millis(us: u64) -> String {
    format!("{}.{:03} ms", us / 1_000, us % 1_000)
}

/// `1h2m3s`, `12.3s`.
fn span(us: u64) -> String {
    let total = us / 1_000_000;
    match total {
        0..60 => format!("{}.{}s", total, us / 100_000 % 10),
        60..3_600 => format!("{}m{}s", total / 60, total % 60),
        _ => format!("{}h{}m{}s", total / 3_600, total / 60 % 60, total % 60),
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::JobStatus;

    use super::*;

    #[test]
    fn a_receipt_of_a_rank_that_was_started_again_alone_has_no_phases_of_the_world() {
        let incident = Incident {
            at_unix_us: 60_000_000,
            cause: "WorkerKilled".into(),
            message: "rank 1 (worker-0) on node-2 was killed".into(),
            from_generation: 2,
            to_generation: 2,
            from_nodes: 4,
            to_nodes: 4,
            detect_us: Some(1_440),
            decide_us: Some(60),
            launch_us: Some(15_000),
            total_us: Some(16_500),
            error_class: "Unknown".into(),
            charged: "job".into(),
            restarted_ranks: vec![1],
            ..Incident::default()
        };
        let text = receipt(&incident, 3, 0, 16, &Job::default());
        let rows: Vec<(&str, &str)> = text
            .lines()
            .skip(1)
            .filter_map(|line| line.trim().split_once("  "))
            .map(|(name, value)| (name, value.trim()))
            .collect();
        assert_eq!(
            rows,
            [
                ("generation", "2 goes on"),
                ("nodes", "4 -> 4"),
                ("detect", "1.440 ms"),
                ("decide", "0.060 ms"),
                ("launch", "15.000 ms"),
                ("total", "16.500 ms"),
                ("restarted alone", "1"),
                ("error class", "Unknown"),
                ("charged to", "job"),
            ]
        );
    }

    #[test]
    fn a_job_that_never_started_has_no_receipts_of_what_was_not_measured() {
        let job = |reason: &str, finished_unix_us| Job {
            status: Some(JobStatus {
                reason: reason.into(),
                finished_unix_us,
                ..JobStatus::default()
            }),
            ..Job::default()
        };
        let refused = Incident {
            cause: "StartFailed".into(),
            message: "node-1 cannot start it: script /t.py not found on node-1".into(),
            from_generation: 1,
            to_generation: 2,
            detect_us: Some(0),
            ..Incident::default()
        };
        let launched = Incident {
            launch_us: Some(1),
            ..refused.clone()
        };
        let lines = |incident, job: Job| receipt(incident, 2, 0, 16, &job).lines().count();
        assert_eq!(lines(&refused, job("CannotStart", 1)), 1);
        assert_eq!(lines(&launched, job("CannotStart", 1)), 1);
        assert_eq!(lines(&refused, job("Cancelled", 1)), 1);
        assert!(lines(&launched, job("RestartBudgetSpent", 1)) > 5);
        assert!(
            lines(&refused, job("Preparing", 0)) > 5,
            "it may still start"
        );
    }
}
