//! The containers of jobs that run in an image: one for each job on this node, in which all of its runners are.
//!
//! This file keeps the books: which exist, and what waits for them. `container.rs` starts one, finds one of an earlier
//! agent, and ends one. `core::node::container` decides how and how long.
//!
//! A container is *starting*, then *ready*, and stays so until its job has left. If it ends by itself, the next
//! generation starts another. It is never taken as the proof of anything: its runs are judged one by one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_core::{
    id::{JobUid, Term},
    node::container::{Asked, over},
    run::{Assignment, Refusal},
    time::Timestamp,
};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

mod container;
mod found;

pub(crate) use container::{Container, Place, left};

/// How many may be ready at the same moment and not be noted: more than a node has slots.
const MADE_MAX: usize = 64;

/// What waits for a container.
#[derive(Clone, Debug)]
pub(crate) enum Waits {
    /// A run that is to be held.
    Run(Box<Assignment>, Term),
    /// A launcher, ahead of the job's first run here.
    Launcher(Box<Assignment>),
}

impl Waits {
    pub(crate) fn assignment(&self) -> &Assignment {
        match self {
            Waits::Run(assignment, _) | Waits::Launcher(assignment) => assignment,
        }
    }
}

/// What became of one start.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) job: JobUid,
    pub(crate) outcome: Result<Container, Refusal>,
}

#[derive(Debug, Default)]
struct Slot {
    ready: Option<Container>,
    /// Ends the start that goes on.
    starting: Option<CancellationToken>,
    waiting: Vec<Waits>,
    last_here: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Containers {
    slots: BTreeMap<JobUid, Slot>,
    /// Held by whatever starts or ends a job's container: one at a time does.
    turns: BTreeMap<JobUid, Arc<Mutex<()>>>,
    made: (mpsc::Sender<Made>, mpsc::Receiver<Made>),
}

impl Default for Containers {
    fn default() -> Self {
        Self {
            slots: BTreeMap::new(),
            turns: BTreeMap::new(),
            made: mpsc::channel(MADE_MAX),
        }
    }
}

impl Containers {
    /// Waits until a start has come to its end. Cancel safe.
    pub(crate) async fn made(&mut self) -> Made {
        let made = self.made.1.recv().await;
        made.expect("this value has a sender, so there is always another message")
    }

    pub(crate) fn tell(&self) -> mpsc::Sender<Made> {
        self.made.0.clone()
    }

    pub(crate) fn turn(&mut self, job: &JobUid) -> Arc<Mutex<()>> {
        self.turns.entry(job.clone()).or_default().clone()
    }

    /// Notes a container of an earlier agent.
    pub(crate) fn found(&mut self, job: JobUid, container: Container, now: Timestamp) {
        let slot = self.slots.entry(job).or_default();
        (slot.ready, slot.last_here) = (Some(container), now);
    }

    /// The container that the job's runs are in.
    pub(crate) fn of(&self, job: &JobUid) -> Option<&Container> {
        self.slots.get(job)?.ready.as_ref()
    }

    /// Notes what waits. Returns what the container must serve and how its start is ended, if it is to be started, or
    /// looked at, now.
    pub(crate) fn await_one(
        &mut self,
        waits: Waits,
        now: Timestamp,
    ) -> Option<(Asked, CancellationToken)> {
        let asked = Asked::of(waits.assignment())?;
        let job = waits.assignment().run.job.clone();
        let slot = self.slots.entry(job).or_default();
        slot.last_here = now;
        let is_launcher = |waits: &Waits| matches!(waits, Waits::Launcher(_));
        // The supervisor asks for the launcher again at each of its turns.
        if !is_launcher(&waits) || !slot.waiting.iter().any(is_launcher) {
            slot.waiting.push(waits);
        }
        if slot.starting.is_some() {
            return None;
        }
        let ends = CancellationToken::new();
        slot.starting = Some(ends.clone());
        Some((asked, ends))
    }

    /// Notes what became of a start. Returns what has waited for it.
    pub(crate) fn note(&mut self, job: &JobUid, container: Option<Container>) -> Vec<Waits> {
        let Some(slot) = self.slots.get_mut(job) else {
            return Vec::new();
        };
        slot.starting = None;
        slot.ready = container;
        std::mem::take(&mut slot.waiting)
    }

