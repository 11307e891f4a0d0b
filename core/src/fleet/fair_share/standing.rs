//! Who comes first, by what was used, and what users see of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    fleet::{
        fair_share::user_of,
        job::JobRecord,
        queues::{QueueId, Queues},
    },
    id::JobUid,
};

/// Where the jobs of one user stand among those of their priority. The lesser comes first. Those of equal standing go by age, and
/// so do all jobs where there is no fair share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Standing {
    of_unit: u32,
    of_user: u32,
}

/// What is compared before users are: a queue, or where there are none a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unit {
    Queue(QueueId),
    Namespace(String),
}

/// What each user of each unit has used: GPU-milliseconds, as they count now.
pub(super) type Uses = BTreeMap<Unit, BTreeMap<String, u64>>;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Standings {
    /// Of the jobs that were there. They are asked for often.
    jobs: BTreeMap<JobUid, Standing>,
    units: BTreeMap<Unit, u32>,
    users: BTreeMap<Unit, BTreeMap<String, u32>>,
    queues: Queues,
}

/// What was used by one queue, namespace, or user of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The queue. `None`: there are no queues.
    pub queue: Option<String>,
    /// Where there are no queues.
    pub namespace: Option<String>,
    /// `None`: all its users together. Empty: those who have not proven who they are.
    pub user: Option<String>,
    /// GPU-seconds, as they count now.
    pub used: u64,
    /// By what it is divided before it is compared.
    pub weight: u32,
    /// Its place among those that it is compared with, from 1. Equal ones have equal places.
    pub place: u32,
}

/// The queue or namespace of a job. `None`: its namespace is in no queue.
pub(super) fn unit_of(queues: &Queues, namespace: &str, queue: Option<&str>) -> Option<Unit> {
    match queues.is_empty() {
        true => Some(Unit::Namespace(namespace.to_owned())),
        false => queues.of(namespace, queue).ok().map(Unit::Queue),
    }
}

#[cfg(test)]
impl Standing {
    pub(super) fn of_places(of_unit: u32, of_user: u32) -> Self {
        Self { of_unit, of_user }
    }
}

impl Standings {
    pub(super) fn of_uses<'j>(
        queues: &Queues,
        uses: &Uses,
        jobs: impl Iterator<Item = &'j JobRecord>,
    ) -> Self {
        let units = match queues.is_empty() {
            true => places(uses.iter().map(|(unit, users)| (unit.clone(), sum(users)))),
            false => places(paths(queues, uses).into_iter()),
        };
        let users = uses.iter().map(|(unit, users)| {
            let used = users.iter().map(|(user, used)| (user.clone(), *used));
            (unit.clone(), places(used))
        });
        let mut standings = Self {
            jobs: BTreeMap::new(),
            units,
            users: users.collect(),
            queues: queues.clone(),
        };
        let jobs = jobs.map(|job| (job.uid.clone(), standings.find(job)));
        standings.jobs = jobs.collect();
        standings
    }

    pub(crate) fn of(&self, job: &JobRecord) -> Standing {
        if self.units.is_empty() {
            return Standing::default();
        }
        let known = self.jobs.get(&job.uid);
        known.copied().unwrap_or_else(|| self.find(job))
    }

    /// One that has used nothing comes first.
    fn find(&self, job: &JobRecord) -> Standing {
        let unit = unit_of(&self.queues, &job.name.namespace, job.spec.queue.as_deref());
        // Behind all others: it has no queue, so it gets no GPUs either.
        let Some(unit) = unit else {
            return Standing {
                of_unit: u32::MAX,
                of_user: 0,
            };
        };
        let place =
            |users: &BTreeMap<String, u32>| users.get(&user_of(job.owner.as_ref())).copied();
        Standing {
            of_unit: self.units.get(&unit).copied().unwrap_or_default(),
            of_user: self.users.get(&unit).and_then(place).unwrap_or_default(),
        }
    }
}

fn sum(users: &BTreeMap<String, u64>) -> u64 {
    users
        .values()
        .fold(0, |sum, used| sum.saturating_add(*used))
}

