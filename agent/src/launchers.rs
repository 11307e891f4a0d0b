//! Launchers: one interpreter per job on this node that has imported torch. The runners of the
//! job's generations are forked from it.
//!
//! This file keeps the books of launchers: which exist, which tasks wait for them, and how much
//! memory they take. `imports.rs` keeps those of what they import for their jobs. `launcher.rs`
//! starts one, sends it requests and ends it. `core::node::launcher` decides which jobs have one.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use muster_core::{
    id::{Generation, JobUid},
    node::{
        standby::{Mode, No},
        torchrun::Launch,
    },
    run::{Assignment, LauncherState},
    time::Timestamp,
};
use muster_runner::wire::StandbyMode;
use tokio::sync::oneshot;
use tracing::warn;

use crate::caches::Caches;

mod imports;
mod launcher;
mod list;
mod pool;
mod spare;
mod standing;

pub(crate) use imports::OfRun;
use launcher::fit;
pub(crate) use launcher::{Kept, Launcher, Place, clear, sure_list};
pub(crate) use list::{imported, imported_bytes};
pub(crate) use pool::Pool;
use spare::Spare;
use standing::Standing;

/// All launchers of one node.
#[derive(Debug, Default)]
pub(crate) struct Launchers {
    slots: BTreeMap<JobUid, Slot>,
    /// When each of these jobs last had a run or an order on this node.
    last_here: BTreeMap<JobUid, Timestamp>,
    pub(crate) next: u32,
    pub(crate) pool: Pool,
    pub(crate) caches: Caches,
    pub(crate) spare: Spare,
}

/// `Starting` becomes one of the others. A job gets no second launcher on a node after one that
/// failed or took too much memory.
#[derive(Debug)]
enum Slot {
    Starting {
        number: u32,
        waiting: Vec<oneshot::Sender<Result<Launcher, String>>>,
    },
    Ready(Kept),
    /// The job's generations start without a launcher, in the lane that needs none.
    Failed(LauncherState),
    /// All launchers take more memory than they may. Each generation of this job imports torch
    /// itself.
    Unaffordable(String),
}

/// A job's launcher, as a starting generation finds it.
#[derive(Debug)]
pub(crate) enum Found {
    Ready(Launcher),
    Starting(oneshot::Receiver<Result<Launcher, String>>),
    Failed(String),
}

/// What became of one launcher.
#[derive(Debug)]
pub(crate) struct Made {
    /// None: the launcher is the pool's.
    pub(crate) job: Option<JobUid>,
    pub(crate) number: u32,
    pub(crate) outcome: Outcome,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Ready(Kept),
    /// The job has no launcher here: its lane has none, or it could not be started.
    Without(String),
    /// The job cannot be started on this node. The user is told this reason.
    Refused(String),
    /// A ready launcher has imported for its job, or failed to: all modules that it has imported
    /// ahead, as lines of a record, and how much memory it takes now. No size: it is gone.
    Imported(BTreeSet<String>, Option<u64>),
    /// How much memory a ready launcher takes.
    Size(u64),
}

impl Launchers {
    pub(crate) fn new(pool: Pool) -> Self {
        Self {
            pool,
            ..Self::default()
        }
    }

    /// The jobs that have a launcher, are about to have one, or cannot have one, and when each last
    /// had anything here.
    pub(crate) fn jobs(&self) -> BTreeMap<JobUid, Timestamp> {
        let last_here = |job: &JobUid| self.last_here.get(job).copied().unwrap_or_default();
        self.slots
            .keys()
            .map(|job| (job.clone(), last_here(job)))
            .collect()
    }

    /// Notes which jobs have something on this node now.
    pub(crate) fn are_here(&mut self, jobs: BTreeSet<JobUid>, now: Timestamp) {
        self.last_here.retain(|job, _| self.slots.contains_key(job));
        self.last_here
            .extend(jobs.into_iter().map(|job| (job, now)));
    }

    /// Notes that a launcher is being started, and returns its number.
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

    /// The job's launcher. None if the job has none and starts without one.
    pub(crate) fn find(&mut self, job: &JobUid) -> Option<Found> {
        match self.slots.get_mut(job)? {
            Slot::Starting { waiting, .. } => {
                let (tell, told) = oneshot::channel();
                waiting.push(tell);
                Some(Found::Starting(told))
            }
            Slot::Ready(kept) => Some(Found::Ready(kept.launcher.clone())),
            Slot::Failed(LauncherState::Without(why) | LauncherState::Refused(why)) => {
                Some(Found::Failed(why.clone()))
            }
            Slot::Failed(LauncherState::Ready) | Slot::Unaffordable(_) => None,
        }
    }

