//! R1: the coordinator commands and answers only what is in the store.

use super::*;

/// R1: nothing leaves the coordinator that is not in the store.
pub(crate) fn committed_before_commanded(world: &mut World, seat: usize, effect: &Effect) {
    let Some(process) = &world.seats[seat].process else {
        return;
    };
    // A deposed coordinator may repeat what it had committed before.
    let store = process.deposed.as_deref().unwrap_or(&world.store);
    let broken = match effect {
        Effect::Welcome {
            session,
            term,
            epoch,
            ..
        } => unwelcome(world, process, *session, *term, *epoch),
        Effect::SendDesired { desired, .. } if desired.runs.len() > DESIRED_MAX => Some((
            "I15",
            format!("a node is to have {} runs", desired.runs.len()),
        )),
        Effect::SendDesired { session, desired } => {
            let conn = process
                .sessions
                .get(session)
                .and_then(|id| world.conns.get(id));
            let name = conn.map(|conn| &world.machines[conn.machine].name);
            let uncommitted = desired
                .runs
                .iter()
                .find_map(|wanted| uncommitted(store, name, wanted))
                .map(|what| ("R1", what));
            uncommitted.or_else(|| rollback::ordered(process, store, world, *session))
        }
        Effect::Answer {
            answer: Answer::Job { job, .. },
            ..
        } => {
            let uid = &job.record.uid;
            let stored = store.jobs.get(uid) == Some(&job.record);
            (!stored).then(|| {
                (
                    "R1",
                    format!("a user is told of job {uid} as it is not stored"),
                )
            })
        }
        _ => None,
    };
    if let Some((rule, what)) = broken {
        world.fail(rule, what);
    }
}

/// A welcome carries a stored term and epoch, and the node has seen no such epoch before. I16: the
/// node has seen no newer term either.
fn unwelcome(
    world: &World,
    process: &Process,
    session: SessionId,
    term: Term,
    epoch: NodeEpoch,
) -> Broken {
    let conn = process
        .sessions
        .get(&session)
        .and_then(|id| world.conns.get(id))?;
    let place = &world.machines[conn.machine];
    let stored = world.store.nodes.get(&place.name).map(|node| node.epoch);
    let speaks = place
        .agent
        .as_ref()
        .filter(|agent| agent.id == conn.agent)
        .map(|agent| agent.speaks);
    if let Some(Err(why)) = speaks.map(|speaks| Speaks::OURS.agree(speaks)) {
        return Some(("I16", format!("{} is welcomed: {why}", place.name)));
    }
    if term < place.ledger_highest.term {
        let what = format!(
            "{} has obeyed term {} and is welcomed under {term}",
            place.name, place.ledger_highest.term
        );
        return Some(("I16", what));
    }
    // An agent that is gone may have said hello before. If its machine was replaced, its ledger is
    // not there to check.
    let there = place
        .agent
        .as_ref()
        .is_some_and(|agent| agent.id == conn.agent);
    let new = term == world.store.term
        && stored == Some(epoch)
        && (epoch > place.ledger_highest.epoch || !there);
    (!new).then(|| {
        let what = format!(
            "{} is welcomed under term {term}, epoch {epoch}; stored are {} and {stored:?}",
            place.name, world.store.term
        );
        ("R1", what)
    })
}

fn uncommitted(store: &Store, node: Option<&NodeName>, wanted: &DesiredRun) -> Option<String> {
    let job = store.jobs.get(&wanted.run.job);
    let generation = job.and_then(|job| job.generation(wanted.run.generation));
    // A node that is no member holds a generation of the same number, from a newer store that was
    // lost.
    let member = |current: &&GenerationRecord| node.is_none_or(|node| current.has(node));
    let current = job.and_then(|job| job.current.as_ref()).filter(member);
    let is_current = current.is_some_and(|current| current.number == wanted.run.generation);
    let run = words::run(&wanted.run);
    let (assignment, meets) = match &wanted.target {
        Target::Ready(assignment) => (assignment, None),
        Target::Running(assignment, meets) => (assignment, Some(meets)),
        Target::Stopped { .. } => {
            return is_current
                .then(|| format!("{run} is to be stopped and is current in the store"));
        }
        Target::Gone { .. } => {
            return is_current.then(|| format!("{run} is to be gone and is current in the store"));
        }
    };
    let Some(generation) = generation else {
        return Some(format!("{run} is commanded and not stored"));
    };
    let share = generation.members.holder(assignment.node_rank);
    let same = generation.size() == assignment.node_count
        && generation.rendezvous == assignment.rendezvous
        && share.is_some_and(|share| is_told(share, assignment));
    if !same {
        Some(format!("{run} is commanded otherwise than stored"))
    } else if meets.is_some_and(|meets| !generation.started || !is_stored(generation, meets)) {
        Some(format!(
            "{run} is told to run and is not started in the store"
        ))
    } else {
        None
    }
}

/// Whether a node is told of the members that it holds, each with its GPUs.
fn is_told(share: &Member, assignment: &Assignment) -> bool {
    let seats = share.seats.iter().filter(|_| share.seats.len() > 1);
    let mut told = assignment.members.iter();
    let each = seats.fold(true, |all, seat| {
        let same = told
            .next()
            .is_some_and(|own| own.number == seat.number && own.gpus == seat.gpus);
        all && same
    });
    each && told.next().is_none() && share.gpus == assignment.gpus
}

/// Whether the members are told to meet where the store says.
fn is_stored(generation: &GenerationRecord, meets: &Start) -> bool {
    generation.store.as_ref() == Some(&meets.store)
        && generation.peers == meets.peers
        && (meets.keys.is_empty() || generation.keys == meets.keys)
        && (meets.peers.is_empty() || meets.peers.len() == generation.size() as usize)
        && restarts::are_stored(generation, &meets.attempts)
}
