//! One job in requests and answers: its name, checked; its view, cut to fit into a message; and the
//! answer if there is no such job.

use muster_core::{
    fleet::{Refusal, view::JobView},
    id::JobName,
};
use muster_proto::{convert::jobs as wire, limits::MESSAGE_MAX, v1};
use prost::Message;
use tonic::Status;

use super::status;

/// A job, cut so that it fits into a message: a very large world loses its ranks, then its members,
/// never its status.
pub(crate) fn shown(view: &JobView) -> v1::Job {
    let mut job = wire::job(view);
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

pub(crate) fn job_name(reference: Option<v1::JobRef>) -> Result<JobName, Status> {
    wire::job_name("ref", reference).map_err(status::malformed)
}

pub(crate) fn no_such(name: &JobName) -> Status {
    status::refused(&Refusal::NoSuchJob(name.clone()))
}
