//! Decides which failure broke a generation, and who pays for it. The facts are in `evidence`. The
//! failure that explains the others is the primary one (`ranking`). The others are collateral and
//! are never charged. Fences and mixed nodes are not even listed as collateral. A primary failure
//! that is a victim is listed as collateral, too. A fence may be primary, but it names no culprit. Who pays for the primary failure is decided in `payer`.
//!
//! A node fault does not spend a job's restart budget. A node's refusal to start is the job's if all
//! nodes refuse and none says that it is a fault of its own. Some
//! breaks are doubtful and become the job's if they repeat without progress: see [`blame`]. A failure
//! that is charged to a job counts against a node only if the job then lasts longer elsewhere.

mod class;
mod evidence;
mod mpi_disconnect;
mod payer;
mod ranking;

use crate::{
    error_class::ErrorClass,
    exit::{Exit, ExitClass, SIGKILL},
    fleet::receipt::{Cause, Charged},
    id::NodeName,
    stall::Why,
    time::Timestamp,
};

pub(crate) use {
    evidence::Evidence,
    ranking::{HEARTBEAT_DELAY, lacks_a_culprit, primary},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blame {
    pub cause: Cause,
    /// Of what kind the primary failure is.
    pub class: ErrorClass,
    pub message: String,
    /// How the program that failed first ended, or why it could not start, without naming the place.
    /// `None` if the failure is not a program's own.
    pub symptom: Option<String>,
    /// The exit by which the job's rules go. `None`: no rank's exit says anything.
    pub exit: Option<Exit>,
    /// The rank of the primary failure. `None`: that failure is not a rank's, or it is a victim.
    pub rank: Option<u32>,
    pub charged: Charged,
    /// `None`: every known failure is a victim of another, or a fence stopped the workers.
    pub culprit: Option<String>,
    pub node: Option<NodeName>,
    pub collateral: Vec<String>,
    pub event_at: Timestamp,
    /// The blame may be wrong: the job itself can cause what looks like this.
    pub doubtful: bool,
    /// The exception that was the primary failure: its type, and the innermost frame.
    pub raised: Option<(String, String)>,
}

impl Blame {
    /// Whether the kernel has killed the first rank for want of memory.
    /// Every other SIGKILL is somebody else's deed ([`ExitClass::Killed`]).
    pub(crate) fn is_at_memory_limit(&self) -> bool {
        self.cause == Cause::WorkerFailed && self.exit == Some(Exit::Signal(SIGKILL))
    }
}

/// Judges all evidence of one generation together. Without evidence the answer is `None`.
///
/// If all that is known is that members lost each other, the network between them failed, and nobody
/// pays, unless one node held them all: there the job pays. If a group vanished with its runner, the node pays. Both are doubtful: a program that cannot
/// reach something else uses the same words, and a program that eats all memory may take its runner
/// along. `repeats` is true after too many doubtful breaks, in a row without a new step or within the
/// window of `restartPolicy`. Then the job pays, because otherwise it would restart for ever.
pub(crate) fn blame(evidence: &[Evidence], members: usize, repeats: bool) -> Option<Blame> {
    let primary = ranking::primary(evidence)?;
    let (cause, charged) = payer::cause_and_payer(primary, evidence, members, repeats);
    let named = match primary {
        Evidence::Fenced { .. } => false,
        Evidence::Awaited { ranks, .. } => ranks.len() == 1,
        Evidence::Stalled { named, .. } => named.is_some(),
        other => !other.is_victim(),
    };
    // A fence is never collateral. Nor is a node that was left out for its software.
    let failed = evidence
        .iter()
        .filter(|e| !matches!(e, Evidence::Fenced { .. } | Evidence::MixedNodes { .. }))
        // These did not fail.
        .filter(|e| !matches!(e, Evidence::EndedEarly { .. } | Evidence::Awaited { .. }));
    let collateral = failed
        .filter(|e| !named || e.name() != primary.name())
        .map(Evidence::name)
        .collect();
    Some(Blame {
        cause,
        class: class::of(primary),
        message: payer::sentence(primary, evidence, members),
        symptom: payer::symptom(primary),
        exit: exit_of(primary),
        rank: primary_exit(primary).map(|(rank, _)| rank),
        charged,
        // Such a node is avoided, and no culprit.
        culprit: (named && !primary.is_nobodys()).then(|| primary.name()),
        node: named.then(|| primary.node().clone()),
        collateral,
        event_at: primary.happened(),
        raised: raised_by(primary),
        doubtful: primary.is_victim()
            || matches!(
                primary,
                Evidence::Vanished { .. }
                    | Evidence::Stalled {
                        why: Why::AllWait,
                        ..
                    }
            ),
    })
}

/// Whether the evidence suffices without waiting for the rest of the burst: a rank was killed by
/// SIGKILL, and all other evidence is such kills or victims. No member is silent, because a silence
/// may have begun before the kill. If two ranks were killed, the first report may name the later kill. That
/// inaccuracy is accepted.
pub(crate) fn is_conclusive(evidence: &[Evidence]) -> bool {
    let killed = |e: &Evidence| {
        matches!(
            e,
            Evidence::RankExit {
                exit: Exit::Signal(SIGKILL),
                class: ExitClass::Killed,
                ..
            }
        )
    };
    evidence.iter().any(killed) && evidence.iter().all(|e| killed(e) || e.is_victim())
}

/// The exit by which the job's rules go. If ranks failed for want of one that ended early or did not come,
/// it is the first of theirs. Ranks that only lost each other have no exit that means anything.
fn exit_of(primary: &Evidence) -> Option<Exit> {
    let of_missed = match primary {
        Evidence::EndedEarly { victim, .. } | Evidence::Awaited { victim, .. } => Some(&**victim),
        waited if waited.gave_up_waiting() => Some(waited),
        _ => None,
    };
    match of_missed {
        Some(Evidence::RankExit { exit, .. }) => Some(*exit),
        Some(_) => None,
        None => primary_exit(primary).map(|(_, exit)| exit),
    }
}

/// The rank whose exit is the primary failure, and that exit.
fn primary_exit(primary: &Evidence) -> Option<(u32, Exit)> {
    match primary {
        Evidence::RankExit { rank, exit, .. } if !primary.is_victim() => Some((*rank, *exit)),
        _ => None,
    }
}

/// The exception that ended the rank, with the frame in which it was raised.
fn raised_by(primary: &Evidence) -> Option<(String, String)> {
    match primary {
        Evidence::RankExit {
            exception: Some(exception),
            ..
        } if !primary.is_victim() => {
            let place = exception.frames.last()?;
            Some((exception.name.clone(), place.clone()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
