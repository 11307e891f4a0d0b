//! Room for a job that waits, from jobs of lower priority.
//!
//! An elastic job first gives up members down to its minimum: it is resized as if a user had scaled it, with its stop grace
//! and the time to save. Only if all of that is not enough, whole jobs are ended and wait again (*evicted*), and only those that
//! may be ([`crate::spec::Preemption`]) and have run for [`Policy::evict_after`]. The lowest priority goes first, then the
//! youngest job, then the generation that began last, because it has least to lose.
//!
//! Nothing is taken without gain. The placer is asked first, about a copy of the capacity in which everything that may be
//! taken is free. If the job would not start even then, nobody gives anything. Else only what its gang needs is taken.
//! Room that is being freed already is never taken again: the job waits for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    fleet::{
        candidates::{self, Reserved},
        capacity::Capacity,
        job::{GenerationRecord, JobRecord, Stage},
        job_turn::Facts,
        live::Live,
        members::Member,
        placement::{Demand, Keeps, Placement},
        policy::Policy,
        unhealthy, word,
        yields::Yields,
    },
    id::{JobUid, NodeName},
    spec::Preemption,
    time::Timestamp,
};

/// What can be done for a job that waits for room.
#[derive(Debug)]
pub(crate) enum Preempt {
    /// Nothing: other jobs hold what it lacks, and keep it.
    Nothing,
    /// What it lacks is being freed.
    Coming,
    /// Maybe something then: a job of lower priority may not be disturbed before.
    NotBefore(Timestamp),
    /// These jobs give up what it needs.
    From(BTreeMap<JobUid, Yields>),
}

/// What one job of lower priority could give.
struct Victim<'a> {
    job: &'a JobRecord,
    /// Nodes that it can do without, those that it gives up first in front.
    spare: Vec<NodeName>,
    /// All its nodes that are of use.
    useful: Vec<NodeName>,
    evictable: bool,
}

/// A part of what a job gives.
#[derive(Clone, Debug)]
struct Release<'a> {
    job: &'a JobRecord,
    nodes: Vec<NodeName>,
    evicts: bool,
}

/// The job that waits, and what it asks for.
#[derive(Clone, Copy)]
struct Ask<'f, 'a> {
    facts: Facts<'a>,
    demand: &'f Demand,
    reserved: &'f [Reserved<'a>],
}

/// What may be done to a job at most.
pub(crate) fn allowed(job: &JobRecord, policy: &Policy) -> Preemption {
    job.spec.preemption.min(policy.preemption)
}

/// Looks for room for this job, which waits. It has found none.
pub(crate) fn preempt(facts: Facts<'_>) -> Preempt {
    let job = facts.job;
    if job.spec.template.is_some() || !facts.reservations().reserves(job) {
        return Preempt::Nothing;
    }
    let lower: Vec<&JobRecord> = facts
        .others
        .values()
        .filter(|other| is_lower(facts, other))
        .collect();
    if lower.is_empty() {
        return Preempt::Nothing;
    }
    let mut demand = candidates::demand(job);
    if facts
        .limit()
        .is_some_and(|limit| limit.bound(&mut demand).is_err())
    {
        return Preempt::Nothing;
    }
    demand.wanted = demand.min();
    let keeps = facts.keeps();
    let reserved = facts.reserved();
    let ask = Ask {
        facts,
        demand: &demand,
        reserved: &reserved,
    };
    let coming = coming(facts);
    if ask.gang(&coming, &[]).is_some() {
        return Preempt::Coming;
    }
    let (mut victims, later) = victims(facts, &lower, &keeps);
    while let Some((releases, gang)) = ask.least(&coming, &victims) {
        let mut after = coming.clone();
        releases
            .iter()
            .for_each(|release| release.apply(&mut after));
        after.occupy(&job.uid, gang);
        let given = yields(job, releases);
        let stuck = |victim: &&mut Victim<'_>| {
            given
                .get(&victim.job.uid)
                .is_some_and(|given| !given.evicted && !goes_on(facts, &after, victim.job, given))
        };
        // It may still do without some of those that it could spare, or it is evicted, or others give.
        let Some(victim) = victims.iter_mut().find(stuck) else {
            return Preempt::From(given);
        };
        let given = &given[&victim.job.uid];
        let at_first = |count: usize| Yields {
            nodes: victim.spare[..count].iter().cloned().collect(),
            ..given.clone()
        };
        let all = victim.spare.len();
        let kept = first_that(all, |kept| {
            goes_on(facts, &after, victim.job, &at_first(all - kept))
        });
        // At least one goes, so this ends.
        victim.spare.truncate(all - kept.unwrap_or(all).max(1));
    }
    later.map_or(Preempt::Nothing, Preempt::NotBefore)
}

