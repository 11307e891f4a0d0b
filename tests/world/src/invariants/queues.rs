//! I25: priorities, the limits of namespaces and users, and what jobs give up for others.

mod beside;
mod fair;
mod quotas;

use std::collections::{BTreeMap, BTreeSet};

use muster_core::{
    fleet::{
        Actor,
        job::{Reason, Stage},
    },
    spec::Preemption,
};

pub(crate) use beside::nobody_waits_beside_what_it_could_have;
use fair::may_come_before;
pub(crate) use quotas::lender_gets_its_own;

use super::*;
use crate::liveness::{usable, waits_for_a_person};

/// Judges all changes of one decision together: who gives and who gets may be in it.
pub(super) fn of_priorities(world: &World, judge: &Judge, changes: &[Change]) -> Broken {
    let mut after: BTreeMap<&JobUid, &JobRecord> = world.store.jobs.iter().collect();
    let put = changes.iter().filter_map(|change| match change {
        Change::PutJob(job) => Some(&**job),
        _ => None,
    });
    let put: Vec<&JobRecord> = put.collect();
    after.extend(put.iter().map(|job| (&job.uid, *job)));
    put.into_iter().find_map(|job| {
        let before = world.store.jobs.get(&job.uid);
        let gives = before.and_then(|before| gives_rightly(world, judge, before, job, &after));
        gives
            .or_else(|| within_the_limit(world, before, job, &after))
            .or_else(|| fair::goes_to_whoever_has_used_less(world, judge, before?, job, &after))
            .or_else(|| quotas::within_quotas(world, before, job, &after))
    })
}

/// A job gives room only to one of higher priority that waits, and loses all of it only where the operator allows that and
/// not before its time.
fn gives_rightly(
    world: &World,
    judge: &Judge,
    before: &JobRecord,
    job: &JobRecord,
    after: &BTreeMap<&JobUid, &JobRecord>,
) -> Broken {
    let newest = job.incidents.last()?;
    let is_new = newest.cause == Cause::Preempted
        && before.incidents.last().map(|one| one.event_at) != Some(newest.event_at);
    if !is_new {
        return None;
    }
    let may_take = |other: &JobRecord| {
        let higher = other.spec.priority > job.spec.priority;
        higher && other.name.namespace == job.name.namespace
            || quotas::may_take_back(world, job, other, after)
    };
    let waits = |other: &&JobRecord| {
        other.uid != job.uid && matches!(other.stage(), Stage::Waiting(_)) && may_take(other)
    };
    if !after.values().any(waits) {
        let what = format!("{} gives room to nobody: {}", job.uid, newest.message);
        return Some(("I25", what));
    }
    let Some(generation) = &before.current else {
        return Some(("I25", format!("{} gives what it does not have", job.uid)));
    };
    // Whoever only shrinks may also wait, until its members are dead.
    if !newest.message.starts_with("preempted by") {
        return None;
    }
    let trained = judge.now.since(generation.started_at.unwrap_or(judge.now));
    let allowed = world.plan.preemption == Preemption::Evict;
    (!allowed || trained < EVICT_AFTER).then(|| {
        let what = format!(
            "{} is evicted after {trained:?} of training: {}",
            job.uid, newest.message
        );
        ("I25", what)
    })
}

/// How long a generation trains at least before its job is evicted.
pub(crate) const EVICT_AFTER: std::time::Duration = std::time::Duration::from_secs(20);

/// The jobs of a namespace, or of a user, have no generations with more GPUs than these may hold.
fn within_the_limit(
    world: &World,
    before: Option<&JobRecord>,
    job: &JobRecord,
    after: &BTreeMap<&JobUid, &JobRecord>,
) -> Broken {
    let before = before.and_then(|job| job.current.as_ref());
    let current = job.current.as_ref()?;
    if job.spec.template.is_some() || before.is_some_and(|before| before.number == current.number) {
        return None;
    }
    let gpus = |generation: &GenerationRecord| -> usize {
        generation
            .members
            .iter()
            .map(|member| member.gpus.len())
            .sum()
    };
    let own = gpus(current);
    limits_of(world, job).find_map(|(of, most)| {
        let others = after
            .values()
            .filter(|other| other.uid != job.uid && of.counts(other));
        let held: usize = others
            .filter_map(|other| other.current.as_ref())
            .map(gpus)
            .sum();
        (own > 0 && held + own > most as usize).then(|| {
            let what = format!(
                "{} takes {own} GPUs, others have {held}, and {most} are the limit",
                job.uid
            );
            ("I25", what)
        })
    })
}

/// The jobs that a limit counts together.
enum Counted<'j> {
    Namespace(&'j str),
    User(&'j str),
}

impl Counted<'_> {
    fn counts(&self, job: &JobRecord) -> bool {
        let is_meant = match self {
            Counted::Namespace(namespace) => job.name.namespace == **namespace,
            Counted::User(user) => user_of(job) == Some(user),
        };
        is_meant && job.spec.template.is_none()
    }
}

fn user_of(job: &JobRecord) -> Option<&str> {
    match job.owner.as_ref()? {
        Actor::User { name } => Some(name),
        _ => None,
    }
}

/// The limits that count for a job.
fn limits_of<'w>(world: &'w World, job: &'w JobRecord) -> impl Iterator<Item = (Counted<'w>, u32)> {
    let namespace = Counted::Namespace(&job.name.namespace);
    let of_namespace = world.plan.gpus_max.map(|most| (namespace, most));
    let user = user_of(job).map(Counted::User);
    of_namespace
        .into_iter()
        .chain(user.zip(world.plan.user_gpus_max))
}

