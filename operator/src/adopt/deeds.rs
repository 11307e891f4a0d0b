//! What is done about one foreign object, each with one question to the API server, or with a second one
//! to be sure.

use muster_core::{id::JobName, time::Timestamp};
use muster_foreign::adopt::Adoptable;
use serde_json::{Value, json};
use tracing::debug;

use super::{
    events,
    labels::{self, Place},
    made::{self, MANAGER_OF_FIELDS},
    object::{self, Made, Raw, Seen},
    runtime::{self, Runtime},
};
use crate::{
    crd::JOBS,
    rules::adoption::Change,
    server::{Server, Unanswered},
};

/// A deed that succeeded.
pub(super) enum Done {
    /// The watch tells what came of it.
    Asked,
    Made(Box<Made>),
    /// The status, which is now so.
    Written(Box<Raw>),
    Labelled(String, Place),
}

pub(super) enum Failed {
    /// The API server does not take it, and says why. It is final if the object itself is wrong.
    Refused {
        why: String,
        is_final: bool,
    },
    Step(Unanswered),
    Write(Unanswered),
    Label(Unanswered),
}

/// Whether an object that the API server refuses is wrong itself.
fn refused(why: Unanswered) -> Failed {
    match why {
        Unanswered::Refused {
            code: 400 | 422,
            text,
        } => Failed::Refused {
            why: text,
            is_final: true,
        },
        why => Failed::Step(why),
    }
}

fn of_child(name: &JobName, one: &str) -> String {
    let api = muster_core::spec::API_VERSION;
    format!("/apis/{api}/namespaces/{}/{JOBS}{one}", name.namespace)
}

fn of_object(kind: &Adoptable, name: &JobName, part: &str) -> String {
    let JobName { namespace, name } = name;
    format!(
        "{}/namespaces/{namespace}/{}/{name}{part}",
        kind.path(),
        kind.plural
    )
}

/// Makes the `MusterJob`. Then tells these events; whether that works is not important.
pub(super) async fn create(
    server: Server,
    seen: Seen,
    object: Value,
    told: Vec<(String, Value)>,
) -> Result<Done, Failed> {
    let name = &seen.object.name;
    let made = server.create(&of_child(name, ""), &object).await;
    let made = match made {
        Ok(made) => made,
        Err(Unanswered::Exists(_)) => {
            let path = of_child(name, &format!("/{}", name.name));
            let there: Value = server.get(&path).await.map_err(Failed::Step)?;
            return taken(&seen, &there);
        }
        Err(why) => return Err(refused(why)),
    };
    tell(&server, told).await;
    Ok(Made::of(made).map_or(Done::Asked, |made| Done::Made(Box::new(made))))
}

/// Reads the runtime that an object names, and makes the `MusterJob` of both.
pub(super) async fn create_with_runtime(
    server: Server,
    seen: Seen,
    at: Timestamp,
) -> Result<Done, Failed> {
    let wrong = |why: String| Failed::Refused {
        why,
        is_final: true,
    };
    let (kind, name) = (seen.kind, seen.object.name.clone());
    let spec = seen.spec.clone().unwrap_or_default();
    let Runtime { called, path } = runtime::of(&kind, &name.namespace, &spec).map_err(wrong)?;
    let found: Value = match server.get(&path).await {
        Ok(found) => found,
        Err(why) if why.is_missing() => {
            return Err(Failed::Refused {
                why: format!("there is no {called}; the job begins when it is there"),
                is_final: false,
            });
        }
        Err(why) => return Err(Failed::Step(why)),
    };
    let (wanted, warnings) = object::read(&kind, &name, &spec, Some(&found)).map_err(wrong)?;
    let told = events::no_effect(&seen, &warnings, at);
    let object = made::with_runtime(&kind, &seen.object, &wanted, &spec);
    create(server, seen, object, told).await
}

/// There is a `MusterJob` of this name.
fn taken(seen: &Seen, there: &Value) -> Result<Done, Failed> {
    let owners = there["metadata"]["ownerReferences"].as_array();
    let owner = owners
        .into_iter()
        .flatten()
        .find(|owner| owner["controller"] == true);
    if owner.is_some_and(|owner| owner["uid"] == seen.object.uid) {
        // An earlier request had no answer.
        return Ok(Done::Asked);
    }
    let name = &seen.object.name.name;
    let whose = match owner {
        Some(owner) => format!(
            ", which belongs to the {} {}",
            owner["kind"].as_str().unwrap_or_default(),
            owner["name"].as_str().unwrap_or_default()
        ),
        None => String::new(),
    };
    Err(Failed::Refused {
        why: format!(
            "there is a MusterJob {name} already{whose}; this job begins when that one is deleted (kubectl delete mj {name}), or under another name"
        ),
        is_final: false,
    })
}

