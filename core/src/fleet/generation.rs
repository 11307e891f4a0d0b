//! One generation, from decided to proven dead: is everybody ready, is the one before inert, what
//! broke, is it done.
//!
//! Questions only; what follows from the answers is `settle`'s. A generation is *forming* until it
//! is started, then *training*, then *retiring* from the moment it is replaced or ended until the
//! last member is proven dead.

use crate::{
    fleet::{
        job::{GenerationRecord, JobRecord},
        policy::Policy,
        registry::{Liveness, Node, Registry},
    },
    id::{JobUid, NodeName},
    planted::{self, Mistake},
    run::{Endpoint, RunPhase, RunReport},
    spec::Progress,
    time::Timestamp,
};

/// What a member's node says of its run, if it has said anything.
pub(crate) fn report<'a>(
    nodes: &'a Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    node: &NodeName,
) -> Option<&'a RunReport> {
    nodes.get(node)?.runs.get(&generation.run(job))
}

/// The same of all members, in rank order.
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

/// Records which members are now proven dead (R4): their node says so, or has booted anew since.
/// That another boot is the same machine's has been seen to when it connected
/// ([`crate::fleet::namesake`]). True if any is new.
pub(crate) fn note_deaths(
    nodes: &Registry,
    job: &JobUid,
    generation: &mut GenerationRecord,
) -> bool {
    let (before, id) = (generation.dead.len(), generation.run(job));
    for member in &generation.members {
        let Some(node) = nodes.get(&member.node) else {
            continue;
        };
        let reported = node.runs.get(&id).is_some_and(|run| run.phase.is_over());
        let rebooted = node.session.is_some()
            && node.record.boot_id != member.boot_id
            && !planted::on(Mistake::BootIgnored);
        let assumed = planted::on(Mistake::LostIsDead) && node.liveness == Liveness::Lost;
        if (reported || rebooted || assumed) && !generation.dead.contains(&member.node) {
            generation.dead.insert(member.node.clone());
        }
    }
    generation.dead.len() > before
}

/// The same for all of a job's generations.
pub(crate) fn note_all_deaths(nodes: &Registry, job: &mut JobRecord) -> bool {
    let uid = job.uid.clone();
    let mut any = false;
    for generation in job.unproven_generations_mut() {
        any |= note_deaths(nodes, &uid, generation);
    }
    any
}

/// Where the store of this generation is served, once it is.
pub(crate) fn store(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
) -> Option<Endpoint> {
    report(nodes, job, generation, &generation.store_host)?
        .store
        .clone()
}

/// Members not ready to start yet.
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

/// Whether a generation before can make no step any more, so that the next may train (R5, R6).
///
/// Every member is proven dead or has stopped by itself; or, *ring-break*: the job is synchronous,
/// at least one member is proven dead, so no step can be made, and those without proof cannot be
/// asked (their node is silent). A generation that was never started never trained.
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
    if unproven().next().is_none() || !generation.started || planted::on(Mistake::NextStartsAtOnce)
    {
        return true;
    }
    let synchronous = progress == Progress::Synchronous || planted::on(Mistake::IndependentIgnored);
    let broken = !generation.dead.is_empty() || planted::on(Mistake::RingBreakWithoutProof);
    synchronous && broken && unproven().all(silent)
}

/// Until when a generation may take to get ready: its members may have to stop the one before
/// first. `present_since`: a coordinator that was away has heard nobody say that he is.
pub(crate) fn patience(
    generation: &GenerationRecord,
    present_since: Timestamp,
    policy: &Policy,
) -> Timestamp {
    generation.opened.max(present_since) + policy.prepare_timeout + generation.previous_grace
}

/// None of the members' nodes can be heard.
pub(crate) fn unheard(nodes: &Registry, generation: &GenerationRecord) -> bool {
    generation
        .members
        .iter()
        .all(|member| nodes.get(&member.node).is_some_and(|node| !node.is_ready()))
}

/// How far a training generation is from its good end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    Training,
    /// Every rank ended well; torchrun processes still wait for each other.
    RanksDone,
    Done,
}

pub(crate) fn completion(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
) -> Completion {
    let mut completion = Completion::Done;
    for member in &generation.members {
        let run = report(nodes, job, generation, &member.node);
        let finished = run.is_some_and(|run| run.ranks_finished(generation.proc_per_node));
        if run.is_some_and(|run| run.phase == RunPhase::Dead && (finished || run.succeeded())) {
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

/// The highest step any rank has printed, and the first one of this generation with its time.
pub(crate) struct Steps {
    pub last: Option<u64>,
    pub first: Option<(Timestamp, u64)>,
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
    }
}

/// Whether some member that could still be asked has not been proven dead.
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

/// Nothing of this job runs any more, or can be asked.
pub(crate) fn at_rest(nodes: &Registry, record: &JobRecord) -> bool {
    !record
        .unproven_generations()
        .any(|generation| awaited(nodes, generation))
}
