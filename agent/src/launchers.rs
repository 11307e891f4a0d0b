//! Launchers: one interpreter per job on this node that has imported torch, and from which the
//! runners of the job's generations are forked. This file keeps the books of them: which there are,
//! who waits for them, what they take. `launcher.rs` starts, asks and ends one. `core::node::spare`
//! decides which jobs have one.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::{
    id::{Generation, JobUid},
    node::torchrun::Launch,
    run::{Assignment, SpareState},
    time::Timestamp,
};
use tokio::sync::oneshot;
use tracing::warn;

mod launcher;
mod pool;

use launcher::fit;
pub(crate) use launcher::{Kept, Launcher, Place, clear, read_some};
pub(crate) use pool::Pool;

/// New modules that are worth another copy of the launcher: below this a rank imports them in some
/// 50 ms, and a copy takes seconds.
const WORTH_IMPORTING: usize = 50;
/// All launchers of one node.
#[derive(Debug, Default)]
pub(crate) struct Launchers {
    slots: BTreeMap<JobUid, Slot>,
    /// When each of these jobs last had anything on this node.
    last_here: BTreeMap<JobUid, Timestamp>,
    pub(crate) next: u32,
    pub(crate) pool: Pool,
}

/// `Starting` ends in one of the others. A job has no second launcher on a node after one that
/// failed or took too much memory.
#[derive(Debug)]
enum Slot {
    Starting {
        number: u32,
        waiting: Vec<oneshot::Sender<Result<Launcher, String>>>,
    },
    Ready(Kept),
    /// The job's generations start without: in lane cold.
    Failed(SpareState),
    /// All launchers take more memory than they may. Each generation imports torch by itself.
    Unaffordable(String),
}

/// A launcher as a generation finds it.
#[derive(Debug)]
pub(crate) enum Found {
    Ready(Launcher),
    Starting(oneshot::Receiver<Result<Launcher, String>>),
    Failed(String),
}

/// What became of one.
#[derive(Debug)]
pub(crate) struct Made {
    /// None: it is the pool's.
    pub(crate) job: Option<JobUid>,
    pub(crate) number: u32,
    pub(crate) outcome: Outcome,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Ready(Kept),
    /// No launcher could be started: the job runs in lane cold.
    Without(String),
    /// The job cannot be started on this node, told to its user.
    Refused(String),
    /// What one that is ready takes in memory.
    Size(u64),
}

impl Launchers {
    pub(crate) fn new(pool: Pool) -> Self {
        Self {
            pool,
            ..Self::default()
        }
    }

    /// Jobs that have one, are about to, or cannot, and when each last had anything here.
    pub(crate) fn jobs(&self) -> BTreeMap<JobUid, Timestamp> {
        let last_here = |job: &JobUid| self.last_here.get(job).copied().unwrap_or_default();
        self.slots
            .keys()
            .map(|job| (job.clone(), last_here(job)))
            .collect()
    }

    /// Notes which jobs have something here now.
    pub(crate) fn are_here(&mut self, jobs: BTreeSet<JobUid>, now: Timestamp) {
        self.last_here.retain(|job, _| self.slots.contains_key(job));
        self.last_here
            .extend(jobs.into_iter().map(|job| (job, now)));
    }

    /// Notes that one is being started, and gives its number.
    pub(crate) fn begin(&mut self, job: &JobUid) -> u32 {
        self.next += 1;
        self.slots.insert(
            job.clone(),
            Slot::Starting {
                number: self.next,
                waiting: Vec::new(),
            },
        );
        self.next
    }

    /// The job's launcher; None if it has none and starts as if there were no launchers.
    pub(crate) fn find(&mut self, job: &JobUid) -> Option<Found> {
        match self.slots.get_mut(job)? {
            Slot::Starting { waiting, .. } => {
                let (tell, told) = oneshot::channel();
                waiting.push(tell);
                Some(Found::Starting(told))
            }
            Slot::Ready(kept) => Some(Found::Ready(kept.launcher.clone())),
            Slot::Failed(SpareState::Without(why) | SpareState::Refused(why)) => {
                Some(Found::Failed(why.clone()))
            }
            Slot::Failed(SpareState::Ready) | Slot::Unaffordable(_) => None,
        }
    }

