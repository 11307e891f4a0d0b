//! What is kept of a Pod object.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    ContainerState, NodeSelectorRequirement, Pod, PodSpec, PodStatus,
};
use muster_core::{
    fleet::worker_pod::{PodStage, PodWait, WorkerPod},
    id::{NodeName, node_name_error},
    time::Timestamp,
};

use crate::{owner::Owner, server::cut};

/// `None`: it is no worker pod, or Muster cannot have its name.
pub(super) fn kept(object: Pod) -> Option<WorkerPod> {
    let Pod {
        metadata,
        spec,
        status,
    } = object;
    let owner = Owner::of(&metadata)?;
    let avoids = spec.as_ref().map(avoids).unwrap_or_default();
    let host = spec.and_then(|spec| spec.node_name);
    let host = host.filter(|host| node_name_error(host).is_none());
    let status = status.unwrap_or_default();
    let stage = match status.phase.as_deref() {
        // Of a pod whose Node object is gone the cluster says so by itself. No kubelet has said that
        // anything has ended.
        Some("Failed") if is_collected(&status) => PodStage::Running,
        Some("Succeeded" | "Failed") => PodStage::Ended,
        Some("Running") => PodStage::Running,
        _ => PodStage::Waiting,
    };
    let created = metadata.creation_timestamp.map(|at| at.0.as_microsecond());
    let pod = WorkerPod {
        namespace: owner.job.namespace,
        name: metadata.name?,
        uid: metadata.uid?,
        job: owner.uid,
        created: Timestamp(u64::try_from(created.unwrap_or_default()).unwrap_or_default()),
        host: host.map(NodeName::from),
        avoids,
        stage,
        deleting: metadata.deletion_timestamp.is_some(),
        waits: waits(&status, stage),
    };
    node_name_error(pod.node().as_str())
        .is_none()
        .then_some(pod)
}

/// Hosts that the pod must not go to, whichever of its alternatives is taken. The template puts them
/// into each.
fn avoids(spec: &PodSpec) -> BTreeSet<NodeName> {
    let affinity = spec.affinity.as_ref();
    let affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        let required = &affinity.required_during_scheduling_ignored_during_execution;
        required.as_ref()
    });
    let first = required.and_then(|required| required.node_selector_terms.first());
    let fields = first.and_then(|term| term.match_fields.as_ref());
    let excludes = |field: &&NodeSelectorRequirement| {
        field.key == "metadata.name" && field.operator == "NotIn"
    };
    let fields = fields.into_iter().flatten().filter(excludes);
    let hosts = fields.flat_map(|field| field.values.iter().flatten());
    hosts.map(|host| NodeName::from(host.clone())).collect()
}

/// Whether the cluster has given the pod up because its Node object is gone (PodGC).
fn is_collected(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| {
        condition.type_ == "DisruptionTarget"
            && condition.status == "True"
            && condition.reason.as_deref() == Some("DeletionByPodGC")
    })
}

/// Why it does not run: the scheduler's word, else that of the first container that waits for an
/// unusual reason.
fn waits(status: &PodStatus, stage: PodStage) -> Option<PodWait> {
    let wait = |reason: Option<&str>, message: Option<&str>| {
        Some(PodWait {
            reason: cut(reason?),
            message: cut(message.unwrap_or_default()),
        })
    };
    if stage == PodStage::Ended {
        return wait(status.reason.as_deref(), status.message.as_deref());
    }
    let conditions = status.conditions.iter().flatten();
    let unscheduled = conditions
        .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .find_map(|condition| wait(condition.reason.as_deref(), condition.message.as_deref()));
    let containers = (status.init_container_statuses.iter().flatten())
        .chain(status.container_statuses.iter().flatten());
    let state = |state: &ContainerState| {
        let waiting = state.waiting.as_ref()?;
        wait(waiting.reason.as_deref(), waiting.message.as_deref())
    };
    let states: Vec<PodWait> = containers
        .filter_map(|container| state(container.state.as_ref()?))
        .collect();
    // Those that only wait for others say nothing of interest.
    let odd = states.iter().find(|wait| !wait.is_usual());
    let usual = states.first().filter(|_| stage == PodStage::Waiting);
    unscheduled.or_else(|| odd.or(usual).cloned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::owner::JOB_UID;

    fn read(spec: Value, status: Value) -> WorkerPod {
        let metadata = json!({
            "name": "digits-x7k2p", "namespace": "team-a", "uid": "u-1", "creationTimestamp": "1970-01-01T00:00:05Z",
            "labels": { JOB_UID: "0b4e-11" },
            "ownerReferences": [{ "apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "name": "digits", "uid": "0b4e-11", "controller": true }],
        });
        let pod = json!({ "metadata": metadata, "spec": spec, "status": status });
        kept(serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn a_pod_is_read() {
        let spec = json!({ "nodeName": "gpu-1", "containers": [] });
        let pod = read(spec.clone(), json!({ "phase": "Running" }));
        assert_eq!(pod.node().as_str(), "digits-x7k2p.team-a.pod");
        assert_eq!(pod.host, Some("gpu-1".into()));
        assert_eq!(
            (pod.stage, pod.created),
            (PodStage::Running, Timestamp(5_000_000))
        );
        assert_eq!((&pod.waits, pod.job.as_str()), (&None, "0b4e-11"));
        let evicted = json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" });
        let pod = read(spec, evicted);
        assert_eq!(pod.stage, PodStage::Ended);
        assert_eq!(pod.waits.unwrap().message, "low on memory");
        // No kubelet has said this.
        let collected =
            json!([{ "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC" }]);
        let status = json!({ "phase": "Failed", "conditions": collected });
        let pod = read(json!({ "nodeName": "gpu-1", "containers": [] }), status);
        assert_eq!(pod.stage, PodStage::Running);
        let other: Pod = serde_json::from_value(json!({ "metadata": { "name": "x" } })).unwrap();
        assert_eq!(kept(other), None);
    }

    #[test]
    fn it_says_why_a_pod_waits() {
        let reason = |status: Value| {
            let pod = read(json!({ "containers": [] }), status);
            pod.waits.map(|wait| wait.reason)
        };
        let unschedulable = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes" });
        let status = json!({ "phase": "Pending", "conditions": [unschedulable] });
        assert_eq!(reason(status).as_deref(), Some("Unschedulable"));
        let container = |reason: &str| json!({ "name": "x", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": { "waiting": { "reason": reason } } });
        let status = |phase: &str, init: &str, own: &str| json!({ "phase": phase, "initContainerStatuses": [container(init)], "containerStatuses": [container(own)] });
        let said = |phase, init, own| reason(status(phase, init, own));
        assert_eq!(
            said("Pending", "PodInitializing", "ErrImagePull").as_deref(),
            Some("ErrImagePull")
        );
        assert_eq!(
            said("Pending", "PodInitializing", "PodInitializing").as_deref(),
            Some("PodInitializing")
        );
        assert_eq!(
            said("Running", "PodInitializing", "CrashLoopBackOff").as_deref(),
            Some("CrashLoopBackOff")
        );
        assert_eq!(said("Running", "PodInitializing", "PodInitializing"), None);
        assert_eq!(reason(json!({})), None);
    }
}
