//! R12: a node that knows more than the store proves that the store is an old copy. The node gets
//! no orders, and nothing is decided about its jobs, until an operator has accepted this copy.

use super::*;

pub(super) fn rollback(world: &World, changes: &[Change]) -> Broken {
    if world.leader()?.accepts {
        return None;
    }
    changes.iter().find_map(|change| match change {
        Change::PutNode(node) => halt(world, node),
        Change::PutJob(job) => left_alone(world, changes, job),
        _ => None,
    })
}

/// A node that is ahead is halted when it connects, and stays halted.
fn halt(world: &World, node: &NodeRecord) -> Broken {
    let before = world.store.nodes.get(&node.name)?;
    let ledger = &world.machines[world.machine_named(&node.name)?].ledger_highest;
    let known = ledger.epoch;
    let newer = ledger.jobs.iter().find(|(uid, seen)| {
        world
            .store
            .jobs
            .get(*uid)
            .is_some_and(|job| job.last_generation < seen.generation)
    });
    let what = match (&before.halt, &node.halt) {
        (Some(_), None) => format!(
            "the halt of {} is lifted, and no person has said so",
            node.name
        ),
        (None, None) if node.epoch != before.epoch && known > before.epoch => {
            format!(
                "{} has obeyed epoch {known}, the store says {}, and it is taken in as any other",
                node.name, before.epoch
            )
        }
        (None, None) if node.epoch != before.epoch && newer.is_some() => {
            let (job, seen) = newer?;
            format!(
                "{} has obeyed generation {} of {job}, of which the store does not know, and it is taken in as any other",
                node.name, seen.generation
            )
        }
        _ => return None,
    };
    Some(("R12", what))
}

fn left_alone(world: &World, changes: &[Change], job: &JobRecord) -> Broken {
    let before = world.store.jobs.get(&job.uid)?;
    let struck_off = |name: &NodeName| {
        changes
            .iter()
            .any(|change| matches!(change, Change::DeleteNode(node) if node == name))
    };
    let halted = |name: &&NodeName| {
        world
            .store
            .nodes
            .get(*name)
            .is_some_and(|node| node.halt.is_some())
            && !struck_off(name)
    };
    let node = before
        .unproven_generations()
        .flat_map(|g| g.members.iter())
        .map(|member| &member.node)
        .find(halted)?;
    let decided = |job: &JobRecord| {
        let steps =
            |g: &GenerationRecord| (g.number, g.started, g.stopping.clone(), g.fenced.len());
        let generations: Vec<_> = job.unproven_generations().map(steps).collect();
        (
            job.phase,
            job.last_generation,
            job.replicas,
            job.ending.clone(),
            generations,
            job.restarts.len(),
            job.incidents.len(),
        )
    };
    (decided(before) != decided(job)).then(|| {
        (
            "R12",
            format!(
                "{} is decided on, and {node} knows more than the store",
                job.uid
            ),
        )
    })
}

/// A halted node gets no orders.
pub(super) fn ordered(
    process: &Process,
    store: &Store,
    world: &World,
    session: SessionId,
) -> Broken {
    let conn = process
        .sessions
        .get(&session)
        .and_then(|id| world.conns.get(id))?;
    let name = &world.machines[conn.machine].name;
    let halted = !process.accepts
        && store
            .nodes
            .get(name)
            .is_some_and(|node| node.halt.is_some());
    halted.then(|| {
        (
            "R12",
            format!("{name} gets orders, and knows more than the store"),
        )
    })
}

/// Whether this machine truly has something to say about a job: it is or was given the job, whatever the
/// store remembers of that, or the store says so.
pub(crate) fn concerns(world: &World, place: &Machine, job: &JobUid) -> bool {
    let member = |record: &JobRecord| {
        let mut generations = record.unproven_generations();
        record.nodes_used.contains(&place.name)
            || generations.any(|generation| generation.has(&place.name))
    };
    place.has_had(job) || world.store.jobs.get(job).is_some_and(member)
}

/// Whether any machine has something to say about it.
pub(super) fn concerns_somebody(world: &World, job: &JobUid) -> bool {
    let mut machines = world.machines.iter();
    machines.any(|place| concerns(world, place, job))
}