/// What was used by each queue and those below it, divided by its weight: of each queue with jobs, from the top down to it.
fn paths(queues: &Queues, uses: &Uses) -> BTreeMap<Unit, Vec<u64>> {
    let used = used_below(queues, uses);
    let with_jobs = queues.all().filter(|(queue, _)| queues.has_jobs(*queue));
    let path = |queue| {
        let mut path: Vec<u64> = queues
            .path(queue)
            .map(|at| used[&at] / u64::from(queues.weight(at)))
            .collect();
        path.reverse();
        // Where nothing was used it is no matter how deep a queue is.
        let len = path
            .iter()
            .rposition(|used| *used > 0)
            .map_or(0, |last| last + 1);
        path.truncate(len);
        path
    };
    with_jobs
        .map(|(queue, _)| (Unit::Queue(queue), path(queue)))
        .collect()
}

/// What was used by the jobs of each queue and of those below it.
fn used_below(queues: &Queues, uses: &Uses) -> BTreeMap<QueueId, u64> {
    let mut used: BTreeMap<QueueId, u64> = queues.all().map(|(queue, _)| (queue, 0)).collect();
    for (unit, users) in uses {
        let Unit::Queue(queue) = unit else {
            continue;
        };
        for above in queues.path(*queue) {
            let used = used.entry(above).or_default();
            *used = used.saturating_add(sum(users));
        }
    }
    used
}

/// What was used, for people: queues or namespaces, and behind each its users if it has jobs.
pub(super) fn shares(queues: &Queues, uses: &Uses) -> Vec<Share> {
    let mut shares = Vec::new();
    let users_of = |unit: &Unit, of: &Share| {
        let Some(users) = uses.get(unit) else {
            return Vec::new();
        };
        let place = places(users.iter().map(|(user, used)| (user, *used)));
        let share = users.iter().map(|(user, used)| Share {
            user: Some(user.clone()),
            used: used / 1_000,
            weight: 1,
            place: place[user] + 1,
            ..of.clone()
        });
        share.collect::<Vec<Share>>()
    };
    if queues.is_empty() {
        let place = places(uses.iter().map(|(unit, users)| (unit, sum(users))));
        for (unit, users) in uses {
            let Unit::Namespace(namespace) = unit else {
                continue;
            };
            let share = Share {
                queue: None,
                namespace: Some(namespace.clone()),
                user: None,
                used: sum(users) / 1_000,
                weight: 1,
                place: place[unit] + 1,
            };
            let users = users_of(unit, &share);
            shares.push(share);
            shares.extend(users);
        }
        return shares;
    }
    let used = used_below(queues, uses);
    let by_weight = |queue: QueueId| used[&queue] / u64::from(queues.weight(queue));
    let mut beside: BTreeMap<Option<QueueId>, Vec<(QueueId, u64)>> = BTreeMap::new();
    for (queue, _) in queues.all() {
        let beside = beside.entry(queues.parent(queue)).or_default();
        beside.push((queue, by_weight(queue)));
    }
    let place: BTreeMap<QueueId, u32> = { beside.into_values() }
        .flat_map(|beside| places(beside.into_iter()))
        .collect();
    for (queue, _) in queues.all() {
        let share = Share {
            queue: Some(queues.name(queue).to_owned()),
            namespace: None,
            user: None,
            used: used[&queue] / 1_000,
            weight: queues.weight(queue),
            place: place[&queue] + 1,
        };
        let users = users_of(&Unit::Queue(queue), &share);
        shares.push(share);
        shares.extend(users);
    }
    shares
}

