//! What is counted as it happens: the turns of the engine, and incidents that are over. It begins with the
//! process.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_core::{
    fleet::{
        job::JobRecord,
        receipt::{Cause, Incident},
    },
    id::JobUid,
};
use muster_handle::board::Jobs;
use tokio::sync::{
    broadcast::{Receiver, error::RecvError},
    watch,
};

use super::{
    catalogue::Family,
    text::{Histogram, Page},
};
use crate::turn_stats::TurnStats;

/// A turn of a small fleet takes a tenth of a millisecond to think and some to commit.
const TURN_BOUNDS: &[f64] = &[
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
];

/// From a fork that was made ahead to a checkpoint of minutes.
const PHASE_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];

/// The counts, shared by those that count and the page.
#[derive(Clone, Debug, Default)]
pub(super) struct Live(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    turns: BTreeMap<&'static str, Histogram>,
    events: BTreeMap<String, u64>,
    phases: BTreeMap<(&'static str, &'static str), Histogram>,
}

impl Live {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, page: &mut Page) {
        let counts = self.counts();
        for (part, histogram) in &counts.turns {
            page.put_histogram(Family::TurnSeconds, &[part], histogram);
        }
        for (reason, count) in &counts.events {
            page.put(Family::Events, &[reason], *count);
        }
        for ((phase, kind), histogram) in &counts.phases {
            page.put_histogram(Family::IncidentPhase, &[phase, kind], histogram);
        }
    }

    /// Counts turns until the engine ends. One that is lost for want of time is not counted.
    pub(super) async fn count_turns(self, mut turns: Receiver<TurnStats>) {
        loop {
            match turns.recv().await {
                Ok(turn) => self.count_turn(turn),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn count_turn(&self, turn: TurnStats) {
        let mut counts = self.counts();
        for (part, took) in [
            ("think", turn.think),
            ("commit", turn.commit),
            ("publish", turn.act),
        ] {
            let histogram = || Histogram::new(TURN_BOUNDS);
            let histogram = counts.turns.entry(part).or_insert_with(histogram);
            histogram.observe(took);
        }
        for (reason, count) in turn.events {
            *counts.events.entry(reason).or_default() += count as u64;
        }
    }

    /// Counts the incidents that come to their end from now on, until the engine ends.
    pub(super) async fn count_incidents(self, mut jobs: watch::Receiver<Jobs>) {
        let mut seen = 0;
        let mut counted: BTreeMap<JobUid, u32> = BTreeMap::new();
        let mut is_first = true;
        loop {
            let (changed, removed) = {
                let jobs = jobs.borrow_and_update();
                let removed = jobs.removed_since(seen);
                let changed = jobs.since(seen).map(|(_, job)| job.clone());
                let changed: Vec<_> = changed.collect();
                let left = removed.then(|| {
                    let all = jobs.after(None).map(|(_, job)| job.record.uid.clone());
                    all.collect::<std::collections::BTreeSet<_>>()
                });
                seen = jobs.revision();
                (changed, left)
            };
            for job in changed {
                let record = &job.record;
                let over = over(record);
                let before = counted.insert(record.uid.clone(), over);
                // What was over before this process began was counted by the one before.
                let before = before.unwrap_or(if is_first { over } else { 0 });
                newly_over(record, before).for_each(|incident| self.count_incident(incident));
            }
            if let Some(left) = removed {
                counted.retain(|uid, _| left.contains(uid));
            }
            is_first = false;
            if jobs.changed().await.is_err() {
                return;
            }
        }
    }

    fn count_incident(&self, incident: &Incident) {
        let phases = incident.phases();
        let named: [(&str, Option<Duration>); 7] = [
            ("detect", phases.detect),
            ("decide", phases.decide),
            ("stop", phases.stop),
            ("launch", phases.launch),
            ("join", phases.join),
            ("first_step", phases.first_step),
            ("total", incident.total()),
        ];
        let kind = kind(incident.cause);
        let mut counts = self.counts();
        for (phase, time) in named {
            if let Some(time) = time {
                let histogram = || Histogram::new(PHASE_BOUNDS);
                let of = counts.phases.entry((phase, kind)).or_insert_with(histogram);
                of.observe(time);
            }
        }
    }
}

/// What an incident was about.
fn kind(cause: Cause) -> &'static str {
    use Cause::*;
    match cause {
        FirstStart => "start",
        NodeLost | NodeRebooted | NodeUnhealthy => "node",
        _ if cause.is_failure() => "worker",
        _ => "planned",
    }
}

/// Whether nothing is added to this receipt any more: its world has made a step, or a later incident has taken
/// its place.
fn is_over(record: &JobRecord, index: usize) -> bool {
    let incident = &record.incidents[index];
    incident.first_step_at.is_some() || index + 1 < record.incidents.len() || record.phase.is_over()
}

/// How many incidents of this job are over, counted from its first. Those before one that is not over are over.
fn over(record: &JobRecord) -> u32 {
    let over = (0..record.incidents.len()).filter(|index| is_over(record, *index));
    record.incidents_dropped + over.count() as u32
}

/// The incidents that are over, without the first `before` of the job. Those that are no longer kept are lost.
fn newly_over(record: &JobRecord, before: u32) -> impl Iterator<Item = &Incident> {
    let skip = before.saturating_sub(record.incidents_dropped) as usize;
    let all = record.incidents.iter().enumerate().skip(skip);
    all.filter(|(index, _)| is_over(record, *index))
        .map(|(_, incident)| incident)
}
