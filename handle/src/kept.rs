//! Decides which events are kept. A job's events are kept as long as the job; events of nodes and
//! of the fleet make room for newer ones of their kind.
//!
//! Ten thousand nodes that connect write as many events. These must not displace the events of a
//! job, nor the warnings about lost or cordoned nodes. This type knows only the numbers of events.
//! The board and the stores each have one beside the events themselves, and drop the events that it
//! gives up.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::{fleet::Event, id::JobUid};

/// Events kept of one job: its first ones, to show how it began, and its last ones, to show how it
/// came to its present state. 500 events of about 400 bytes are 200 KB.
pub const JOB_FIRST: usize = 100;
pub const JOB_LAST: usize = 400;
/// Events of all jobs together: 40 MB in memory and on disk.
pub const JOBS_MAX: usize = 100_000;
/// Warnings of nodes and the fleet, and as many other events of theirs: 4 MB. A fleet of 2,000
/// nodes makes a few hundred a day.
pub const FLEET_MAX: usize = 5_000;

/// The numbers of the events that are kept.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    warnings: BTreeSet<u64>,
    others: BTreeSet<u64>,
    /// Numbers of each job's events, and whether each is a warning.
    jobs: BTreeMap<JobUid, BTreeMap<u64, bool>>,
    owners: BTreeMap<u64, JobUid>,
    dropped: Vec<u64>,
}

impl Kept {
    /// The events as they are after a start. `exists` tells whether a job still exists.
    pub fn of<'a>(
        events: impl IntoIterator<Item = &'a Event>,
        exists: impl Fn(&JobUid) -> bool,
    ) -> Kept {
        let mut kept = Kept::default();
        for event in events {
            match event
                .job
                .as_ref()
                .map(|(uid, _)| uid)
                .filter(|uid| exists(uid))
            {
                Some(uid) => kept.add_to_job(uid, event.sequence, event.warning),
                None => kept.add_to_fleet(event.sequence, event.warning),
            }
        }
        kept
    }

    pub fn add(&mut self, event: &Event) {
        match &event.job {
            Some((uid, _)) => self.add_to_job(uid, event.sequence, event.warning),
            None => self.add_to_fleet(event.sequence, event.warning),
        }
    }

    /// The job was deleted: its events are now kept like those of the fleet.
    pub fn release(&mut self, uid: &JobUid) {
        for (number, warning) in self.jobs.remove(uid).unwrap_or_default() {
            self.owners.remove(&number);
            self.add_to_fleet(number, warning);
        }
    }

    /// Numbers of this job's events, oldest first.
    pub fn story(&self, uid: &JobUid) -> impl DoubleEndedIterator<Item = u64> {
        self.jobs
            .get(uid)
            .into_iter()
            .flat_map(|story| story.keys().copied())
    }

    /// The numbers that were given up since the last call.
    pub fn take_dropped(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.dropped)
    }

    fn add_to_fleet(&mut self, number: u64, warning: bool) {
        let ring = if warning {
            &mut self.warnings
        } else {
            &mut self.others
        };
        ring.insert(number);
        while ring.len() > FLEET_MAX {
            self.dropped.extend(ring.pop_first());
        }
    }

    fn add_to_job(&mut self, uid: &JobUid, number: u64, warning: bool) {
        let story = self.jobs.entry(uid.clone()).or_default();
        story.insert(number, warning);
        self.owners.insert(number, uid.clone());
        let middle = story
            .keys()
            .nth(JOB_FIRST)
            .copied()
            .filter(|_| story.len() > JOB_FIRST + JOB_LAST);
        let oldest = || {
            self.owners
                .keys()
                .next()
                .copied()
                .filter(|_| self.owners.len() > JOBS_MAX)
        };
        if let Some(surplus) = middle.or_else(oldest) {
            self.drop_of_job(surplus);
        }
    }

    fn drop_of_job(&mut self, number: u64) {
        let Some(uid) = self.owners.remove(&number) else {
            return;
        };
        if let Some(story) = self.jobs.get_mut(&uid) {
            story.remove(&number);
            if story.is_empty() {
                self.jobs.remove(&uid);
            }
        }
        self.dropped.push(number);
    }
}

#[cfg(test)]
mod tests {
    use muster_core::{id::JobName, time::Timestamp};

    use super::*;

    fn event(sequence: u64, job: Option<&str>, warning: bool) -> Event {
        let named = |job: &str| {
            (
                JobUid::from(job),
                JobName {
                    namespace: "default".into(),
                    name: job.into(),
                },
            )
        };
        Event {
            sequence,
            at: Timestamp(sequence),
            warning,
            reason: "Told".into(),
            message: String::new(),
            job: job.map(named),
            node: None,
            generation: None,
            actor: None,
        }
    }

    fn story(kept: &Kept, job: &str) -> Vec<u64> {
        kept.story(&JobUid::from(job)).collect()
    }

    #[test]
    fn ten_thousand_nodes_that_come_back_leave_stories_and_warnings_alone() {
        let mut kept = Kept::default();
        kept.add(&event(1, Some("digits"), false));
        kept.add(&event(2, None, true));
        (3..10_003).for_each(|number| kept.add(&event(number, None, false)));
        assert_eq!(story(&kept, "digits"), [1]);
        let dropped = kept.take_dropped();
        assert_eq!(
            (dropped.len(), dropped[0]),
            (5_000, 3),
            "the oldest of their kind made room"
        );
        assert!(kept.take_dropped().is_empty());
    }

    #[test]
    fn of_a_long_story_the_beginning_and_the_end_are_kept() {
        let mut kept = Kept::default();
        (1..=1_000).for_each(|number| kept.add(&event(number, Some("digits"), false)));
        let story = story(&kept, "digits");
        assert_eq!(
            (story.len(), story[99], story[100], story[499]),
            (500, 100, 601, 1_000)
        );
        assert_eq!(kept.take_dropped(), (101..=600).collect::<Vec<_>>());
    }

    #[test]
    fn all_stories_together_are_bounded_and_the_oldest_event_goes() {
        let mut kept = Kept::default();
        for number in 1..=JOBS_MAX as u64 + 1 {
            kept.add(&event(number, Some(&format!("job-{}", number / 50)), false));
        }
        assert_eq!(
            (kept.take_dropped(), kept.owners.len()),
            (vec![1], JOBS_MAX)
        );
        assert_eq!(story(&kept, "job-0")[0], 2);
    }

    #[test]
    fn a_deleted_jobs_events_are_the_fleets() {
        let mut kept = Kept::default();
        kept.add(&event(1, Some("digits"), false));
        kept.add(&event(2, Some("digits"), true));
        kept.release(&JobUid::from("digits"));
        assert!(
            story(&kept, "digits").is_empty()
                && kept.owners.is_empty()
                && kept.take_dropped().is_empty()
        );
        (3..5_003).for_each(|number| kept.add(&event(number, None, false)));
        assert_eq!(kept.take_dropped(), [1], "the warning has its own room");
        let again = Kept::of(
            &[
                event(1, Some("digits"), false),
                event(2, Some("other"), false),
            ],
            |uid| uid.as_str() == "other",
        );
        assert_eq!(
            (story(&again, "digits").len(), story(&again, "other")),
            (0, vec![2]),
            "as after a start"
        );
    }
}
