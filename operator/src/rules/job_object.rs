//! A `MusterJob` object of a Kubernetes cluster, and what it asks of the fleet.
//!
//! The object is the request, and the job of its name and uid is what became of it. [`plan`] looks
//! at both and names the next step, and says whether the object is accepted as it stands. It does
//! nothing itself, and it may be asked again at any time: a step that was done is not named again.
//!
//! An object holds its job by a finalizer, but only while a generation may have live workers. So a
//! deletion waits for a coordinated stop, and the deletion of a job that waits or is over does not
//! depend on the coordinator. A job whose object is gone without that is cancelled and forgotten.

use std::{fmt, time::Duration};

use muster_core::{
    fleet::job::{JobRecord, Phase, Stage},
    id::{JobName, JobUid},
    period,
    spec::{
        API_VERSION, FieldError, JobDocument, JobSpec, KIND, Lifetime, Metadata, STOP_GRACE_BEFORE,
        SpecDocument,
    },
    time::Timestamp,
};

use crate::rules::{
    dependents::{self, Asked, Dependent, Kind, Situation},
    queue::Admission,
};

/// A `MusterJob` object as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct JobObject {
    pub name: JobName,
    pub uid: JobUid,
    /// Its spec, or why that is no document.
    pub spec: Result<SpecDocument, String>,
    /// The template of its worker pods, as JSON.
    pub template: Option<String>,
    /// The job shall hold no nodes.
    pub suspend: bool,
    /// Somebody has deleted it. It stays until it has no finalizer.
    pub deleting: bool,
    /// It has our finalizer.
    pub held: bool,
    /// Its status says that the job is over, since this moment.
    pub over: Option<Timestamp>,
    /// The object is deleted so long after the end of its job.
    pub ttl: Option<Duration>,
    /// Other objects that it asks for.
    pub asks: Asked,
    /// The queue of Kueue that its label names. Only a job with pods of its own is in one.
    pub queue: Option<String>,
}

/// What to do next about an object or its job.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Submit the job under the object's uid.
    Submit(Box<JobSpec>),
    /// Hold the job back, or resume it.
    Suspend(bool),
    /// Give the job another number of nodes.
    Scale(u32),
    /// End the job. Its object, or its predecessor's, was deleted.
    Cancel,
    /// Give the job other limits of its life.
    Limit(Lifetime),
    /// Forget the job, which is over.
    Forget,
    /// Delete the object. Its job has been over for long enough.
    Delete,
    /// Add our finalizer to the object.
    Hold,
    /// Take our finalizer from the object.
    Release,
}

/// Why an object is not done as it stands. A job that runs already goes on as it was accepted.
#[derive(Clone, Debug, PartialEq)]
pub enum Objection {
    /// The spec is no document, or the check has found mistakes.
    InvalidSpec(String),
    /// A user has submitted a job of this name.
    NameTaken(JobName),
    /// The job of a deleted object of this name is still being stopped.
    PredecessorStopping(JobName),
    /// These fields differ from the accepted job, and cannot change.
    FixedFields(Vec<&'static str>),
    /// The number of nodes wanted is outside the range that was accepted.
    OutOfRange { wanted: i64, min: u32, max: u32 },
    /// The fleet does not take the job for now.
    Refused(String),
    /// An object that the spec asks for cannot be made or changed, and why. Without it no pod is made; pods
    /// that are there stay.
    Unprotected(Kind, String),
}

impl JobObject {
    /// Whether its job is to have no nodes for now. `job`: its own, if the fleet has it.
    pub fn holds_back(&self, job: Option<&JobRecord>, admission: &Admission) -> bool {
        self.suspend || admission.holds_back(job.is_none_or(|job| job.suspended))
    }

    /// The dependents that it should have. `job`: its own, if the fleet has it.
    pub fn dependents(&self, job: Option<&JobRecord>, admission: &Admission) -> Vec<Dependent> {
        let least = |document: &SpecDocument| {
            let wanted = document.replicas.unwrap_or(1);
            u32::try_from(document.min_replicas.unwrap_or(wanted)).ok()
        };
        dependents::wanted(Situation {
            asks: self.asks,
            // The accepted spec counts, whatever the object says now.
            min_replicas: match job {
                Some(job) => Some(job.spec.min_replicas),
                None => self.spec.as_ref().ok().and_then(least),
            },
            is_over: self.over.is_some() || job.is_some_and(JobRecord::is_over),
            is_held_back: self.holds_back(job, admission),
        })
    }
}

/// What an object asks for now.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub step: Option<Step>,
    /// Why the object is not accepted as it stands. `None`: it is accepted.
    pub objection: Option<Objection>,
    /// When to ask again, if nothing changes before.
    pub again: Option<Timestamp>,
}