pub(super) async fn change(server: Server, made: Made, change: Change) -> Result<Done, Failed> {
    let path = of_child(&made.name, &format!("/{}", made.name.name));
    let patch = made::patch(change, made.uid.as_str());
    match server.merge(&path, &patch).await {
        Ok(object) => {
            let made = Made::of(object);
            Ok(made.map_or(Done::Asked, |made| Done::Made(Box::new(made))))
        }
        Err(Unanswered::Refused {
            code: 400 | 422,
            text,
        }) => Err(Failed::Refused {
            why: text,
            is_final: false,
        }),
        Err(why) => Err(Failed::Step(why)),
    }
}

/// Deletes a `MusterJob` whose owner is gone. If no watch has told of the owner's end, the API server is
/// asked first, as the garbage collector does it.
pub(super) async fn delete_child(
    server: Server,
    kind: Adoptable,
    made: Made,
    is_certain: bool,
) -> Result<Done, Failed> {
    if !is_certain {
        let path = of_object(&kind, &made.name, "");
        match server.get::<Value>(&path).await {
            Ok(object) if made.child.owner.as_deref() == object["metadata"]["uid"].as_str() => {
                return Ok(Done::Asked);
            }
            Ok(_) => {}
            Err(why) if why.is_missing() => {}
            Err(why) => return Err(Failed::Step(why)),
        }
    }
    let path = of_child(&made.name, &format!("/{}", made.name.name));
    delete(&server, &path, made.uid.as_str()).await
}

pub(super) async fn delete_object(server: Server, seen: Seen) -> Result<Done, Failed> {
    let path = of_object(&seen.kind, &seen.object.name, "");
    delete(&server, &path, &seen.object.uid).await
}

/// Deletes this very object, and none of its name that came after it.
async fn delete(server: &Server, path: &str, uid: &str) -> Result<Done, Failed> {
    let options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": { "uid": uid },
    });
    match server.delete::<Value>(path, &options).await {
        Ok(_) => Ok(Done::Asked),
        // The watch tells of it.
        Err(why) if why.is_missing() => Ok(Done::Asked),
        Err(why) => Err(Failed::Step(why)),
    }
}

/// Writes the status on the version of the object that was seen. Then tells these events.
pub(super) async fn write(
    server: Server,
    seen: Seen,
    patch: Value,
    told: Vec<(String, Value)>,
) -> Result<Done, Failed> {
    let path = |part: &str| {
        let path = of_object(&seen.kind, &seen.object.name, part);
        format!("{path}?fieldManager={MANAGER_OF_FIELDS}")
    };
    let object = match server.merge(&path("/status"), &patch).await {
        Err(why) if why.is_missing() && seen.kind.may_lack_status() => {
            server.merge(&path(""), &patch).await
        }
        answer => answer,
    };
    let object = object.map_err(Failed::Write)?;
    tell(&server, told).await;
    Ok(Raw::of(object).map_or(Done::Asked, |raw| Done::Written(Box::new(raw))))
}

pub(super) async fn label(
    server: Server,
    kind: Adoptable,
    namespace: String,
    pod: String,
    place: Place,
) -> Result<Done, Failed> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
    let patch = labels::patch(&kind, &place);
    match server.merge::<Value>(&path, &patch).await {
        Ok(_) => Ok(Done::Labelled(pod, place)),
        // It is gone, and so are its labels.
        Err(why) if why.is_missing() => Ok(Done::Labelled(pod, place)),
        Err(why) => Err(Failed::Label(why)),
    }
}

/// Events are a courtesy: one that cannot be written is dropped.
pub(super) async fn tell(server: &Server, told: Vec<(String, Value)>) {
    for (path, event) in told {
        if let Err(why) = server.create::<Value>(&path, &event).await {
            debug!("tell an event: {why}");
        }
    }
}

/// Why something failed, for the log. `None`: it is everyday life.
pub(super) fn sentence(failed: &Failed, kind: &Adoptable) -> Option<String> {
    let (why, right) = match failed {
        Failed::Refused { .. } => return None,
        Failed::Step(why) => (
            why,
            format!(
                "create and get on {JOBS}, delete on {0}, update on {0}/finalizers{1}",
                kind.plural,
                match kind.has_runtime() {
                    true => ", get on clustertrainingruntimes and trainingruntimes",
                    false => "",
                }
            ),
        ),
        Failed::Write(why) => (
            why,
            format!(
                "patch on {0}/status{1}",
                kind.plural,
                match kind.may_lack_status() {
                    true => ", and on the objects if their definition has no status subresource",
                    false => "",
                }
            ),
        ),
        Failed::Label(why) => (why, "patch on pods".to_owned()),
    };
    match why {
        // Somebody else has changed or deleted the object. The watch tells.
        Unanswered::Refused {
            code: 404 | 409, ..
        } => None,
        Unanswered::Forbidden(_) => Some(format!(
            "{why}; its user needs {right} (manifests/components/adopt)"
        )),
        _ => Some(why.to_string()),
    }
}