    /// Notes what became of one launcher. Returns a launcher that is not needed, for the caller to
    /// end.
    pub(crate) fn made(&mut self, made: Made, memory_max: Option<u64>) -> Option<Kept> {
        let Made {
            job,
            number,
            outcome,
        } = made;
        let Some(job) = job else {
            return self.made_for_pool(number, outcome);
        };
        let outcome = match outcome {
            Outcome::Imported(lines, bytes) => {
                self.note_imported(&job, number, lines);
                return self.weigh(&job, number, bytes?, memory_max);
            }
            Outcome::Size(bytes) => return self.weigh(&job, number, bytes, memory_max),
            outcome => outcome,
        };
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
                (Slot::Failed(LauncherState::Without(why.clone())), Err(why))
            }
            Outcome::Refused(why) => {
                warn!(%job, "it cannot be started here: {why}");
                (Slot::Failed(LauncherState::Refused(why.clone())), Err(why))
            }
            Outcome::Imported(..) | Outcome::Size(_) => return None,
        };
        if let Some(Slot::Starting { waiting, .. }) = self.slots.insert(job, slot) {
            // A receiver that has stopped waiting needs no answer.
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
            Outcome::Imported(_, Some(bytes)) | Outcome::Size(bytes) => {
                self.pool.weigh(number, bytes)
            }
            Outcome::Imported(_, None) => {}
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
            // The launcher has ended since.
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

    /// Memory of the job's launcher. It is 0 if there is none, or if it is not known yet.
    pub(crate) fn bytes(&self, job: &JobUid) -> u64 {
        match self.slots.get(job) {
            Some(Slot::Ready(kept)) => kept.bytes,
            _ => 0,
        }
    }

    /// Memory of the launchers of all jobs.
    pub(crate) fn bytes_of_jobs(&self) -> u64 {
        self.slots.keys().map(|job| self.bytes(job)).sum()
    }

    /// Whether the job has a launcher, is about to have one, or cannot have one.
    pub(crate) fn is_known(&self, job: &JobUid) -> bool {
        self.slots.contains_key(job)
    }

    /// Whether the job's launcher was started with something other than what this launch needs.
    pub(crate) fn is_unfit(&self, job: &JobUid, assignment: &Assignment, launch: &Launch) -> bool {
        let Some(Slot::Ready(kept)) = self.slots.get(job) else {
            return false;
        };
        fit(assignment, launch).is_none_or(|wanted| wanted != *kept.launcher.fit)
    }

    /// Gives up the job's launcher. If it is ready, it is returned for the caller to end.
    pub(crate) fn take(&mut self, job: &JobUid) -> Option<Kept> {
        match self.slots.remove(job) {
            Some(Slot::Ready(kept)) => Some(kept),
            // A launcher that is still starting is ended once it is ready, because nobody waits for
            // it then.
            _ => None,
        }
    }

    /// The standbys of the job's launcher beside this generation, as they are now. None if it has no
    /// launcher.
    pub(crate) fn standing(
        &mut self,
        job: &JobUid,
        generation: Generation,
        run_dir: &Path,
    ) -> Option<&Standing> {
        let Some(Slot::Ready(kept)) = self.slots.get_mut(job) else {
            return None;
        };
        let dir = kept.launcher.dir().to_owned();
        kept.standing.look(generation, &dir, run_dir);
        Some(&*kept.standing)
    }

    /// Notes what was decided about the job's standbys. Returns what to ask of which launcher.
    pub(crate) fn note_decided(
        &mut self,
        job: &JobUid,
        decided: Result<Mode, No>,
    ) -> Option<(Launcher, StandbyMode)> {
        let Some(Slot::Ready(kept)) = self.slots.get_mut(job) else {
            return None;
        };
        let mode = kept.standing.decide(decided)?;
        Some((kept.launcher.clone(), mode))
    }

    /// The jobs that have asked for standbys, and the GPUs that these have open.
    pub(crate) fn with_standbys(&self) -> Vec<(JobUid, Vec<String>)> {
        let asked = |(job, slot): (&JobUid, &Slot)| match slot {
            Slot::Ready(kept) if kept.standing.is_asked() => Some((job.clone(), kept.gpus.clone())),
            _ => None,
        };
        self.slots.iter().filter_map(asked).collect()
    }

    /// Notes that the job's standbys are ended. Returns the launcher that has them.
    pub(crate) fn end_standbys(&mut self, job: &JobUid) -> Option<Launcher> {
        let Some(Slot::Ready(kept)) = self.slots.get_mut(job) else {
            return None;
        };
        kept.standing.forget();
        Some(kept.launcher.clone())
    }

    /// What is said about the standbys beside this generation.
    pub(crate) fn standby_words(&self, job: &JobUid, generation: Generation) -> Option<String> {
        match self.slots.get(job)? {
            Slot::Ready(kept) => kept.standing.words(generation),
            _ => None,
        }
    }

    /// The state of the job's launcher, for the coordinator. None while it is starting.
    pub(crate) fn state(&self, job: &JobUid) -> Option<LauncherState> {
        match self.slots.get(job)? {
            Slot::Starting { .. } => None,
            Slot::Ready(_) => Some(LauncherState::Ready),
            Slot::Failed(state) => Some(state.clone()),
            Slot::Unaffordable(why) => Some(LauncherState::Without(why.clone())),
        }
    }
}

impl Found {
    /// The launcher once it is ready, or why there is none.
    pub(crate) async fn ready(self) -> Result<Launcher, String> {
        match self {
            Found::Ready(launcher) => Ok(launcher),
            Found::Failed(why) => Err(why),
            Found::Starting(told) => told.await.unwrap_or_else(|_| Err("it was given up".into())),
        }
    }
}
