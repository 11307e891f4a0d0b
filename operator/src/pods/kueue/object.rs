//! A Workload object: how it is read, made, and patched. All of it is pure.
//!
//! Fields and reasons are those of `apis/kueue/v1beta2/workload_types.go`. What is used of them is the
//! same in v1beta1.

use muster_core::{
    fleet::job::JobRecord,
    id::JobName,
    spec::{self, API_VERSION},
    time::Timestamp,
};
use serde_json::{Value, json};

use crate::{
    desk::Placement,
    follow::size,
    owner::{JOB_NAME, JOB_UID, JobKey, Owner},
    rules::queue::{Asks, Said, Step, Workload},
    stamp::time,
};

pub(super) const GROUP: &str = "kueue.x-k8s.io";
pub(super) const KIND: &str = "Workload";
pub(super) const PLURAL: &str = "workloads";
/// The label by which Kueue's tools find the Workload of a job.
const OWNER_UID: &str = "kueue.x-k8s.io/job-uid";
/// The one pod set of a Workload.
const PODS: &str = "main";
/// Ends the name of a Workload: so many of the last characters of the object's uid.
const SUFFIX: usize = 5;
/// The longest message of a condition that is written. An API server takes 32 KiB.
const MESSAGE_MAX: usize = 1_024;

/// A Workload as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) workload: Workload,
    /// The job that it is of, as it says.
    pub(super) key: JobKey,
    pub(super) name: String,
    /// Its own uid.
    pub(super) own_uid: String,
    pub(super) version: String,
    pub(super) generation: i64,
    pub(super) conditions: Vec<Value>,
    pub(super) placement: Placement,
    /// Of conditions and placement, which are the largest parts.
    pub(super) bytes: usize,
}

impl Seen {
    /// `None`: no MusterJob object owns it.
    pub(super) fn of(object: Value) -> Option<Self> {
        let metadata = serde_json::from_value(object["metadata"].clone()).ok()?;
        let owner = Owner::of(&metadata)?;
        let conditions = object["status"]["conditions"].as_array();
        let (own, placement) = (
            workload(&object, metadata.deletion_timestamp.is_some()),
            placement(&object["status"]),
        );
        let parts = conditions.into_iter().flatten().chain(&placement.updates);
        let flavors = placement.flavors.iter().map(String::len);
        let bytes = 1_024 + parts.map(size).chain(flavors).sum::<usize>();
        Some(Self {
            workload: own,
            key: owner.key(),
            name: metadata.name?,
            own_uid: metadata.uid?,
            version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            conditions: conditions.cloned().unwrap_or_default(),
            placement,
            bytes,
        })
    }

    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        let number = |seen: &Self| seen.version.parse::<u64>().unwrap_or_default();
        self.own_uid == other.own_uid && number(self) < number(other)
    }
}

fn workload(object: &Value, deleting: bool) -> Workload {
    let (spec, status) = (&object["spec"], &object["status"]);
    let said = |condition: &Value| Said {
        reason: condition["reason"].as_str().unwrap_or_default().to_owned(),
        message: condition["message"].as_str().unwrap_or_default().to_owned(),
    };
    let all = || status["conditions"].as_array().into_iter().flatten();
    let condition = |kind: &str| all().find(|one| one["type"] == kind);
    let holds = |kind: &str| condition(kind).is_some_and(|one| one["status"] == "True");
    let holding = |kind: &str| {
        condition(kind)
            .filter(|one| one["status"] == "True")
            .map(said)
    };
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let assignment = &status["admission"]["podSetAssignments"][0];
    let waits = ["QuotaReserved", "Admitted"]
        .into_iter()
        .filter_map(condition)
        .find(|one| one["status"] == "False")
        .map(said);
    Workload {
        queue: spec["queueName"].as_str().unwrap_or_default().to_owned(),
        count: number(&spec["podSets"][0]["count"]).unwrap_or_default(),
        priority: spec["priority"].as_i64().unwrap_or_default(),
        active: spec["active"] != false,
        deleting,
        reserved: holds("QuotaReserved"),
        admitted: holds("Admitted"),
        evicted: holding("Evicted"),
        finished: holding("Finished"),
        assigned: number(&assignment["count"]),
        reclaimable: number(&status["reclaimablePods"][0]["count"]).unwrap_or_default(),
        ready: condition("PodsReady").map(|_| holds("PodsReady")),
        waits: checks(status).or(waits),
    }
}

/// The admission checks that hold a Workload up which has its quota.
fn checks(status: &Value) -> Option<Said> {
    let checks = status["admissionChecks"].as_array().into_iter().flatten();
    let open = checks.filter(|check| check["state"] != "Ready");
    let told: Vec<String> = open
        .map(|check| {
            let text = |field: &str| check[field].as_str().unwrap_or_default();
            format!("{} is {}: {}", text("name"), text("state"), text("message"))
        })
        .collect();
    let is_reserved = !status["admission"].is_null();
    (is_reserved && !told.is_empty()).then(|| Said::new("AdmissionChecks", told.join("; ")))
}

