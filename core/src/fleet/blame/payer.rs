//! Names the primary failure that `ranking` has found, decides who pays for it, and says so in a
//! sentence. It reads the other evidence only to count refusals and mixed nodes.

use super::Evidence;
use crate::{
    exit::ExitClass,
    fleet::{
        receipt::{Cause, Charged},
        worker_pod::is_pod,
    },
    run::DueTo,
    stall::Why,
};

/// The cause of the primary failure, and who pays for it.
pub(super) fn cause_and_payer(
    primary: &Evidence,
    evidence: &[Evidence],
    members: usize,
    repeats: bool,
) -> (Cause, Charged) {
    let unless_it_repeats = |spared| if repeats { Charged::Job } else { spared };
    match primary {
        // A rank that does not come is the script's doing until something else is known.
        waited if waited.gave_up_waiting() => (Cause::CollectiveTimeout, Charged::Job),
        Evidence::Awaited { .. } => (Cause::CollectiveTimeout, Charged::Job),
        Evidence::EndedEarly { .. } => (Cause::EndedEarly, Charged::Job),
        Evidence::Stalled { of_node, why, .. } => match (of_node, why) {
            (true, _) => (Cause::Stalled, Charged::Node),
            // It is the network, unless it comes again and again.
            (false, Why::AllWait) => (Cause::Stalled, unless_it_repeats(Charged::Nobody)),
            (false, _) => (Cause::Stalled, Charged::Job),
        },
        // No network is between the ranks of one node.
        victim if victim.is_victims_end() && members == 1 => (Cause::PeersLost, Charged::Job),
        victim if victim.is_victim() => (Cause::PeersLost, unless_it_repeats(Charged::Nobody)),
        // Always a victim.
        Evidence::ExitUnknown { .. } => (Cause::PeersLost, unless_it_repeats(Charged::Nobody)),
        Evidence::RankExit { class, .. } => match class {
            ExitClass::Killed => (Cause::WorkerKilled, Charged::Job),
            _ => (Cause::WorkerFailed, Charged::Job),
        },
        Evidence::TorchrunFailed {
            launched: false, ..
        } => (Cause::StartFailed, Charged::Job),
        Evidence::TorchrunFailed { exit, error, .. } => match exit.class(error.as_deref()) {
            ExitClass::Killed => (Cause::WorkerKilled, Charged::Job),
            _ => (Cause::WorkerFailed, Charged::Job),
        },
        Evidence::Vanished { launched, .. } => match launched {
            true => (Cause::WorkerKilled, unless_it_repeats(Charged::Node)),
            false => (Cause::StartFailed, unless_it_repeats(Charged::Node)),
        },
        Evidence::StartRefused { due_to, .. } => {
            let refused = |e: &&Evidence| matches!(e, Evidence::StartRefused { .. });
            let by_all = evidence.iter().filter(refused).count() == members;
            let charged = match (due_to, by_all) {
                (DueTo::Stranger, _) | (DueTo::Account, false) => Charged::Nobody,
                // However few nodes there are, this is not what the job asks for.
                (DueTo::Node, _) => Charged::Node,
                // What one node lacks may be there on others.
                (DueTo::Job | DueTo::Account | DueTo::Unknown, true) => Charged::Job,
                (DueTo::Job | DueTo::Unknown, false) => Charged::Node,
            };
            (Cause::StartFailed, charged)
        }
        Evidence::NodeSilent { .. } => (Cause::NodeLost, Charged::Node),
        Evidence::NodeRebooted { .. } => (Cause::NodeRebooted, Charged::Node),
        Evidence::Unhealthy { .. } => (Cause::NodeUnhealthy, Charged::Node),
        Evidence::StartTimeout { .. } => (Cause::StartTimeout, Charged::Node),
        Evidence::NodeDeleted { .. } => (Cause::NodeDeleted, Charged::Nobody),
        Evidence::Fenced { .. } => (Cause::Fenced, Charged::Nobody),
        Evidence::Leaving { .. } => (Cause::NodeLeaving, Charged::Nobody),
        Evidence::MixedNodes { .. } => (Cause::MixedNodes, Charged::Nobody),
    }
}

