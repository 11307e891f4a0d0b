//! R3: a process is started again alone if it has failed by itself and everything else goes on, once
//! for each failure, and only because the store says so.

use std::collections::BTreeMap;

use muster_core::{
    fleet::job::MemberRestart, node::GroupPhase, run::RankReport, spec::RestartScope,
};

use super::*;
use crate::troubles::Kind;

/// A brain asks for the next attempt only if its runner has told it that the one before has failed
/// and the others go on, and it has not had the group stopped.
pub(crate) fn restart_is_asked_rightly(
    world: &mut World,
    machine: usize,
    run: &RunId,
    rank: u32,
    attempt: u32,
) {
    let place = &world.machines[machine];
    let agent = place.agent.as_ref().map(|agent| agent.id);
    let failed = |report: &RankReport| {
        let failed = report.exit.is_some_and(|exit| !exit.is_success());
        report.rank == rank && report.attempt + 1 == attempt && failed
    };
    let rightly = place.runs.get(run).is_none_or(|group| {
        let told = group.told.as_ref().filter(|(to, _)| Some(*to) == agent);
        let told = told.map(|(_, status)| status);
        group.stopped_by != agent
            && told.is_some_and(|told| {
                told.phase == GroupPhase::Running && told.ranks.iter().any(failed)
            })
    });
    if !rightly {
        let what = format!(
            "n{machine} asks for attempt {attempt} of rank {rank} of {}, and its runner has not told it that this is due",
            words::run(run)
        );
        world.fail("R3", what);
    }
}

/// The workers of one rank never live twice at once, and the store has ordered each of them.
pub(crate) fn started_again_once(
    world: &mut World,
    machine: usize,
    run: &RunId,
    rank: u32,
    attempt: u32,
) {
    let lives = |group: &Group| {
        let mut ranks = group.ranks.iter();
        ranks.any(|known| known.alive && known.report.rank == rank)
    };
    let places = world.machines.iter().enumerate();
    let twice = places
        .filter(|(other, _)| *other != machine)
        .find(|(_, place)| place.runs.get(run).is_some_and(lives))
        .map(|(other, _)| other);
    let generation = world
        .store
        .jobs
        .get(&run.job)
        .and_then(|job| job.generation(run.generation));
    let ordered = generation.and_then(|generation| generation.member_restarts.get(&rank));
    let ordered = ordered.map_or(1, |restarts| restarts.attempt);
    let run = words::run(run);
    if let Some(other) = twice {
        let what = format!("rank {rank} of {run} lives on n{machine} and on n{other}");
        world.fail("R3", what);
    } else if attempt > ordered {
        let what =
            format!("attempt {attempt} of rank {rank} of {run} begins, and {ordered} is stored");
        world.fail("R3", what);
    }
}

/// I13: ranks that have failed in a generation that goes on, and are not to be started again later.
pub(crate) fn failed_for_ever(world: &World) -> Vec<(String, String)> {
    let now = world.leader().map(|leader| leader.clock.at(world.now));
    let mut found = Vec::new();
    let halted = |name: &NodeName| {
        let node = world.store.nodes.get(name);
        node.is_some_and(|node| node.halt.is_some())
    };
    for place in &world.machines {
        for (run, group) in place.runs.iter().filter(|(_, group)| group.is_awaited()) {
            let job = world.store.jobs.get(&run.job);
            let current = job.and_then(|job| job.current.as_ref());
            let Some(current) = current.filter(|current| current.number == run.generation) else {
                continue;
            };
            // Nothing is decided about the job of a halted node.
            if current.members.iter().any(|member| halted(&member.node)) {
                continue;
            }
            let later = |rank: u32| {
                let restarts = current.member_restarts.get(&rank);
                restarts.and_then(|restarts| restarts.due) > now
            };
            let failed = group.ranks.iter().filter(|rank| group.waits(rank));
            for rank in failed.filter(|rank| !later(rank.report.rank)) {
                let (rank, attempt) = (rank.report.rank, rank.report.attempt);
                let key = format!("attempt {attempt} of rank {rank} of {}", words::run(run));
                found.push((key, "failed, and is not started again".to_owned()));
            }
        }
    }
    found
}

