//! Room for a job that waits, from jobs of lower priority, and from those that hold what its queue has lent.
//!
//! An elastic job first gives up members down to its minimum: it is resized as if a user had scaled it, with its stop grace
//! and the time to save. Only if all of that is not enough, whole jobs are ended and wait again (*evicted*), and only those that
//! may be ([`crate::spec::Preemption`]) and have run for [`Policy::evict_after`]. The lowest priority goes first, then the
//! youngest job, then the generation that began last, because it has least to lose.
//!
//! A job that waits within the quota of its queue takes from jobs of any priority and namespace whose queues have borrowed, and
//! not more than they have: no queue loses any of its own quota.
//!
//! Nothing is taken without gain. The placer is asked first, about a copy of the capacity in which everything that may be
//! taken is free. If the job would not start even then, nobody gives anything. Else only what its gang needs is taken.
//! Room that is being freed already is never taken again: the job waits for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    fleet::{
        candidates::Reserved,
        capacity::Capacity,
        job::{GenerationRecord, JobRecord, Stage},
        job_turn::Facts,
        ledger, limits,
        live::Live,
        members::Member,
        placement::{Demand, Placement},
        policy::Policy,
        queues::{QueueId, Usage},
        registry::Liveness,
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

/// What one job could give.
struct Victim<'a> {
    job: &'a JobRecord,
    /// The queue that has borrowed, if its priority is no reason.
    of: Option<QueueId>,
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
    of: Option<QueueId>,
    nodes: Vec<NodeName>,
    evicts: bool,
}

/// The job that waits, and what it asks for.
#[derive(Clone, Copy)]
struct Ask<'f, 'a> {
    facts: Facts<'a>,
    demand: &'f Demand,
    reserved: &'f [Reserved<'a>],
    quota: Option<&'f Quota>,
}

/// What the job that waits asks of its queue.
struct Quota {
    queue: QueueId,
    /// GPUs.
    need: u32,
    /// What the other jobs of each queue will hold when all that is being stopped has stopped.
    coming: Usage,
}

/// What may be done to a job at most.
pub(crate) fn allowed(job: &JobRecord, policy: &Policy) -> Preemption {
    job.spec.preemption.min(policy.preemption)
}

/// Looks for room for this job, which waits. It has found none.
pub(crate) fn preempt(facts: Facts<'_>) -> Preempt {
    let job = facts.job;
    if job.spec.template.is_some() || !facts.is_among_first() {
        return Preempt::Nothing;
    }
    let quota = quota(facts);
    let has_queues = facts.ledger().is_some() && limits::need(job) > 0;
    if quota.is_none() && has_queues {
        return Preempt::Nothing;
    }
    let lower: Vec<(&JobRecord, Option<QueueId>)> = facts
        .others
        .values()
        .filter_map(|other| Some((other, gives(facts, quota.as_ref(), other)?)))
        .collect();
    if lower.is_empty() {
        return Preempt::Nothing;
    }
    let mut demand = limits::demand(job);
    if facts
        .own_limit()
        .is_some_and(|limit| limit.bound(&mut demand).is_err())
    {
        return Preempt::Nothing;
    }
    demand.wanted = demand.min();
    let useful = facts.could_use();
    let reserved = facts.reserved();
    let ask = Ask {
        facts,
        demand: &demand,
        reserved: &reserved,
        quota: quota.as_ref(),
    };
    let coming = facts.coming();
    if ask.gang(&coming, &[]).is_some() {
        return Preempt::Coming;
    }
    let (of_use, later) = victims(facts, &lower, |node, _| useful.contains_key(node));
    if let Some(given) = ask
        .of(&coming, of_use)
        .filter(|given| ask.gets(&coming, given))
    {
        return Preempt::From(given);
    }
    // Its queue lacks GPUs: those of nodes that it has no use for count as well.
    if let Some(quota) = quota.as_ref().filter(|_| !ask.is_within_quota(&[])) {
        let queues = &facts.policy.queues;
        let of_tree = |job: &JobRecord| {
            let queue = ledger::queue_of(queues, job).ok();
            queue.map(|queue| queues.top(queue)) == Some(queues.top(quota.queue))
        };
        let (all, _) = victims(facts, &lower, |node, job| {
            useful.contains_key(node) || of_tree(job)
        });
        if let Some(given) = ask
            .of(&coming, all)
            .filter(|given| ask.gets(&coming, given))
        {
            return Preempt::From(given);
        }
    }
    later.map_or(Preempt::Nothing, Preempt::NotBefore)
}

