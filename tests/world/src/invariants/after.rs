//! I28: what a job waits for before it may start. The jobs are found anew by their names, and their ends are read from
//! their own records.

use muster_core::{
    fleet::job::{Phase, Reason},
    id::JobName,
    spec::AfterCondition,
};

use super::*;

/// Judges all changes of one decision together: a job may end and another start in it.
pub(super) fn starts_as_asked(world: &mut World, judge: &Judge, changes: &[Change]) -> Broken {
    let put = changes.iter().filter_map(|change| match change {
        Change::PutJob(job) => Some(&**job),
        _ => None,
    });
    let waiting = put.filter(|job| !job.spec.start.is_empty());
    for job in waiting {
        if !world.truth.awaited.contains_key(&job.uid) {
            let Some(awaited) = named_now(&world.store, job) else {
                return Some((
                    "I28",
                    format!("{} is to wait for a job that is not there", job.uid),
                ));
            };
            world.truth.awaited.insert(job.uid.clone(), awaited);
        }
        let broken = change(world, judge, changes, job);
        if broken.is_some() {
            return broken;
        }
    }
    None
}

/// The jobs that this one names, of those that are there or have left a record.
fn named_now(store: &Store, job: &JobRecord) -> Option<Vec<JobUid>> {
    let after = job.spec.start.after.iter();
    let uids = after.map(|after| {
        let name = JobName {
            namespace: job.name.namespace.clone(),
            name: after.job.clone(),
        };
        let live = store.jobs.values().find(|other| other.name == name);
        let over = || store.history.values().rev().find(|left| left.name == name);
        live.map(|other| other.uid.clone())
            .or_else(|| over().map(|left| left.uid.clone()))
    });
    uids.collect()
}

/// What each of the awaited jobs has come to. `None`: it has not ended.
fn ends(
    world: &World,
    changes: &[Change],
    job: &JobRecord,
) -> Vec<(AfterCondition, Option<Phase>)> {
    let uids = world.truth.awaited.get(&job.uid).cloned();
    let after = job.spec.start.after.iter();
    let all = uids.unwrap_or_default().into_iter().zip(after);
    let ends = all.map(|(uid, after)| {
        let changed = changes.iter().find_map(|change| match change {
            Change::PutJob(other) if other.uid == uid => Some(&**other),
            _ => None,
        });
        let left = || {
            let mut left = world.store.history.values();
            left.find(|left| left.uid == uid).map(|left| left.phase)
        };
        let end = match changed.or_else(|| world.store.jobs.get(&uid)) {
            Some(other) => Some(other.phase).filter(|phase| phase.is_over()),
            None => left(),
        };
        (after.condition, end)
    });
    ends.collect()
}

fn is_as_asked(condition: AfterCondition, end: Phase) -> bool {
    match condition {
        AfterCondition::Succeeded => end == Phase::Succeeded,
        AfterCondition::Failed => end == Phase::Failed,
        AfterCondition::Ended => true,
    }
}

fn change(world: &World, judge: &Judge, changes: &[Change], job: &JobRecord) -> Broken {
    let before = world.store.jobs.get(&job.uid);
    let ends = ends(world, changes, job);
    let otherwise = |(condition, end): &(AfterCondition, Option<Phase>)| {
        end.is_some_and(|end| !is_as_asked(*condition, end))
    };
    // The number of its last generation also goes up when a store is accepted that knows less than nodes.
    let begun = |job: &JobRecord| job.current.is_some() || !job.nodes_used.is_empty();
    if begun(job) && !before.is_some_and(begun) {
        let open = ends.iter().any(|(_, end)| end.is_none()) || ends.iter().any(otherwise);
        if open || !job.is_eligible() {
            let what = format!("{} starts, with {ends:?}", job.uid);
            return Some(("I28", what));
        }
    }
    // By the clock of the coordinator that found its time come. The clock of the next one may be behind.
    if job.is_eligible() && !before.is_some_and(JobRecord::is_eligible) {
        let early = job.spec.start.start_after.filter(|at| *at > judge.now);
        if let Some(early) = early {
            let what = format!("{} is eligible before {early}", job.uid);
            return Some(("I28", what));
        }
    }
    let never = |job: &JobRecord| {
        let ending = job.ending.as_ref();
        ending.is_some_and(|end| end.reason == Reason::DependencyNeverSatisfied)
    };
    if never(job) && !before.is_some_and(never) && !ends.iter().any(otherwise) {
        let what = format!("{} gives up, with {ends:?}", job.uid);
        return Some(("I28", what));
    }
    None
}

/// Whether a job that is not eligible waits for something that may still come. The error says what it does not.
pub(crate) fn waits_truly(world: &World, job: &JobRecord) -> Result<(), String> {
    let ends = ends(world, &[], job);
    let wrong = |(condition, end): &(AfterCondition, Option<Phase>)| {
        end.is_some_and(|end| !is_as_asked(*condition, end))
    };
    let open = ends.iter().any(|(_, end)| end.is_none());
    let leader = world.leader().map(|leader| leader.clock.at(world.now));
    let until = job.spec.start.start_after;
    let early = until.zip(leader).is_some_and(|(until, now)| until > now);
    let says = matches!(job.reason, Reason::Dependency | Reason::BeginTime);
    match (open || early) && says && !ends.iter().any(wrong) {
        true => Ok(()),
        false => Err(format!(
            "waits for {ends:?} and until {until:?}; {:?}, {}: {}",
            job.phase, job.reason, job.message
        )),
    }
}
