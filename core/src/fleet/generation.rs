//! One generation, from its opening to its proven death. Are its members ready? Is the previous one
//! inert? How far is it from its end?
//!
//! Except for noting deaths, this file only answers questions. The rules in `judge`, `resize` and
//! `open` act on the answers.
//! A generation is *forming* until it starts, then *training*. From the moment it is replaced or
//! ended it is *retiring*, until its last member is proven dead.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    container::START_MAX,
    exit::Exit,
    fleet::{
        job::{GenerationRecord, JobRecord},
        members::Member,
        policy::Policy,
        registry::{Liveness, Node, Registry},
    },
    id::{JobUid, NodeName},
    run::{Endpoint, Key, RankReport, RunPhase, RunReport},
    spec::{Framework, Progress},
    time::Timestamp,
};

/// What a member's node says about its run, if it has said anything.
pub(crate) fn report<'a>(
    nodes: &'a Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    node: &NodeName,
) -> Option<&'a RunReport> {
    nodes.get(node)?.runs.get(&generation.run(job))
}

/// The same for all members, in rank order.
pub(crate) fn reports<'a>(
    nodes: &'a Registry,
    job: &JobUid,
    generation: &'a GenerationRecord,
) -> impl Iterator<Item = (&'a NodeName, Option<&'a RunReport>)> {
    let run = generation.run(job);
    generation.members.iter().map(move |member| {
        (
            &member.node,
            nodes.get(&member.node).and_then(|node| node.runs.get(&run)),
        )
    })
}

/// Records which members are now proven dead (decision 0014): their node says so, or has booted
/// anew since. When a node with a new boot connects, [`crate::fleet::namesake`] has already checked
/// that it is the same machine.
fn note_deaths(nodes: &Registry, job: &JobUid, generation: &mut GenerationRecord) {
    let id = generation.run(job);
    for member in &generation.members {
        let Some(node) = nodes.get(&member.node) else {
            continue;
        };
        let reported = node.runs.get(&id).is_some_and(|run| run.phase.is_over());
        let rebooted = node.session.is_some() && node.record.boot_id != member.boot_id;
        if (reported || rebooted) && !generation.dead.contains(&member.node) {
            generation.dead.insert(member.node.clone());
        }
    }
}

/// The same for all generations of a job.
pub(crate) fn note_all_deaths(nodes: &Registry, job: &mut JobRecord) {
    let uid = job.uid.clone();
    for generation in job.unproven_generations_mut() {
        note_deaths(nodes, &uid, generation);
    }
}

/// Where the TCPStore of this generation is served, as soon as it is.
pub(crate) fn tcp_store(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
) -> Option<Endpoint> {
    report(nodes, job, generation, &generation.store_host)?
        .store
        .clone()
}

/// Where the members' processes will listen for each other, by number, as soon as every node has
/// chosen their ports.
pub(crate) fn peers(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
) -> Option<Vec<Endpoint>> {
    let mut all: BTreeMap<u32, Endpoint> = BTreeMap::new();
    for (node_rank, (name, run)) in (0..).zip(reports(nodes, job, generation)) {
        let (run, node) = (run?, nodes.get(name)?);
        let seats = generation.members.seats(node_rank);
        for (at, seat) in seats.iter().enumerate() {
            let port = match seats.len() {
                1 => run.port?,
                _ => *run.ports.get(at)?,
            };
            let host = node.report.address.clone();
            all.insert(seat.number, Endpoint { host, port });
        }
    }
    Some(all.into_values().collect())
}

/// The keys that the members have chosen, by node rank, as soon as every one that lends its node has.
/// Empty for a framework whose members lend nothing.
pub(crate) fn keys(
    nodes: &Registry,
    job: &JobUid,
    framework: Framework,
    generation: &GenerationRecord,
) -> Option<Vec<Key>> {
    if !generation.layout.has_slots() {
        return Some(Vec::new());
    }
    let lends = |rank: usize| {
        let place = generation.layout.place(rank as u32);
        place.is_some_and(|place| framework.lends(&place.share.name))
    };
    let key = |(rank, (_, run)): (usize, (&NodeName, Option<&RunReport>))| match lends(rank) {
        true => run?.key.clone(),
        false => Some(Key(String::new())),
    };
    let reports = reports(nodes, job, generation).enumerate();
    reports.map(key).collect()
}

/// Members that are not ready to start yet.
pub(crate) fn unready<'a>(
    nodes: &Registry,
    job: &JobUid,
    generation: &'a GenerationRecord,
) -> Vec<&'a NodeName> {
    let id = generation.run(job);
    let ready = |node: &&NodeName| {
        let heard = nodes.get(node).filter(|node| node.session.is_some());
        let run = heard.and_then(|node| node.runs.get(&id));
        run.is_some_and(|run| matches!(run.phase, RunPhase::Ready | RunPhase::Running))
    };
    generation
        .members
        .iter()
        .map(|member| &member.node)
        .filter(|node| !ready(node))
        .collect()
}

