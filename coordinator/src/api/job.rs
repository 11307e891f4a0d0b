//! One job in requests and answers: its name, checked; its view, cut to fit into a message; and the
//! answer if there is no such job.

use muster_core::{
    fleet::{Refusal, view::JobView},
    id::JobName,
    time::Timestamp,
};
use muster_proto::{convert::jobs as wire, limits::MESSAGE_MAX, v1};
use prost::Message;
use tonic::Status;

use super::status;
use crate::trust::Rights;

/// Stands for the value of an environment variable that the caller may not see.
pub(super) const HIDDEN: &str = "<hidden>";

/// A job, cut so that it fits into a message: a very large world loses its ranks, then its members,
/// never its status. Values of its environment are hidden from callers who may not see them.
pub(crate) fn shown(rights: &Rights, view: &JobView) -> v1::Job {
    let mut job = wire::job(view);
    if !rights.sees_environment(view.record.owner.as_ref())
        && let Some(spec) = &mut job.spec
    {
        let of_roles = spec.roles.iter_mut().flat_map(|role| &mut role.env);
        let all = spec.env.iter_mut().chain(of_roles);
        let values = all.filter(|var| var.file.is_empty());
        for variable in values {
            HIDDEN.clone_into(&mut variable.value);
        }
    }
    // Leaves room for the other parts of a page or an explanation.
    let too_large = |job: &v1::Job| job.encoded_len() > MESSAGE_MAX / 4;
    if too_large(&job)
        && let Some(status) = &mut job.status
    {
        status.ranks.clear();
    }
    if too_large(&job)
        && let Some(status) = &mut job.status
    {
        status.members.clear();
    }
    job
}

/// The same job, and where its time has gone until now.
pub(crate) fn shown_with_time(rights: &Rights, view: &JobView, now: Timestamp) -> v1::Job {
    let mut job = shown(rights, view);
    if let Some(status) = &mut job.status {
        status.time = wire::time(view, now);
    }
    job
}

/// The job that a request names, if the caller's role is for its namespace.
pub(crate) async fn job_name(
    rights: &mut Rights,
    reference: Option<v1::JobRef>,
) -> Result<JobName, Status> {
    let name = wire::job_name("ref", reference).map_err(status::malformed)?;
    rights.may_touch_job(&name).await?;
    Ok(name)
}

pub(crate) fn no_such(name: &JobName) -> Status {
    status::refused(&Refusal::NoSuchJob(name.clone()))
}
