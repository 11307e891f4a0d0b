//! Finds the ends that follow from a broken connection between an MPI launcher and a worker, or from a killed
//! rank of Open MPI. It never ranks or charges them.
//!
//! The worker's end names no culprit: it may have been the network. An `mpirun` that notices the break
//! kills the ranks on all other workers and gives up. That looks as if a rank had been killed, or as if
//! the launcher had failed.

use std::time::Duration;

use super::Evidence;
use crate::exit::{CONNECTION_BROKE, Exit, SIGKILL, SIGTERM};

/// How `muster-lend` names a rank of Open MPI.
const OPEN_MPI_RANK: &str = "muster-lend: Open MPI rank ";

/// Open MPI 4 and 5 ask a rank to end by SIGTERM, and kill it a second later (`sigkill_timeout` of `odls`,
/// in `odls_base_default_fns.c`). Times may be wrong by a quarter of a second.
const GRACE: Duration = Duration::from_millis(750);

/// Exit codes by which a shell says that a signal has ended its command.
const OF_SIGNALS: std::ops::RangeInclusive<i32> = 129..=192;

/// Selects the ends that a broken connection explains, and those that a killed rank of Open MPI does.
pub(super) fn follows(evidence: &[Evidence]) -> impl Fn(&Evidence) -> bool {
    let broke = |e: &&Evidence| text(e).is_some_and(|text| text.starts_with(CONNECTION_BROKE));
    let first_break = evidence.iter().filter(broke).map(Evidence::at).min();
    let exits = || {
        evidence
            .iter()
            .filter(|e| matches!(e, Evidence::RankExit { .. }))
    };
    let first = exits().map(Evidence::at).min();
    // Nobody in an MPI world kills so soon, so this kill began it, although it may be known a few
    // milliseconds after what it has caused.
    let soon = move |at| first.is_some_and(|first| at < first + GRACE);
    let began = exits().any(|e| is_open_mpis_kill(e) && soon(e.at()));
    move |e| {
        let is_first = is_open_mpis_kill(e) && soon(e.at());
        let after_break = first_break.is_some_and(|first| e.at() >= first && is_mpiruns_doing(e));
        !is_first && (after_break || began && is_exit_code(e))
    }
}

/// Whether this is a rank of Open MPI that was killed.
fn is_open_mpis_kill(evidence: &Evidence) -> bool {
    let of_open_mpi = text(evidence).is_some_and(|text| text.starts_with(OPEN_MPI_RANK));
    let killed = Exit::Signal(SIGKILL);
    of_open_mpi && matches!(evidence, Evidence::RankExit { exit, .. } if *exit == killed)
}

fn is_exit_code(evidence: &Evidence) -> bool {
    matches!(evidence, Evidence::RankExit { exit: Exit::Code(code), .. } if !OF_SIGNALS.contains(code))
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