/// What the job asks of its queue. `None`: nothing, or it has none.
fn quota(facts: Facts<'_>) -> Option<Quota> {
    let need = Some(limits::need(facts.job)).filter(|need| *need > 0)?;
    let (ledger, queue) = facts.ledger().zip(facts.queue())?;
    let coming = facts.coming_usage(ledger, |job| &job.uid != facts.uid);
    Some(Quota {
        queue,
        need,
        coming,
    })
}

impl Ask<'_, '_> {
    /// What these jobs give for it. `None`: all that they can give would not do.
    fn of(
        self,
        coming: &Capacity,
        mut victims: Vec<Victim<'_>>,
    ) -> Option<BTreeMap<JobUid, Yields>> {
        let (facts, job) = (self.facts, self.facts.job);
        while let Some((releases, gang)) = self.least(coming, &victims) {
            let mut after = coming.clone();
            releases
                .iter()
                .for_each(|release| release.apply(&mut after));
            after.occupy(&job.uid, gang);
            let given = self.yields(releases);
            let stuck = |victim: &&mut Victim<'_>| {
                given.get(&victim.job.uid).is_some_and(|given| {
                    !given.evicted && !goes_on(facts, &after, victim.job, given)
                })
            };
            // It may still do without some of those that it could spare, or it is evicted, or others give.
            let Some(victim) = victims.iter_mut().find(stuck) else {
                return Some(given);
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
        None
    }

    /// Whether it begins once these nodes are given: those before it may choose them instead of others.
    fn gets(self, coming: &Capacity, given: &BTreeMap<JobUid, Yields>) -> bool {
        let mut after = coming.clone();
        for (uid, given) in given {
            let nodes = given.nodes.iter();
            nodes.for_each(|node| after.release(node, uid));
        }
        let kept = self.facts.kept_after(&after);
        let reserved: Vec<Reserved<'_>> = kept
            .iter()
            .map(|(by, keeps)| Reserved {
                by,
                keeps,
                namespace: &self.facts.job.name.namespace,
            })
            .collect();
        let nodes = self.facts.candidates(&after, &reserved);
        matches!(
            self.facts.choose(&after, nodes, self.demand),
            Placement::Gang(_)
        )
    }
}

/// Whether a job would be placed once it has given these nodes up and the other has begun. Members do not stay on nodes that take no new work,
/// although they train there.
fn goes_on(facts: Facts<'_>, after: &Capacity, job: &JobRecord, given: &Yields) -> bool {
    let live = Live::default();
    let facts = facts.of_other(job, &live);
    // What is reserved is not asked for: seen from another job the reservation of this one would be missing, and what is seen first is kept.
    let mut nodes = facts.candidates(after, &[]);
    nodes.retain(|node| !given.nodes.contains(node.node));
    let demand = limits::demand(job);
    matches!(facts.choose(after, nodes, &demand), Placement::Gang(_))
}

/// Whether the job may be asked for what it holds, because its priority is lower, or because its queue, which is named, has
/// borrowed.
fn gives(facts: Facts<'_>, quota: Option<&Quota>, other: &JobRecord) -> Option<Option<QueueId>> {
    let may_give = other.spec.template.is_none()
        && allowed(other, facts.policy) > Preemption::Never
        && other.generation_now().is_some()
        // Nothing is decided about it, so it would never give.
        && word::halted_by(facts.halted, facts.nodes, other).is_none();
    if !may_give {
        return None;
    }
    let queues = &facts.policy.queues;
    let of = ledger::queue_of(queues, other).ok();
    // Whoever would borrow takes nothing from another queue: it would be taken back.
    let may_take = |quota: &Quota| of == Some(quota.queue) || facts.is_entitled(facts.claims());
    if is_lower(facts, other) && quota.is_none_or(may_take) {
        return Some(None);
    }
    let (quota, of) = quota.zip(of)?;
    let has_borrowed = queues.may_take_back(quota.queue, quota.need, of, &quota.coming);
    has_borrowed.then_some(Some(of))
}

/// Whether the job has a lower priority, in a namespace from which this one may take.
fn is_lower(facts: Facts<'_>, other: &JobRecord) -> bool {
    other.spec.priority < facts.job.spec.priority
        && (other.name.namespace == facts.job.name.namespace
            || facts.policy.preempt_other_namespaces)
}

/// Those that may give something, the first to give in front, and when others may. `of_use`: whether it is of use that a job
/// gives a node up.
fn victims<'a>(
    facts: Facts<'a>,
    lower: &[(&'a JobRecord, Option<QueueId>)],
    of_use: impl Fn(&NodeName, &JobRecord) -> bool,
) -> (Vec<Victim<'a>>, Option<Timestamp>) {
    let (mut victims, mut later): (Vec<Victim<'_>>, Vec<Timestamp>) = (Vec::new(), Vec::new());
    for &(job, of) in lower
        .iter()
        .filter(|(job, _)| !facts.yields.contains_key(&job.uid))
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
        let useful = members.filter(|node| of_use(node, job)).cloned();
        let mut useful: Vec<NodeName> = useful.collect();
        if !facts.policy.queues.is_empty() {
            // Quota may come from any node. Those on which the job could not begin again go first.
            useful.sort_by_key(|node| !takes_work(facts, node));
        }
        victims.push(Victim {
            job,
            of,
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

/// Whether a job could begin on the node.
fn takes_work(facts: Facts<'_>, node: &NodeName) -> bool {
    facts.nodes.get(node).is_some_and(|node| {
        node.liveness == Liveness::Ready
            && node.session.is_some()
            && node.record.halt.is_none()
            && !facts.nodes.is_cordoned(node)
            && unhealthy::no_new_work(facts.nodes, node).is_none()
    })
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
    /// Whether its quota lets it start once these are released.
    fn is_within_quota(self, releases: &[Release<'_>]) -> bool {
        let Some(quota) = self.quota else {
            return true;
        };
        let usage = self.usage_after(quota, releases);
        self.facts.of_queue(&usage, self.facts.claims()).left() >= quota.need
    }

    fn usage_after(self, quota: &Quota, releases: &[Release<'_>]) -> Usage {
        let mut usage = quota.coming.clone();
        releases
            .iter()
            .for_each(|release| release.leaves(self.facts, &mut usage));
        usage
    }

    /// Those of the releases that may be taken one after the other: no queue gives more than it has borrowed.
    fn rightly<'v>(self, releases: Vec<Release<'v>>) -> Vec<Release<'v>> {
        let Some(quota) = self.quota else {
            return releases;
        };
        let queues = &self.facts.policy.queues;
        let mut usage = quota.coming.clone();
        let mut taken = Vec::new();
        for release in releases {
            let borrows = |of: QueueId| queues.may_take_back(quota.queue, quota.need, of, &usage);
            if release.of.is_none_or(borrows) {
                release.leaves(self.facts, &mut usage);
                taken.push(release);
            }
        }
        taken
    }

    /// The gang that it would get of this capacity. Nodes where others would have to give something are the last choice.
    fn gang(self, capacity: &Capacity, releases: &[Release<'_>]) -> Option<Vec<Member>> {
        if !self.is_within_quota(releases) {
            return None;
        }
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
            let (job, of) = (victim.job, victim.of);
            let nodes = victim.spare.iter().cloned();
            nodes
                .map(move |node| Release {
                    job,
                    of,
                    nodes: vec![node],
                    evicts: false,
                })
                .collect::<Vec<_>>()
        };
        let evicts = |victim: &Victim<'v>| Release {
            job: victim.job,
            of: victim.of,
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
            self.rightly(shrunk.chain(evicted).cloned().collect())
        };
        let fits = |shrink: usize, evict: usize| self.gang(coming, &some(shrink, evict)).is_some();
        // With everything that can be shrunk, as few evictions as will do; then as few that shrink.
        let evict = first_that(evicting.len(), |evict| fits(victims.len(), evict))?;
        let shrink = first_that(victims.len(), |shrink| fits(shrink, evict))?;
        let releases = some(shrink, evict);
        let gang = self.gang(coming, &releases)?;
        Some((self.needed(coming, releases, &gang), gang))
    }

    /// What each job gives in all.
    fn yields(self, releases: Vec<Release<'_>>) -> BTreeMap<JobUid, Yields> {
        let (to, queues) = (self.facts.job, &self.facts.policy.queues);
        let queue = self.quota.map(|quota| queues.name(quota.queue));
        let mut all: BTreeMap<JobUid, Yields> = BTreeMap::new();
        for release in releases {
            let given = all
                .entry(release.job.uid.clone())
                .or_insert_with(|| Yields {
                    to: to.name.clone(),
                    priority: to.spec.priority,
                    lent_by: queue.filter(|_| release.of.is_some()).map(str::to_owned),
                    nodes: BTreeSet::new(),
                    evicted: release.evicts,
                });
            given.nodes.extend(release.nodes);
        }
        all
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
            let has_room = |member| self.facts.has_room(&capacity, self.reserved, member);
            self.is_within_quota(releases) && gang.iter().all(has_room)
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
    /// Takes its GPUs out of what its queue holds.
    fn leaves(&self, facts: Facts<'_>, usage: &mut Usage) {
        let members = self.job.generation_now().into_iter();
        let members = members.flat_map(|generation| &generation.members);
        let given = members.filter(|member| self.evicts || self.nodes.contains(&member.node));
        let gpus: usize = given.map(|member| member.gpus.len()).sum();
        if let Ok(of) = ledger::queue_of(&facts.policy.queues, self.job) {
            usage.take(of, gpus as u32);
        }
    }

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
