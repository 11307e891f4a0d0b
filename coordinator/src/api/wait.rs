//! `JobService.Wait`: answers when a job has reached a state, or can never reach it.

use std::time::Duration;

use muster_core::{
    fleet::{job::Phase, view::JobView},
    id::JobName,
};
use muster_proto::{convert::jobs::job_ref, v1};
use tonic::Status;

use super::{
    context::Context,
    feed::shutting_down,
    job::{job_name, no_such, shown},
    status,
};
use crate::trust::Rights;

/// Longest wait a client may ask for: 30 days, as long as any period in a job.
const TIMEOUT_MAX: Duration = muster_core::period::LONGEST;

pub(crate) async fn wait(
    context: &Context,
    rights: &mut Rights,
    request: v1::WaitRequest,
) -> Result<v1::Job, Status> {
    let target = request.wait_for();
    let v1::WaitRequest {
        r#ref,
        timeout_ms,
        wait_for,
    } = request;
    let name = job_name(rights, r#ref).await?;
    if target == v1::WaitFor::Unspecified {
        return Err(status::invalid(
            "wait_for",
            format!("is {wait_for}, must be WAIT_FOR_RUNNING, _COMPLETE or _DELETED"),
        ));
    }
    let timeout = Duration::from_millis(timeout_ms);
    if timeout > TIMEOUT_MAX {
        return Err(status::invalid("timeout_ms", "is longer than 30 days"));
    }
    let timeout = if timeout.is_zero() {
        TIMEOUT_MAX
    } else {
        timeout
    };
    tokio::select! {
        reached = reach(context, rights, &name, target) => reached,
        ended = context.end_of(rights.clone()) => Err(ended),
        () = tokio::time::sleep(timeout) => Err(late(context, &name, target, timeout)),
        () = context.scope.shutdown().cancelled() => Err(shutting_down()),
    }
}

async fn reach(
    context: &Context,
    rights: &Rights,
    name: &JobName,
    target: v1::WaitFor,
) -> Result<v1::Job, Status> {
    let mut jobs = context.handle.jobs();
    let mut uid = None;
    loop {
        let view = jobs.borrow_and_update().get(name).cloned();
        // Wait only for the job that was there at the start, not for a later one of the same name.
        let same = view
            .filter(|view| uid.get_or_insert_with(|| view.record.uid.clone()) == &view.record.uid);
        match same {
            Some(view) => {
                if let Some(verdict) = outcome(&view, target) {
                    return verdict.map(|()| shown(rights, &view));
                }
            }
            None if target == v1::WaitFor::Deleted => {
                let uid = uid.map(|uid| uid.to_string()).unwrap_or_default();
                return Ok(v1::Job {
                    r#ref: Some(job_ref(name)),
                    uid,
                    ..v1::Job::default()
                });
            }
            None => return Err(no_such(name)),
        }
        if jobs.changed().await.is_err() {
            return Err(shutting_down());
        }
    }
}

/// Whether the job has reached the state, or can never reach it. `None`: not yet.
fn outcome(view: &JobView, target: v1::WaitFor) -> Option<Result<(), Status>> {
    let record = &view.record;
    let members = record
        .current
        .as_ref()
        .map_or(0, |generation| generation.size());
    match (target, record.phase) {
        (v1::WaitFor::Running, Phase::Running) if view.nodes_running == members && members > 0 => {
            Some(Ok(()))
        }
        // The job did run. A client that asks a moment too late must not be told otherwise.
        (v1::WaitFor::Running, Phase::Succeeded) => Some(Ok(())),
        (v1::WaitFor::Running, Phase::Failed | Phase::Cancelled) => {
            Some(Err(Status::failed_precondition(format!(
                "job {} is {:?} and will not run again: {}",
                record.name, record.phase, record.message
            ))))
        }
        (v1::WaitFor::Complete, phase) if phase.is_over() => Some(Ok(())),
        _ => None,
    }
}

fn late(context: &Context, name: &JobName, target: v1::WaitFor, timeout: Duration) -> Status {
    let aim = match target {
        v1::WaitFor::Running => "running",
        v1::WaitFor::Complete => "over",
        _ => "deleted",
    };
    let now = context.handle.job(name).map_or_else(
        || "it is not known any more".into(),
        |view| match view.record.message.as_str() {
            "" => format!("it is {:?}", view.record.phase),
            message => format!("it is {:?}: {message}", view.record.phase),
        },
    );
    Status::deadline_exceeded(format!(
        "job {name} is not {aim} after {}; {now}",
        muster_core::period::format(timeout)
    ))
}