/// Whether a node is told of no attempt that is not stored.
pub(super) fn are_stored(generation: &GenerationRecord, told: &BTreeMap<u32, u32>) -> bool {
    told.iter().all(|(rank, attempt)| {
        let stored = generation.member_restarts.get(rank);
        stored.is_some_and(|stored| *attempt <= stored.attempt)
    })
}

/// How many failures of a rank are answered: its next attempt was ordered, or will be.
fn answered(restarts: Option<&MemberRestart>) -> u32 {
    restarts.map_or(0, |restarts| {
        restarts.attempt - 1 + u32::from(restarts.due.is_some())
    })
}

/// Each failure of a rank is answered once, by an incident that names the rank. I5: attempts never
/// go back.
pub(super) fn are_due(world: &World, before: &JobRecord, job: &JobRecord) -> Broken {
    let told: Vec<&Incident> = new_incidents(before, job).collect();
    for generation in job.unproven_generations() {
        let known = before.generation(generation.number);
        let run = generation.run(&job.uid);
        let rank_of = |rank: u32| format!("rank {rank} of {}", words::run(&run));
        let before = |rank: &u32| known.and_then(|known| known.member_restarts.get(rank));
        let mut lost = known.into_iter().flat_map(|known| &known.member_restarts);
        if let Some((rank, _)) = lost.find(|(rank, old)| {
            let new = generation.member_restarts.get(rank);
            new.is_none_or(|new| new.attempt < old.attempt) || answered(new) < answered(Some(old))
        }) {
            let what = format!("an attempt of {} is taken back", rank_of(*rank));
            return Some(("I5", what));
        }
        for (rank, restarts) in &generation.member_restarts {
            let (old, new) = (answered(before(rank)), answered(Some(restarts)));
            let named = told.iter().filter(|incident| {
                incident.to == Some(generation.number) && incident.restarted_ranks.contains(rank)
            });
            if new - old != named.count() as u32 {
                let what = format!(
                    "{} restarts of {} are decided, and the job is told of another number",
                    new - old,
                    rank_of(*rank)
                );
                return Some(("R3", what));
            }
            let of_rank = (run.clone(), *rank);
            let truly = world.truth.failures.get(&of_rank).copied().unwrap_or(0);
            if new > old && new > truly {
                let what = format!(
                    "{} has failed {truly} times and is to be started again {new} times",
                    rank_of(*rank)
                );
                return Some(("R3", what));
            }
            if new > old && !may_restart(job, generation, *rank) {
                let what = format!("{} is to be started again alone", rank_of(*rank));
                return Some(("R3", what));
            }
        }
    }
    let wrong = told
        .into_iter()
        .filter(|incident| !incident.restarted_ranks.is_empty())
        .find(|incident| !answers_all(world, job, incident))?;
    Some((
        "R3",
        format!(
            "{:?} of {} are started again alone, and that is not enough: {}, with {:?}",
            wrong.restarted_ranks, job.uid, wrong.message, wrong.collateral
        ),
    ))
}

fn new_incidents<'a>(before: &JobRecord, job: &'a JobRecord) -> impl Iterator<Item = &'a Incident> {
    let new = blames::count(job).saturating_sub(blames::count(before));
    job.incidents.iter().rev().take(new as usize)
}

/// Whether the user has said, or let stand, that this rank is started again alone.
fn may_restart(job: &JobRecord, generation: &GenerationRecord, rank: u32) -> bool {
    let number = generation.number_of(rank);
    let place = number.and_then(|number| generation.layout.place(number));
    let role = place.and_then(|place| job.spec.roles.get(place.role));
    role.is_some_and(|role| role.restart_scope == RestartScope::Member)
}