/// Whether an earlier generation can make no step any more, so that the next may train.
///
/// That holds if every member is proven dead or has stopped by itself. It also holds by
/// *ring-break*: the job is synchronous, at least one member is proven dead, so no step can be
/// made, and every member without proof is on a silent node. A generation that was never started
/// never trained.
pub(crate) fn is_inert(
    nodes: &Registry,
    generation: &GenerationRecord,
    progress: Progress,
) -> bool {
    let silent = |node: &NodeName| {
        nodes
            .get(node)
            .is_none_or(|n| n.session.is_none() || n.liveness != Liveness::Ready)
    };
    let unproven = || {
        generation
            .members
            .iter()
            .map(|member| &member.node)
            .filter(|node| !generation.has_stopped(node))
    };
    if unproven().next().is_none() || !generation.started {
        return true;
    }
    let synchronous = progress == Progress::Synchronous;
    let broken = !generation.dead.is_empty();
    synchronous && broken && unproven().all(silent)
}

/// The deadline for a generation to get ready. Its members may first have to stop the previous one, and to pull the image.
/// `present_since`: a coordinator that was away has not heard its nodes before this.
pub(crate) fn ready_deadline(
    generation: &GenerationRecord,
    in_image: bool,
    present_since: Timestamp,
    policy: &Policy,
) -> Timestamp {
    let pull = if in_image { START_MAX } else { Duration::ZERO };
    generation.opened.max(present_since) + policy.prepare_timeout + generation.previous_grace + pull
}

/// Whether all members' nodes exist and none is ready.
pub(crate) fn none_is_ready(nodes: &Registry, generation: &GenerationRecord) -> bool {
    generation
        .members
        .iter()
        .all(|member| nodes.get(&member.node).is_some_and(|node| !node.is_ready()))
}

/// A rank of a training generation that has ended well, for people. Ranks of services do not count.
pub(crate) fn ended_well(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
) -> Option<String> {
    reports(nodes, job, generation).find_map(|(node, run)| {
        let ended = |rank: &&RankReport| {
            let member = generation.number_of(rank.rank);
            let serves = member.is_some_and(|number| generation.serves(number));
            !serves && rank.exit.is_some_and(Exit::is_success)
        };
        let rank = run?.ranks.iter().find(ended)?;
        Some(format!("rank {} on {node}", rank.rank))
    })
}

/// How far a training generation is from its good end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    Training,
    /// Every rank ended well. Some torchrun processes still wait for each other.
    RanksDone,
    Done,
}

pub(crate) fn completion(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
) -> Completion {
    let mut completion = Completion::Done;
    // A service does not end by itself. The others alone decide that the job is done.
    let deciding = |member: &&Member| !generation.is_service(&member.node);
    for member in generation.members.iter().filter(deciding) {
        let run = report(nodes, job, generation, &member.node);
        let finished = run.is_some_and(|run| generation.finished_on(&member.node, run));
        // A service that shares the node goes on.
        let served = finished && generation.serves_on(&member.node);
        let over = |run: &RunReport| run.phase == RunPhase::Dead && (finished || run.succeeded());
        if served || run.is_some_and(over) {
            continue;
        }
        if finished {
            completion = Completion::RanksDone;
        } else {
            return Completion::Training;
        }
    }
    completion
}

/// The highest step that any rank has printed, the first step of this generation with its time, and
/// whether a checkpoint was saved.
pub(crate) struct Steps {
    pub last: Option<u64>,
    pub first: Option<(Timestamp, u64)>,
    /// `None`: no member watches the job's checkpoints.
    pub saved: Option<bool>,
}

pub(crate) fn steps(nodes: &Registry, job: &JobUid, generation: &GenerationRecord) -> Steps {
    let ranks = || {
        reports(nodes, job, generation)
            .filter_map(|(_, run)| run)
            .flat_map(|run| &run.ranks)
    };
    Steps {
        last: ranks().filter_map(|rank| rank.last_step).max(),
        first: ranks()
            .filter_map(|rank| Some((rank.first_step_at?, rank.first_step?)))
            .min(),
        saved: reports(nodes, job, generation)
            .filter_map(|(_, run)| Some(run?.checkpoint?.saved_at.is_some()))
            .max(),
    }
}

/// The last step that this rank has printed.
pub(crate) fn step_of(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    rank: u32,
) -> Option<u64> {
    let runs = reports(nodes, job, generation).filter_map(|(_, run)| run);
    let mut ranks = runs.flat_map(|run| &run.ranks);
    ranks.find(|report| report.rank == rank)?.last_step
}

/// Whether some member is not proven dead, and its node can still be asked.
pub(crate) fn awaited(nodes: &Registry, generation: &GenerationRecord) -> bool {
    let reachable = |node: &Node| node.session.is_some() && node.is_ready();
    let alive = |node: &&NodeName| !generation.dead.contains(*node);
    generation
        .members
        .iter()
        .map(|member| &member.node)
        .filter(alive)
        .any(|node| nodes.get(node).is_some_and(reachable))
}

/// Whether no member of this job is left that runs and can be asked.
pub(crate) fn at_rest(nodes: &Registry, record: &JobRecord) -> bool {
    !record
        .unproven_generations()
        .any(|generation| awaited(nodes, generation))
}
