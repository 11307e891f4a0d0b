//! A foreign object, and the `MusterJob` that was made for one, as they are read. Fields that are not
//! needed are dropped here.

use kube::api::{DynamicObject, ObjectMeta};
use muster_core::{
    fleet::job::Phase,
    id::{JobName, JobUid},
    spec::{
        SpecDocument,
        shape::{DISRUPTION_BUDGET, NETWORK_POLICY, TEMPLATE},
    },
    time::Timestamp,
};
use muster_foreign::adopt::{self, Adoptable};
use serde_json::{Value, json};

use super::{
    made::{ADOPTED, GENERATION, MANAGER_OF_FIELDS, PATCHES, SPEC, with_labels, without_nulls},
    runtime,
};
use crate::{
    follow::size,
    rules::adoption::{self, Adopted, Child, Claim, LABEL, Rejected, Wanted},
};

/// What an object without a claim says in place of a job.
const NOT_OURS: &str =
    "neither its label nor its managedBy names Muster any more; delete the object to end its job";

/// A foreign object before it is read as one of its kind.
pub(super) struct Raw {
    pub(super) name: JobName,
    uid: String,
    version: String,
    generation: i64,
    created: Timestamp,
    deleting: bool,
    claim: Claim,
    written_by: Option<String>,
    suspend: Option<bool>,
    /// Empty if the object is not for us.
    spec: Value,
    status: Value,
    /// Those of spec and status.
    pub(super) bytes: usize,
    /// There was no room for them.
    shed: bool,
}

impl Raw {
    /// `None`: it is no object of an API server.
    pub(super) fn of(object: DynamicObject) -> Option<Self> {
        let DynamicObject { metadata, data, .. } = object;
        let mut data = data;
        let mut part = |name: &str| data.get_mut(name).map(Value::take).unwrap_or_default();
        let (mut spec, status) = (part("spec"), part("status"));
        let label = metadata.labels.as_ref().and_then(|all| all.get(LABEL));
        let manager = ["/runPolicy/managedBy", "/RunPolicy/managedBy", "/managedBy"];
        let manager = manager
            .into_iter()
            .find_map(|at| spec.pointer(at)?.as_str());
        let suspend = suspends(&spec);
        let claim = adoption::claim(label.map(String::as_str), manager);
        if claim == Claim::Others {
            // There may be thousands of another operator.
            spec = Value::Null;
        }
        let bytes = size(&spec) + size(&status);
        Some(Self {
            bytes,
            shed: false,
            name: JobName {
                namespace: metadata.namespace.clone()?,
                name: metadata.name.clone()?,
            },
            uid: metadata.uid.clone()?,
            version: metadata.resource_version.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            created: created(&metadata),
            deleting: metadata.deletion_timestamp.is_some(),
            written_by: written_by(&metadata),
            claim,
            suspend,
            spec,
            status,
        })
    }
}

impl Raw {
    /// Keeps nothing of spec and status.
    pub(super) fn shed(&mut self) {
        (self.spec, self.status) = (Value::Null, Value::Null);
        (self.bytes, self.shed) = (0, true);
    }
}

/// Whether a spec of any kind asks to be held back. It is read by itself: what is wrong beside it takes
/// nothing from it.
fn suspends(spec: &Value) -> Option<bool> {
    let places = ["/runPolicy/suspend", "/RunPolicy/suspend", "/suspend"];
    let says = places
        .into_iter()
        .find_map(|at| spec.pointer(at)?.as_bool());
    spec.is_object().then_some(says == Some(true))
}

fn created(metadata: &ObjectMeta) -> Timestamp {
    let at = metadata.creation_timestamp.as_ref();
    let micros = at.map_or(0, |at| at.0.as_microsecond());
    Timestamp(u64::try_from(micros).unwrap_or_default())
}

/// The other program that has written the status, if one has. A definition may have no status of its own to be written:
/// then the fields tell.
fn written_by(metadata: &ObjectMeta) -> Option<String> {
    let all = metadata.managed_fields.iter().flatten();
    let mut of_status = all.filter(|fields| {
        let part = fields
            .fields_v1
            .as_ref()
            .map(|fields| &fields.0["f:status"]);
        fields.subresource.as_deref() == Some("status") || part.is_some_and(Value::is_object)
    });
    let is_operator =
        |name: Option<&str>| name.is_none_or(|name| name != MANAGER_OF_FIELDS && !is_person(name));
    let other = of_status.find(|fields| is_operator(fields.manager.as_deref()));
    let name = other.map(|fields| fields.manager.clone());
    name.map(|name| name.unwrap_or_else(|| "somebody".to_owned()))
}

