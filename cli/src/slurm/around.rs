//! A cluster for one command in an allocation: it is started before the command and ended after it, whatever
//! came of it.

use std::{cell::Cell, env, pin::Pin, time::Duration};

use tokio::time::timeout;

use super::{NodeFlags, Up, allocation::Allocation, dir, end, requeue, start};
use crate::{context::Context, fail::Failure, local::Stops};

const START: Duration = Duration::from_secs(120);
/// The time for jobs to end if the command is interrupted. Their own grace periods are within it, and it is
/// within what batch scripts leave between the signal and the end of their time.
const GRACE: Duration = Duration::from_secs(90);

/// Runs `body` with a cluster of all nodes of this allocation. An interrupt and a termination, by which
/// Slurm tells that the time is nearly up, end the job as planned: its workers can save. `may_requeue`: what
/// was stopped, or has too few nodes left, is given back to Slurm to start again.
pub(crate) async fn around(
    cx: &Context,
    may_requeue: bool,
    body: impl AsyncFnOnce(&Context) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // From here on nothing ends this process before the cluster is down.
    let mut stops = Stops::listen()?;
    let allocation = Allocation::here()?;
    if may_requeue {
        requeue::check(cx, &allocation.job)?;
    }
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
    let mut again = false;
    let outcome = tokio::select! {
        outcome = &mut work => {
            let failed = matches!(outcome, Err(Failure::JobFailed(_) | Failure::Mirrored { .. }));
            again = failed && end::is_any_cordoned(&own).await;
            outcome
        }
        why = end::too_few_nodes(&own, &allocation.job), if may_requeue => {
            again = true;
            Err(Failure::JobFailed(why))
        }
        () = stops.next() => {
            let mut outcome = Err(Failure::Interrupted("interrupted: the workers are stopped".into()));
            if is_up.get() {
                // Once is enough: there is not much time.
                jobs = None;
                outcome = stop_jobs(cx, &own, work.as_mut(), &mut stops, outcome).await;
                again = outcome.is_err();
            }
            outcome
        }
    };
    drop(work);
    let failed = match is_up.get() {
        true => end::to_exclude(&own, &allocation.job).await,
        false => None,
    };
    if may_requeue && again {
        // Slurm ends everything here at once then, so the jobs come first.
        if let Some(grace) = jobs.take()
            && let Err(failure) = end::end_jobs(&own, grace).await
        {
            cx.warn(format!("the jobs are ended with the steps: {failure}"));
        }
        if let Err(failure) = requeue::requeue(cx, &allocation.job, failed.as_deref()) {
            cx.warn(failure);
        }
    } else if let Some(failed) = failed {
        cx.warn(format!(
            "some nodes failed here; to get others next time: sbatch --exclude={failed}"
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

/// Ends the jobs as planned, and shows what their workers print while they save. A second signal ends that.
async fn stop_jobs(
    cx: &Context,
    own: &Context,
    work: Pin<&mut impl Future<Output = Result<(), Failure>>>,
    stops: &mut Stops,
    mut outcome: Result<(), Failure>,
) -> Result<(), Failure> {
    let ending = async {
        if let Err(failure) = end::end_jobs(own, GRACE).await {
            cx.warn(format!("the jobs are ended with the steps: {failure}"));
        }
    };
    let showing = async {
        if work.await.is_ok() {
            outcome = Ok(());
        }
    };
    let both = async { tokio::join!(ending, timeout(GRACE, showing)) };
    tokio::select! {
        _ = both => {}
        () = stops.next() => {}
    }
    outcome
}
