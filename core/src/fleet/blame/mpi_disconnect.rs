//! Finds the ends that follow from a broken connection between an MPI launcher and a worker. It never
//! ranks or charges them.
//!
//! The worker's end names no culprit: it may have been the network. An `mpirun` that notices the break
//! kills the ranks on all other workers and gives up. That looks as if a rank had been killed, or as if
//! the launcher had failed.

use super::Evidence;
use crate::exit::{CONNECTION_BROKE, Exit, SIGKILL, SIGTERM};

/// Exit codes by which a shell says that a signal has ended its command.
const OF_SIGNALS: std::ops::RangeInclusive<i32> = 129..=192;

/// Selects the ends that a broken connection explains.
pub(super) fn follows(evidence: &[Evidence]) -> impl Fn(&Evidence) -> bool {
    let broke = |e: &&Evidence| text(e).is_some_and(|text| text.starts_with(CONNECTION_BROKE));
    let first = evidence.iter().filter(broke).map(Evidence::at).min();
    move |e| first.is_some_and(|first| e.at() >= first && is_mpiruns_doing(e))
}

/// Whether `mpirun` may have caused this end by giving up. It kills ranks by SIGKILL or SIGTERM. It
/// ends with an exit code itself, so a launcher that a signal ended was killed by somebody else.
fn is_mpiruns_doing(evidence: &Evidence) -> bool {
    let Evidence::RankExit { exit, .. } = evidence else {
        return false;
    };
    let is_lender = text(evidence).is_some_and(|text| text.starts_with("muster-lend: "));
    match exit {
        Exit::Signal(signal) => is_lender && [SIGKILL, SIGTERM].contains(signal),
        Exit::Code(code) => !is_lender && !OF_SIGNALS.contains(code),
    }
}

fn text(evidence: &Evidence) -> Option<&str> {
    match evidence {
        Evidence::RankExit { error, .. } => error.as_deref(),
        _ => None,
    }
}