impl Objection {
    /// The reason of a condition, in CamelCase.
    pub fn reason(&self) -> &'static str {
        match self {
            Objection::InvalidSpec(_) => "InvalidSpec",
            Objection::NameTaken(_) => "NameTaken",
            Objection::PredecessorStopping(_) => "PredecessorStopping",
            Objection::FixedFields(_) => "FixedFields",
            Objection::OutOfRange { .. } => "OutOfRange",
            Objection::Refused(_) => "Refused",
            Objection::Unprotected(Kind::NetworkPolicy, _) => "NetworkPolicyMissing",
            Objection::Unprotected(Kind::DisruptionBudget, _) => "DisruptionBudgetMissing",
            Objection::Unprotected(Kind::PodGroup(_), _) => "PodGroupMissing",
        }
    }

    /// Nobody needs to change anything: it passes by itself.
    pub fn passes(&self) -> bool {
        matches!(
            self,
            Objection::PredecessorStopping(_) | Objection::Refused(_) | Objection::Unprotected(..)
        )
    }
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Objection::InvalidSpec(message) | Objection::Refused(message) => f.write_str(message),
            Objection::NameTaken(job) => write!(
                f,
                "a job {job} was submitted with muster; delete it (muster delete job {}) or use another name",
                job.name
            ),
            Objection::PredecessorStopping(job) => {
                write!(f, "an earlier job {job} is still being stopped")
            }
            Objection::FixedFields(fields) => write!(
                f,
                "{} cannot change in an accepted job, which goes on as it was; to run it with the change, delete the MusterJob and apply it \
                 again",
                fields.join(", ")
            ),
            Objection::OutOfRange { wanted, min, max } => write!(
                f,
                "spec.replicas: is {wanted}, must be between the job's minReplicas {min} and maxReplicas {max}"
            ),
            Objection::Unprotected(kind, why) => write!(
                f,
                "{} asks for a {}, which cannot be kept as it should be: {why}",
                kind.field(),
                kind.name()
            ),
        }
    }
}

impl Plan {
    fn step(step: Step) -> Self {
        Self {
            step: Some(step),
            ..Self::NOTHING
        }
    }

    fn objection(objection: Objection) -> Self {
        Self {
            objection: Some(objection),
            ..Self::NOTHING
        }
    }

    const NOTHING: Plan = Plan {
        step: None,
        objection: None,
        again: None,
    };

    /// Takes this step at this moment, if there is no other to take. After each step the object is
    /// looked at again anyway.
    fn later(mut self, at: Timestamp, now: Timestamp, step: Step) -> Self {
        if at > now {
            self.again = Some(at);
        } else {
            self.step.get_or_insert(step);
        }
        self
    }
}

/// The next step about an object and the job of its name. One of them may be missing. Ask only when
/// all objects are known: a job without its object is ended. `admission`: what the object's queue says.
pub fn plan(
    object: Option<&JobObject>,
    job: Option<&JobRecord>,
    admission: &Admission,
    now: Timestamp,
) -> Plan {
    let Some(object) = object else {
        return job.map_or(Plan::NOTHING, without_object);
    };
    match job {
        Some(job) if job.uid == object.uid => of_both(object, job, admission, now),
        Some(job) => of_namesakes(object, job),
        None => without_job(object, now),
    }
}

fn without_object(job: &JobRecord) -> Plan {
    match job.is_of_object() {
        true => ended(job),
        false => Plan::NOTHING,
    }
}

/// Brings a job to its end, and forgets it when none of its workers may live.
fn ended(job: &JobRecord) -> Plan {
    let may_live = job.unproven_generations().next().is_some();
    match job.stage() {
        Stage::Ending(end) if end.phase == Phase::Cancelled => Plan::NOTHING,
        Stage::Waiting(_) | Stage::Forming(..) | Stage::Training(_) | Stage::Ending(_) => {
            Plan::step(Step::Cancel)
        }
        Stage::Over(_) if may_live => Plan::NOTHING,
        Stage::Over(_) => Plan::step(Step::Forget),
    }
}

fn without_job(object: &JobObject, now: Timestamp) -> Plan {
    if object.held {
        // Nothing of it runs that the fleet knows of.
        return Plan::step(Step::Release);
    }
    if object.deleting {
        return Plan::NOTHING;
    }
    if let Some(over) = object.over {
        return after_the_end(Plan::NOTHING, object, over, now);
    }
    match checked(object) {
        Ok(spec) => Plan::step(Step::Submit(Box::new(spec))),
        Err(objection) => Plan::objection(objection),
    }
}

/// The name belongs to a job that is not this object's.
fn of_namesakes(object: &JobObject, job: &JobRecord) -> Plan {
    let name = job.name.clone();
    let (mut plan, objection) = match job.is_of_object() {
        true => (ended(job), Objection::PredecessorStopping(name)),
        false => (Plan::NOTHING, Objection::NameTaken(name)),
    };
    if object.held && plan.step.is_none() {
        plan.step = Some(Step::Release);
    }
    plan.objection = Some(objection).filter(|_| !object.deleting && object.over.is_none());
    plan
}

