//! A job's life in time: what the traces of it show.
//!
//! Everything comes from what the coordinator tells of the job anyway, and what it does not tell is left out: there is a gap,
//! and `notes` say why. Times are microseconds since 1970.
//!
//! | file | owns |
//! |---|---|
//! | `state` | what the job did |
//! | `reforms` | re-forms with their phases, and the moments of incidents |
//! | `worlds` | which nodes were in which generation, and how many ranks there were |

#[cfg(test)]
pub(super) mod fixture;
pub(super) mod reforms;
pub(super) mod state;
pub(super) mod worlds;

use muster_proto::v1::{self, ExplainResponse, Incident, Job};
use serde_json::{Map, Value, json};

use super::{document::severity, words};

/// So many events of a job are kept at most, the first and the last.
const EVENTS_KEPT: usize = 500;

/// From the submission to the end, or to the moment until which the job is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) is_over: bool,
}

impl Life {
    pub(super) fn of(answer: &ExplainResponse, job: &Job, now_us: u64) -> Self {
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
    pub(super) fn at(&self, unix_us: u64) -> u64 {
        unix_us.clamp(self.start, self.end)
    }
}

/// A stretch of time.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) name: String,
    pub(super) category: &'static str,
    pub(super) args: Map<String, Value>,
}

#[derive(Clone, Debug)]
pub(super) struct Instant {
    pub(super) at: u64,
    pub(super) name: String,
    pub(super) category: &'static str,
    pub(super) args: Map<String, Value>,
}

/// The bars so that each lies within one other, or beside it: one that would reach beyond the bar in which it begins ends with
/// it. Bars without length are left out.
pub(super) fn nested(mut bars: Vec<Bar>) -> Vec<Bar> {
    bars.sort_by_key(|bar| (bar.from, std::cmp::Reverse(bar.to)));
    let mut open: Vec<u64> = Vec::new();
    bars.retain_mut(|bar| {
        open.retain(|end| *end > bar.from);
        bar.to = open.last().map_or(bar.to, |end| bar.to.min(*end));
        let has_length = bar.from < bar.to;
        open.extend(has_length.then_some(bar.to));
        has_length
    });
    bars
}

/// An incident says the same as this event.
pub(super) fn told(answer: &ExplainResponse, event: &v1::Event) -> bool {
    let same = |one: &Incident| {
        let told = (&one.cause, one.from_generation, &one.message);
        told == (&event.reason, event.generation, &event.message)
    };
    answer.incidents.iter().any(same)
}

pub(super) fn moment(life: Life, event: &v1::Event) -> Instant {
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
pub(super) fn known(value: Value) -> Map<String, Value> {
    let Value::Object(map) = value else {
        return Map::new();
    };
    map.into_iter()
        .filter(|(_, value)| !value.is_null() && *value != Value::Array(Vec::new()))
        .collect()
}

/// What is not known of the job, in words.
pub(super) fn notes(answer: &ExplainResponse, worlds: &[worlds::World]) -> Vec<String> {
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
    notes
}