/// Whether these fields were written with kubectl: `kubectl-client-side-apply`, `kubectl-edit` and so on.
/// An export that is applied anew has the status of its first life.
fn is_person(manager: &str) -> bool {
    let rest = manager.strip_prefix("kubectl");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The parts of a foreign object that are kept.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) object: Adopted,
    pub(super) kind: Adoptable,
    /// Its resourceVersion.
    pub(super) version: String,
    pub(super) created: Timestamp,
    pub(super) status: Value,
    /// Its fields that have no effect here.
    pub(super) warnings: Vec<String>,
    /// Its spec, if a runtime is needed to read it as a job. Then `job` is what it says itself.
    pub(super) spec: Option<Value>,
    /// There was no room for its spec and its status. Nothing is done about it.
    pub(super) shed: bool,
}

impl Seen {
    pub(super) fn of(kind: Adoptable, raw: Raw) -> Self {
        let (job, warnings) = match raw.claim {
            Claim::Others => (Err(NOT_OURS.to_owned()), Vec::new()),
            _ => match read(&kind, &raw.name, &raw.spec, None) {
                Ok((job, warnings)) => (Ok(job), warnings),
                Err(why) => (Err(why), Vec::new()),
            },
        };
        // Where the status is written with the object, each write counts as another version.
        let generation = match kind.may_lack_status() {
            true => runtime::number_of(&raw.spec),
            false => raw.generation,
        };
        Self {
            shed: raw.shed,
            spec: kind.has_runtime().then_some(raw.spec),
            kind,
            version: raw.version,
            created: raw.created,
            warnings,
            object: Adopted {
                name: raw.name,
                uid: raw.uid,
                claim: raw.claim,
                generation,
                deleting: raw.deleting,
                job,
                suspend: raw.suspend,
                over: over(&kind, &raw.status),
                written_by: raw.written_by.filter(|_| !raw.status.is_null()),
            },
            status: raw.status,
        }
    }

    /// The object beside the `MusterJob` that was made of it and of its runtime, if it has one. That has all
    /// of the job that cannot change.
    pub(super) fn beside(&self, made: &Made) -> Option<Adopted> {
        let child = &made.child;
        let (Some(spec), Ok(has)) = (&self.spec, &child.job) else {
            return None;
        };
        let own = child.owner.as_deref() == Some(&*self.object.uid);
        // A queue takes its patches away from what it holds back, and lays others when it lets it go.
        let held = self.object.suspend == Some(true);
        // Of what is not ours any more the patches are not kept, and it says so itself.
        let same =
            held || self.object.claim == Claim::Others || made.patches == runtime::patches(spec);
        let job = match same {
            true => self.object.job.clone(),
            false => Err(runtime::PATCHED.to_owned()),
        };
        let job = job.map(|says| Wanted {
            spec: SpecDocument {
                suspend: says.spec.suspend,
                ..has.spec.clone()
            },
            template: has.template.clone(),
        });
        own.then(|| Adopted {
            job,
            ..self.object.clone()
        })
    }

    /// Whether this state is older than the other. The versions of an object are numbers that grow.
    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        let number = |seen: &Self| seen.version.parse::<u64>();
        match (number(self), number(other)) {
            (Ok(own), Ok(others)) => own < others,
            _ => false,
        }
    }
}

/// The job that an object is, and what of it has no effect. Without the runtime that it needs, it is what the
/// object says itself.
pub(super) fn read(
    kind: &Adoptable,
    name: &JobName,
    spec: &Value,
    runtime: Option<&Value>,
) -> Result<(Wanted, Vec<String>), String> {
    let object = json!({
        "apiVersion": format!("{}/{}", kind.group, kind.version),
        "kind": kind.kind,
        "metadata": { "name": name.name, "namespace": name.namespace },
        "spec": spec,
    });
    let runtime = runtime.map(Value::to_string);
    let adopted = adopt::adopt(&object.to_string(), runtime.as_deref());
    let adopted = adopted.map_err(|reasons| reasons.join("; "))?;
    let template = serde_json::to_value(&adopted.template).expect("trees have a JSON form");
    let template = with_labels(without_nulls(template), kind, &name.name)?;
    let warnings = adopted.warnings.iter().map(adopt::said).collect();
    let wanted = Wanted {
        spec: adopted.document.spec,
        template: Some(template.to_string()),
    };
    Ok((wanted, warnings))
}