fn of_both(object: &JobObject, job: &JobRecord, admission: &Admission, now: Timestamp) -> Plan {
    if object.deleting {
        return ended(job);
    }
    let may_live = job.unproven_generations().next().is_some();
    let suspend = object.holds_back(Some(job), admission);
    let bounded = |(nodes, life)| {
        let nodes = admission.bounds(nodes, job.replicas, job.spec.min_replicas);
        // A queue may admit any number. What is no multiple would be refused.
        (job.spec.size_within(nodes), life)
    };
    let mut plan = match wanted(object, job).map(bounded) {
        Err(objection) => Plan::objection(objection),
        Ok(_) if job.ends() => Plan::NOTHING,
        // It must not get pods for more nodes than it may have.
        Ok((nodes, _)) if job.suspended && !suspend && nodes != job.replicas => {
            Plan::step(Step::Scale(nodes))
        }
        Ok(_) if suspend != job.suspended => Plan::step(Step::Suspend(suspend)),
        Ok((nodes, _)) if nodes != job.replicas => Plan::step(Step::Scale(nodes)),
        Ok((_, life)) if life != job.spec.lifetime => Plan::step(Step::Limit(life)),
        Ok(_) => Plan::NOTHING,
    };
    let hold = match (may_live, object.held) {
        (true, false) => Some(Step::Hold),
        (false, true) => Some(Step::Release),
        _ => None,
    };
    plan.step = plan.step.or(hold);
    if let Some(finished) = job.finished {
        // A caller that waits for the end must be able to read it first.
        return match object.over {
            Some(_) => after_the_end(plan, object, finished, now),
            None => plan,
        };
    }
    plan
}

fn after_the_end(plan: Plan, object: &JobObject, over: Timestamp, now: Timestamp) -> Plan {
    match object.ttl {
        Some(ttl) => plan.later(over + ttl, now, Step::Delete),
        None => plan,
    }
}

/// How many nodes the object wants for its accepted job, and which limits of its life, or why it
/// cannot have what it asks for.
fn wanted(object: &JobObject, job: &JobRecord) -> Result<(u32, Lifetime), Objection> {
    let document = object.spec.as_ref();
    let document = document.map_err(|why| Objection::InvalidSpec(why.clone()))?;
    // Bounds that are left out are those of the number of nodes at the submission.
    let accepted = i64::from(job.spec.replicas);
    let wanted = document.replicas.unwrap_or(accepted);
    let life = document.lifetime().map_err(told)?;
    let mut as_accepted = SpecDocument {
        replicas: Some(accepted),
        ..document.clone().with_life_of(&job.spec)
    };
    if job.spec.stop_grace_period == STOP_GRACE_BEFORE {
        // Left out, it meant this when the job was accepted.
        let before = || period::format(STOP_GRACE_BEFORE);
        as_accepted.stop_grace_period.get_or_insert_with(before);
    }
    // A launcher in its command is no reason to leave it as it is: it runs with it.
    let spec = check(object, as_accepted, JobDocument::check_accepted)?;
    let differing = job.spec.differences(&spec);
    if !differing.is_empty() {
        return Err(Objection::FixedFields(differing));
    }
    let (min, max) = (job.spec.min_replicas, job.spec.max_replicas);
    let nodes = u32::try_from(wanted).ok();
    let nodes = nodes.filter(|nodes| (min..=max).contains(nodes));
    let nodes = nodes.ok_or(Objection::OutOfRange { wanted, min, max })?;
    match job.spec.no_size(nodes) {
        Some(why) => Err(Objection::InvalidSpec(format!("spec.replicas: {why}"))),
        None => Ok((nodes, life)),
    }
}

fn checked(object: &JobObject) -> Result<JobSpec, Objection> {
    match &object.spec {
        Ok(document) => check(object, document.clone(), JobDocument::check),
        Err(why) => Err(Objection::InvalidSpec(why.clone())),
    }
}

type Check = fn(&JobDocument) -> Result<(JobName, JobSpec), Vec<FieldError>>;

fn check(object: &JobObject, spec: SpecDocument, check: Check) -> Result<JobSpec, Objection> {
    let name = &object.name;
    let document = JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata: Metadata {
            name: name.name.clone(),
            namespace: Some(name.namespace.clone()),
        },
        spec,
    };
    let (_, spec) = check(&document).map_err(told)?;
    Ok(JobSpec {
        // Of pods the template's limits say it, so there is nothing to decide.
        gpus: spec.gpus.filter(|_| object.template.is_none()),
        template: object.template.clone(),
        ..spec
    })
}

fn told(errors: Vec<FieldError>) -> Objection {
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Objection::InvalidSpec(errors.join("; "))
}

#[cfg(test)]
mod tests;
