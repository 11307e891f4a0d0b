//! `JobService.Explain`: one timeline with reasons, the receipts, and the time lost by cause.

use std::{collections::BTreeMap, time::Duration};

use muster_core::{
    fleet::{
        account,
        job::JobRecord,
        receipt::{Cause, Lost},
        view::JobView,
    },
    time::Timestamp,
};
use muster_handle::board::Events;
use muster_proto::{convert::jobs as wire, limits::MESSAGE_MAX, v1};
use prost::Message;

use super::job::shown_with_time;
use crate::trust::Rights;

/// Bytes of events in an explanation: half a message. The job takes at most a quarter, and 100
/// receipts of 1 KiB far less.
const TIMELINE_BYTES: usize = MESSAGE_MAX / 2;

pub(crate) fn explain(
    rights: &Rights,
    view: &JobView,
    events: &Events,
    now: Timestamp,
) -> v1::ExplainResponse {
    let record = &view.record;
    v1::ExplainResponse {
        job: Some(shown_with_time(rights, view, now)),
        timeline: timeline(record, events),
        incidents: record.incidents.iter().map(wire::incident).collect(),
        lost: lost(account::lost(record, now)),
        incidents_dropped: record.incidents_dropped,
    }
}

/// The job's events, oldest first. If they are too large together, the oldest are left out.
fn timeline(record: &JobRecord, events: &Events) -> Vec<v1::Event> {
    let mut bytes = 0;
    let mut newest: Vec<v1::Event> = events
        .story(&record.uid)
        .rev()
        .map(|event| wire::event(event))
        .take_while(|event| {
            bytes += event.encoded_len();
            bytes <= TIMELINE_BYTES
        })
        .collect();
    newest.reverse();
    newest
}

/// Time not trained, by cause. Time in which the job waited for nodes or for its back-off has a row
/// of its own.
fn lost(sums: BTreeMap<Cause, Lost>) -> Vec<v1::LostTime> {
    let row = |cause: String, incidents: u32, time: Duration| v1::LostTime {
        cause,
        incidents,
        lost_us: u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
    };
    let waits = || sums.values().filter(|sum| !sum.waited.is_zero());
    // The incidents of this row are counted in the rows of their causes.
    let waited = row("Waiting".into(), 0, waits().map(|sum| sum.waited).sum());
    let mut rows: Vec<_> = sums
        .iter()
        .map(|(cause, sum)| row(format!("{cause:?}"), sum.incidents, sum.time))
        .collect();
    rows.extend(Some(waited).filter(|waited| waited.lost_us > 0));
    rows
}
