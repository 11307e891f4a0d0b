//! Clocks never need to agree. A report's times travel as ages, and become times of the receiver's
//! clock when they arrive. The time on the way is added as well.

use muster_core::{run::RunReport, time::Timestamp};

/// Moves a report's times to the receiver's clock. `sent`: the sender's clock when it sent.
pub(crate) fn arrive(run: &mut RunReport, sent: Timestamp, now: Timestamp) {
    let shift = |at: &mut Option<Timestamp>| {
        if let Some(at) = at {
            *at = now - sent.since(*at);
        }
    };
    shift(&mut run.all_joined_at);
    shift(&mut run.launched_at);
    shift(&mut run.dead_at);
    for rank in &mut run.ranks {
        shift(&mut rank.started_at);
        shift(&mut rank.exited_at);
        shift(&mut rank.first_step_at);
        shift(&mut rank.last_step_at);
        if let Some(still) = &mut rank.still {
            still.since = now - sent.since(still.since);
            shift(&mut still.idle_since);
        }
    }
}
