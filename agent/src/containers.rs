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
    run::{Assignment, Refusal, RunId},
    time::Timestamp,
};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

mod container;
mod found;

pub(crate) use container::{Container, Place, left};

/// How many outcomes may wait until the supervisor reads them: more than a node has slots.
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
    pub(crate) outcome: Result<Container, NotMade>,
}

/// Why there is no container.
#[derive(Debug)]
pub(crate) enum NotMade {
    Refused(Refusal),
    /// The one that there is has to go first, and runs of the job still live in it.
    Later,
    /// Nothing waited for it any more.
    GivenUp,
}

#[derive(Debug, Default)]
struct Slot {
    ready: Option<Container>,
    /// Ends the start that goes on.
    starting: Option<CancellationToken>,
    waiting: Vec<Waits>,
    /// What waits until the runs of earlier generations have ended.
    postponed: Vec<Waits>,
    last_here: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Containers {
    slots: BTreeMap<JobUid, Slot>,
    /// Held by whatever starts or ends a job's container: one at a time does.
    turns: BTreeMap<JobUid, Arc<Mutex<()>>>,
    /// Jobs whose container has ended or was never ready, as an earlier agent has left it. Their runs may still live.
    orphans: BTreeSet<JobUid>,
    made: (mpsc::Sender<Made>, mpsc::Receiver<Made>),
}

impl Slot {
    fn is_awaited(&self) -> bool {
        self.starting.is_some() || !self.postponed.is_empty()
    }
}

impl Default for Containers {
    fn default() -> Self {
        Self {
            slots: BTreeMap::new(),
            turns: BTreeMap::new(),
            orphans: BTreeSet::new(),
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

    /// Notes what an earlier agent has left of a container that does not answer.
    pub(crate) fn found_ended(&mut self, job: JobUid) {
        self.orphans.insert(job);
    }

    /// Keeps what waits until the runs of earlier generations have ended.
    pub(crate) fn postpone(&mut self, job: &JobUid) {
        if let Some(slot) = self.slots.get_mut(job) {
            slot.starting = None;
            slot.postponed.append(&mut slot.waiting);
        }
    }

    /// What was postponed, of jobs of which nothing lives here any more. `living`: the runs of which something does.
    pub(crate) fn take_postponed(&mut self, living: &[RunId]) -> Vec<Waits> {
        let lives = |job: &JobUid| living.iter().any(|run| run.job == *job);
        let alone = self.slots.iter_mut().filter(|(job, _)| !lives(job));
        alone
            .flat_map(|(_, slot)| std::mem::take(&mut slot.postponed))
            .collect()
    }

    /// Whether this run waits, so that nothing of it lives.
    pub(crate) fn awaits(&self, run: &RunId) -> bool {
        let slot = self.slots.get(&run.job).into_iter();
        let mut all = slot.flat_map(|slot| slot.waiting.iter().chain(&slot.postponed));
        all.any(|waits| matches!(waits, Waits::Run(assignment, _) if assignment.run == *run))
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
        self.orphans.remove(&job);
        let slot = self.slots.entry(job).or_default();
        slot.last_here = now;
        let is_launcher = |waits: &Waits| matches!(waits, Waits::Launcher(_));
        let list = match slot.postponed.is_empty() {
            true => &mut slot.waiting,
            false => &mut slot.postponed,
        };
        // The supervisor asks for the launcher again at each of its turns.
        if !is_launcher(&waits) || !list.iter().any(is_launcher) {
            list.push(waits);
        }
        if slot.is_awaited() {
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
            if here.contains(job) || slot.is_awaited() {
                slot.last_here = now;
            }
        }
        let idle = self.slots.iter().filter(|(_, slot)| !slot.is_awaited());
        let last_here = idle
            .map(|(job, slot)| (job.clone(), slot.last_here))
            .collect();
        let (gone, again) = over(now, &last_here, here);
        // A start that has failed has left nothing.
        let is_ready = |job: &JobUid| self.of(job).is_some();
        let mut ended: Vec<JobUid> = gone.iter().filter(|job| is_ready(job)).cloned().collect();
        ended.extend(self.orphans.extract_if(.., |job| !here.contains(job)));
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
    fn what_would_replace_a_container_waits_until_nothing_lives_in_it() {
        let (mut containers, now) = (Containers::default(), Timestamp(1));
        let of = |waits: &Waits| waits.assignment().run.clone();
        let (job, living) = (of(&run(1)).job, of(&run(1)));
        assert!(containers.await_one(run(2), now).is_some());
        assert!(containers.awaits(&of(&run(2))) && !containers.awaits(&living));
        containers.postpone(&job);
        // The next generation comes before the first has ended. Both wait, and neither for the other.
        assert!(containers.await_one(run(3), now).is_none());
        assert!(containers.awaits(&of(&run(2))) && containers.awaits(&of(&run(3))));
        assert_eq!(containers.take_postponed(&[living]).len(), 0);
        let later = now + LINGER + LINGER;
        assert_eq!(containers.tend(later, &BTreeSet::new()).0, []);
        let freed = containers.take_postponed(&[]);
        let freed: Vec<RunId> = freed.iter().map(of).collect();
        assert_eq!(freed, [of(&run(2)), of(&run(3))]);
        assert!(containers.await_one(run(3), now).is_some());
    }

    #[test]
    fn what_an_earlier_agent_has_left_is_ended_when_its_job_has_nothing_here() {
        let (mut containers, now) = (Containers::default(), Timestamp(1));
        let job = run(1).assignment().run.job.clone();
        containers.found_ended(job.clone());
        let here = BTreeSet::from([job.clone()]);
        assert_eq!(containers.tend(now, &here).0, []);
        assert_eq!(containers.tend(now, &BTreeSet::new()).0, [job]);
        assert_eq!(containers.tend(now, &BTreeSet::new()).0, []);
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
