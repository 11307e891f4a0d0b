//! Whose job an object is that was read from the API server.
//!
//! Objects of a job have its uid in a label, and a MusterJob object of that uid as their owner. Everybody
//! writes both into the objects of a namespace that is theirs, and an API server compares neither with
//! anything. What it does vouch for is the namespace of the object. So a job is known by namespace and
//! uid together, everything that is read is matched with its job by [`JobKey`], and a stranger's object
//! in another namespace belongs to a job that is not there.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use muster_core::{
    fleet::worker_pod::WorkerPod,
    id::{JobName, JobUid},
    spec::KIND,
};

use crate::crd::GROUP;

/// The label by which objects of jobs are found. It has the uid of the MusterJob object.
pub(super) const JOB_UID: &str = "muster.dev/job-uid";
/// The label with the job's name, for people.
pub(super) const JOB_NAME: &str = "muster.dev/job-name";

/// A job, as what is read is matched with it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobKey {
    pub(super) namespace: String,
    pub(super) uid: JobUid,
}

impl JobKey {
    pub(super) fn new(job: &JobName, uid: &JobUid) -> Self {
        Self {
            namespace: job.namespace.clone(),
            uid: uid.clone(),
        }
    }

    /// The job that a pod is of, as it says.
    pub(super) fn of_pod(pod: &WorkerPod) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            uid: pod.job.clone(),
        }
    }
}

/// The MusterJob object that an object names as its owner. Whether there is such an object in this
/// namespace, the object does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub job: JobName,
    pub uid: JobUid,
}

impl Owner {
    /// `None`: the object is no job's. The label must name the uid of the owner.
    pub fn of(metadata: &ObjectMeta) -> Option<Self> {
        let uid = metadata.labels.as_ref()?.get(JOB_UID)?;
        let mut owners = metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| {
            owner.controller == Some(true)
                && owner.kind == KIND
                && owner.api_version.split('/').next() == Some(GROUP)
                && owner.uid == *uid
        })?;
        Some(Self {
            job: JobName {
                namespace: metadata.namespace.clone()?,
                name: owner.name.clone(),
            },
            uid: JobUid::from(uid.clone()),
        })
    }

    pub(super) fn key(&self) -> JobKey {
        JobKey::new(&self.job, &self.uid)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(namespace: &str, owner: &Value, label: &str) -> Option<Owner> {
        let metadata = json!({
            "namespace": namespace, "labels": { JOB_UID: label }, "ownerReferences": [owner],
        });
        Owner::of(&serde_json::from_value(metadata).unwrap())
    }

    #[test]
    fn only_what_a_musterjob_object_owns_is_a_job_s() {
        let owner = json!({ "apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "name": "digits", "uid": "u-1", "controller": true });
        let read = |owner: &Value, label: &str| read("team-a", owner, label);
        assert!(read(&owner, "u-1").is_some());
        assert_eq!(read(&owner, "u-2"), None);
        for (field, value) in [
            ("kind", json!("Job")),
            ("apiVersion", json!("batch/v1")),
            ("controller", json!(false)),
        ] {
            let mut other = owner.clone();
            other[field] = value;
            assert_eq!(read(&other, "u-1"), None, "{field}");
        }
        assert_eq!(Owner::of(&ObjectMeta::default()), None);
    }

    #[test]
    fn a_uid_in_another_namespace_is_another_job() {
        let owner = json!({ "apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "name": "digits", "uid": "u-1", "controller": true });
        let job = JobName {
            namespace: "team-a".into(),
            name: "digits".into(),
        };
        let own = JobKey::new(&job, &JobUid::from("u-1"));
        let key = |namespace: &str| read(namespace, &owner, "u-1").unwrap().key();
        assert_eq!(key("team-a"), own);
        assert_ne!(key("team-b"), own);
    }
}
