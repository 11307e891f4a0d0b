//! `muster report --trace`: a job's life in the Trace Event format, which Perfetto, chrome://tracing and the viewers of
//! profiles open.
//!
//! Everything comes from what the coordinator tells of the job anyway, and what it does not tell is left out: a row has a gap
//! there, and `otherData.notes` says why. Times are microseconds since the submission.
//!
//! | file | owns |
//! |---|---|
//! | `event` | the format: events in order, bars of one row that nest or follow each other |
//! | `state` | the row of what the job did |
//! | `reforms` | the rows of re-forms with their phases, and the moments of incidents |
//! | `worlds` | which nodes were in which generation, and how many ranks there were |

mod event;
mod reforms;
mod state;
#[cfg(test)]
mod tests;
mod worlds;

use muster_proto::v1::{self, ExplainResponse, Incident, Job};
use serde::Serialize;
use serde_json::{Map, Value, json};

use self::event::{Bar, Event, Instant, Sheet, Track};
use super::{
    document::{self, severity},
    words,
};

/// So many events of a job are kept at most, the first and the last.
const EVENTS_KEPT: usize = 500;

/// The file: <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU> (JSON Object Format).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Trace {
    trace_events: Vec<Event>,
    display_time_unit: &'static str,
    other_data: Map<String, Value>,
}

/// From the submission to the end, or to the moment until which the job is known.
#[derive(Clone, Copy, Debug)]
struct Life {
    start: u64,
    end: u64,
    is_over: bool,
}

impl Life {
    fn of(answer: &ExplainResponse, job: &Job, now_us: u64) -> Self {
        let start = job.created_unix_us;
        let finished = job.status.as_ref().map_or(0, |s| s.finished_unix_us);
        let end = match finished {
            // The clocks of this machine and of the coordinator may differ.
            0 => {
                let events = answer.timeline.iter().map(|event| event.at_unix_us);
                let incidents = answer.incidents.iter().map(|one| one.at_unix_us);
                events.chain(incidents).fold(now_us, u64::max)
            }
            finished => finished,
        };
        Self {
            start,
            end: end.max(start),
            is_over: finished > 0,
        }
    }

    /// A moment of it. Clocks that were set may show one before its start or behind its end.
    fn at(&self, unix_us: u64) -> u64 {
        unix_us.clamp(self.start, self.end)
    }
}

pub(crate) fn trace(answer: &ExplainResponse, now_us: u64) -> Trace {
    let job = answer.job.clone().unwrap_or_default();
    let life = Life::of(answer, &job, now_us);
    let named = job.r#ref.clone().unwrap_or_default();
    let mut sheet = Sheet::new(life.start);
    let of_job = sheet.process(&format!("job {}/{}", named.namespace, named.name));
    let state = sheet.row(of_job, "state");
    let state_bars = state::bars(life, answer, &job);
    sheet.bars(state, state_bars);

    let (lanes, moments) = reforms::of(life, answer);
    for (lane, bars) in (1..).zip(lanes) {
        let name = match lane {
            1 => "re-forms".to_owned(),
            _ => format!("re-forms ({lane})"),
        };
        let row = sheet.row(of_job, &name);
        sheet.bars(row, bars);
    }
    let incidents = sheet.row(of_job, "incidents");
    sheet.instants(incidents, moments);
    let happened = sheet.row(of_job, "events");

    let worlds = worlds::of(life, answer, &job);
    sheet.counter(of_job, "world size", "ranks", &worlds::sizes(life, &worlds));
    let of_nodes = sheet.process("nodes");
    let mut rows: Vec<(String, Track)> = Vec::new();
    for (node, bars) in worlds::by_node(&worlds) {
        let row = sheet.row(of_nodes, &node);
        sheet.bars(row, bars);
        rows.push((node, row));
    }
    for event in answer.timeline.iter().filter(|event| !told(answer, event)) {
        let row = rows.iter().find(|(node, _)| *node == event.node);
        let row = row.map_or(happened, |(_, row)| *row);
        sheet.instants(row, vec![moment(life, event)]);
    }
    Trace {
        trace_events: sheet.events(),
        display_time_unit: "ms",
        other_data: other_data(answer, &job, life, &worlds),
    }
}

/// An incident says the same as this event.
fn told(answer: &ExplainResponse, event: &v1::Event) -> bool {
    let same = |one: &Incident| {
        let told = (&one.cause, one.from_generation, &one.message);
        told == (&event.reason, event.generation, &event.message)
    };
    answer.incidents.iter().any(same)
}

fn moment(life: Life, event: &v1::Event) -> Instant {
    let args = json!({
        "at": words::utc(event.at_unix_us),
        "message": event.message,
        "severity": severity(event),
        "node": Some(&event.node).filter(|node| !node.is_empty()),
        "generation": Some(event.generation).filter(|number| *number > 0),
    });
    Instant {
        at: life.at(event.at_unix_us),
        name: event.reason.clone(),
        category: "event",
        args: known(args),
    }
}

/// An object without what is not known.
fn known(value: Value) -> Map<String, Value> {
    let Value::Object(map) = value else {
        return Map::new();
    };
    map.into_iter()
        .filter(|(_, value)| !value.is_null() && *value != Value::Array(Vec::new()))
        .collect()
}

fn other_data(
    answer: &ExplainResponse,
    job: &Job,
    life: Life,
    worlds: &[worlds::World],
) -> Map<String, Value> {
    let named = job.r#ref.clone().unwrap_or_default();
    let status = job.status.clone().unwrap_or_default();
    let mut notes = Vec::new();
    if answer.incidents_dropped > 0 {
        let dropped = words::count(answer.incidents_dropped.into(), "older incident");
        notes.push(format!(
            "{dropped} no longer kept: what the job did before the first that is here is not known"
        ));
    }
    let is_whole = { answer.timeline.first() }.is_none_or(|first| first.reason == "Submitted");
    if !is_whole {
        notes.push("the oldest events are missing".to_owned());
    } else if answer.timeline.len() >= EVENTS_KEPT {
        notes.push("events between the first 100 and the last 400 may be missing".to_owned());
    }
    notes.extend(worlds.iter().filter_map(worlds::World::unnamed));
    let (finished, now) = match life.is_over {
        true => (Some(words::utc(life.end)), None),
        false => (None, Some(words::utc(life.end))),
    };
    known(json!({
        "job": format!("{}/{}", named.namespace, named.name),
        "uid": job.uid,
        "submittedAt": words::utc(life.start),
        "submittedUnixMicros": life.start,
        "finishedAt": finished,
        "knownUntil": now,
        "phase": words::phase(status.phase),
        "reason": status.reason,
        "message": status.message,
        "time": status.time.map(document::time_account),
        "notes": notes,
    }))
}
