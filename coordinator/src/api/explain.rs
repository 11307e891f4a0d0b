//! `JobService.Explain`: one timeline with its reasons, the receipts, and what was lost by cause.

use std::collections::BTreeMap;

use muster_core::{
    fleet::{
        job::JobRecord,
        receipt::{Cause, Incident},
        view::JobView,
    },
    time::Timestamp,
};
use muster_proto::{convert::jobs as wire, limits::MESSAGE_MAX, v1};
use prost::Message;

use super::jobs::shown;
use crate::board::Events;

/// Bytes of events in an explanation: half a message; the job takes a quarter at most, 100 receipts of 1 KiB far less.
const TIMELINE_BYTES: usize = MESSAGE_MAX / 2;

pub(crate) fn explain(view: &JobView, events: &Events, now: Timestamp) -> v1::ExplainResponse {
    let record = &view.record;
    v1::ExplainResponse {
        job: Some(shown(view)),
        timeline: timeline(record, events),
        incidents: record.incidents.iter().map(wire::incident).collect(),
        lost: lost(record, now),
        incidents_dropped: record.incidents_dropped,
    }
}

/// The job's events, oldest first; the oldest are left out where all are too many.
fn timeline(record: &JobRecord, events: &Events) -> Vec<v1::Event> {
    let mut bytes = 0;
    let mine = events.after(0).rev().filter(|event| event.job.as_ref().is_some_and(|(uid, _)| *uid == record.uid));
    let mut newest: Vec<v1::Event> = mine
        .map(|event| wire::event(event))
        .take_while(|event| {
            bytes += event.encoded_len();
            bytes <= TIMELINE_BYTES
        })
        .collect();
    newest.reverse();
    newest
}

/// Time not trained, by cause: from where an incident stopped the training to the first step after it.
fn lost(record: &JobRecord, now: Timestamp) -> Vec<v1::LostTime> {
    let mut by_cause: BTreeMap<Cause, v1::LostTime> = BTreeMap::new();
    for (i, incident) in record.incidents.iter().enumerate() {
        // One that never got to a step lasted until the next one took over, or the job ended, or it lasts still.
        let next = record.incidents.get(i + 1).map(|next| next.event_at);
        let end = incident.first_step_at.or(incident.joined_at).unwrap_or(now);
        let end = [next, record.finished].into_iter().flatten().fold(end, Timestamp::min);
        let lost = by_cause
            .entry(incident.cause)
            .or_insert_with(|| v1::LostTime { cause: format!("{:?}", incident.cause), ..v1::LostTime::default() });
        lost.incidents += 1;
        lost.lost_us += end.since(stopped_training(incident)).as_micros() as u64;
    }
    by_cause.into_values().collect()
}

/// A world that is changed on purpose trains on until the change is decided.
fn stopped_training(incident: &Incident) -> Timestamp {
    match incident.cause {
        Cause::NodeJoined | Cause::NodeLeaving | Cause::Scaled => incident.decided_at.unwrap_or(incident.detected_at),
        _ => incident.event_at,
    }
}
