//! Finds the primary failure: the one that explains the others. Who pays for it is decided in `payer`.
//!
//! Failures are compared by [`Precedence`]. A failure that causes others goes before one that follows
//! from others; of two of one kind, the earlier goes first.

use std::time::Duration;

use super::{Evidence, mpi_disconnect};
use crate::{exit::ExitClass, id::NodeName, time::Timestamp};

/// A heartbeat that arrives up to this long after a failure may have been sent before it.
pub(crate) const HEARTBEAT_DELAY: Duration = Duration::from_millis(250);

/// The place of one failure among all failures of its generation. The least one is the primary
/// failure. The order of the fields is the rule.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    is_ruled_out: bool,
    kind: Kind,
    at: Timestamp,
    /// Of equals, one that ends the generation by itself goes before a suspicion.
    is_suspicion: bool,
}

/// Kinds of failures. An earlier one may have caused a later one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The node was rebooted, deleted or unhealthy, or it fenced itself.
    Node,
    /// A rank ended, or all processes of a member are gone or silent.
    Member,
    /// The node did not start the member.
    NotStarted,
    /// torchrun failed, and no rank did.
    Torchrun,
    StartTimeout,
    /// A rank that had an error of its own was ended for another's failure.
    Interrupted,
    /// A rank had ended well while others trained.
    EndedEarly,
    /// Others gave up waiting for a rank.
    Awaited,
    /// Nothing moved any more. Whatever ended says more.
    Stalled,
    /// It follows from another member's failure, or it does not say what happened.
    Victim,
}

impl Kind {
    fn of(evidence: &Evidence) -> Self {
        match evidence {
            victim if victim.is_victim() => Kind::Victim,
            Evidence::RankExit {
                class: ExitClass::Interrupted,
                ..
            } => Kind::Interrupted,
            Evidence::EndedEarly { .. } => Kind::EndedEarly,
            Evidence::Awaited { .. } => Kind::Awaited,
            Evidence::Stalled { .. } => Kind::Stalled,
            Evidence::NodeRebooted { .. }
            | Evidence::NodeDeleted { .. }
            | Evidence::Unhealthy { .. }
            | Evidence::Fenced { .. } => Kind::Node,
            Evidence::RankExit { .. }
            // Always a victim.
            | Evidence::ExitUnknown { .. }
            | Evidence::NodeSilent { .. }
            | Evidence::Vanished { .. }
            | Evidence::Leaving { .. } => Kind::Member,
            Evidence::StartRefused { .. } | Evidence::MixedNodes { .. } => Kind::NotStarted,
            Evidence::TorchrunFailed { .. } => Kind::Torchrun,
            Evidence::StartTimeout { .. } => Kind::StartTimeout,
        }
    }
}

/// The failure that explains the others. `None`: there is no evidence.
pub(crate) fn primary(evidence: &[Evidence]) -> Option<&Evidence> {
    let is_ruled_out = ruled_out(evidence);
    evidence.iter().min_by_key(|e| Precedence {
        is_ruled_out: is_ruled_out(e),
        kind: Kind::of(e),
        at: e.at(),
        is_suspicion: !e.breaks(),
    })
}

/// Whether all failures known so far may follow from one that is not known yet. That others waited for a
/// rank does not say why it did not come.
pub(crate) fn lacks_a_culprit(evidence: &[Evidence]) -> bool {
    let is_ruled_out = ruled_out(evidence);
    let says_no_cause = |e: &Evidence| e.is_victim() || matches!(e, Evidence::Awaited { .. });
    evidence.iter().all(|e| says_no_cause(e) || is_ruled_out(e))
}

/// Selects what cannot have been the first failure: a silence that began too late
/// ([`late_silence`]), and what an MPI world does after it has lost a connection or a rank
/// ([`mpi_disconnect`]).
fn ruled_out(evidence: &[Evidence]) -> impl Fn(&Evidence) -> bool {
    let (is_late, follows) = (late_silence(evidence), mpi_disconnect::follows(evidence));
    move |e| is_late(e) || follows(e)
}

/// Selects the silences that cannot be the cause. Either the node was still heard after the first
/// victim failed. Or the node is not lost, and it has reported a cause that is no network cut.
fn late_silence(evidence: &[Evidence]) -> impl Fn(&Evidence) -> bool {
    let victims = evidence
        .iter()
        .filter(|e| e.is_victim())
        .map(Evidence::at)
        .filter(|at| *at > Timestamp::default());
    let first_failed = victims.min();
    let has_told = move |node: &NodeName| {
        evidence
            .iter()
            .any(|e| e.node() == node && e.has_a_cause_of_its_own())
    };
    move |e| match e {
        Evidence::NodeSilent {
            node, lost, heard, ..
        } => {
            first_failed.is_some_and(|at| heard.is_some_and(|heard| heard > at + HEARTBEAT_DELAY))
                || (!lost && has_told(node))
        }
        _ => false,
    }
}
