//! I29: queues with quotas. The world's queues are one or two trees of two levels, and what they may hold is counted here anew.

use std::collections::BTreeSet;

use muster_core::{
    fleet::{job::Stage, queues::Queue},
    spec::Preemption,
};

use super::{beside::all_that_is_held, is_limited, least, may_come_before, rank, waits, *};
use crate::liveness::{usable, waits_for_a_person};

/// The place of a job's queue.
pub(super) fn queue_of(world: &World, job: &JobRecord) -> Option<usize> {
    let has = |queue: &Queue| {
        let named = job.spec.queue.as_ref();
        queue.namespaces.contains(&job.name.namespace)
            && named.is_none_or(|named| *named == queue.name)
    };
    let queue = world.plan.queues.iter().position(has);
    queue.filter(|_| job.spec.template.is_none())
}

/// The queue above it that has none above. Only the queues of one tree lend each other anything.
fn top(queues: &[Queue], queue: usize) -> usize {
    queues[queue].parent.unwrap_or(queue)
}

fn quota(queue: &Queue) -> usize {
    queue.quota.map_or(0, |quota| quota as usize)
}

/// How many GPUs the generations of each queue's jobs have. `all`: also those that are being stopped.
fn held<'j>(world: &World, jobs: impl Iterator<Item = &'j JobRecord>, all: bool) -> Vec<usize> {
    let mut held = vec![0; world.plan.queues.len()];
    for job in jobs {
        let Some(queue) = queue_of(world, job) else {
            continue;
        };
        let current = job.current.as_ref();
        let generations = job.unproven_generations();
        let counted = generations.filter(|generation| {
            all || current.is_some_and(|current| current.number == generation.number)
        });
        let members = counted.flat_map(|generation| &generation.members);
        let gpus: BTreeSet<(&NodeName, &String)> = members
            .flat_map(|member| member.gpus.iter().map(|gpu| (&member.node, gpu)))
            .collect();
        held[queue] += gpus.len();
    }
    held
}

/// What is wrong if the queues hold so much together.
fn beyond(queues: &[Queue], held: &[usize]) -> Option<String> {
    let tops = (0..queues.len()).filter(|place| queues[*place].parent.is_none());
    let mut wrong = tops.filter_map(|top| beyond_of_tree(queues, top, held));
    wrong.next()
}

/// The same of one tree.
fn beyond_of_tree(queues: &[Queue], top: usize, held: &[usize]) -> Option<String> {
    let (mut flows, mut quotas) = (0_i64, 0);
    let all = queues.iter().zip(held);
    for (queue, held) in all.filter(|(queue, _)| queue.parent == Some(top)) {
        let borrows = *held as i64 - quota(queue) as i64;
        let most = queue.borrowing_limit.map_or(i64::MAX, i64::from);
        if borrows > most {
            return Some(format!("queue {} holds {held} GPUs", queue.name));
        }
        let lends = queue.lending_limit.map_or(i64::MAX, i64::from);
        flows += borrows.max(-lends);
        quotas += quota(queue);
    }
    let shared = queues[top]
        .quota
        .map_or(0, |all| all as i64 - quotas as i64);
    (flows > shared).then(|| {
        format!(
            "all queues of {} hold more than they have",
            queues[top].name
        )
    })
}

/// Whether the job's queue has what it needs to begin and has not lent it, or would have it back.
pub(super) fn is_entitled(world: &World, job: &JobRecord) -> bool {
    let held = held(world, world.store.jobs.values(), true);
    let queues = &world.plan.queues;
    queue_of(world, job).is_some_and(|queue| held[queue] + least(job) <= quota(&queues[queue]))
}

/// Whether the queues let the job begin: within its quota, or with what others leave.
pub(super) fn may_hold(world: &World, job: &JobRecord) -> bool {
    let Some(queue) = queue_of(world, job) else {
        return false;
    };
    let mut held = held(world, world.store.jobs.values(), true);
    held[queue] += least(job);
    beyond(&world.plan.queues, &held).is_none()
}

/// No new generation makes a queue, or all together, hold more than they may.
pub(super) fn within_quotas(
    world: &World,
    before: Option<&JobRecord>,
    job: &JobRecord,
    after: &BTreeMap<&JobUid, &JobRecord>,
) -> Broken {
    let queues = &world.plan.queues;
    let current = job.current.as_ref()?;
    let before = before.and_then(|job| job.current.as_ref());
    let is_new = before.is_none_or(|before| before.number != current.number);
    if queues.is_empty() || !is_new || current.members.iter().all(|one| one.gpus.is_empty()) {
        return None;
    }
    let wrong = beyond(queues, &held(world, after.values().copied(), false))?;
    Some(("I29", format!("{wrong}, since {} has begun", job.uid)))
}

