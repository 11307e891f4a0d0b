//! One generation, from decided to proven dead: is everybody ready, is the one before inert, what
//! broke, is it done.
//!
//! Questions only; what follows from the answers is `settle`'s. A generation is *forming* until it
//! is started, then *training*, then *retiring* from the moment it is replaced or ended until the
//! last member is proven dead.

use std::time::Duration;

use crate::{
    exit::ExitClass,
    fleet::{
        Policy,
        blame::Evidence,
        job::{GenerationRecord, JobRecord},
        registry::{Node, Registry},
        unhealthy,
        view::Liveness,
    },
    id::{JobUid, NodeName},
    planted::{self, Mistake},
    run::{Endpoint, RankReport, RunPhase, RunReport},
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

/// Everything that says this generation is broken. A suspicion alone is evidence for blame, never a
/// break. `patience`: who is not ready to start by then never will be.
pub(crate) fn evidence(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    now: Timestamp,
    patience: Timestamp,
) -> Vec<Evidence> {
    let (mut found, id) = (Vec::new(), generation.run(job));
    for member in &generation.members {
        let name = &member.node;
        if generation.fenced.contains(name) {
            // Whatever its node may say by now.
            found.push(Evidence::Fenced {
                node: name.clone(),
                at: now,
            });
            continue;
        }
        let Some(node) = nodes.get(name) else {
            found.push(Evidence::NodeDeleted {
                node: name.clone(),
                at: now,
            });
            continue;
        };
        // Whether or not its agent is connected: the boot before is over.
        if node.record.boot_id != member.boot_id {
            found.push(Evidence::NodeRebooted {
                node: name.clone(),
                at: node.doubted_at.min(now),
            });
            continue;
        }
        if let Some(finding) = unhealthy::fails(node, member) {
            let reason = format!("{}: {}", finding.check, finding.reason);
            found.push(Evidence::Unhealthy {
                node: name.clone(),
                reason,
                at: now,
            });
        }
        let run = node.runs.get(&id);
        if let Some(run) = run {
            exits(name, run, generation.proc_per_node, &mut found);
        } else if node.session.is_some() && generation.dead.contains(name) {
            // Proven dead, by somebody who has forgotten since how it ended.
            found.push(Evidence::Vanished {
                node: name.clone(),
                at: now,
                launched: generation.started,
            });
        }
        let finished = run.is_some_and(|run| run.ranks_finished(generation.proc_per_node));
        match node.liveness {
            Liveness::Suspect | Liveness::Lost if !finished => found.push(Evidence::NodeSilent {
                node: name.clone(),
                lost: node.liveness == Liveness::Lost,
                // A broken connection tells its moment; of a silence only the beginning is known.
                since: if node.session.is_none() {
                    node.doubted_at
                } else {
                    node.heard
                },
                heard: node.heard,
            }),
            _ if planted::on(Mistake::SilenceRemembered)
                && now.since(node.doubted_at) < Duration::from_secs(10) =>
            {
                let since = node.doubted_at;
                found.push(Evidence::NodeSilent {
                    node: name.clone(),
                    lost: false,
                    since,
                    heard: since,
                });
            }
            _ => {}
        }
    }
    if !generation.started && now > patience {
        found.extend(unready(nodes, job, generation).into_iter().map(|node| {
            Evidence::StartTimeout {
                node: node.clone(),
                at: now,
            }
        }));
    }
    found
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

fn exits(node: &NodeName, run: &RunReport, expected: u32, found: &mut Vec<Evidence>) {
    if let RunPhase::Refused(reason) = &run.phase {
        found.push(Evidence::Refused {
            node: node.clone(),
            reason: reason.clone(),
        });
        return;
    }
    if run.fenced && !run.ranks_finished(expected) {
        // How its ranks ended then is the runner's doing.
        found.push(Evidence::Fenced {
            node: node.clone(),
            at: run.dead_at.unwrap_or_default(),
        });
        return;
    }
    // The runner was killed: last words that it had not passed on are lost, and what a rank without
    // any died of nobody can say.
    let vanished = run.launcher_exit.is_none() && run.phase == RunPhase::Dead;
    let failures = || {
        let failed = run
            .ranks
            .iter()
            .filter(|rank| rank.exit.is_some_and(|exit| !exit.is_success()));
        failed.filter(|rank| !vanished || rank.first_error.is_some())
    };
    // Times of before a reboot are all the same to its clock: who was killed was not the first.
    let killed = |rank: &RankReport| {
        rank.exit
            .map(|exit| exit.class(rank.first_error.as_deref()))
            == Some(ExitClass::Killed)
    };
    let first = failures().min_by_key(|rank| (rank.exited_at, killed(rank)));
    let failed = first.is_some();
    for rank in failures() {
        if let Some(exit) = rank.exit {
            // torchrun ends the others of its node as soon as one has failed: they are that one's
            // victims.
            let class = match exit.class(rank.first_error.as_deref()) {
                ExitClass::Killed if first.is_some_and(|first| first.rank != rank.rank) => {
                    ExitClass::PeerLost
                }
                class => class,
            };
            found.push(Evidence::RankExit {
                node: node.clone(),
                rank: rank.rank,
                exit,
                class,
                at: rank.exited_at.unwrap_or_default(),
                error: rank.first_error.clone(),
            });
        }
    }
    let at = run.dead_at.unwrap_or_default();
    match run.launcher_exit {
        // Once every rank has ended well, it no longer matters how torchrun does: its runner ends
        // one that lingers at the exit barrier.
        _ if failed || run.ranks_finished(expected) => {}
        Some(exit) if !exit.is_success() => {
            let (error, launched) = (run.launcher_error.clone(), !run.ranks.is_empty());
            found.push(Evidence::LauncherFailed {
                node: node.clone(),
                exit,
                at,
                error,
                launched,
            });
        }
        None if vanished => {
            found.push(Evidence::Vanished {
                node: node.clone(),
                at,
                launched: !run.ranks.is_empty(),
            });
        }
        _ => {}
    }
}

/// Ranks that say they fell because of another's end.
pub(crate) fn victims(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
) -> Vec<String> {
    let mut found = Vec::new();
    for (node, run) in reports(nodes, job, generation) {
        if let Some(run) = run {
            exits(node, run, generation.proc_per_node, &mut found);
        }
    }
    found
        .iter()
        .filter(|e| matches!(e, Evidence::RankExit { .. }) && e.is_victim())
        .map(Evidence::name)
        .collect()
}

/// Whether somebody not yet heard of may have caused what is known: a member without evidence of
/// his own of whom nothing was heard since `fell`. His next heartbeat says that he is there; if
/// none comes, he is silent.
pub(crate) fn may_have_a_culprit(
    nodes: &Registry,
    generation: &GenerationRecord,
    evidence: &[Evidence],
    fell: Timestamp,
) -> bool {
    let unheard = |node: &NodeName| {
        nodes
            .get(node)
            .is_some_and(|n| n.heard < fell || n.liveness == Liveness::Unknown)
    };
    let silent = |node: &&NodeName| !evidence.iter().any(|e| e.node() == *node);
    generation
        .members
        .iter()
        .map(|member| &member.node)
        .filter(silent)
        .any(unheard)
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
