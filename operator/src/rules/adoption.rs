//! An object of another system's kind, such as a `PyTorchJob`, that names Muster as its manager, and
//! the `MusterJob` object that runs it.
//!
//! The foreign object is the request and stays its user's. The coordinator makes a `MusterJob` of its
//! name that it owns, keeps in step what may change, and writes the foreign object's status.
//! [`claim`] says whether an object is for us. [`plan`] looks at the object and at its `MusterJob`
//! and names the next step, what the status shows, and what cannot be done. It may be asked again at
//! any time.
//!
//! A `MusterJob` that somebody deletes is made again, as a Deployment makes its ReplicaSet again. An
//! object that is suspended gets none before it is resumed for the first time, so that a queue may
//! still change its template.

use std::{fmt, time::Duration};

use muster_core::{
    id::JobName,
    spec::{API_VERSION, JobDocument, JobSpec, KIND, Metadata, SpecDocument},
    time::Timestamp,
};
use muster_foreign::MANAGER;

/// The label that names us, with the value `true`. Some definitions and webhooks take no `managedBy`
/// but their own.
pub const LABEL: &str = "muster.dev/adopt";

/// What Kubeflow's operator leaves alone, and its webhook takes (training-operator 1.9,
/// `pkg/common/util/webhooks.go`). Beside our label it means that nobody else runs the object.
const LEFT_ALONE: &str = "kueue.x-k8s.io/multikueue";

/// The manager that the definition of a `TrainJob` gives to each that names none. It takes this and
/// [`LEFT_ALONE`] (kubeflow/trainer 2.3, `pkg/apis/trainer/v1alpha1/trainjob_types.go`).
const TRAINER: &str = "trainer.kubeflow.org/trainjob-controller";

/// The manager of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    Ours,
    Others,
    /// Its label names us, and its `managedBy` this other manager.
    Both(String),
}

/// The manager of an object with this label and this `managedBy`.
pub fn claim(label: Option<&str>, managed_by: Option<&str>) -> Claim {
    let manager = managed_by.filter(|manager| !manager.is_empty());
    match (label == Some("true"), manager) {
        (_, Some(MANAGER)) | (true, None | Some(LEFT_ALONE)) => Claim::Ours,
        (true, Some(other)) => Claim::Both(other.to_owned()),
        (false, _) => Claim::Others,
    }
}

/// A foreign object as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopted {
    pub name: JobName,
    pub uid: String,
    pub claim: Claim,
    /// Which version of its spec it is. A later one may have a lower number.
    pub generation: i64,
    /// Somebody has deleted it.
    pub deleting: bool,
    /// The job that it is, or why it can be none.
    pub job: Result<Wanted, String>,
    /// Whether it asks to be held back, also where `job` is an error. `None`: it cannot be told.
    pub suspend: Option<bool>,
    /// Its status says that it is over, since this moment.
    pub over: Option<Timestamp>,
    /// Somebody else has written its status.
    pub written_by: Option<String>,
}

/// The job that an object is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    pub spec: SpecDocument,
    /// The template of its pods, as JSON.
    pub template: Option<String>,
}

impl Wanted {
    /// The foreign object goes so long after its end, and takes its `MusterJob` along.
    fn ttl(&self) -> Option<Duration> {
        let seconds = self.spec.ttl_seconds_after_finished?;
        u64::try_from(seconds).ok().map(Duration::from_secs)
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// What its `MusterJob` says. The foreign object has the time to live.
    fn of_child(mut self) -> Self {
        self.spec.ttl_seconds_after_finished = None;
        self
    }
}

/// The `MusterJob` of the object's name.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// The uid of the foreign object that owns it. `None`: none does.
    pub owner: Option<String>,
    /// The generation of the foreign object from which it was made.
    pub made_from: Option<i64>,
    pub deleting: bool,
    pub job: Result<Wanted, String>,
    /// Why it is not accepted.
    pub rejected: Option<Rejected>,
}

/// Why a `MusterJob` is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    pub message: String,
    /// It never will be as it stands.
    pub is_final: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Make the `MusterJob`.
    Create(Box<Wanted>),
    /// Change what may change of the `MusterJob`.
    Update(Change),
    /// Delete the `MusterJob`, whose owner is gone or going.
    DeleteChild,
    /// Delete the foreign object. It has been over for long enough.
    DeleteObject,
}

/// What may change of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub replicas: Option<i64>,
    pub suspend: bool,
    pub active_deadline_seconds: Option<i64>,
}

impl Change {
    fn of(spec: &SpecDocument) -> Self {
        Self {
            replicas: spec.replicas,
            suspend: spec.suspend == Some(true),
            active_deadline_seconds: spec.active_deadline_seconds,
        }
    }
}

