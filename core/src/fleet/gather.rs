//! Gathers the evidence that a generation is broken: ends of ranks, of torchrun and of nodes, and
//! silence. What it means is decided in `judge` and `blame`.

use crate::{
    exit::ExitClass,
    fleet::{
        blame::Evidence,
        generation,
        job::GenerationRecord,
        members::Member,
        registry::{Liveness, Registry},
        unhealthy,
    },
    id::{JobUid, NodeName},
    run::{RankReport, RunId, RunPhase, RunReport},
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
    found
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
    if let Some(reason) = unhealthy::fails(nodes, node, member) {
        found.push(Evidence::Unhealthy {
            node: name.clone(),
            reason,
            at: now,
        });
    }
    let run = node.runs.get(id);
    if let Some(run) = run {
        let first = found.len();
        exits(name, run, generation.procs_on(name), found);
        if let Some(why) = unhealthy::leaves(node) {
            let of_node = found.split_off(first).into_iter();
            found.extend(of_node.map(|e| e.on_leaving(&why)));
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
            heard: node.heard,
        }),
        _ => {}
    }
}

/// Ranks that failed because another one had failed.
pub(crate) fn victims(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
) -> Vec<String> {
    let mut found = Vec::new();
    for (node, run) in generation::reports(nodes, job, generation) {
        if let Some(run) = run {
            exits(node, run, generation.procs_on(node), &mut found);
        }
    }
    found
        .iter()
        .filter(|e| matches!(e, Evidence::RankExit { .. }) && e.is_victim())
        .map(Evidence::name)
        .collect()
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

fn exits(node: &NodeName, run: &RunReport, expected: u32, found: &mut Vec<Evidence>) {
    if let RunPhase::Refused(reason) = &run.phase {
        found.push(Evidence::StartRefused {
            node: node.clone(),
            reason: reason.clone(),
        });
        return;
    }
    if run.fenced && !run.ranks_finished(expected) {
        // The runner stopped these ranks, so their exits say nothing.
        found.push(Evidence::Fenced {
            node: node.clone(),
            at: run.dead_at.unwrap_or_default(),
        });
        return;
    }
    // If the runner was killed, ends that it had not recorded are lost, so a rank without an error may
    // have died with it.
    let vanished = run.torchrun_exit.is_none() && run.phase == RunPhase::Dead;
    let failures = || {
        let failed = run
            .ranks
            .iter()
            .filter(|rank| rank.exit.is_some_and(|exit| !exit.is_success()));
        failed.filter(|rank| !vanished || rank.first_error.is_some())
    };
    // An agent that was away may give the same time to all exits. Of ranks with equal times, one that
    // was killed is taken to be later.
    let killed = |rank: &RankReport| {
        rank.exit
            .map(|exit| exit.class(rank.first_error.as_deref()))
            == Some(ExitClass::Killed)
    };
    let first = failures().min_by_key(|rank| (rank.exited_at, killed(rank)));
    let failed = first.is_some();
    for rank in failures() {
        if let Some(exit) = rank.exit {
            // As soon as one rank has failed, torchrun kills the others on its node. They are its
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
                member: None,
                exit,
                class,
                at: rank.exited_at.unwrap_or_default(),
                error: rank.first_error.clone(),
            });
        }
    }
    let at = run.dead_at.unwrap_or_default();
    match run.torchrun_exit {
        // Once every rank has ended well, the end of torchrun does not matter. The runner ends a
        // torchrun that lingers at the exit barrier.
        _ if failed || run.ranks_finished(expected) => {}
        Some(exit) if !exit.is_success() => {
            let (error, launched) = (run.torchrun_error.clone(), !run.ranks.is_empty());
            found.push(Evidence::TorchrunFailed {
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
