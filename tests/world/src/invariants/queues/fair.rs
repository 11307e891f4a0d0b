//! I32: fair shares. What everybody has used is counted here anew, from the accounts and the history. It is judged where nothing fades
//! within a history, and between jobs that ask for the same.

use std::time::Duration;

use muster_core::{
    fleet::{Actor, history::HistoryRecord},
    period,
};

use super::{is_limited, rank, waits, *};
use crate::liveness::{usable, waits_for_a_person};

/// The order may be so old.
const OLD: Duration = Duration::from_secs(61);

/// Whose use is compared: a namespace, and a user of it.
type Owner<'w> = (&'w str, Option<&'w Actor>);

fn owner(job: &JobRecord) -> Owner<'_> {
    (&job.name.namespace, job.owner.as_ref())
}

/// Whether jobs of the two go by what was used, and not by age.
fn is_by_use(world: &World, one: &JobRecord, other: &JobRecord) -> bool {
    world.plan.fair_share_half_life.is_some()
        && one.spec.priority == other.spec.priority
        && owner(one) != owner(other)
}

/// Whether what both have used is counted here: in a tree it is a matter of core's own tests which part of it is compared.
fn is_counted(world: &World) -> bool {
    world.plan.fair_share_half_life == Some(period::LONGEST) && world.plan.queues.is_empty()
}

/// Whether the first may come before the other.
pub(super) fn may_come_before(world: &World, one: &JobRecord, other: &JobRecord) -> bool {
    if !is_by_use(world, one, other) {
        return rank(one) < rank(other);
    }
    let now = world.leader().map(|leader| leader.clock.at(world.now));
    let passes = |now| is_counted(world) && used_less(world, other, one, now);
    !now.is_some_and(passes)
}

/// Of jobs that ask for the same, none gets nodes before one whose owner has used less.
pub(super) fn goes_to_whoever_has_used_less(
    world: &World,
    judge: &Judge,
    before: &JobRecord,
    job: &JobRecord,
    after: &BTreeMap<&JobUid, &JobRecord>,
) -> Broken {
    if !is_counted(world) || !waits(before) || job.current.is_none() {
        return None;
    }
    let waited = |other: &&JobRecord| {
        let was = world.store.jobs.get(&other.uid);
        was.is_some_and(waits) && waits(other) && other.last_generation.0 == 0
    };
    let alike = |other: &&JobRecord| {
        let asks = |job: &JobRecord| (job.spec.min_replicas, job.spec.gpus_per_node);
        asks(other) == asks(job) && other.spec.roles.is_empty() && job.spec.roles.is_empty()
    };
    let could = |other: &&JobRecord| {
        let room = usable(world, &other.uid, other, &BTreeSet::new());
        room >= other.spec.min_replicas as usize
            && !is_limited(world, other)
            && !waits_for_a_person(world, other)
    };
    let others = after
        .values()
        .copied()
        .filter(|other| is_by_use(world, other, job));
    let waiting = others.filter(waited).filter(alike).filter(could);
    let passed = { waiting }.find(|other| used_less(world, other, job, judge.now))?;
    let what = format!(
        "{} of {:?} gets nodes, and {} of {:?}, who has used less, waits",
        job.uid,
        owner(job),
        passed.uid,
        owner(passed)
    );
    Some(("I32", what))
}

/// Whether the first one's owner has used less for certain, whenever within the last minute it was counted.
fn used_less(world: &World, one: &JobRecord, other: &JobRecord, now: Timestamp) -> bool {
    let same_namespace = owner(one).0 == owner(other).0;
    let of = |job: &JobRecord| {
        let (namespace, user) = owner(job);
        (
            namespace.to_owned(),
            user.cloned().filter(|_| same_namespace),
        )
    };
    let most = used(world, &of(one), now, Duration::ZERO);
    let least = used(world, &of(other), now, OLD);
    most + most / 50 + Duration::from_secs(1) < least
}

/// GPU time of a namespace, or a user of it. With `old`: what it had used so long ago at least.
fn used(world: &World, of: &(String, Option<Actor>), now: Timestamp, old: Duration) -> Duration {
    let counts = |namespace: &str, owner: Option<&Actor>| {
        namespace == of.0 && (of.1.is_none() || owner == of.1.as_ref())
    };
    let then = Timestamp(now.0.saturating_sub(old.as_micros() as u64));
    let over = world.store.history.values();
    let over = over.filter(|left| counts(&left.name.namespace, left.owner.as_ref()));
    let known = |left: &&std::sync::Arc<HistoryRecord>| {
        old.is_zero() || left.finished.is_some_and(|at| at <= then)
    };
    let of_over: Duration = over.filter(known).map(|left| left.life().gpu_time).sum();
    let jobs = world.store.jobs.values().filter(|job| !job.is_over());
    let jobs = jobs.filter(|job| counts(&job.name.namespace, job.owner.as_ref()));
    let accounts = jobs.filter_map(|job| job.time.as_ref());
    let accounts = accounts
        .filter(|account| old.is_zero() || account.open.is_some_and(|open| open.since <= then));
    let of_jobs = accounts.map(|account| {
        let spent = account.until(then, None);
        spent.iter().map(|spent| spent.gpu_time).sum::<Duration>()
    });
    of_over + of_jobs.sum::<Duration>()
}
