//! What really happened, as no program in the world can know it: who was at fault, what was
//! trained, what users were promised.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_core::{
    id::{Generation, JobUid, Term},
    run::RunId,
    time::Timestamp,
};

use crate::{
    blame::Blame,
    invariants::Silences,
    looks::Looked,
    stalls::{Moved, Stood},
    troubles::{Deed, Trouble},
};

/// The last return of an older copy of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RolledBack {
    pub(crate) at: Timestamp,
    /// The numbers that the world had given out until then.
    pub(crate) numbers: u64,
}

impl RolledBack {
    /// Whether a user had submitted this job before.
    fn knew(&self, job: &JobUid) -> bool {
        let number = job
            .to_string()
            .strip_prefix("uid")
            .and_then(|n| n.parse().ok());
        number.is_none_or(|number: u64| number <= self.numbers)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// What happened to each machine.
    pub(crate) troubles: BTreeMap<usize, Vec<Trouble>>,
    /// What the workers of each run did, or what was done to them, in order.
    pub(crate) deeds: BTreeMap<RunId, Vec<Deed>>,
    /// When each generation was stored.
    pub(crate) opened: BTreeMap<RunId, Timestamp>,
    /// The coordinator's blames, each compared with the truth.
    pub(crate) blames: BTreeMap<Blame, u64>,
    pub(crate) steps_wanted: BTreeMap<JobUid, u64>,
    pub(crate) steps: BTreeMap<JobUid, u64>,
    pub(crate) stepped_at: BTreeMap<JobUid, Timestamp>,
    /// The newest generation of each job that made a step.
    pub(crate) newest_stepped: BTreeMap<JobUid, Generation>,
    /// Runs whose workers were started, and the machine on which.
    pub(crate) launched: BTreeSet<(RunId, usize)>,
    /// How many attempts of each rank of a run have failed.
    pub(crate) failures: BTreeMap<(RunId, u32), u32>,
    /// When each job broke by ranks that ended, and nobody paid, on the coordinators' clocks.
    pub(crate) unpaid: BTreeMap<JobUid, Vec<Timestamp>>,
    /// The jobs that each job waits for, as their names meant them at its submission.
    pub(crate) awaited: BTreeMap<JobUid, Vec<JobUid>>,
    pub(crate) highest_term: Term,
    /// An older copy of the coordinator's store was put back. Decisions made since that copy are
    /// forgotten.
    pub(crate) rolled_back: Option<RolledBack>,
    pub(crate) silences: Silences,
    /// What ranks did instead of taking part in steps, when each run moved, and the last looks.
    pub(crate) stands: Vec<Stood>,
    pub(crate) moved: BTreeMap<RunId, Vec<Moved>>,
    pub(crate) looked: VecDeque<Looked>,
    /// Steps that workers made after a standstill, before their runner could stop them.
    pub(crate) waking_steps: u64,
}

impl Truth {
    /// Whether a broken rule about this job is forgiven. After an older copy of the store was put
    /// back, the decisions since that copy are forgotten: jobs accepted then are gone, numbers come
    /// twice, and nobody can say who is to blame. Two things must still hold: no two groups share a GPU
    /// or meet, and every job makes progress or says what it waits for. And nothing is forgiven about a
    /// job that was submitted after that: the store has never forgotten anything of it.
    pub(crate) fn is_forgiven(&self, rule: &str, job: Option<&JobUid>) -> bool {
        const OF_MEMORY: [&str; 16] = [
            "I26", "I21", "R3", "R6", "R7", "R9", "I3", "I4", "I5", "I7", "I8", "I9", "I10", "I17",
            "I20", "R4",
        ];
        let knew = |rolled: &RolledBack| job.is_none_or(|job| rolled.knew(job));
        self.rolled_back.as_ref().is_some_and(knew) && OF_MEMORY.contains(&rule)
    }

    /// Whether the store may have forgotten something of this job.
    pub(crate) fn has_forgotten(&self, job: &JobUid) -> bool {
        self.rolled_back
            .as_ref()
            .is_some_and(|rolled| rolled.knew(job))
    }

    /// Whether the store may have forgotten something of this generation: the return of the older copy
    /// is younger than it.
    pub(crate) fn has_forgotten_run(&self, run: &RunId) -> bool {
        let opened = self.opened.get(run).copied().unwrap_or_default();
        self.rolled_back
            .as_ref()
            .is_some_and(|rolled| opened <= rolled.at)
    }
}