    /// Ends the starts that nothing waits for any more. `here`: the jobs that have, or are to have, something here.
    pub(crate) fn give_up(&self, here: &BTreeSet<JobUid>) {
        let gone = self.slots.iter().filter(|(job, _)| !here.contains(*job));
        for ends in gone.filter_map(|(_, slot)| slot.starting.as_ref()) {
            ends.cancel();
        }
    }

    /// The jobs whose containers are to be ended now, which are forgotten here, and when to look again.
    pub(crate) fn tend(
        &mut self,
        now: Timestamp,
        here: &BTreeSet<JobUid>,
    ) -> (Vec<JobUid>, Option<Timestamp>) {
        for (job, slot) in &mut self.slots {
            if here.contains(job) || slot.starting.is_some() {
                slot.last_here = now;
            }
        }
        let idle = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.starting.is_none());
        let last_here = idle
            .map(|(job, slot)| (job.clone(), slot.last_here))
            .collect();
        let (gone, again) = over(now, &last_here, here);
        // A start that has failed has left nothing.
        let is_ready = |job: &JobUid| self.of(job).is_some();
        let ended = gone.iter().filter(|job| is_ready(job)).cloned().collect();
        self.slots.retain(|job, _| !gone.contains(job));
        let slots = &self.slots;
        // Whoever holds a turn has another handle of it.
        self.turns
            .retain(|job, turn| slots.contains_key(job) || Arc::strong_count(turn) > 1);
        (ended, again)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is a test")]

    use muster_core::node::launcher::LINGER;

    use super::*;
    use crate::{host::ImageHost, preflight::tests::assignment};

    fn in_image(image: &str, generation: u64) -> Assignment {
        let mut assignment = assignment(&["python3"], &["train.py"], "/w".as_ref());
        assignment.image = Some(image.into());
        assignment.run.generation.0 = generation;
        assignment
    }

    fn run(generation: u64) -> Waits {
        Waits::Run(Box::new(in_image("a", generation)), Term(1))
    }

    #[test]
    fn one_start_serves_all_that_waits_for_it() {
        let (mut containers, now) = (Containers::default(), Timestamp(1));
        let job = run(1).assignment().run.job.clone();
        let (asked, ends) = containers.await_one(run(1), now).unwrap();
        assert_eq!((asked.image.as_str(), asked.gpus), ("a", false));
        assert!(containers.await_one(run(2), now).is_none());
        let launcher = || Waits::Launcher(Box::new(in_image("a", 3)));
        assert!(containers.await_one(launcher(), now).is_none());
        assert!(containers.await_one(launcher(), now).is_none());
        // While the job is wanted its start goes on, and nothing is ended.
        let here = BTreeSet::from([job.clone()]);
        containers.give_up(&here);
        assert!(!ends.is_cancelled());
        assert_eq!(containers.tend(now, &BTreeSet::new()).0, []);
        containers.give_up(&BTreeSet::new());
        assert!(ends.is_cancelled());
        assert_eq!(
            containers.note(&job, None).len(),
            3,
            "two runs, one launcher"
        );
        assert!(containers.of(&job).is_none());
        assert!(containers.await_one(run(4), now).is_some(), "another start");
    }

    #[test]
    fn a_container_is_forgotten_a_while_after_its_job_has_left() {
        let (mut containers, begun) = (Containers::default(), Timestamp(1));
        let job = run(1).assignment().run.job.clone();
        let (asked, _) = containers.await_one(run(1), begun).unwrap();
        let container = Container {
            asked,
            env: BTreeMap::new(),
            host: Arc::new(ImageHost::new("/r".into(), "/v".into())),
            preflight: Arc::default(),
        };
        containers.note(&job, Some(container));
        let _held = containers.turn(&job);
        let here = BTreeSet::from([job.clone()]);
        assert_eq!(containers.tend(begun, &here), (vec![], None));
        let due = begun + LINGER;
        assert_eq!(
            containers.tend(begun, &BTreeSet::new()),
            (vec![], Some(due))
        );
        assert_eq!(
            containers.tend(due, &BTreeSet::new()),
            (vec![job.clone()], None)
        );
        assert!(containers.of(&job).is_none());
        // Its end still has its turn, for which the next start waits.
        assert_eq!(Arc::strong_count(&containers.turn(&job)), 3);
    }
}