/// The primary failure in a sentence.
pub(super) fn sentence(primary: &Evidence, evidence: &[Evidence], members: usize) -> String {
    let after_colon = |error: &Option<String>| match error {
        Some(error) => format!(": {error}"),
        None => String::new(),
    };
    match primary {
        Evidence::ExitUnknown { node, .. } => {
            format!("the worker group on {node} is dead, and its node has forgotten how it ended")
        }
        Evidence::EndedEarly { victim, .. } => format!(
            "{} had ended with exit code 0 while others trained; then {}",
            primary.name(),
            victims_words(victim)
        ),
        Evidence::Awaited { victim, .. } => format!(
            "others gave up waiting for {}; first {}",
            primary.name(),
            victims_words(victim)
        ),
        waited if waited.gave_up_waiting() => format!(
            "ranks gave up waiting for each other, and nothing says who did not come; first {}",
            victims_words(waited)
        ),
        victim if victim.is_victims_end() && members == 1 => format!(
            "ranks of one node lost each other, and none says why; first {}",
            victims_words(victim)
        ),
        victim if victim.is_victim() => format!(
            "members lost each other while every node was heard; first {}",
            victims_words(victim)
        ),
        Evidence::RankExit { exit, error, .. } => {
            format!("{} ended with {exit}{}", primary.name(), after_colon(error))
        }
        Evidence::TorchrunFailed {
            node, exit, error, ..
        } => format!(
            "torchrun on {node} ended with {exit} before any rank failed{}",
            after_colon(error)
        ),
        Evidence::Vanished { node, .. } => {
            format!("the worker group on {node} was killed together with its runner")
        }
        Evidence::Stalled { sentence, .. } => format!("nothing moved any more: {sentence}"),
        Evidence::NodeSilent {
            node, lost: true, ..
        } => format!("{node} is silent"),
        Evidence::NodeSilent { node, .. } => {
            format!("{node} lost its connection, and its peers' connections to it broke")
        }
        Evidence::NodeRebooted { node, .. } => format!("{node} was booted anew"),
        Evidence::Unhealthy { node, reason, .. } => format!("{node} is unhealthy: {reason}"),
        // Nobody need have deleted the node: it goes with its pod, which may have been evicted.
        Evidence::NodeDeleted { node, .. } if is_pod(node) => {
            format!("the pod of {node} is gone: it was deleted or evicted")
        }
        Evidence::NodeDeleted { node, .. } => format!("{node} was deleted by an operator"),
        Evidence::Fenced { node, .. } => format!(
            "{node} and the coordinator heard nothing of each other, so its workers stopped (fenceAfter)"
        ),
        Evidence::StartRefused { node, reason, .. } => {
            format!("{node} cannot start it: {reason}")
        }
        Evidence::StartTimeout { node, .. } => format!("{node} did not get ready in time"),
        Evidence::Leaving { node, why, .. } => {
            format!("what ran on {node} was ended with it: {why}")
        }
        Evidence::MixedNodes { .. } => mixed_nodes(evidence, members),
    }
}

/// The end of the program that failed first, without naming the place.
pub(super) fn symptom(primary: &Evidence) -> Option<String> {
    match primary {
        Evidence::EndedEarly { .. } => Some("ended with exit code 0 while others trained".into()),
        Evidence::Awaited { victim, .. } => symptom(victim),
        victim if victim.is_victim() && !victim.gave_up_waiting() => None,
        Evidence::RankExit { exit, error, .. } | Evidence::TorchrunFailed { exit, error, .. } => {
            Some(
                error
                    .as_ref()
                    .map_or_else(|| exit.to_string(), |error| format!("{exit}: {error}")),
            )
        }
        Evidence::StartRefused { reason, .. } => Some(reason.clone()),
        Evidence::Stalled { symptom, .. } => symptom.clone(),
        _ => None,
    }
}

/// A victim and its error.
fn victims_words(victim: &Evidence) -> String {
    let error = match victim {
        Evidence::RankExit { error, .. } | Evidence::TorchrunFailed { error, .. } => error,
        _ => &None,
    };
    let error = error.as_deref().unwrap_or("no error");
    format!("{}: {error}", victim.name())
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
