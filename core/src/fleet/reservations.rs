//! Room that jobs which wait keep from those behind them.
//!
//! A job that lacks nodes *waits*, and holds nothing. Without more, a large one would wait for ever: whatever becomes free is
//! taken by smaller ones before it is enough. So each of the first that wait has a *reservation*: nodes that it needs
//! (`chosen_nodes`). A job behind it (*backfill*) gets of these only what is of no use to it: that is judged node by node, by what
//! the node has now and by what it would have if all jobs were gone (`placement`).
//!
//! A higher priority keeps its room from the first moment on. Among equals, a job keeps it once it has waited for
//! [`Policy::reserve_after`]: until then smaller ones may go first, which costs little and fills the fleet. One for which others
//! give nodes keeps it at once: they would have given them in vain. A job that could not start on an empty fleet, or that the
//! limit of its namespace or user holds back, keeps nothing.
//!
//! Where there are queues, a job that its quota holds back keeps nothing, and is none of the first (`ledger`).
//!
//! Jobs with worker pods take no part: Kubernetes places their pods.

use std::{
    cell::{Cell, OnceCell},
    collections::BTreeMap,
};

use crate::{
    fleet::{
        capacity::Capacity,
        fair_share::Standings,
        job::{JobRecord, Stage, Why},
        placement::Keeps,
        policy::Policy,
        settle_order::Rank,
    },
    id::{JobName, JobUid, NodeName},
    time::Timestamp,
};

/// How many jobs that wait keep room. Each costs a look at all nodes in a turn that places anything. A job further back
/// becomes one of the first in time.
pub(crate) const RESERVING_MAX: usize = 16;

/// All jobs that wait for room, the first to choose first.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    waiting: BTreeMap<Rank, Waiting>,
    /// What nodes would have if no job held anything. It is made by the first that asks.
    pub empty: OnceCell<Capacity>,
    /// What they will have when all that is being stopped has stopped. It is made by the first that asks.
    pub coming: OnceCell<Capacity>,
}

/// A job that waits for room.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub uid: JobUid,
    pub name: JobName,
    /// The queue that it names.
    pub queue: Option<String>,
    priority: i32,
    since: Timestamp,
    /// Others were asked to give nodes for it since then.
    room_made: bool,
    /// What it keeps, by node. It is found out by the first that asks.
    pub keeps: OnceCell<BTreeMap<NodeName, Keeps>>,
    /// Those before it are asked what they keep.
    pub is_choosing: Cell<bool>,
    /// Whether it would start on an empty fleet. It is found out by the first that asks.
    pub would_start: OnceCell<bool>,
}

impl Waiting {
    fn of(job: &JobRecord) -> Waiting {
        Waiting {
            uid: job.uid.clone(),
            name: job.name.clone(),
            queue: job.spec.queue.clone(),
            priority: job.spec.priority,
            since: since(job),
            room_made: room_is_made(job),
            keeps: OnceCell::new(),
            is_choosing: Cell::new(false),
            would_start: OnceCell::new(),
        }
    }

    /// Whether it keeps its room from a job behind it.
    pub(crate) fn binds(&self, job: &JobRecord, policy: &Policy, now: Timestamp) -> bool {
        self.room_made
            || self.priority > job.spec.priority
            || now.since(self.since) >= policy.reserve_after
    }
}

impl Reservations {
    pub(crate) fn of<'j>(jobs: impl Iterator<Item = &'j JobRecord>, standings: &Standings) -> Self {
        let waiting = jobs.filter(|job| waits_for_room(job));
        Self {
            waiting: waiting
                .map(|job| (Rank::of(job, standings), Waiting::of(job)))
                .collect(),
            empty: OnceCell::new(),
            coming: OnceCell::new(),
        }
    }

    /// A job was settled: it waits now, or not any more. Returns whether that is new.
    pub(crate) fn follow(&mut self, job: &JobRecord, standings: &Standings) -> bool {
        let (rank, before) = (Rank::of(job, standings), self.waiting.len());
        if waits_for_room(job) {
            let waiting = self.waiting.entry(rank);
            let waiting = waiting.or_insert_with(|| Waiting::of(job));
            waiting.room_made = room_is_made(job);
        } else {
            self.waiting.remove(&rank);
        }
        before != self.waiting.len()
    }

    /// For how many the nodes are chosen.
    pub(crate) fn chosen(&self) -> usize {
        let chosen = |waiting: &&Waiting| waiting.keeps.get().is_some();
        self.waiting.values().filter(chosen).count()
    }

    /// What each keeps is found out anew.
    pub(crate) fn forget_keeps(&mut self) {
        self.coming = OnceCell::new();
        for waiting in self.waiting.values_mut() {
            (waiting.keeps, waiting.would_start) = (OnceCell::new(), OnceCell::new());
        }
    }

    /// Some job holds something else than before. What is chosen already stays for this turn: nobody behind can have taken it.
    pub(crate) fn forget_coming(&mut self) {
        self.coming = OnceCell::new();
    }

    /// All that wait, the first to choose first.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&Rank, &Waiting)> + Clone {
        self.waiting.iter()
    }

    pub(crate) fn get(&self, rank: &Rank) -> Option<&Waiting> {
        self.waiting.get(rank)
    }

    /// Whether a job of this rank, which waits or is about to, is one of the first, so that what is freed for it is kept for it.
    pub(crate) fn reserves(&self, rank: &Rank) -> bool {
        let before = self.waiting.range(..rank);
        before.take(RESERVING_MAX).count() < RESERVING_MAX
    }

    /// Those that keep room from this job, the first to choose first.
    pub(crate) fn before<'r>(
        &'r self,
        job: &'r JobRecord,
        rank: Rank,
        policy: &'r Policy,
        now: Timestamp,
    ) -> impl Iterator<Item = &'r Waiting> {
        let first = self.waiting.iter().take(RESERVING_MAX);
        let before = first.take_while(move |(other, _)| **other < rank);
        let waiting = before.map(|(_, waiting)| waiting);
        waiting.filter(move |waiting| waiting.binds(job, policy, now))
    }
}

/// Whether the job would start if only there were room.
pub(crate) fn waits_for_room(job: &JobRecord) -> bool {
    job.waits_for_nodes() && !job.suspended && job.is_eligible() && job.spec.template.is_none()
}

/// Since when it has waited, as far as that counts among equals.
pub(crate) fn since(job: &JobRecord) -> Timestamp {
    let since = job.waiting_since.unwrap_or(job.created);
    since.max(job.counts_since())
}

/// Whether others were asked to give nodes for it since it began to wait.
pub(crate) fn room_is_made(job: &JobRecord) -> bool {
    job.room_made.is_some_and(|at| at >= since(job))
}

/// Whether the job has its place in the fleet already, so that it comes before those that wait on the nodes that it had last.
pub(crate) fn has_its_place(job: &JobRecord) -> bool {
    match job.stage() {
        Stage::Forming(..) | Stage::Training(_) => true,
        // Its generation has just broken or given way.
        Stage::Waiting(why) => why.is_none() || why == Some(Why::Fencing),
        Stage::Ending(_) | Stage::Over(_) => false,
    }
}
