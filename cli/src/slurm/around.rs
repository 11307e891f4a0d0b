//! A cluster for one command in an allocation: it is started before the command and ended after it, whatever
//! came of it.

use std::{cell::Cell, time::Duration};

use tokio::time::timeout;

use super::{NodeFlags, Up, allocation::Allocation, dir, end, start, start::Started};
use crate::{args::Globals, context::Context, fail::Failure, local::Stops};

const START: Duration = Duration::from_secs(120);
/// The time for jobs to end if the command is interrupted. Their own grace periods are within it.
const GRACE: Duration = Duration::from_secs(300);

/// Runs `body` with a cluster of all nodes of this allocation. An interrupt and a termination, by which
/// Slurm tells that the time is nearly up, end the job as planned: its workers can save.
pub(crate) async fn around(
    cx: &Context,
    body: impl AsyncFnOnce(&Context) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // From here on nothing ends this process before the cluster is down.
    let mut stops = Stops::listen()?;
    let allocation = Allocation::here()?;
    let own = Context::new(Globals {
        server: None,
        context: Some(format!("{}{}", super::CONTEXT, allocation.job)),
        ..cx.globals.clone()
    });
    let up = Up {
        node: NodeFlags {
            slots: 1,
            gpus: None,
        },
        timeout: START,
    };
    let is_up = Cell::new(false);
    let mut work = Box::pin(async {
        start::bring_up(&own, &allocation, &up).await?;
        is_up.set(true);
        body(&own).await.map_err(Started::Failed)
    });
    let outcome = tokio::select! {
        outcome = &mut work => outcome,
        () = stops.next() => {
            if is_up.get() {
                // What workers print while they save is shown, too.
                let ending = async { tokio::join!(end::end_jobs(&own, GRACE), &mut work) };
                tokio::select! {
                    _ = timeout(GRACE, ending) => {}
                    () = stops.next() => {}
                }
            }
            Err(Started::Failed(Failure::Interrupted("interrupted: the workers are stopped".into())))
        }
    };
    drop(work);
    let outcome = match outcome {
        Err(Started::Already(failure)) => return Err(failure),
        Err(Started::Failed(failure)) => Err(failure),
        Ok(()) => Ok(()),
    };
    if is_up.get()
        && let Some(exclude) = end::to_exclude(&own).await
    {
        cx.warn(format!(
            "some nodes failed here; to get others next time: sbatch --exclude={exclude}"
        ));
    }
    let dir = dir(&allocation.job);
    // The logs of a cluster that did not start say why.
    if let Err(left) = end::take_down(&own, &dir, GRACE, !is_up.get()).await {
        cx.warn(format!(
            "the cluster of this run in {}: {left}",
            dir.display()
        ));
    }
    outcome
}
