//! How long a stop may take: the longest that there is, and the verdict on what torchrun would have
//! given. `draft` chooses between that and what the pod says.

use muster_core::spec::STOP_GRACE_MAX;

use crate::{tree::Field, verdict::Verdicts};

/// The longest stop that a job may ask for, in seconds (`STOP_GRACE_MAX` of core).
pub(crate) const GRACE_MAX: i64 = STOP_GRACE_MAX.as_secs() as i64;

/// What becomes of torchrun's own grace. Upstream the shorter of the two ends the ranks, and nobody
/// means that.
const TAKEN: &str = "spec.stopGracePeriod; a longer terminationGracePeriodSeconds wins";

/// The verdict on torchrun's own grace, said by a flag or a variable.
pub(crate) fn take(name: &str, seconds: i64, at: &Field<'_>, log: &mut Verdicts) {
    match seconds > GRACE_MAX {
        true => log.warn(
            at,
            format!("{name} is {seconds} s, and {GRACE_MAX} s is the longest stop here"),
        ),
        false => log.taken(at, TAKEN),
    }
}
