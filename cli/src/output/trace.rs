//! `muster report --trace`: a job's life in the Trace Event format, which Perfetto, chrome://tracing and the viewers of
//! profiles open.
//!
//! What `timeline` tells, as rows. Where it tells nothing a row has a gap, and `otherData.notes` says why. Times are
//! microseconds since the submission. `event` owns the format: events in order, bars of one row that nest or follow each
//! other.

mod event;
#[cfg(test)]
mod tests;

use muster_proto::v1::{ExplainResponse, Job};
use serde::Serialize;
use serde_json::{Map, Value, json};

use self::event::{Event, Sheet, Track};
use super::{
    document,
    timeline::{
        self, Bar, Instant, Life, known, moment,
        reforms::{self, Reform},
        state, told, worlds,
    },
    words,
};

/// The file: <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU> (JSON Object Format).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Trace {
    trace_events: Vec<Event>,
    display_time_unit: &'static str,
    other_data: Map<String, Value>,
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

    let reforms = reforms::of(life, answer);
    let moments = reforms.iter().map(happening).collect();
    for (lane, bars) in (1..).zip(lanes(reforms)) {
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

/// The moment of an incident.
fn happening(reform: &Reform<'_>) -> Instant {
    Instant {
        at: reform.whole.from,
        name: named(reform),
        category: "incident",
        args: reform.whole.args.clone(),
    }
}

fn named(reform: &Reform<'_>) -> String {
    format!("#{} {}", reform.number, reform.whole.name)
}

/// The bars of each row: re-forms that overlap are in rows of their own.
fn lanes(reforms: Vec<Reform<'_>>) -> Vec<Vec<Bar>> {
    let mut lanes: Vec<(u64, Vec<Bar>)> = Vec::new();
    for reform in reforms {
        let name = named(&reform);
        let Reform { whole, phases, .. } = reform;
        let (from, end) = (whole.from, whole.to);
        if from == end {
            continue;
        }
        let phases = phases.into_iter();
        let bars = [Bar { name, ..whole }].into_iter().chain(phases);
        match lanes.iter_mut().find(|(free, _)| *free <= from) {
            Some((free, lane)) => {
                *free = end;
                lane.extend(bars);
            }
            None => lanes.push((end, bars.collect())),
        }
    }
    lanes.into_iter().map(|(_, bars)| bars).collect()
}

fn other_data(
    answer: &ExplainResponse,
    job: &Job,
    life: Life,
    worlds: &[worlds::World],
) -> Map<String, Value> {
    let named = job.r#ref.clone().unwrap_or_default();
    let status = job.status.clone().unwrap_or_default();
    let notes = timeline::notes(answer, worlds);
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
