//! A suspended job keeps its place and holds no nodes. Its generation is stopped with the job's
//! grace, and `open` opens none until the job is resumed.

use crate::{
    fleet::{
        account, budget, generation,
        job::{JobRecord, Stopping, Why},
        live::Condition,
        policy::Policy,
        receipt::{Cause, Incident},
        registry::Registry,
        slow,
    },
    id::Generation,
    time::Timestamp,
};

/// What users are told of it.
pub(crate) const MESSAGE: &str = "suspended as asked";

/// Ends the current generation of a job that is suspended, and returns which one. One that is about to be
/// judged is judged first, because it may be done or broken. One that is left as it is may stay so for
/// ever, so it ends.
pub(crate) fn suspend(
    job: &mut JobRecord,
    condition: &Condition,
    nodes: &Registry,
    policy: &Policy,
    now: Timestamp,
) -> Option<Generation> {
    let is_judged = condition.is_sound() || condition.left().is_some();
    let due = job.suspended && is_judged;
    let generation = job.generation_now().filter(|_| due)?;
    let (number, size) = (generation.number, generation.size());
    let steps = generation::steps(nodes, &job.uid, generation);
    budget::note_progress(job, &steps, policy, now);
    job.open_incident(Incident {
        cause: Cause::Suspended,
        message: MESSAGE.to_owned(),
        from: Some(number),
        from_nodes: size,
        last_step_before: steps.last,
        ..Incident::at(now)
    });
    job.last_step = steps.last.or(job.last_step);
    slow::leave(job, now);
    job.retire_current(Stopping {
        reason: MESSAGE.to_owned(),
        grace: job.spec.stop_grace_period,
    });
    job.found(Some(Why::Suspended));
    account::waits(job, now);
    Some(number)
}
