//! A cluster for one command in an allocation: it is started before the command and ended after it, whatever
//! came of it.

use std::{cell::Cell, env, time::Duration};

use tokio::time::timeout;

use super::{NodeFlags, Up, allocation::Allocation, dir, end, start};
use crate::{context::Context, fail::Failure, local::Stops};

const START: Duration = Duration::from_secs(120);
/// The time for jobs to end if the command is interrupted. Their own grace periods are within it, and it is
/// within what batch scripts leave between the signal and the end of their time.
const GRACE: Duration = Duration::from_secs(90);

/// Runs `body` with a cluster of all nodes of this allocation. An interrupt and a termination, by which
/// Slurm tells that the time is nearly up, end the job as planned: its workers can save.
pub(crate) async fn around(
    cx: &Context,
    body: impl AsyncFnOnce(&Context) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // From here on nothing ends this process before the cluster is down.
    let mut stops = Stops::listen()?;
    let allocation = Allocation::here()?;
    let own = super::own(cx, &allocation.job);
    let record = start::claim(cx, &allocation)?;
    let up = Up {
        node: NodeFlags {
            slots: 1,
            gpus: env::var("MUSTER_GPUS").ok(),
        },
        timeout: START,
    };
    let is_up = Cell::new(false);
    let mut work = Box::pin(async {
        start::bring_up(&own, record, &allocation, &up).await?;
        is_up.set(true);
        body(&own).await
    });
    let mut jobs = Some(GRACE);
    let outcome = tokio::select! {
        outcome = &mut work => outcome,
        () = stops.next() => {
            let mut outcome = Err(Failure::Interrupted("interrupted: the workers are stopped".into()));
            if is_up.get() {
                // Once is enough: there is not much time.
                jobs = None;
                let ending = async {
                    if let Err(failure) = end::end_jobs(&own, GRACE).await {
                        cx.warn(format!("the jobs are ended with the steps: {failure}"));
                    }
                };
                // What workers print while they save is shown, too.
                let showing = async {
                    if work.as_mut().await.is_ok() {
                        outcome = Ok(());
                    }
                };
                let both = async { tokio::join!(ending, timeout(GRACE, showing)) };
                tokio::select! {
                    _ = both => {}
                    () = stops.next() => {}
                }
            }
            outcome
        }
    };
    drop(work);
    if is_up.get()
        && let Some(exclude) = end::to_exclude(&own).await
    {
        cx.warn(format!(
            "some nodes failed here; to get others next time: sbatch --exclude={exclude}"
        ));
    }
    let dir = dir(&allocation.job);
    // The logs of a cluster that did not start say why.
    if let Err(left) = end::take_down(&own, &dir, jobs, !is_up.get()).await {
        cx.warn(format!(
            "the cluster of this run in {}: {left}",
            dir.display()
        ));
    }
    outcome
}
