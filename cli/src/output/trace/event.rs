//! The Trace Event format, as far as it is used: bars, moments, counters, and the names of rows.
//!
//! Viewers ask two things of it that the types do not say: events come in the order of their times, and bars of one row
//! nest or follow each other. Both are kept here.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::super::timeline::{Bar, Instant, known, nested};

/// One event of the file. `ts` and `dur` are microseconds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) ph: &'static str,
    pub(super) ts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dur: Option<u64>,
    pub(super) pid: u32,
    pub(super) tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    /// How far a moment reaches: over its row.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) args: Map<String, Value>,
}

/// One row: the format's process and thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Track {
    pid: u32,
    tid: u32,
}

/// All rows.
pub(super) struct Sheet {
    start: u64,
    names: Vec<Event>,
    events: Vec<Event>,
    processes: u32,
    rows: u32,
}

impl Sheet {
    /// Times are shown from this moment on.
    pub(super) fn new(start: u64) -> Self {
        Self {
            start,
            names: Vec::new(),
            events: Vec::new(),
            processes: 0,
            rows: 0,
        }
    }

    /// A group of rows, below those that were there before.
    pub(super) fn process(&mut self, name: &str) -> u32 {
        self.processes += 1;
        let track = Track {
            pid: self.processes,
            tid: 0,
        };
        self.metadata(track, "process_name", json!({ "name": name }));
        let place = json!({ "sort_index": self.processes });
        self.metadata(track, "process_sort_index", place);
        self.processes
    }

    /// A row, below those that were there before.
    pub(super) fn row(&mut self, pid: u32, name: &str) -> Track {
        self.rows += 1;
        let track = Track {
            pid,
            tid: self.rows,
        };
        self.metadata(track, "thread_name", json!({ "name": name }));
        let place = json!({ "sort_index": self.rows });
        self.metadata(track, "thread_sort_index", place);
        track
    }

    fn metadata(&mut self, track: Track, name: &str, args: Value) {
        let event = event(track, "M", name, 0, known(args));
        self.names.push(event);
    }

    pub(super) fn bars(&mut self, row: Track, bars: Vec<Bar>) {
        for bar in nested(bars) {
            let at = self.since_start(bar.from);
            self.events.push(Event {
                dur: Some(self.since_start(bar.to) - at),
                cat: Some(bar.category),
                ..event(row, "X", &bar.name, at, bar.args)
            });
        }
    }

    pub(super) fn instants(&mut self, row: Track, moments: Vec<Instant>) {
        for moment in moments {
            let at = self.since_start(moment.at);
            self.events.push(Event {
                cat: Some(moment.category),
                s: Some("t"),
                ..event(row, "i", &moment.name, at, moment.args)
            });
        }
    }

    /// A figure that changes at these moments.
    pub(super) fn counter(&mut self, pid: u32, name: &str, unit: &str, values: &[(u64, u64)]) {
        for (at, value) in values {
            let args = known(json!({ unit: value }));
            let at = self.since_start(*at);
            let track = Track { pid, tid: 0 };
            self.events.push(event(track, "C", name, at, args));
        }
    }

    fn since_start(&self, unix_us: u64) -> u64 {
        unix_us.saturating_sub(self.start)
    }

    /// Names first, then everything in the order of time. At one moment, the longest bar first, as it holds the others.
    pub(super) fn events(mut self) -> Vec<Event> {
        let key = |event: &Event| (event.ts, std::cmp::Reverse(event.dur));
        // The sort is stable: of two bars of one length, the outer one was there before.
        self.events.sort_by_key(key);
        self.names.append(&mut self.events);
        self.names
    }
}

fn event(track: Track, ph: &'static str, name: &str, ts: u64, args: Map<String, Value>) -> Event {
    Event {
        name: name.to_owned(),
        ph,
        ts,
        dur: None,
        pid: track.pid,
        tid: track.tid,
        cat: None,
        s: None,
        args,
    }
}
