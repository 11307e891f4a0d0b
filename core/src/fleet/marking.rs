//! What a node's Kubernetes Node object should carry of Muster: its cordon, its condition, and why
//! a cordon was withheld. How an object gets there is in [`crate::node_object`].
//!
//! The object follows the books. Only one thing goes the other way: a person who makes a node
//! schedulable that Muster has cordoned is heard (`objects`).

use crate::{
    fleet::{
        node_record::{Cordon, CordonedBy},
        policy::{CordonMode, Policy},
        registry::{Liveness, Node},
    },
    health::Severity,
    node_object::{CordonNote, Marking, NodeObject, Status, TEXT_MAX, Verdict, correction, cut},
    time::Timestamp,
};

/// Bytes of one annotation's text. All of an object's annotations together may have 256 KiB.
const NOTE_MAX: usize = 512;

/// What the node's object should carry, if it does not carry it yet. `braked`: the brake for mass
/// losses is on.
pub(crate) fn due(node: &Node, braked: bool, policy: &Policy) -> Option<Marking> {
    if policy.kubernetes_cordon == CordonMode::Off || node.record.halt.is_some() {
        return None;
    }
    let object = node.object.as_ref()?;
    let wanted = wanted(node, object, braked, policy.kubernetes_cordon);
    // The time of the change is ignored here.
    (!correction(&wanted, object, Timestamp(0)).is_empty()).then_some(wanted)
}

fn wanted(node: &Node, object: &NodeObject, braked: bool, mode: CordonMode) -> Marking {
    let cordon = node.record.cordon.as_ref();
    let there = object.marking.cordon.as_ref();
    let note = cordon.map(note).filter(|_| match mode {
        CordonMode::On => true,
        // An annotation that is already there stays as long as the cordon lasts, also if the cordon
        // was set anew.
        _ => there.is_some_and(|there| there.stands(node.record.overruled)) && object.unschedulable,
    });
    let would = cordon.filter(|_| mode == CordonMode::DryRun && note.is_none());
    let withheld = node.withheld.as_ref();
    Marking {
        would_cordon: would.map(|c| cut(&format!("{}: {}", c.by, c.reason), NOTE_MAX)),
        withheld: withheld.map(|w| cut(&format!("{}, but {}", w.reason, w.veto), NOTE_MAX)),
        health: health(node, braked),
        overruled: node.record.overruled,
        cordon: note,
    }
}

pub(crate) fn note(cordon: &Cordon) -> CordonNote {
    let jobs: Vec<String> = cordon.jobs.iter().map(ToString::to_string).collect();
    CordonNote {
        by: cut(&cordon.by.to_string(), NOTE_MAX),
        at: cordon.at.rfc3339(),
        reason: cut(&cordon.reason, NOTE_MAX),
        job: cut(&jobs.join(","), NOTE_MAX),
        was_unschedulable: false,
    }
}

/// What Muster thinks of the node's GPUs. `None`: it cannot tell now, and the condition stays as it
/// is. A person's cordon says nothing about GPUs.
fn health(node: &Node, braked: bool) -> Option<Verdict> {
    let verdict = |status, reason: &str, message: &str| {
        Some(Verdict {
            status,
            reason: reason.to_owned(),
            message: cut(message, TEXT_MAX),
        })
    };
    let ours = node
        .record
        .cordon
        .as_ref()
        .filter(|c| c.by == CordonedBy::Muster);
    if let Some(cordon) = ours {
        return verdict(Status::False, "RestartStorm", &cordon.reason);
    }
    if let Some(withheld) = &node.withheld {
        let message = format!("{}; it is not cordoned: {}", withheld.reason, withheld.veto);
        return verdict(Status::False, "CordonWithheld", &message);
    }
    match node.liveness {
        // This coordinator has not heard it yet, or many are silent, and nobody knows why.
        Liveness::Unknown => return None,
        Liveness::Lost if braked => return None,
        Liveness::Lost => {
            return verdict(
                Status::Unknown,
                "AgentLost",
                "Muster's agent there is silent",
            );
        }
        Liveness::Ready | Liveness::Suspect => {}
    }
    let findings = node.report.health.findings.iter();
    let mut grave = findings.filter(|finding| finding.severity >= Severity::Drain);
    if let Some(first) = grave.next() {
        let more = match grave.count() {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let message = format!(
            "{} ({}): {}{more}",
            first.check, first.severity, first.reason
        );
        return verdict(Status::False, "HardwareUnhealthy", &message);
    }
    match &node.report.gpu_error {
        Some(error) => verdict(Status::Unknown, "GPUsUnreadable", error),
        None => verdict(Status::True, "NoFaultKnown", "Muster knows of no fault"),
    }
}

#[cfg(test)]
mod tests;