/// The global rank in a name like `rank 3 (worker-1) on n2`.
fn rank_named(name: &str) -> Option<u32> {
    let mut words = name.split(' ');
    (words.next() == Some("rank")).then(|| words.next()?.parse().ok())?
}

/// Whether an incident that was answered by restarts of ranks is only about these ranks, while every
/// other member goes on.
fn answers_all(world: &World, job: &JobRecord, incident: &Incident) -> bool {
    let restarted = |name: &String| {
        let rank = rank_named(name);
        rank.is_some_and(|rank| incident.restarted_ranks.contains(&rank))
    };
    let own = matches!(incident.cause, Cause::WorkerFailed | Cause::WorkerKilled)
        && incident.charged == Charged::Job
        && incident.culprit.as_ref().is_some_and(restarted)
        && incident.collateral.iter().all(restarted);
    // A decision about something else may have ended it in the same turn.
    let generation = incident.from.and_then(|from| job.generation(from));
    let goes_on = generation.is_some_and(|generation| {
        let run = generation.run(&job.uid);
        // A node that is not heard yet may have ended it for good.
        let goes_on = |node: &NodeName| {
            let machine = world.machine_named(node);
            let group = machine.and_then(|machine| world.machines[machine].runs.get(&run));
            group.is_some_and(Group::finished) || !is_heard(world, node)
        };
        incident.to == incident.from && generation.dead.iter().all(goes_on)
    });
    own && goes_on
}

/// Whether the leading coordinator has a session with this node.
fn is_heard(world: &World, node: &NodeName) -> bool {
    let (Some(leader), machine) = (world.leader(), world.machine_named(node)) else {
        return false;
    };
    let mut conns = leader
        .sessions
        .values()
        .filter_map(|id| world.conns.get(id));
    conns.any(|conn| Some(conn.machine) == machine && conn.coordinator_open)
}

/// A generation in which only such ranks have failed goes on, unless its job ends.
pub(super) fn are_enough(world: &World, before: &JobRecord, job: &JobRecord) -> Broken {
    let old = before.current.as_ref()?;
    let goes_on = job.current.as_ref().map(|current| current.number) == Some(old.number);
    if goes_on || job.ending.is_some() || job.phase.is_over() {
        return None;
    }
    let incident = new_incidents(before, job).find(|incident| {
        let own = matches!(incident.cause, Cause::WorkerFailed | Cause::WorkerKilled);
        own && incident.from == Some(old.number) && incident.restarted_ranks.is_empty()
    })?;
    let rank = incident.culprit.as_deref().and_then(rank_named)?;
    let run = old.run(&job.uid);
    let mut deeds = world.truth.deeds.get(&run).into_iter().flatten();
    let only_such = deeds.all(|deed| {
        let rank = deed.rank.map(|(rank, _)| rank);
        deed.kind == Kind::RankFailed && rank.is_some_and(|rank| may_restart(job, old, rank))
    });
    let calm = |node: &NodeName| {
        let Some(machine) = world.machine_named(node) else {
            return false;
        };
        let troubles = world.truth.troubles.get(&machine).into_iter().flatten();
        let since = world.truth.opened.get(&run).copied().unwrap_or_default();
        let mut lasted =
            troubles.filter(|trouble| trouble.until.is_none_or(|until| until >= since));
        let group = world.machines[machine].runs.get(&run);
        let runs = group.is_some_and(|group| group.phase == GroupPhase::Running);
        world.machines[machine].pod.is_none() && runs && lasted.next().is_none()
    };
    let calm = only_such
        && may_restart(job, old, rank)
        && old.members.iter().all(|member| calm(&member.node));
    calm.then(|| {
        (
            "R3",
            format!(
                "{} is ended because of rank {rank}, which could be started again alone: {}",
                words::run(&run),
                incident.message
            ),
        )
    })
}