/// Whether a job that gives room may have been asked by another that waits within its quota.
pub(super) fn may_take_back(
    world: &World,
    from: &JobRecord,
    to: &JobRecord,
    after: &BTreeMap<&JobUid, &JobRecord>,
) -> bool {
    let queues = &world.plan.queues;
    let (Some(of), Some(own)) = (queue_of(world, from), queue_of(world, to)) else {
        return false;
    };
    let others = after.values().copied().filter(|other| other.uid != to.uid);
    let now = held(world, others, false);
    let with_stopping = held(world, world.store.jobs.values(), true);
    of != own
        && top(queues, of) == top(queues, own)
        && now[own] + least(to) <= quota(&queues[own])
        && with_stopping[of] > quota(&queues[of])
}

/// Whether a job truly says that its queue, or another that waits, holds it back.
pub(super) fn is_held_back(world: &World, job: &JobRecord) -> bool {
    let mut others = world.store.jobs.values();
    if others.any(|other| other.uid != job.uid && waits(other)) {
        return true;
    }
    let Some(queue) = queue_of(world, job) else {
        return false;
    };
    let others = world.store.jobs.values();
    let mut held = held(world, others.filter(|other| other.uid != job.uid), true);
    let current = job.current.iter().flat_map(|current| &current.members);
    let have: usize = current.map(|member| member.gpus.len()).sum();
    held[queue] += match job.current.is_some() {
        true => have + next_growth(job) as usize,
        false => least(job),
    };
    beyond(&world.plan.queues, &held).is_some()
}

/// The first job that waits within its quota does not wait while others that have borrowed could give it what it needs.
pub(crate) fn lender_gets_its_own(world: &World) -> Option<(String, String)> {
    let queues = &world.plan.queues;
    if queues.is_empty() {
        return None;
    }
    let usage = held(world, world.store.jobs.values(), true);
    let asks = |job: &&JobRecord| waits(job) && !is_limited(world, job);
    let waiting = || world.store.jobs.values().filter(asks);
    let entitled = waiting().filter(|job| {
        let queue = queue_of(world, job);
        queue.is_some_and(|queue| usage[queue] + least(job) <= quota(&queues[queue]))
    });
    let entitled: Vec<&JobRecord> = entitled.collect();
    let job = *entitled.iter().min_by_key(|job| rank(job))?;
    let comes_first =
        |other: &&JobRecord| other.uid == job.uid || !may_come_before(world, other, job);
    // Which of them comes first is not known.
    if !entitled.iter().all(comes_first) {
        return None;
    }
    // Within a queue they begin in their order: one before it that needs more than the quota, and may borrow it, keeps what there is.
    let all_given = all_that_is_held(world);
    let may_begin = |other: &JobRecord| {
        let mut usage = usage.clone();
        let queue = queue_of(world, other).inspect(|queue| usage[*queue] += least(other));
        let room = usable(world, &other.uid, other, &all_given);
        queue.is_some()
            && beyond(queues, &usage).is_none()
            && room >= other.spec.min_replicas as usize
    };
    let mut before = waiting().filter(|other| queue_of(world, other) == queue_of(world, job));
    if before.any(|other| may_come_before(world, other, job) && may_begin(other)) {
        return None;
    }
    // One with roles may wait for any node, and one that takes no GPUs but has roles keeps any.
    let strange = waiting().any(|other| !other.spec.roles.is_empty());
    let own = queue_of(world, job).filter(|_| least(job) > 0 && !strange)?;
    let mut usage = usage;
    let mut given: BTreeSet<(&JobUid, &NodeName)> = BTreeSet::new();
    let mut lower: Vec<&JobRecord> = world.store.jobs.values().collect();
    lower.sort_by_key(|other| (other.spec.priority, std::cmp::Reverse(other.created)));
    for other in lower {
        let (Stage::Training(generation), Some(of)) = (other.stage(), queue_of(world, other))
        else {
            continue;
        };
        if of == own || top(queues, of) != top(queues, own) || waits_for_a_person(world, other) {
            continue;
        }
        let alike = other.spec.roles.is_empty() && !other.spec.packs();
        // Where it and the one that waits have no room beside each other it gives nothing.
        let room = usable(world, &other.uid, other, &BTreeSet::new());
        let both = (other.spec.min_replicas + job.spec.min_replicas) as usize;
        let (have, min) = (generation.members.len(), other.spec.min_replicas as usize);
        let spare = match world.plan.preemption {
            Preemption::Never => 0,
            Preemption::Evict => have,
            Preemption::Shrink if alike && room >= both => have.saturating_sub(min),
            Preemption::Shrink => 0,
        };
        for member in generation.members.iter().rev().take(spare) {
            if usage[of] <= quota(&queues[of]) {
                break;
            }
            usage[of] = usage[of].saturating_sub(member.gpus.len());
            given.insert((&other.uid, &member.node));
        }
    }
    usage[own] += least(job);
    let room = usable(world, &job.uid, job, &given);
    let could = room >= job.spec.min_replicas as usize && beyond(queues, &usage).is_none();
    could.then(|| {
        let what = format!(
            "waits within its quota, and there is room for {room} with what others have borrowed: {}",
            job.message
        );
        (format!("{} gets its own", job.uid), what)
    })
}