/// Why an object is not done as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objection {
    /// It would mean something else here.
    Refused(String),
    /// Its label names us, and its `managedBy` somebody else.
    TwoManagers(String),
    /// Somebody else has written its status, so another operator runs it.
    OtherOperator(String),
    /// It was changed after the start into something that would be refused.
    ChangeRefused(String),
    /// These fields of the `MusterJob` differ from what the object says now, and cannot change.
    FixedFields(Vec<&'static str>),
    /// The number of nodes wanted is outside the range with which the job began.
    OutOfRange { wanted: i64, min: i64, max: i64 },
    /// The `MusterJob` cannot be made or changed for now.
    NotYet(String),
}

/// What the status of the object shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// It is left as it is.
    AsItIs,
    /// The object exists, and has no job yet.
    Created,
    /// The same, and it is held back.
    Suspended,
    /// How its job is.
    Job,
    /// It has failed, by the objection.
    Failed,
}

/// What an object needs now.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub step: Option<Step>,
    pub objection: Option<Objection>,
    pub shows: Shows,
    /// When to ask again, if nothing changes before.
    pub again: Option<Timestamp>,
}

impl Objection {
    /// The reason of an event, in CamelCase.
    pub fn reason(&self) -> &'static str {
        match self {
            Objection::Refused(_) => "FailedValidation",
            Objection::TwoManagers(_) => "TwoManagers",
            Objection::OtherOperator(_) => "OtherOperator",
            Objection::ChangeRefused(_) | Objection::FixedFields(_) => "ChangeRefused",
            Objection::OutOfRange { .. } => "OutOfRange",
            Objection::NotYet(_) => "NotYet",
        }
    }
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Objection::Refused(why) | Objection::NotYet(why) => f.write_str(why),
            Objection::TwoManagers(manager) if manager == TRAINER => write!(
                f,
                "the label {LABEL} asks Muster to run it, and managedBy is {manager:?}, as of each TrainJob that does not say otherwise; make it with \
                 managedBy: {LEFT_ALONE:?}, which Trainer leaves alone"
            ),
            Objection::TwoManagers(manager) => write!(
                f,
                "the label {LABEL} asks Muster to run it, and managedBy is {manager:?}; leave managedBy out, or set it to {MANAGER:?}, or to \
                 {LEFT_ALONE:?} where Kubeflow's operator runs"
            ),
            Objection::OtherOperator(manager) => write!(
                f,
                "{manager} has written its status, so it runs it already; Muster leaves it alone. Set managedBy before you make an object"
            ),
            Objection::ChangeRefused(why) => write!(
                f,
                "the change is refused, and the job goes on as it was: {why}"
            ),
            Objection::FixedFields(fields) => write!(
                f,
                "the change of {} has no effect on a job that was started; to run it with the change, delete it and create it again",
                fields.join(", ")
            ),
            Objection::OutOfRange { wanted, min, max } => write!(
                f,
                "{wanted} replicas are wanted, and the job was started for {min} to {max}; it goes on with as many as before"
            ),
        }
    }
}

impl Plan {
    const NOTHING: Plan = Plan {
        step: None,
        objection: None,
        shows: Shows::AsItIs,
        again: None,
    };

    fn step(step: Step, shows: Shows) -> Self {
        Self {
            step: Some(step),
            shows,
            ..Self::NOTHING
        }
    }

    fn objection(objection: Objection, shows: Shows) -> Self {
        Self {
            objection: Some(objection),
            shows,
            ..Self::NOTHING
        }
    }
}

/// The next step about a foreign object and the `MusterJob` of its name. One of them may be missing.
/// `child`: an adopted one; another `MusterJob` of the name is met when ours is made. Ask only when
/// all objects of both kinds are known.
pub fn plan(object: Option<&Adopted>, child: Option<&Child>, now: Timestamp) -> Plan {
    let Some(object) = object else {
        return orphan(child);
    };
    let own = child.filter(|child| child.owner.as_deref() == Some(&object.uid));
    match (own, child) {
        (Some(own), _) => of_both(object, own, now),
        // That of a predecessor is on its way out.
        (None, Some(other)) if !object.deleting && object.over.is_none() => Plan {
            shows: waiting(object),
            ..orphan(Some(other))
        },
        (None, Some(other)) => orphan(Some(other)),
        (None, None) => alone(object, now),
    }
}

/// A `MusterJob` whose owner is gone.
fn orphan(child: Option<&Child>) -> Plan {
    match child {
        Some(child) if !child.deleting && child.owner.is_some() => {
            Plan::step(Step::DeleteChild, Shows::AsItIs)
        }
        _ => Plan::NOTHING,
    }
}

fn waiting(object: &Adopted) -> Shows {
    match object.claim {
        Claim::Ours => Shows::Created,
        Claim::Others | Claim::Both(_) => Shows::AsItIs,
    }
}