/// Whether a job would be placed once it has given these nodes up and the other has begun. Members do not stay on nodes that take no new work,
/// although they train there.
fn goes_on(facts: Facts<'_>, after: &Capacity, job: &JobRecord, given: &Yields) -> bool {
    let live = Live::default();
    let facts = facts.of_other(job, &live);
    // What is reserved is not asked for: seen from another job the reservation of this one would be missing, and what is seen first is kept.
    let mut nodes = facts.candidates(after, &[]);
    nodes.retain(|node| !given.nodes.contains(node.node));
    let demand = candidates::demand(job);
    matches!(facts.choose(after, nodes, &demand), Placement::Gang(_))
}

/// Whether the job has a lower priority, holds something, and may be asked for it.
fn is_lower(facts: Facts<'_>, other: &JobRecord) -> bool {
    other.spec.priority < facts.job.spec.priority
        && other.spec.template.is_none()
        && (other.name.namespace == facts.job.name.namespace
            || facts.policy.preempt_other_namespaces)
        && allowed(other, facts.policy) > Preemption::Never
        && other.generation_now().is_some()
        // Nothing is decided about it, so it would never give.
        && word::halted_by(facts.halted, facts.nodes, other).is_none()
}

/// What will be left when all that is being stopped has stopped.
fn coming(facts: Facts<'_>) -> Capacity {
    let mut coming = facts.capacity().clone();
    for other in facts.others.values() {
        // Workers that cannot be killed free nothing before somebody comes.
        if other.retiring.is_empty() || unhealthy::unkillable(facts.nodes, other).is_some() {
            continue;
        }
        coming.keep_only(&other.uid, other.generation_now());
    }
    for (uid, given) in facts.yields {
        given
            .nodes
            .iter()
            .for_each(|node| coming.release(node, uid));
    }
    coming
}

