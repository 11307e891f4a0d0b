//! How many GPUs the jobs of each queue hold at one moment of a turn, and which jobs that wait may start by their quota.
//!
//! It is made at most once a turn, by the first job that asks, and follows each job that was settled. What a job holds is what
//! its record says: all that may have a live process, and what it is about to begin with again. Nothing of it depends on who asks.

mod claiming;

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    fleet::{
        job::{GenerationRecord, JobRecord, Stage},
        queues::{NoQueue, QueueId, Queues, Usage},
        reservations::{self, RESERVING_MAX, Waiting},
        settle_order::Rank,
        yields::Yields,
    },
    id::{JobUid, NodeName},
};

/// Whether a job would start on an empty fleet is asked for so many at most.
const LOOKED_MAX: usize = 4 * RESERVING_MAX;

#[derive(Debug)]
pub(crate) struct Ledger {
    usage: Usage,
    held: BTreeMap<JobUid, (QueueId, u32)>,
    claims: OnceCell<Vec<Claim>>,
}

/// A job that waits, and that its quota does not hold back.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub rank: Rank,
    pub uid: JobUid,
    /// `None`: it asks for no GPUs.
    pub queue: Option<QueueId>,
    /// GPUs, at least.
    pub need: u32,
    /// It need not borrow, so what others have borrowed comes back to it.
    pub entitled: bool,
    /// It would start on an empty fleet.
    pub would_start: bool,
}

impl Ledger {
    pub(crate) fn of<'j>(queues: &Queues, jobs: impl Iterator<Item = &'j JobRecord>) -> Self {
        let mut ledger = Self {
            usage: queues.unused(),
            held: BTreeMap::new(),
            claims: OnceCell::new(),
        };
        for job in jobs {
            ledger.follow(queues, job);
        }
        ledger
    }

    /// A job was settled: it holds what its record says now. Returns whether that is something else.
    pub(crate) fn follow(&mut self, queues: &Queues, job: &JobRecord) -> bool {
        let queue = queue_of(queues, job).ok();
        let now = queue
            .filter(|_| job.spec.template.is_none())
            .map(|queue| (queue, held(job)));
        let now = now.filter(|(_, gpus)| *gpus > 0);
        let before = self.held.remove(&job.uid);
        if let Some((queue, gpus)) = before {
            self.usage.take(queue, gpus);
        }
        if let Some((queue, gpus)) = now {
            self.usage.add(queue, gpus);
            self.held.insert(job.uid.clone(), (queue, gpus));
        }
        before != now
    }

    /// Who waits, or what is held, has changed.
    pub(crate) fn forget_claims(&mut self) {
        self.claims = OnceCell::new();
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// What all jobs but this one hold.
    pub(crate) fn without(&self, uid: &JobUid) -> Usage {
        let mut usage = self.usage.clone();
        if let Some((queue, gpus)) = self.held.get(uid) {
            usage.take(*queue, *gpus);
        }
        usage
    }

    /// How many GPUs this job holds.
    pub(crate) fn held_by(&self, uid: &JobUid) -> u32 {
        self.held.get(uid).map_or(0, |(_, gpus)| *gpus)
    }

    /// The jobs that hold something.
    pub(crate) fn holding(&self) -> impl Iterator<Item = &JobUid> {
        self.held.keys()
    }

    /// The first that wait and that their quota lets start, in their order: so many that need not borrow, and so many
    /// that would. `coming`: what all jobs will hold when those that are being stopped have stopped. `need`: how many GPUs a
    /// job needs at least. `would_start`: whether it would start on an empty fleet.
    pub(crate) fn claims<'w>(
        &self,
        queues: &Queues,
        coming: impl FnOnce() -> Usage,
        waiting: impl Iterator<Item = (&'w Rank, &'w Waiting)> + Clone,
        need: impl Fn(&JobUid) -> u32,
        would_start: impl Fn(&JobUid) -> bool,
    ) -> &[Claim] {
        self.claims
            .get_or_init(|| claiming::claims(queues, &coming(), waiting, need, would_start))
    }
}

/// The queue whose quota a job uses.
pub(crate) fn queue_of<'j>(queues: &Queues, job: &'j JobRecord) -> Result<QueueId, NoQueue<'j>> {
    queues.of(&job.name.namespace, job.spec.queue.as_deref())
}

/// How many GPUs a job holds, or begins with again.
fn held(job: &JobRecord) -> u32 {
    let stays = staying(job);
    let mut gpus: BTreeSet<(&NodeName, &str)> = of_members(stays, |_| true).collect();
    for generation in job.unproven_generations() {
        let alive = |node: &NodeName| !generation.dead.contains(node);
        gpus.extend(of_members(Some(generation), alive));
    }
    gpus.len() as u32
}

/// How many GPUs a job will hold when all that is being stopped has stopped, and it has given these nodes up.
pub(crate) fn stays(job: &JobRecord, given: Option<&Yields>) -> u32 {
    let kept =
        |node: &NodeName| given.is_none_or(|given| !given.evicted && !given.nodes.contains(node));
    of_members(staying(job), kept).count() as u32
}

/// The generation that a job has its place with.
fn staying(job: &JobRecord) -> Option<&GenerationRecord> {
    match job.stage() {
        Stage::Waiting(_) if reservations::has_its_place(job) => job.latest(),
        _ => job.generation_now(),
    }
}

fn of_members(
    generation: Option<&GenerationRecord>,
    counts: impl Fn(&NodeName) -> bool,
) -> impl Iterator<Item = (&NodeName, &str)> {
    let members = generation.into_iter().flat_map(|g| &g.members);
    let members = members.filter(move |member| counts(&member.node));
    members.flat_map(|member| member.gpus.iter().map(|gpu| (&member.node, gpu.as_str())))
}