fn alone(object: &Adopted, now: Timestamp) -> Plan {
    match &object.claim {
        Claim::Others => return Plan::NOTHING,
        Claim::Both(manager) => {
            let objection = Objection::TwoManagers(manager.clone());
            return Plan::objection(objection, Shows::AsItIs);
        }
        Claim::Ours => {}
    }
    if object.deleting {
        return Plan::NOTHING;
    }
    if let Some(over) = object.over {
        return after_the_end(object, over, now);
    }
    if let Some(other) = &object.written_by {
        let objection = Objection::OtherOperator(other.clone());
        return Plan::objection(objection, Shows::AsItIs);
    }
    match &object.job {
        Err(why) => Plan::objection(Objection::Refused(why.clone()), Shows::Failed),
        Ok(wanted) if wanted.is_suspended() => Plan {
            shows: Shows::Suspended,
            ..Plan::NOTHING
        },
        Ok(wanted) => {
            let wanted = Box::new(wanted.clone().of_child());
            Plan::step(Step::Create(wanted), Shows::Created)
        }
    }
}

fn of_both(object: &Adopted, child: &Child, now: Timestamp) -> Plan {
    if object.deleting {
        return orphan(Some(child));
    }
    if let Some(over) = object.over {
        return after_the_end(object, over, now);
    }
    let shown = Plan {
        shows: Shows::Job,
        ..Plan::NOTHING
    };
    if child.deleting {
        return shown;
    }
    if let Some(rejected) = &child.rejected {
        return match rejected.is_final {
            true => Plan::objection(Objection::Refused(rejected.message.clone()), Shows::Failed),
            false => Plan::objection(Objection::NotYet(rejected.message.clone()), Shows::Created),
        };
    }
    let Ok(has) = &child.job else {
        // Somebody has changed it. Its own status says what is wrong.
        return shown;
    };
    let then = Change::of(&has.spec);
    let (now, objection) = match change(object, child, has) {
        Ok(now) => (now, None),
        // A queue gives and takes quota by this field alone, and waits until it is obeyed.
        Err(objection) => (
            Change {
                suspend: suspends(object).unwrap_or(then.suspend),
                ..then
            },
            Some(objection),
        ),
    };
    Plan {
        step: (now != then).then_some(Step::Update(now)),
        objection,
        ..shown
    }
}

fn suspends(object: &Adopted) -> Option<bool> {
    let wanted = object.job.as_ref().ok();
    wanted.map(Wanted::is_suspended).or(object.suspend)
}

/// The values that the object wants for the fields that may change.
fn change(object: &Adopted, child: &Child, has: &Wanted) -> Result<Change, Objection> {
    let wanted = object.job.as_ref();
    let wanted = wanted.map_err(|why| Objection::ChangeRefused(why.clone()))?;
    let wanted = wanted.clone().of_child();
    // The words in which a later version reads the same object may differ.
    if child.made_from != Some(object.generation) {
        let fields = differences(&object.name, &wanted, has)?;
        if !fields.is_empty() {
            return Err(Objection::FixedFields(fields));
        }
    }
    let (now, then) = (Change::of(&wanted.spec), Change::of(&has.spec));
    if let (Some(nodes), Some(before)) = (now.replicas, then.replicas) {
        let min = has.spec.min_replicas.unwrap_or(before);
        let max = has.spec.max_replicas.unwrap_or(before);
        if !(min..=max).contains(&nodes) {
            let wanted = nodes;
            return Err(Objection::OutOfRange { wanted, min, max });
        }
    }
    Ok(now)
}

/// The fields that differ and cannot change.
fn differences(
    name: &JobName,
    wanted: &Wanted,
    has: &Wanted,
) -> Result<Vec<&'static str>, Objection> {
    let of_then = |spec: &SpecDocument| SpecDocument {
        replicas: has.spec.replicas,
        suspend: has.spec.suspend,
        active_deadline_seconds: has.spec.active_deadline_seconds,
        // A number that was scaled says nothing about the bounds with which the job began.
        min_replicas: spec.min_replicas.or(has.spec.min_replicas),
        max_replicas: spec.max_replicas.or(has.spec.max_replicas),
        ..spec.clone()
    };
    let checked = |spec: SpecDocument, template: &Option<String>| -> Result<JobSpec, Objection> {
        let document = JobDocument {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata {
                name: name.name.clone(),
                namespace: Some(name.namespace.clone()),
            },
            spec,
        };
        let checked = document.check().map_err(|errors| {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Objection::ChangeRefused(errors.join("; "))
        });
        checked.map(|(_, spec)| JobSpec {
            template: template.clone(),
            ..spec
        })
    };
    let before = checked(has.spec.clone(), &has.template)?;
    let now = checked(of_then(&wanted.spec), &wanted.template)?;
    Ok(before.differences(&now))
}

fn after_the_end(object: &Adopted, over: Timestamp, now: Timestamp) -> Plan {
    let ttl = object.job.as_ref().ok().and_then(Wanted::ttl);
    match ttl.map(|ttl| over + ttl) {
        Some(at) if at > now => Plan {
            again: Some(at),
            ..Plan::NOTHING
        },
        Some(_) => Plan::step(Step::DeleteObject, Shows::AsItIs),
        None => Plan::NOTHING,
    }
}

#[cfg(test)]
mod tests;