/// Whether the job waits for room, and takes none from the cluster's scheduler.
fn waits(job: &JobRecord) -> bool {
    let waits = matches!(job.reason, Reason::BelowMinimum | Reason::Preempted);
    waits && job.current.is_none() && !job.suspended && job.spec.template.is_none()
}

fn rank(job: &JobRecord) -> (std::cmp::Reverse<i32>, Timestamp, &JobUid) {
    (std::cmp::Reverse(job.spec.priority), job.created, &job.uid)
}

/// The one that waits and comes first, if that is known.
fn first(world: &World) -> Option<&JobRecord> {
    let waiting = || world.store.jobs.values().filter(|job| waits(job));
    let first = waiting().min_by_key(|job| rank(job))?;
    let mut others = waiting().filter(|other| other.uid != first.uid);
    (!others.any(|other| may_come_before(world, other, first))).then_some(first)
}

/// Whether a job truly says that its room is kept for another, or that its namespace has enough.
pub(crate) fn is_held_back(world: &World, job: &JobRecord) -> bool {
    if !world.plan.queues.is_empty() {
        return quotas::is_held_back(world, job) || is_limited(world, job);
    }
    let mut waiting = world.store.jobs.values().filter(|job| waits(job));
    let kept = waiting.any(|other| may_come_before(world, other, job));
    kept || is_limited(world, job)
}

/// GPUs of the smallest growth that the job can make, which is a whole multiple (`multipleOf`).
fn next_growth(job: &JobRecord) -> u32 {
    let roles = job.spec.roles.iter().map(|role| role.gpus_per_node).max();
    let each = roles.unwrap_or(job.spec.gpus_per_node);
    let mut roles = job.spec.roles.iter();
    let elastic = roles.find(|role| role.min_replicas < role.max_replicas);
    let multiple = elastic.map_or(job.spec.multiple_of, |role| role.multiple_of);
    each * multiple.get()
}

/// How many GPUs it needs to begin.
fn least(job: &JobRecord) -> usize {
    let roles = job.spec.roles.iter();
    let of_roles: u32 = roles
        .map(|role| role.gpus_per_node * role.min_replicas)
        .sum();
    let alike = job.spec.gpus_per_node * job.spec.min_replicas;
    (if job.spec.roles.is_empty() {
        alike
    } else {
        of_roles
    }) as usize
}

/// Whether the smallest growth, or the start, would be beyond a limit.
fn is_limited(world: &World, job: &JobRecord) -> bool {
    let more = match job.current.is_some() {
        true => next_growth(job) as usize,
        false => least(job),
    };
    more > 0
        && limits_of(world, job).any(|(of, most)| {
            let counted = world.store.jobs.values().filter(|other| of.counts(other));
            let members = counted
                .flat_map(JobRecord::unproven_generations)
                .flat_map(|generation| &generation.members);
            let held: BTreeSet<(&NodeName, &String)> = members
                .flat_map(|member| member.gpus.iter().map(|gpu| (&member.node, gpu)))
                .collect();
            held.len() + more > most as usize
        })
}

/// The job that comes first among those that wait does not wait while jobs of lower priority could give it what it needs.
pub(crate) fn first_gets_its_room(world: &World) -> Option<(String, String)> {
    let has_queues = !world.plan.queues.is_empty();
    let job = first(world).filter(|job| !has_queues && !is_limited(world, job))?;
    let mut given: BTreeSet<(&JobUid, &NodeName)> = BTreeSet::new();
    for lower in world.store.jobs.values() {
        let Stage::Training(generation) = lower.stage() else {
            continue;
        };
        if lower.spec.priority >= job.spec.priority || lower.spec.template.is_some() {
            continue;
        }
        // Nothing is decided about it.
        if waits_for_a_person(world, lower) {
            continue;
        }
        let evicts = world.plan.preemption == Preemption::Evict;
        let spare = match evicts {
            _ if world.plan.preemption == Preemption::Never => 0,
            true => generation.members.len(),
            // Members of one kind, each on a node of its own.
            false if lower.spec.roles.is_empty() && !lower.spec.packs() => generation
                .members
                .len()
                .saturating_sub(lower.spec.min_replicas as usize),
            false => 0,
        };
        let members: Vec<&NodeName> = generation.members.iter().map(|one| &one.node).collect();
        // It may train on nodes where it could not begin again. Where it and the one that waits have no room beside each other it gives nothing.
        let usable = usable(world, &lower.uid, lower, &BTreeSet::new());
        let both = lower.spec.min_replicas + job.spec.min_replicas;
        let spare = match evicts || usable >= both as usize {
            true => spare,
            false => 0,
        };
        given.extend(
            members
                .into_iter()
                .rev()
                .take(spare)
                .map(|node| (&lower.uid, node)),
        );
    }
    let room = usable(world, &job.uid, job, &given);
    let with_roles = !job.spec.roles.is_empty();
    (!with_roles && room >= job.spec.min_replicas as usize && !given.is_empty()).then(|| {
        let what = format!(
            "waits with priority {}, and jobs of lower priority could make room for {room}: {}",
            job.spec.priority, job.message
        );
        (format!("{} comes first", job.uid), what)
    })
}