/// Since when a status says that its job is over. `None`: it does not say so.
fn over(kind: &Adoptable, status: &Value) -> Option<Timestamp> {
    let words = kind.words();
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let ends = |one: &&Value| {
        let is_end = one["type"].as_str().is_some_and(|of| words.is_end(of));
        is_end && one["status"] == "True"
    };
    let end = conditions.rfind(ends)?;
    let texts = [
        &status["completionTime"],
        &status["endTime"],
        &end["lastTransitionTime"],
    ];
    let time = |text: &Value| -> Option<Timestamp> {
        let time: jiff::Timestamp = text.as_str()?.parse().ok()?;
        u64::try_from(time.as_microsecond()).ok().map(Timestamp)
    };
    // Such a status does not say when the job ended, so that it never goes by itself.
    Some(
        texts
            .into_iter()
            .find_map(time)
            .unwrap_or(Timestamp(u64::MAX)),
    )
}

/// What is kept of a `MusterJob` that was made for a foreign object.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) name: JobName,
    pub(super) uid: JobUid,
    pub(super) version: String,
    /// The kind of its owner, with its group and version.
    pub(super) owner_kind: Option<(String, String)>,
    /// The digest of the patches with which a TrainJob began.
    pub(super) patches: Option<String>,
    pub(super) child: Child,
    /// Its own status, for a job that the store does not know any more: phase, time and message.
    pub(super) ended: Option<(Phase, Option<Timestamp>, String)>,
    /// Those of its spec.
    pub(super) bytes: usize,
}

impl Made {
    /// `None`: it was not made for a foreign object.
    pub(super) fn of(object: DynamicObject) -> Option<Self> {
        let DynamicObject { metadata, data, .. } = object;
        metadata.labels.as_ref()?.get(ADOPTED)?;
        let owners = metadata.owner_references.iter().flatten();
        let owner = owners
            .into_iter()
            .find(|owner| owner.controller == Some(true));
        let annotations = metadata.annotations.as_ref();
        let generation = annotations.and_then(|all| all.get(SPEC).or(all.get(GENERATION)));
        Some(Self {
            name: JobName {
                namespace: metadata.namespace.clone()?,
                name: metadata.name.clone()?,
            },
            uid: JobUid::from(metadata.uid.clone()?),
            version: metadata.resource_version.clone().unwrap_or_default(),
            owner_kind: owner.map(|owner| (owner.api_version.clone(), owner.kind.clone())),
            patches: annotations.and_then(|all| all.get(PATCHES).cloned()),
            ended: ended(&data["status"]),
            bytes: 1_024 + size(&data["spec"]),
            child: Child {
                owner: owner.map(|owner| owner.uid.clone()),
                made_from: generation.and_then(|text| text.parse().ok()),
                deleting: metadata.deletion_timestamp.is_some(),
                job: document(data["spec"].clone()),
                rejected: rejected(&data["status"]),
            },
        })
    }

    /// Whether it was made for an object of this kind.
    pub(super) fn is_of(&self, kind: &Adoptable) -> bool {
        let is = |(version, name): &(String, String)| {
            version.split('/').next() == Some(kind.group) && name == kind.kind
        };
        self.owner_kind.as_ref().is_some_and(is)
    }

    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        match (self.version.parse::<u64>(), other.version.parse::<u64>()) {
            (Ok(own), Ok(others)) => own < others,
            _ => false,
        }
    }
}

fn document(mut spec: Value) -> Result<Wanted, String> {
    let mut own = |field: &str| spec.as_object_mut()?.remove(field);
    let template = own(TEMPLATE).filter(|template| !template.is_null());
    drop(own(NETWORK_POLICY));
    drop(own(DISRUPTION_BUDGET));
    let spec: SpecDocument = serde_json::from_value(spec).map_err(|e| format!("spec: {e}"))?;
    Ok(Wanted {
        spec,
        template: template.map(|template| without_nulls(template).to_string()),
    })
}

fn rejected(status: &Value) -> Option<Rejected> {
    if status["phase"] != crate::rules::job_status::REJECTED {
        return None;
    }
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let accepted = conditions.find(|condition| condition["type"] == "Accepted")?;
    Some(Rejected {
        message: accepted["message"].as_str().unwrap_or_default().to_owned(),
        is_final: accepted["reason"] == "InvalidSpec",
    })
}

fn ended(status: &Value) -> Option<(Phase, Option<Timestamp>, String)> {
    let phase = match status["phase"].as_str()? {
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        "Cancelled" => Phase::Cancelled,
        _ => return None,
    };
    let time = status["completionTime"].as_str();
    let message = status["message"].as_str().unwrap_or_default();
    Some((
        phase,
        time.and_then(Timestamp::from_rfc3339),
        message.to_owned(),
    ))
}

#[cfg(test)]
mod tests;
