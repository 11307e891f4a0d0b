//! What is done about one `MusterJob` object, each with one question to the engine or to the API server.

use muster_core::{
    fleet::{Actor, Answer, Request},
    id::JobName,
};
use muster_handle::handle::{Handle, NoAnswer};
use serde_json::{Value, json};
use tracing::debug;

use super::{
    dependents::{self, Change},
    object::{MusterJob, Seen},
    status,
};
use crate::{
    crd::{GROUP, JOBS},
    rules::{dependents::Kind, job_object::Step},
    server::{Server, Unanswered},
};

/// What was done.
pub(super) enum Done {
    /// A step that the fleet has taken.
    Decided,
    /// A step about the object itself, which is now so.
    Changed(Box<Seen>),
    /// The object is being deleted. The watch says when it is gone.
    Deleted,
    /// The status, which is now so.
    Written(Box<Seen>),
    /// A dependent. `None`: what was made is none.
    Dependent(Option<dependents::Changed>),
}

pub(super) enum Failed {
    /// The fleet does not take the step.
    Refused(String),
    Step(Unanswered),
    Write(Unanswered),
    Dependent(Kind, Unanswered),
    /// The engine did not answer.
    NoAnswer(NoAnswer),
}

/// Why something failed, for the log. `None`: it is everyday life.
pub(super) fn sentence(why: &Unanswered, part: &str) -> Option<String> {
    match why {
        // Somebody else has changed or deleted the object. The watch tells.
        Unanswered::Refused {
            code: 404 | 409, ..
        } => None,
        Unanswered::Forbidden(_) => Some(format!(
            "{why}; its user needs a ClusterRole with apiGroups [{GROUP}], resources [{JOBS}{part}], verbs [patch, delete]"
        )),
        _ => Some(why.to_string()),
    }
}

fn path(name: &JobName, part: &str) -> String {
    let JobName { namespace, name } = name;
    format!(
        "/apis/{}/namespaces/{namespace}/{JOBS}/{name}{part}",
        muster_core::spec::API_VERSION
    )
}

/// Takes a step. `suspended`: a job that is submitted is held back.
pub(super) async fn do_step(
    handle: Handle,
    server: Server,
    name: JobName,
    step: Step,
    seen: Option<Seen>,
    suspended: bool,
) -> Result<Done, Failed> {
    let request = match step {
        Step::Submit(mut spec) => {
            let Some(seen) = seen else {
                return Ok(Done::Decided);
            };
            spec.suspend |= suspended;
            Request::Submit {
                name,
                spec: *spec,
                uid: seen.object.uid,
                request_id: String::new(),
                validate_only: false,
            }
        }
        Step::Suspend(suspended) => Request::Suspend { name, suspended },
        Step::Scale(nodes) => Request::Scale { name, nodes },
        Step::Cancel => Request::Cancel { name },
        Step::Limit(lifetime) => Request::Limit { name, lifetime },
        Step::Forget => Request::Delete { name },
        Step::Delete => return delete(server, name, seen).await,
        Step::Hold => return hold(server, name, seen, true).await,
        Step::Release => return hold(server, name, seen, false).await,
    };
    match handle.request(Actor::Object, request).await {
        Ok(Answer::Refused(refusal)) => Err(Failed::Refused(refusal.to_string())),
        Ok(_) => Ok(Done::Decided),
        Err(why) => Err(Failed::NoAnswer(why)),
    }
}

/// Makes, changes or deletes a dependent of the object.
pub(super) async fn protect(server: Server, seen: Seen, change: Change) -> Result<Done, Failed> {
    let (object, kind) = (&seen.object, change.step.kind());
    let changed = dependents::change(&server, &object.name, &object.uid, change).await;
    changed
        .map(Done::Dependent)
        .map_err(|why| Failed::Dependent(kind, why))
}

/// Deletes this very object, and none of its name that came after it.
async fn delete(server: Server, name: JobName, seen: Option<Seen>) -> Result<Done, Failed> {
    let Some(seen) = seen else {
        return Ok(Done::Decided);
    };
    let options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": { "uid": seen.object.uid.as_str() },
    });
    let deleted = server.delete::<Value>(&path(&name, ""), &options).await;
    deleted.map(|_| Done::Deleted).map_err(Failed::Step)
}

/// Adds our finalizer or takes it away.
async fn hold(
    server: Server,
    name: JobName,
    seen: Option<Seen>,
    held: bool,
) -> Result<Done, Failed> {
    let Some(seen) = seen else {
        return Ok(Done::Decided);
    };
    let metadata =
        json!({ "resourceVersion": seen.version, "finalizers": seen.finalizers_with(held) });
    let patch = json!({ "metadata": metadata });
    let object: MusterJob = (server.merge(&path(&name, ""), &patch).await).map_err(Failed::Step)?;
    let seen = Seen::of(object).map(Box::new);
    Ok(seen.map_or(Done::Decided, Done::Changed))
}

/// Writes the status on the version of the object that was seen. Then tells an event, if there is
/// one; whether that works is not important.
pub(super) async fn write(
    server: Server,
    seen: Seen,
    wanted: Value,
    told: Option<(String, Value)>,
) -> Result<Done, Failed> {
    let patch = json!({
        "metadata": { "resourceVersion": seen.version },
        "status": status::difference(&seen.status, &wanted),
    });
    let path = path(&seen.object.name, "/status");
    let object: MusterJob = (server.merge(&path, &patch).await).map_err(Failed::Write)?;
    if let Some((path, event)) = told
        && let Err(why) = server.create::<Value>(&path, &event).await
    {
        debug!("tell an event: {why}");
    }
    let seen = Seen::of(object).map(Box::new);
    Ok(seen.map_or(Done::Decided, Done::Written))
}
