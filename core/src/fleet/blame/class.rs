//! Of what kind the primary failure is ([`ErrorClass`]), as far as its evidence tells. It never decides who pays.

use super::Evidence;
use crate::{
    error_class::{self, ErrorClass},
    run::DueTo,
    stall::Why,
};

/// The class of the primary failure.
pub(super) fn of(primary: &Evidence) -> ErrorClass {
    match primary {
        // Words about others say nothing of why the others went, unless they name a link.
        victim if victim.is_victim() => of_victim(victim),
        Evidence::RankExit {
            exit,
            error,
            exception,
            ..
        } => error_class::of_end(*exit, error.as_deref(), exception.as_deref()),
        Evidence::TorchrunFailed {
            launched: false, ..
        } => ErrorClass::Launcher,
        Evidence::TorchrunFailed { exit, error, .. } => {
            error_class::of_end(*exit, error.as_deref(), None)
        }
        // The program itself has ended it, whatever made it do so.
        Evidence::EndedEarly { .. } => ErrorClass::Code,
        Evidence::Stalled { why, .. } => match why {
            Why::Mismatch | Why::Ended => ErrorClass::Code,
            _ => ErrorClass::Unknown,
        },
        Evidence::Unhealthy { check, .. } => error_class::of_check(check),
        Evidence::StartRefused { reason, due_to, .. } => match due_to {
            DueTo::Job => ErrorClass::Launcher,
            DueTo::Stranger | DueTo::Account => ErrorClass::Infrastructure,
            DueTo::Node => {
                error_class::of_words(reason, None).unwrap_or(ErrorClass::Infrastructure)
            }
            DueTo::Unknown => ErrorClass::Unknown,
        },
        Evidence::NodeSilent { .. }
        | Evidence::NodeRebooted { .. }
        | Evidence::NodeDeleted { .. }
        | Evidence::StartTimeout { .. }
        | Evidence::Fenced { .. }
        | Evidence::Leaving { .. }
        | Evidence::MixedNodes { .. } => ErrorClass::Infrastructure,
        // Something else made the ranks wait, killed the runner, or was forgotten.
        Evidence::Awaited { .. } | Evidence::Vanished { .. } | Evidence::ExitUnknown { .. } => {
            ErrorClass::Unknown
        }
    }
}

fn of_victim(victim: &Evidence) -> ErrorClass {
    let error = match victim {
        Evidence::RankExit { error, .. } | Evidence::TorchrunFailed { error, .. } => error,
        _ => &None,
    };
    let class = error
        .as_deref()
        .and_then(|error| error_class::of_words(error, None));
    class
        .filter(|class| matches!(class, ErrorClass::Network | ErrorClass::Link))
        .unwrap_or(ErrorClass::Unknown)
}
