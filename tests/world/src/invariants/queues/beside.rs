//! I31: nobody waits for ever beside nodes that it could have. Whoever could begin at once waits only for another that comes
//! before it, may begin as far as limits and quotas go, and could do so if more nodes were free.

use super::{
    may_come_before,
    quotas::{is_entitled, may_hold, queue_of},
    waits, *,
};
use crate::liveness::{usable, waits_for_a_person};

/// The jobs that wait although they could begin, with what they say.
pub(crate) fn nobody_waits_beside_what_it_could_have(world: &World) -> Vec<(String, String)> {
    let asks = |job: &&JobRecord| waits(job) && !waits_for_a_person(world, job);
    let waiting = world.store.jobs.values().filter(asks);
    let nobody = BTreeSet::new();
    let (could, cannot): (Vec<&JobRecord>, Vec<&JobRecord>) =
        waiting.partition(|job| may_begin(world, job) && has_room(world, job, &nobody));
    let all = all_that_is_held(world);
    let keeps = |job: &&JobRecord| {
        // One with roles may wait for any node.
        !job.spec.roles.is_empty()
            || (may_begin(world, job) || gets_its_own(world, job)) && has_room(world, job, &all)
    };
    let keeps: Vec<&JobRecord> = cannot.into_iter().filter(keeps).collect();
    let left = could
        .into_iter()
        .filter(|job| !keeps.iter().any(|other| comes_before(world, other, job)));
    let told = left.map(|job| {
        let what = format!("nobody before it waits for nodes: {}", job.message);
        (format!("{} could begin", job.uid), what)
    });
    told.collect()
}

/// Every node that a job has.
pub(super) fn all_that_is_held(world: &World) -> BTreeSet<(&JobUid, &NodeName)> {
    let jobs = world.store.jobs.values();
    let held = jobs.flat_map(|job| job.unproven_generations().map(move |one| (job, one)));
    held.flat_map(|(job, one)| one.members.iter().map(|member| (&job.uid, &member.node)))
        .collect()
}

fn has_room(world: &World, job: &JobRecord, given: &BTreeSet<(&JobUid, &NodeName)>) -> bool {
    usable(world, &job.uid, job, given) >= job.spec.min_replicas as usize
}

/// Whether limits and quotas let the job begin.
fn may_begin(world: &World, job: &JobRecord) -> bool {
    let by_queue = || world.plan.queues.is_empty() || least(job) == 0 || may_hold(world, job);
    !is_limited(world, job) && by_queue()
}

/// Whether it begins within its quota, whatever others have borrowed.
fn gets_its_own(world: &World, job: &JobRecord) -> bool {
    !is_limited(world, job) && is_entitled(world, job)
}

/// Whether what one waits for may be kept from the other: first come those within their quota.
fn comes_before(world: &World, one: &JobRecord, other: &JobRecord) -> bool {
    // One behind another of its queue may find the quota claimed.
    let is_behind = || {
        let mut all = world.store.jobs.values();
        let queue = queue_of(world, other);
        all.any(|job| {
            waits(job) && queue_of(world, job) == queue && may_come_before(world, job, other)
        })
    };
    let entitled = gets_its_own(world, other) && !is_behind();
    let own = gets_its_own(world, one);
    match own == entitled {
        true => may_come_before(world, one, other),
        false => own,
    }
}
