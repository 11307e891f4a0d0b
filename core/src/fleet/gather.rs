//! Gathers the evidence that a generation is broken: ends of ranks, of torchrun and of nodes, and
//! silence. `judge` and `blame` decide what it means. What explains ranks that only speak of others is
//! looked for in `absent`.

mod absent;

use crate::{
    exit::{Exit, ExitClass},
    fleet::{
        blame::Evidence,
        generation,
        job::GenerationRecord,
        members::Member,
        registry::{Liveness, Registry},
        training_ranks, unhealthy,
    },
    id::{JobUid, NodeName},
    run::{CONTAINER_GOES, LAST_OUTPUT, RankReport, RunId, RunPhase, RunReport},
    time::Timestamp,
};

/// All evidence that this generation is broken. A suspicion alone helps to find the culprit, but
/// breaks nothing. `deadline`: a member that is not ready by then counts as failed to start.
pub(crate) fn evidence(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    now: Timestamp,
    deadline: Timestamp,
) -> Vec<Evidence> {
    let (mut found, id) = (Vec::new(), generation.run(job));
    for member in &generation.members {
        of_member(nodes, member, generation, &id, now, &mut found);
    }
    if !generation.started && now > deadline {
        found.extend(
            generation::unready(nodes, job, generation)
                .into_iter()
                .map(|node| Evidence::StartTimeout {
                    node: node.clone(),
                    at: now,
                }),
        );
    }
    found.extend(stall(nodes, job, generation, now));
    found.extend(absent::explanation(nodes, job, generation, &found));
    found
}

/// The evidence that nothing moves any more, once its time is over.
fn stall(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    now: Timestamp,
) -> Option<Evidence> {
    let stall = generation.stall.as_deref()?;
    stall.act_at.filter(|at| *at <= now)?;
    // While a node is silent, or does not hear its runner, nobody knows whether its ranks still stand.
    training_ranks::ranks(nodes, job, generation)?;
    let named = stall.named.first();
    let node = named.map(|named| &named.node);
    let first = generation.members.iter().next().map(|member| &member.node);
    Some(Evidence::Stalled {
        node: node.or(first)?.clone(),
        named: named.map(|named| format!("rank {} on {}", named.rank, named.node)),
        of_node: stall.of_node,
        why: stall.why,
        sentence: stall.sentence(),
        symptom: stall.symptom(),
        at: stall.since,
    })
}

/// The evidence that this member and its node give.
fn of_member(
    nodes: &Registry,
    member: &Member,
    generation: &GenerationRecord,
    id: &RunId,
    now: Timestamp,
    found: &mut Vec<Evidence>,
) {
    let name = &member.node;
    if generation.fenced.contains(name) {
        // The runner has stopped the workers at the fence, whatever the node says now.
        found.push(Evidence::Fenced {
            node: name.clone(),
            at: now,
        });
        return;
    }
    let Some(node) = nodes.get(name) else {
        found.push(Evidence::NodeDeleted {
            node: name.clone(),
            at: now,
        });
        return;
    };
    // This holds whether or not the agent is connected: the earlier boot is over.
    if node.record.boot_id != member.boot_id {
        found.push(Evidence::NodeRebooted {
            node: name.clone(),
            // The earlier boot was still up when the generation was opened, so the reboot is dated
            // no earlier than that.
            at: node.doubted_at.max(generation.opened).min(now),
        });
        return;
    }
    if let Some((check, reason)) = unhealthy::fails(nodes, node, member) {
        found.push(Evidence::Unhealthy {
            node: name.clone(),
            check,
            reason,
            at: now,
        });
    }
    let run = node.runs.get(id);
    if let Some(run) = run {
        let first = found.len();
        ends_of_run(name, run, generation, found);
        if let Some(why) = unhealthy::leaves(node) {
            let answered = run.ranks.iter().any(|rank| generation.is_answered(rank));
            let of_node = found.split_off(first).into_iter();
            found.extend(of_node.map(|e| e.on_leaving(&why, answered)));
        }
    } else if node.session.is_some() && generation.dead.contains(name) {
        found.push(Evidence::ExitUnknown {
            node: name.clone(),
            at: now,
        });
    }
    let finished = run.is_some_and(|run| run.ranks_finished(generation.procs_on(name)));
    match node.liveness {
        Liveness::Suspect | Liveness::Lost if !finished => found.push(Evidence::NodeSilent {
            node: name.clone(),
            lost: node.liveness == Liveness::Lost,
            // The moment at which a connection broke is known. A silent node may have failed
            // at any time since it was last heard.
            since: if node.session.is_none() {
                node.doubted_at
            } else {
                node.heard
            },
            heard: node.spoke,
        }),
        _ => {}
    }
}

/// The ranks whose exit says at most that another member went away.
pub(crate) fn ranks_that_lost_peers(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
) -> Vec<String> {
    let mut found = Vec::new();
    for (node, run) in generation::reports(nodes, job, generation) {
        if let Some(run) = run {
            ends_of_run(node, run, generation, &mut found);
        }
    }
    found
        .iter()
        .filter(|e| matches!(e, Evidence::RankExit { .. }) && e.is_victim())
        .map(Evidence::name)
        .collect()
}