fn placement(status: &Value) -> Placement {
    let assignment = &status["admission"]["podSetAssignments"][0];
    let flavors = assignment["flavors"].as_object().into_iter().flatten();
    let mut flavors: Vec<String> = flavors
        .filter_map(|(_, flavor)| flavor.as_str().map(str::to_owned))
        .collect();
    // One flavor may be that of several resources.
    flavors.sort();
    flavors.dedup();
    let checks = status["admissionChecks"].as_array().into_iter().flatten();
    let updates = checks.flat_map(|check| check["podSetUpdates"].as_array().into_iter().flatten());
    Placement {
        flavors,
        updates: updates
            .filter(|update| update["name"] == PODS)
            .cloned()
            .collect(),
    }
}

/// The Workload of a job. `pod`: one of its pods, as it will be made.
pub(super) fn made(job: &JobRecord, asks: &Asks, pod: &Value, version: &str) -> Value {
    let (JobName { namespace, name }, uid) = (&job.name, job.uid.as_str());
    let end = uid
        .get(uid.len().saturating_sub(SUFFIX)..)
        .unwrap_or_default();
    let own = json!({
        "apiVersion": API_VERSION, "kind": spec::KIND, "name": name, "uid": uid, "controller": true,
    });
    let mut spec = asked(asks, pod);
    spec["active"] = json!(true);
    json!({
        "apiVersion": format!("{GROUP}/{version}"),
        "kind": KIND,
        "metadata": {
            "name": format!("musterjob-{name}-{end}"),
            "namespace": namespace,
            "labels": {
                "app.kubernetes.io/managed-by": "muster", JOB_NAME: name, JOB_UID: uid, OWNER_UID: uid,
            },
            "ownerReferences": [own],
        },
        "spec": spec,
    })
}

/// What a Workload asks for, as its spec.
pub(super) fn asked(asks: &Asks, pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    let template = json!({
        "metadata": { "labels": metadata["labels"], "annotations": metadata["annotations"] },
        "spec": pod["spec"],
    });
    json!({
        "queueName": asks.queue,
        "priority": asks.priority,
        "podSets": [{ "name": PODS, "count": asks.count, "template": template }],
    })
}

/// The patch of a Workload's status that takes this step. `None`: it is no step about the status.
pub(super) fn patch(seen: &Seen, step: &Step, now: Timestamp) -> Option<Value> {
    let mut conditions = Conditions {
        all: seen.conditions.clone(),
        generation: seen.generation,
        now: time(now),
    };
    let mut status = json!({});
    match step {
        Step::Release { why, requeued } => {
            conditions.set("Requeued", *requeued, &why.reason, &why.message);
            conditions.set("QuotaReserved", false, "Pending", &why.message);
            if conditions.has("Admitted") {
                let message = "The workload has no reservation";
                conditions.set("Admitted", false, "NoReservation", message);
            }
            status["admission"] = Value::Null;
            // Of what it asks for next, it needs all. Kueue would subtract these.
            status["reclaimablePods"] = Value::Null;
        }
        Step::Reclaim(count) => {
            status["reclaimablePods"] = json!([{ "name": PODS, "count": count }]);
            return Some(whole(seen, status));
        }
        Step::Ready(true) => {
            let before = conditions.reason("PodsReady");
            let again = ["WaitForRecovery", "Recovered"].contains(&&*before);
            let reason = if again { "Recovered" } else { "Started" };
            conditions.set("PodsReady", true, reason, "the job trains");
        }
        Step::Ready(false) => {
            let holds = &seen.workload;
            let recovers = holds.admitted && holds.evicted.is_none();
            let reason = if recovers {
                "WaitForRecovery"
            } else {
                "WaitForStart"
            };
            conditions.set("PodsReady", false, reason, "the job does not train");
        }
        Step::Finish { succeeded, message } => {
            let reason = if *succeeded { "Succeeded" } else { "Failed" };
            conditions.set("Finished", true, reason, message);
        }
        Step::Create(_) | Step::Update(_) | Step::Delete => return None,
    }
    status["conditions"] = Value::Array(conditions.all);
    Some(whole(seen, status))
}

/// Lists are replaced whole, so nobody else may have written since they were read.
fn whole(seen: &Seen, status: Value) -> Value {
    json!({
        "metadata": { "uid": seen.own_uid, "resourceVersion": seen.version },
        "status": status,
    })
}

struct Conditions {
    all: Vec<Value>,
    generation: i64,
    now: String,
}

impl Conditions {
    fn has(&self, kind: &str) -> bool {
        self.all.iter().any(|one| one["type"] == kind)
    }

    fn reason(&self, kind: &str) -> String {
        let one = self.all.iter().find(|one| one["type"] == kind);
        let reason = one.and_then(|one| one["reason"].as_str());
        reason.unwrap_or_default().to_owned()
    }

    /// A condition keeps its time as long as its status stays.
    fn set(&mut self, kind: &str, holds: bool, reason: &str, message: &str) {
        let status = if holds { "True" } else { "False" };
        let before = self.all.iter().find(|one| one["type"] == kind);
        let same = before.filter(|one| one["status"] == status);
        let since = same.map_or_else(|| json!(self.now), |one| one["lastTransitionTime"].clone());
        let message: String = message.chars().take(MESSAGE_MAX).collect();
        let new = json!({
            "type": kind,
            "status": status,
            "reason": if reason.is_empty() { "Unknown" } else { reason },
            "message": message,
            "lastTransitionTime": since,
            "observedGeneration": self.generation,
        });
        match self.all.iter_mut().find(|one| one["type"] == kind) {
            Some(one) => *one = new,
            None => self.all.push(new),
        }
    }
}

#[cfg(test)]
mod tests;