    /// Takes in what became of one. Returned is a launcher that is of no use, to be ended.
    pub(crate) fn made(&mut self, made: Made, memory_max: Option<u64>) -> Option<Kept> {
        let Made {
            job,
            number,
            outcome,
        } = made;
        let Some(job) = job else {
            return self.made_for_pool(number, outcome);
        };
        if let Outcome::Size(bytes) = outcome {
            return self.weigh(&job, number, bytes, memory_max);
        }
        let awaited = matches!(self.slots.get(&job), Some(Slot::Starting { number: awaited, .. }) if *awaited == number);
        if !awaited {
            return if let Outcome::Ready(kept) = outcome {
                Some(kept)
            } else {
                None
            };
        }
        let (slot, told) = match outcome {
            Outcome::Ready(kept) => {
                let launcher = kept.launcher.clone();
                (Slot::Ready(kept), Ok(launcher))
            }
            Outcome::Without(why) => {
                warn!(%job, "no launcher: {why}");
                (Slot::Failed(SpareState::Without(why.clone())), Err(why))
            }
            Outcome::Refused(why) => {
                warn!(%job, "it cannot be started here: {why}");
                (Slot::Failed(SpareState::Refused(why.clone())), Err(why))
            }
            Outcome::Size(_) => return None,
        };
        if let Some(Slot::Starting { waiting, .. }) = self.slots.insert(job, slot) {
            // Who has stopped waiting needs no answer.
            waiting
                .into_iter()
                .for_each(|tell| drop(tell.send(told.clone())));
        }
        None
    }

    fn made_for_pool(&mut self, number: u32, outcome: Outcome) -> Option<Kept> {
        match outcome {
            Outcome::Ready(kept) => return self.pool.ready(number, kept),
            Outcome::Without(why) | Outcome::Refused(why) => self.pool.failed(number, &why),
            Outcome::Size(bytes) => self.pool.weigh(number, bytes),
        }
        None
    }

    fn weigh(
        &mut self,
        job: &JobUid,
        number: u32,
        bytes: u64,
        memory_max: Option<u64>,
    ) -> Option<Kept> {
        match self.slots.get_mut(job) {
            Some(Slot::Ready(kept)) if kept.launcher.number == number => kept.bytes = bytes,
            // Ended since.
            _ => return None,
        }
        let all = self.bytes_of_jobs();
        let most = memory_max.filter(|most| all > *most)?;
        warn!(%job, bytes, "launchers take {all} bytes of the {most} they may: this one is ended");
        let why = format!("launchers may take {most} bytes here, and would take {all}");
        match self.slots.insert(job.clone(), Slot::Unaffordable(why)) {
            Some(Slot::Ready(kept)) => Some(kept),
            _ => None,
        }
    }

    /// Memory of the job's launcher, 0 if there is none or it is not known yet.
    pub(crate) fn bytes(&self, job: &JobUid) -> u64 {
        match self.slots.get(job) {
            Some(Slot::Ready(kept)) => kept.bytes,
            _ => 0,
        }
    }

    /// Memory of all that jobs have.
    pub(crate) fn bytes_of_jobs(&self) -> u64 {
        self.slots.keys().map(|job| self.bytes(job)).sum()
    }

    /// Whether the job has one, is about to, or cannot.
    pub(crate) fn is_known(&self, job: &JobUid) -> bool {
        self.slots.contains_key(job)
    }

    /// Whether the job's launcher was not started with what this launch needs.
    pub(crate) fn is_unfit(&self, job: &JobUid, assignment: &Assignment, launch: &Launch) -> bool {
        let Some(Slot::Ready(kept)) = self.slots.get(job) else {
            return false;
        };
        fit(assignment, launch).is_none_or(|wanted| wanted != *kept.launcher.fit)
    }

    /// Gives up the job's launcher, which is to be ended if there is one.
    pub(crate) fn take(&mut self, job: &JobUid) -> Option<Kept> {
        match self.slots.remove(job) {
            Some(Slot::Ready(kept)) => Some(kept),
            // One that is starting is ended when it is ready: nobody waits for it then.
            _ => None,
        }
    }

    /// What became of the job's, for the coordinator; nothing while it is starting.
    pub(crate) fn state(&self, job: &JobUid) -> Option<SpareState> {
        match self.slots.get(job)? {
            Slot::Starting { .. } => None,
            Slot::Ready(_) => Some(SpareState::Ready),
            Slot::Failed(state) => Some(state.clone()),
            Slot::Unaffordable(why) => Some(SpareState::Without(why.clone())),
        }
    }

    /// The launcher that should import what this generation's ranks have, if they have imported
    /// enough that is new. `modules`: their list.
    pub(crate) fn next_imports(
        &mut self,
        job: &JobUid,
        generation: Generation,
        modules: impl FnOnce() -> String,
    ) -> Option<(Launcher, String)> {
        let Some(Slot::Ready(kept)) = self.slots.get_mut(job) else {
            return None;
        };
        if kept.seen == Some(generation) {
            return None;
        }
        kept.seen = Some(generation);
        let list = modules();
        let lines: BTreeSet<String> = list.lines().map(str::to_owned).collect();
        if lines.difference(&kept.told).count() < WORTH_IMPORTING {
            return None;
        }
        kept.told = lines;
        Some((kept.launcher.clone(), list))
    }
}

impl Found {
    /// The launcher, once it is ready; why there is none otherwise.
    pub(crate) async fn ready(self) -> Result<Launcher, String> {
        match self {
            Found::Ready(launcher) => Ok(launcher),
            Found::Failed(why) => Err(why),
            Found::Starting(told) => told.await.unwrap_or_else(|_| Err("it was given up".into())),
        }
    }
}