/// Whether a rank still runs, on a node that is heard, while others say that they have lost a peer. It
/// may be the one: a script that leaves the process group before its own error ends it, as in a `finally`,
/// is seen as lost before it has ended.
pub(crate) fn may_still_end(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    evidence: &[Evidence],
) -> bool {
    evidence.iter().any(Evidence::is_victims_end)
        && !absent::running(nodes, job, generation).is_empty()
}

/// Whether some member without evidence against it has not been heard after this moment. It may be
/// the cause, so its next heartbeat is awaited. If none comes, its silence is evidence.
pub(crate) fn may_have_a_culprit(
    nodes: &Registry,
    generation: &GenerationRecord,
    evidence: &[Evidence],
    heard_after: Timestamp,
) -> bool {
    let may_be_silent = |node: &NodeName| {
        nodes
            .get(node)
            .is_some_and(|n| n.heard < heard_after || n.liveness == Liveness::Unknown)
    };
    let unsuspected = |node: &&NodeName| !evidence.iter().any(|e| e.node() == *node);
    generation
        .members
        .iter()
        .map(|member| &member.node)
        .filter(unsuspected)
        .any(may_be_silent)
}

/// The evidence of how this run ended on its node, as far as it has.
fn ends_of_run(
    node: &NodeName,
    run: &RunReport,
    generation: &GenerationRecord,
    found: &mut Vec<Evidence>,
) {
    if let RunPhase::Refused(reason) = &run.phase {
        let node = node.clone();
        let goes = CONTAINER_GOES.iter().any(|words| reason.contains(words));
        found.push(match goes {
            true => Evidence::Leaving {
                node,
                why: reason.clone(),
                at: Timestamp::default(),
            },
            false => Evidence::StartRefused {
                node,
                reason: reason.clone(),
                due_to: run.refused_due_to,
            },
        });
        return;
    }
    let finished = run.ranks_finished(generation.procs_on(node));
    if run.fenced && !finished {
        // The runner stopped these ranks, so their exits say nothing.
        found.push(Evidence::Fenced {
            node: node.clone(),
            at: run.dead_at.unwrap_or_default(),
        });
        return;
    }
    let before = found.len();
    ranks_that_failed(node, run, generation, found);
    // Once every rank has ended well, the end of torchrun does not matter. The runner ends a
    // torchrun that lingers at the exit barrier.
    if found.len() == before && !finished {
        found.extend(end_of_torchrun(node, run));
    }
}

/// Whether the runner was killed, so that ends that it had not recorded are lost.
fn vanished(run: &RunReport) -> bool {
    run.torchrun_exit.is_none() && run.phase == RunPhase::Dead
}

fn ranks_that_failed(
    node: &NodeName,
    run: &RunReport,
    generation: &GenerationRecord,
    found: &mut Vec<Evidence>,
) {
    // A rank without an error may have died with the runner.
    let vanished = vanished(run);
    let failures = || {
        let exits = run
            .ranks
            .iter()
            .filter_map(|rank| rank.exit.map(|exit| (rank, exit)));
        let failed =
            exits.filter(|(rank, exit)| !exit.is_success() && !generation.is_answered(rank));
        failed.filter(|(rank, _)| !vanished || has_an_error(rank))
    };
    let class = |rank: &RankReport, exit: Exit| exit.class(rank.first_error.as_deref());
    // An agent that was away may give the same time to all exits. Of ranks with equal times, one that
    // was killed is taken to be later.
    let is_killed = |rank: &RankReport, exit| class(rank, exit) == ExitClass::Killed;
    let first = failures().min_by_key(|(rank, exit)| (rank.exited_at, is_killed(rank, *exit)));
    for (rank, exit) in failures() {
        // As soon as one rank has failed, torchrun kills the others on its node. They are its victims.
        let is_first = first.is_none_or(|(first, _)| first.rank == rank.rank);
        let class = match class(rank, exit) {
            ExitClass::Killed if !is_first && has_an_error(rank) => ExitClass::Interrupted,
            ExitClass::Killed if !is_first => ExitClass::PeerLost,
            class => class,
        };
        found.push(Evidence::RankExit {
            node: node.clone(),
            rank: rank.rank,
            member: None,
            exit,
            class,
            at: rank.exited_at.unwrap_or_default(),
            error: rank.first_error.clone(),
            exception: rank.exception.clone().map(Box::new),
        });
    }
}

/// Whether something says that the rank failed. Its last output says nothing of that kind.
fn has_an_error(rank: &RankReport) -> bool {
    let error = rank.first_error.as_deref();
    error.is_some_and(|error| !error.starts_with(LAST_OUTPUT))
}

/// The evidence of a torchrun that failed, or that is dead without a known end, while no rank failed.
fn end_of_torchrun(node: &NodeName, run: &RunReport) -> Option<Evidence> {
    let (node, at) = (node.clone(), run.dead_at.unwrap_or_default());
    let launched = !run.ranks.is_empty();
    match run.torchrun_exit {
        Some(exit) if !exit.is_success() => Some(Evidence::TorchrunFailed {
            node,
            exit,
            at,
            error: run.torchrun_error.clone(),
            launched,
        }),
        None if vanished(run) => Some(Evidence::Vanished { node, at, launched }),
        _ => None,
    }
}