/// The place of each by its value, from the least. Equal ones have one place, and nothing at all is the first.
fn places<K: Ord, V: Ord + Clone + Default>(of: impl Iterator<Item = (K, V)>) -> BTreeMap<K, u32> {
    let of: Vec<(K, V)> = of.collect();
    let mut values: BTreeSet<V> = of.iter().map(|(_, value)| value.clone()).collect();
    values.insert(V::default());
    let place: BTreeMap<V, u32> = values.into_iter().zip(0..).collect();
    let place = |(key, value): (K, V)| (key, place.get(&value).copied().unwrap_or_default());
    of.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use proptest::prelude::*;

    use super::*;
    use crate::fleet::{actor::Actor, job::tests::record, queues::Queue};

    /// What was used in a tree of two levels above queues with jobs, and by which users. `None`: there are no queues.
    type Drawn = (Option<[u32; 6]>, Vec<(usize, usize, u64)>);

    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    const USERS: [&str; 3] = ["", "ann", "ben"];

    fn queues(weights: Option<[u32; 6]>) -> Queues {
        let Some(weights) = weights else {
            return Queues::default();
        };
        let parents = [None, None, Some(0), Some(0), Some(1), Some(1)];
        let queue = |at: usize| Queue {
            name: format!("q{at}"),
            parent: parents[at],
            quota: (at > 1).then_some(1),
            weight: Some(weights[at]),
            namespaces: (at > 1)
                .then(|| NAMES[at - 2].to_owned())
                .into_iter()
                .collect(),
            ..Queue::default()
        };
        Queues::new((0..6).map(queue).collect()).unwrap()
    }

    fn job(namespace: usize, user: usize) -> JobRecord {
        let mut job = record();
        job.uid = JobUid::from(format!("{namespace}-{user}"));
        job.name.namespace = NAMES[namespace].into();
        let named = Some(USERS[user]).filter(|name| !name.is_empty());
        job.owner = named.map(|name| Actor::User { name: name.into() });
        job
    }

    /// The first level at which two users differ decides, by all that was used there.
    fn compared(drawn: &Drawn, one: (usize, usize), other: (usize, usize)) -> Ordering {
        let sum = |counts: &dyn Fn(usize, usize) -> bool| -> u64 {
            let all = drawn
                .1
                .iter()
                .filter(|(namespace, user, _)| counts(*namespace, *user));
            all.map(|(_, _, used)| *used).sum()
        };
        let levels = |(namespace, user): (usize, usize)| {
            let own = sum(&|n, _| n == namespace);
            let team = sum(&|n, _| n / 2 == namespace / 2);
            let alone = sum(&|n, u| (n, u) == (namespace, user));
            match drawn.0 {
                None => vec![own, alone],
                Some(weights) => vec![
                    team / u64::from(weights[namespace / 2]),
                    own / u64::from(weights[2 + namespace]),
                    alone,
                ],
            }
        };
        levels(one).cmp(&levels(other))
    }

    /// Whether two users are to be compared although their queues or namespaces have used as much as each other. Which comes first is no
    /// matter then.
    fn are_tied(drawn: &Drawn, one: (usize, usize), other: (usize, usize)) -> bool {
        let unnamed = |(namespace, _): (usize, usize)| (namespace, USERS.len());
        one.0 != other.0 && compared(drawn, unnamed(one), unnamed(other)).is_eq()
    }

    fn any() -> impl Strategy<Value = Drawn> {
        let weights = prop::option::of(prop::array::uniform6(1_u32..4));
        let used = (
            0..NAMES.len(),
            0..USERS.len(),
            prop_oneof![Just(0), 0_u64..20],
        );
        (weights, prop::collection::vec(used, 0..12))
    }

    #[test]
    fn a_job_without_a_queue_comes_last() {
        let queues = queues(Some([1; 6]));
        let standings = Standings::of_uses(&queues, &Uses::new(), std::iter::empty());
        let mut stranger = job(0, 0);
        stranger.name.namespace = "stranger".into();
        assert!(standings.of(&stranger) > standings.of(&job(0, 0)));
        assert_eq!(Standings::default().of(&stranger), Standing::default());
    }

    proptest! {
        #[test]
        fn users_are_compared_level_by_level(drawn in any(), knows_the_jobs: bool) {
            let queues = queues(drawn.0);
            let mut uses = Uses::new();
            for (namespace, user, used) in &drawn.1 {
                let unit = unit_of(&queues, NAMES[*namespace], None).unwrap();
                *uses.entry(unit).or_default().entry(USERS[*user].to_owned()).or_default() += used;
            }
            let all: Vec<(usize, usize)> = (0..NAMES.len())
                .flat_map(|namespace| (0..USERS.len()).map(move |user| (namespace, user)))
                .collect();
            let jobs: Vec<JobRecord> = all.iter().map(|(namespace, user)| job(*namespace, *user)).collect();
            let known = jobs.iter().filter(|_| knows_the_jobs);
            let standings = Standings::of_uses(&queues, &uses, known);
            for (one, of_one) in all.iter().zip(&jobs) {
                for (other, of_other) in all.iter().zip(&jobs) {
                    if are_tied(&drawn, *one, *other) {
                        continue;
                    }
                    let found = standings.of(of_one).cmp(&standings.of(of_other));
                    prop_assert_eq!(found, compared(&drawn, *one, *other), "{:?} {:?}", one, other);
                }
            }
            let of_users = shares(&queues, &uses);
            let of_users = of_users.iter().filter(|share| share.user.is_some());
            prop_assert_eq!(of_users.count(), uses.values().map(BTreeMap::len).sum::<usize>());
        }
    }
}
