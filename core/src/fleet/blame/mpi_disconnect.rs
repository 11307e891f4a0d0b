//! Finds the ends that follow from a broken connection between an MPI launcher and a worker. It never
//! ranks or charges them.
//!
//! The worker's end names no culprit: it may have been the network. An `mpirun` that notices the break
//! kills the ranks on all other workers and gives up. That looks as if a rank had been killed, or as if
//! the launcher had failed.

use std::time::Duration;

use super::Evidence;
use crate::exit::{CONNECTION_BROKE, Exit, SIGKILL, SIGTERM};

/// How `muster-lend` names a rank of Open MPI.
const OPEN_MPI_RANK: &str = "muster-lend: Open MPI rank ";

/// Open MPI 4 and 5 ask a rank to end by SIGTERM, and kill it a second later
/// (`odls_base_sigkill_timeout`). Times may be wrong by a quarter of a second.
const GRACE: Duration = Duration::from_millis(750);

/// Exit codes by which a shell says that a signal has ended its command.
const OF_SIGNALS: std::ops::RangeInclusive<i32> = 129..=192;

/// Selects the ends that a broken connection explains.
pub(super) fn follows(evidence: &[Evidence]) -> impl Fn(&Evidence) -> bool {
    let broke = |e: &&Evidence| text(e).is_some_and(|text| text.starts_with(CONNECTION_BROKE));
    let first = evidence.iter().filter(broke).map(Evidence::at).min();
    move |e| {
        first.is_some_and(|first| {
            let at = e.at();
            at >= first && is_mpiruns_doing(e) && !(is_open_mpis_rank(e) && at < first + GRACE)
        })
    }
}

/// Whether this is a rank of Open MPI that was killed. The kill may be known a few milliseconds after the
/// break that it has caused. If the break was the cause, there was a SIGTERM before.
fn is_open_mpis_rank(evidence: &Evidence) -> bool {
    let of_open_mpi = text(evidence).is_some_and(|text| text.starts_with(OPEN_MPI_RANK));
    let killed = |exit: &Exit| *exit == Exit::Signal(SIGKILL);
    of_open_mpi && matches!(evidence, Evidence::RankExit { exit, .. } if killed(exit))
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