/// Those that may give something, the first to give in front, and when others may.
fn victims<'a>(
    facts: Facts<'a>,
    lower: &[&'a JobRecord],
    keeps: &BTreeMap<NodeName, Keeps>,
) -> (Vec<Victim<'a>>, Option<Timestamp>) {
    let (mut victims, mut later): (Vec<Victim<'_>>, Vec<Timestamp>) = (Vec::new(), Vec::new());
    for job in lower
        .iter()
        .filter(|job| !facts.yields.contains_key(&job.uid))
    {
        let Stage::Training(generation) = job.stage() else {
            // It gets ready, and says so when it trains.
            later.push(facts.now + AGAIN);
            continue;
        };
        let old_enough =
            generation.started_at.unwrap_or(generation.opened) + facts.policy.evict_after;
        let evicts = allowed(job, facts.policy) == Preemption::Evict;
        if evicts && old_enough > facts.now {
            later.push(old_enough);
        }
        let members = generation.members.iter().map(|member| &member.node);
        let useful: Vec<NodeName> = members
            .filter(|node| keeps.contains_key(*node))
            .cloned()
            .collect();
        victims.push(Victim {
            job,
            spare: spare(job, generation, &useful),
            useful,
            evictable: evicts && old_enough <= facts.now,
        });
    }
    victims.sort_by_key(|victim| {
        let job = victim.job;
        let began = job.training().and_then(|generation| generation.started_at);
        // Youngest first, and of those the one that began last.
        (
            job.spec.priority,
            std::cmp::Reverse(job.created),
            std::cmp::Reverse(began),
            &job.uid,
        )
    });
    (victims, later.into_iter().min())
}

/// How soon to look again at a job that cannot give anything at this moment.
pub(crate) const AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// The nodes among these that the job can do without, the last in rank first, because the first stay in a smaller generation.
fn spare(job: &JobRecord, generation: &GenerationRecord, useful: &[NodeName]) -> Vec<NodeName> {
    let roles = job.spec.roles.iter().map(|role| role.min_replicas);
    let mut least: Vec<u32> = roles.collect();
    if least.is_empty() {
        least.push(job.spec.min_replicas);
    }
    let role = |number: u32| {
        generation
            .layout
            .place(number)
            .map_or(0, |place| place.role)
    };
    let mut have = vec![0_u32; least.len()];
    for member in &generation.members {
        let seats = generation.seats_on(&member.node);
        seats.iter().for_each(|seat| have[role(seat.number)] += 1);
    }
    let mut spare = Vec::new();
    for node in useful.iter().rev() {
        let mut after = have.clone();
        let seats = generation.seats_on(node);
        seats.iter().for_each(|seat| after[role(seat.number)] -= 1);
        if after
            .iter()
            .zip(&least)
            .all(|(after, least)| after >= least)
        {
            have = after;
            spare.push(node.clone());
        }
    }
    spare
}

impl<'a> Ask<'_, 'a> {
    /// The gang that it would get of this capacity. Nodes where others would have to give something are the last choice.
    fn gang(self, capacity: &Capacity, releases: &[Release<'_>]) -> Option<Vec<Member>> {
        let mut capacity = capacity.clone();
        releases
            .iter()
            .for_each(|release| release.apply(&mut capacity));
        let taken: BTreeSet<&NodeName> = releases.iter().flat_map(|one| &one.nodes).collect();
        let mut nodes = self.facts.candidates(&capacity, self.reserved);
        for node in &mut nodes {
            node.shunned |= taken.contains(node.node);
        }
        match self.facts.choose(&capacity, nodes, self.demand) {
            Placement::Gang(gang) => Some(gang),
            Placement::Short(_) => None,
        }
    }

    /// The least that the victims must give, and the gang that it gets then: no whole job where members are enough, and none of
    /// a job where those before it are enough.
    fn least<'v>(
        self,
        coming: &Capacity,
        victims: &[Victim<'v>],
    ) -> Option<(Vec<Release<'v>>, Vec<Member>)> {
        let shrinks = |victim: &Victim<'v>| {
            let job = victim.job;
            let nodes = victim.spare.iter().cloned();
            nodes
                .map(move |node| Release {
                    job,
                    nodes: vec![node],
                    evicts: false,
                })
                .collect::<Vec<_>>()
        };
        let evicts = |victim: &Victim<'v>| Release {
            job: victim.job,
            nodes: victim.useful.clone(),
            evicts: true,
        };
        let shrinking: Vec<Vec<Release<'v>>> = victims.iter().map(shrinks).collect();
        let evicting: Vec<Release<'v>> = victims
            .iter()
            .filter(|one| one.evictable)
            .map(evicts)
            .collect();
        let some = |shrink: usize, evict: usize| -> Vec<Release<'v>> {
            let evicted = evicting[..evict].iter();
            let whole = |one: &&Release<'v>| {
                evicting[..evict]
                    .iter()
                    .all(|other| other.job.uid != one.job.uid)
            };
            let shrunk = shrinking[..shrink].iter().flatten().filter(whole);
            shrunk.chain(evicted).cloned().collect()
        };
        let fits = |shrink: usize, evict: usize| self.gang(coming, &some(shrink, evict)).is_some();
        // With everything that can be shrunk, as few evictions as will do; then as few that shrink.
        let evict = first_that(evicting.len(), |evict| fits(victims.len(), evict))?;
        let shrink = first_that(victims.len(), |shrink| fits(shrink, evict))?;
        let releases = some(shrink, evict);
        let gang = self.gang(coming, &releases)?;
        Some((self.needed(coming, releases, &gang), gang))
    }

    /// Those releases without which the gang has no room. The dearest are the last, and are left out first.
    fn needed<'v>(
        self,
        coming: &Capacity,
        mut releases: Vec<Release<'v>>,
        gang: &[Member],
    ) -> Vec<Release<'v>> {
        let nodes: BTreeSet<&NodeName> = gang.iter().map(|member| &member.node).collect();
        let coming = coming.only(&nodes);
        let enough = |releases: &[Release<'_>]| {
            let mut capacity = coming.clone();
            releases
                .iter()
                .for_each(|release| release.apply(&mut capacity));
            gang.iter()
                .all(|member| self.facts.has_room(&capacity, self.reserved, member))
        };
        for at in (0..releases.len()).rev() {
            let without = releases.remove(at);
            if !enough(&releases) {
                releases.insert(at, without);
            }
        }
        releases
    }
}

impl Release<'_> {
    fn apply(&self, capacity: &mut Capacity) {
        let uid = &self.job.uid;
        self.nodes
            .iter()
            .for_each(|node| capacity.release(node, uid));
    }
}

/// The least number for which this holds, if it holds for any up to the most. What holds for one holds for all above it.
fn first_that(most: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
    if holds(0) {
        return Some(0);
    }
    if most == 0 || !holds(most) {
        return None;
    }
    let (mut low, mut high) = (0, most);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        match holds(middle) {
            true => high = middle,
            false => low = middle,
        }
    }
    Some(high)
}

/// The same, job by job.
fn yields(to: &JobRecord, releases: Vec<Release<'_>>) -> BTreeMap<JobUid, Yields> {
    let mut all: BTreeMap<JobUid, Yields> = BTreeMap::new();
    for release in releases {
        let given = all
            .entry(release.job.uid.clone())
            .or_insert_with(|| Yields {
                to: to.name.clone(),
                priority: to.spec.priority,
                nodes: BTreeSet::new(),
                evicted: release.evicts,
            });
        given.nodes.extend(release.nodes);
    }
    all
}
