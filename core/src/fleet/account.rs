//! What a job's incidents have cost, by cause: time in which the job should have trained and did
//! not.
//!
//! A job keeps receipts for its newest incidents only. Before it drops a receipt, it adds the cost
//! to sums in its record, so no sum ever falls. Each sum keeps two times apart: the time that the
//! cause itself took, and the time in which nothing could be done, because nodes were missing or
//! the job was in back-off.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fleet::{
        job::INCIDENTS_MAX,
        job::JobRecord,
        receipt::Lost,
        receipt::{Cause, Incident},
    },
    time::Timestamp,
};

/// Of so many stalls the stacks and places are kept. Each takes some 10 KiB.
const STALLS_WHOLE: usize = 3;

impl JobRecord {
    /// Adds the newest incident. If there are too many, the oldest is dropped, and its cost stays
    /// in the sums.
    pub(crate) fn open_incident(&mut self, incident: Incident) {
        if incident.stall.is_some() {
            let newest_first = self.incidents.iter_mut().rev();
            let stalls = newest_first.filter_map(|one| one.stall.as_mut());
            let old = stalls.skip(STALLS_WHOLE - 1);
            old.for_each(|stall| stall.forget_details());
        }
        self.incidents.push(incident);
        if self.incidents.len() > INCIDENTS_MAX {
            close_oldest(self);
            self.incidents.remove(0);
            self.incidents_dropped += 1;
        }
    }
}

/// All time lost until `now`, by cause.
pub fn lost(record: &JobRecord, now: Timestamp) -> BTreeMap<Cause, Lost> {
    let mut sums = record.lost.clone();
    for (at, incident) in record.incidents.iter().enumerate() {
        let next = whole(&record.incidents[at + 1..]);
        let still = record
            .waiting_since
            .filter(|_| next.is_none())
            .map_or(Duration::ZERO, |since| end(record, now).since(since));
        add(&mut sums, incident, next, end(record, now), still);
    }
    sums
}

/// Adds the oldest incident to the sums. The caller drops it next.
pub(crate) fn close_oldest(record: &mut JobRecord) {
    let mut sums = std::mem::take(&mut record.lost);
    if let [oldest, others @ ..] = &record.incidents[..] {
        let next = whole(others);
        let until = next.or(others.last()).map(|next| next.event_at);
        add(
            &mut sums,
            oldest,
            next,
            until.unwrap_or_default(),
            Duration::ZERO,
        );
    }
    record.lost = sums;
}

/// From now until [`goes_on`], nothing can be done for the job.
pub(crate) fn waits(record: &mut JobRecord, now: Timestamp) {
    record.waiting_since.get_or_insert(now);
}

pub(crate) fn goes_on(record: &mut JobRecord, now: Timestamp) {
    // Whoever waits again has to ask again.
    record.room_made = None;
    if let (Some(since), Some(incident)) =
        (record.waiting_since.take(), record.incidents.last_mut())
    {
        incident.waited += now.since(since);
    }
}

/// The first of these incidents after which all processes were started again.
fn whole(incidents: &[Incident]) -> Option<&Incident> {
    incidents.iter().find(|one| one.restarted_ranks.is_empty())
}

fn end(record: &JobRecord, now: Timestamp) -> Timestamp {
    record.finished.map_or(now, |finished| finished.min(now))
}

/// Adds one incident to the sums. An incident without a first step lasted until the next incident,
/// or until the job ended. If neither has happened, it lasts until `until`.
fn add(
    sums: &mut BTreeMap<Cause, Lost>,
    incident: &Incident,
    next: Option<&Incident>,
    until: Timestamp,
    still: Duration,
) {
    if !incident.restarted_ranks.is_empty() {
        // The job trained on without them.
        return;
    }
    let over = incident
        .first_step_at
        .or(incident.joined_at)
        .unwrap_or(until);
    let over = next.map_or(over, |next| over.min(next.event_at)).min(until);
    let (whole, waited) = (
        over.since(stopped_training(incident)),
        incident.waited + still,
    );
    let sum = sums.entry(incident.cause).or_default();
    sum.incidents += 1;
    sum.waited += waited.min(whole);
    sum.time += whole.saturating_sub(waited);
}

/// A generation that is replaced on purpose trains on until the change is decided.
fn stopped_training(incident: &Incident) -> Timestamp {
    match incident.cause {
        Cause::NodeJoined
        | Cause::NodeLeaving
        | Cause::Scaled
        | Cause::RankSlow
        | Cause::Preempted => incident.decided_at.unwrap_or(incident.detected_at),
        _ => incident.event_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::job::INCIDENTS_MAX;

    const SECOND: Duration = Duration::from_secs(1);

    fn record() -> JobRecord {
        crate::fleet::job::tests::record()
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    /// One incident every ten seconds, each three seconds long. The causes take turns.
    fn incident(number: u64) -> Incident {
        let cause =
            [Cause::WorkerFailed, Cause::NodeLost, Cause::WorkerKilled][number as usize % 3];
        Incident {
            cause,
            first_step_at: Some(at(number * 10 + 3)),
            ..Incident::at(at(number * 10))
        }
    }

    #[test]
    fn no_sum_falls_when_receipts_are_dropped() {
        let mut record = record();
        let mut before = BTreeMap::new();
        for number in 0..3 * INCIDENTS_MAX as u64 {
            record.open_incident(incident(number));
            let sums = lost(&record, at(number * 10 + 5));
            let falls = |(cause, sum): (&Cause, &Lost)| {
                sums.get(cause).is_none_or(|now| now.time < sum.time)
            };
            assert!(
                !before.iter().any(falls),
                "incident {number}: {before:?} -> {sums:?}"
            );
            before = sums;
        }
        assert_eq!(record.incidents.len(), INCIDENTS_MAX);
        let each = Lost {
            incidents: INCIDENTS_MAX as u32,
            time: 3 * SECOND * INCIDENTS_MAX as u32,
            waited: Duration::ZERO,
        };
        assert!(
            before.len() == 3 && before.values().all(|sum| *sum == each),
            "{before:?}"
        );
        let stored: JobRecord =
            serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        assert_eq!(lost(&stored, at(9_999)), before);
    }

    #[test]
    fn waiting_is_not_charged_to_the_cause() {
        let mut record = record();
        record.open_incident(Incident {
            cause: Cause::NodeLost,
            ..Incident::at(at(100))
        });
        waits(&mut record, at(102));
        waits(&mut record, at(150));
        let of = |record: &JobRecord, now| lost(record, at(now))[&Cause::NodeLost];
        assert_eq!(
            (of(&record, 160).time, of(&record, 160).waited),
            (2 * SECOND, 58 * SECOND),
            "it waits still"
        );
        goes_on(&mut record, at(162));
        record.incidents[0].first_step_at = Some(at(165));
        assert_eq!(
            (of(&record, 900).time, of(&record, 900).waited),
            (5 * SECOND, 60 * SECOND)
        );
    }

    #[test]
    fn a_job_that_ended_while_it_waited_waits_no_longer() {
        let mut record = record();
        record.open_incident(Incident {
            cause: Cause::NodeLost,
            ..Incident::at(at(100))
        });
        waits(&mut record, at(100));
        record.finished = Some(at(130));
        assert_eq!(lost(&record, at(900))[&Cause::NodeLost].waited, 30 * SECOND);
    }
}
