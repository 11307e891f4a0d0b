//! Names a failure, decides who pays for it, and says so in a sentence. It looks at the primary failure
//! only, which `blame` has found.

use super::Evidence;
use crate::{
    exit::ExitClass,
    fleet::receipt::{Cause, Charged},
};

/// Returns the cause of the primary failure, who pays for it, and the sentence that says so.
pub(super) fn cause_and_payer(
    primary: &Evidence,
    evidence: &[Evidence],
    members: usize,
    repeats: bool,
) -> (Cause, Charged, String) {
    let refused_everywhere = evidence
        .iter()
        .filter(|e| matches!(e, Evidence::StartRefused { .. }))
        .count()
        == members;
    let unless_it_repeats = |spared| if repeats { Charged::Job } else { spared };
    match primary {
        Evidence::ExitUnknown { node, .. } => (
            Cause::PeersLost,
            unless_it_repeats(Charged::Nobody),
            format!("the worker group on {node} is dead, and its node has forgotten how it ended"),
        ),
        victim if victim.is_victim() => {
            let error = match victim {
                Evidence::RankExit {
                    error: Some(error), ..
                }
                | Evidence::TorchrunFailed {
                    error: Some(error), ..
                } => error,
                _ => "no error",
            };
            let name = victim.name();
            (
                Cause::PeersLost,
                unless_it_repeats(Charged::Nobody),
                format!(
                    "members lost each other while every node was heard; first {name}: {error}"
                ),
            )
        }
        Evidence::RankExit {
            exit, class, error, ..
        } => {
            let cause = if *class == ExitClass::Killed {
                Cause::WorkerKilled
            } else {
                Cause::WorkerFailed
            };
            let error = error
                .as_ref()
                .map(|text| format!(": {text}"))
                .unwrap_or_default();
            (
                cause,
                Charged::Job,
                format!("{} ended with {exit}{error}", primary.name()),
            )
        }
        Evidence::TorchrunFailed {
            node,
            exit,
            error,
            launched,
            ..
        } => {
            let cause = match exit.class(error.as_deref()) {
                _ if !launched => Cause::StartFailed,
                ExitClass::Killed => Cause::WorkerKilled,
                _ => Cause::WorkerFailed,
            };
            let error = error
                .as_ref()
                .map(|text| format!(": {text}"))
                .unwrap_or_default();
            (
                cause,
                Charged::Job,
                format!("torchrun on {node} ended with {exit} before any rank failed{error}"),
            )
        }
        Evidence::Vanished { node, launched, .. } => {
            let cause = if *launched {
                Cause::WorkerKilled
            } else {
                Cause::StartFailed
            };
            (
                cause,
                unless_it_repeats(Charged::Node),
                format!("the worker group on {node} was killed together with its runner"),
            )
        }
        Evidence::NodeSilent {
            node, lost: true, ..
        } => (Cause::NodeLost, Charged::Node, format!("{node} is silent")),
        Evidence::NodeSilent { node, .. } => (
            Cause::NodeLost,
            Charged::Node,
            format!("{node} lost its connection, and its peers' connections to it broke"),
        ),
        Evidence::NodeRebooted { node, .. } => (
            Cause::NodeRebooted,
            Charged::Node,
            format!("{node} was booted anew"),
        ),
        Evidence::Unhealthy { node, reason, .. } => (
            Cause::NodeUnhealthy,
            Charged::Node,
            format!("{node} is unhealthy: {reason}"),
        ),
        Evidence::NodeDeleted { node, .. } => (
            Cause::NodeDeleted,
            Charged::Nobody,
            format!("{node} was deleted by an operator"),
        ),
        Evidence::Fenced { node, .. } => {
            let message = format!(
                "{node} and the coordinator heard nothing of each other, so its workers stopped (fenceAfter)"
            );
            (Cause::Fenced, Charged::Nobody, message)
        }
        Evidence::StartRefused { node, reason } => {
            let charged = if refused_everywhere {
                Charged::Job
            } else {
                Charged::Node
            };
            (
                Cause::StartFailed,
                charged,
                format!("{node} cannot start it: {reason}"),
            )
        }
        Evidence::StartTimeout { node, .. } => (
            Cause::StartTimeout,
            Charged::Node,
            format!("{node} did not get ready in time"),
        ),
        Evidence::Leaving { node, why, .. } => (
            Cause::NodeLeaving,
            Charged::Nobody,
            format!("what ran on {node} was ended with it: {why}"),
        ),
        Evidence::MixedNodes { .. } => (
            Cause::MixedNodes,
            Charged::Nobody,
            mixed_nodes(evidence, members),
        ),
    }
}

/// The end of the program that failed first, without naming the place.
pub(super) fn symptom(primary: &Evidence) -> Option<String> {
    match primary {
        victim if victim.is_victim() => None,
        Evidence::RankExit { exit, error, .. } | Evidence::TorchrunFailed { exit, error, .. } => {
            Some(
                error
                    .as_ref()
                    .map_or_else(|| exit.to_string(), |error| format!("{exit}: {error}")),
            )
        }
        Evidence::StartRefused { reason, .. } => Some(reason.clone()),
        _ => None,
    }
}

/// Says how many members do not go with the others, and how the first few differ.
fn mixed_nodes(evidence: &[Evidence], members: usize) -> String {
    // A few names help, a thousand do not.
    const NAMED: usize = 8;
    let odd = evidence.iter().filter_map(|e| match e {
        Evidence::MixedNodes { node, how, .. } => Some(format!("{node} ({how})")),
        _ => None,
    });
    let odd: Vec<String> = odd.collect();
    let more = odd.len().saturating_sub(NAMED);
    let more = if more == 0 {
        String::new()
    } else {
        format!(", and {more} more")
    };
    format!(
        "{} of {members} nodes not taken, as they do not go with the others: {}{more}",
        odd.len(),
        odd[..odd.len().min(NAMED)].join(", ")
    )
}
