//! What other programs say about a node on its Node object, as a table: which condition, taint,
//! label or annotation, who sets it, and what follows from it for Muster. A new program is a new
//! row here, and nothing else.
//!
//! Muster never sets any of these, because the clouds' repair acts on them. Its own conditions
//! (`Muster...`) and keys (`muster.dev/...`) never stand here: Muster must not believe itself.
//!
//! The names are facts of those programs. The sources are named at each group, as of November 2026.

use super::{Raw, Status};
use Meaning::{Exclude, Leaving, Warning};
use Place::{Annotation, Condition, Label, Taint};

/// Where on the object a sign is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Condition,
    Taint,
    Label,
    Annotation,
}

/// What a sign means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Meaning {
    /// It is shown as a finding, and nothing follows.
    Warning,
    /// The node gets no new work. Workers that run there go on: a cordon is no drain.
    Exclude,
    /// The machine will be taken away: jobs leave at once, as after a termination notice.
    Leaving,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sign {
    pub place: Place,
    pub key: &'static str,
    /// The value that it must have. A condition has the status True, False or Unknown, and `!True`
    /// is any status but True. Empty: any value.
    pub value: &'static str,
    /// Who sets it.
    pub by: &'static str,
    pub meaning: Meaning,
    /// What it says, for people.
    pub words: &'static str,
}

const fn sign(
    place: Place,
    key: &'static str,
    value: &'static str,
    by: &'static str,
    meaning: Meaning,
    words: &'static str,
) -> Sign {
    Sign {
        place,
        key,
        value,
        by,
        meaning,
        words,
    }
}

/// All signs that are understood.
#[rustfmt::skip]
pub const SIGNS: &[Sign] = &[
    // kubernetes/kubernetes: core/v1 node conditions; well-known taints.
    sign(Condition, "Ready", "!True", "kubelet", Warning, "the kubelet is not ready"),
    sign(Condition, "MemoryPressure", "True", "kubelet", Warning, "memory is short"),
    sign(Condition, "DiskPressure", "True", "kubelet", Warning, "disk space is short"),
    sign(Condition, "PIDPressure", "True", "kubelet", Warning, "there are too many processes"),
    sign(Condition, "NetworkUnavailable", "True", "cloud controller", Warning, "the network is not configured"),
    sign(Taint, "node.kubernetes.io/out-of-service", "", "administrator", Exclude, "the node is shut down"),
    sign(Taint, "node.cloudprovider.kubernetes.io/shutdown", "", "cloud controller", Exclude, "the machine is shut down"),

    // kubernetes/node-problem-detector: config/*.json. A condition is a permanent problem.
    sign(Condition, "KernelDeadlock", "True", "node-problem-detector", Warning, "kernel tasks hang"),
    sign(Condition, "ReadonlyFilesystem", "True", "node-problem-detector", Warning, "a file system became read-only"),
    sign(Condition, "FrequentKubeletRestart", "True", "node-problem-detector", Warning, "the kubelet restarts often"),
    sign(Condition, "FrequentContainerdRestart", "True", "node-problem-detector", Warning, "containerd restarts often"),
    sign(Condition, "FrequentUnregisterNetDevice", "True", "node-problem-detector", Warning, "network devices vanish often"),
    sign(Condition, "KubeletUnhealthy", "True", "node-problem-detector", Warning, "the kubelet fails its check"),
    sign(Condition, "ContainerRuntimeUnhealthy", "True", "node-problem-detector", Warning, "the container runtime fails its check"),

    // aws/eks-node-monitoring-agent; EKS user guide, "node health". Repair replaces the node after
    // ten minutes.
    sign(Condition, "AcceleratedHardwareReady", "False", "EKS", Exclude, "a GPU or its driver is faulty"),
    sign(Condition, "KernelReady", "False", "EKS", Warning, "the kernel has a problem"),
    sign(Condition, "NetworkingReady", "False", "EKS", Warning, "the network has a problem"),
    sign(Condition, "StorageReady", "False", "EKS", Warning, "storage has a problem"),
    sign(Condition, "ContainerRuntimeReady", "False", "EKS", Warning, "the container runtime has a problem"),

    // GoogleCloudPlatform/container-engine-accelerators; GKE documentation, host maintenance.
    sign(Condition, "XidCriticalError", "True", "GKE", Exclude, "the driver reported a critical XID"),
    sign(Taint, "cloud.google.com/impending-node-termination", "", "GKE", Leaving, "the machine will be terminated"),
    sign(Label, "cloud.google.com/active-node-maintenance", "ONGOING", "GKE", Leaving, "host maintenance is under way"),
    sign(Label, "cloud.google.com/scheduled-maintenance-time", "", "GKE", Warning, "host maintenance is scheduled"),
    // GoogleCloudPlatform/cluster-health-scanner.
    sign(Taint, "aiinfra/gpu-healthcheck", "failed", "cluster-health-scanner", Exclude, "the GPU test failed"),
    sign(Taint, "aiinfra/nccl-healthcheck", "failed", "cluster-health-scanner", Exclude, "the NCCL test failed"),
    sign(Taint, "aiinfra/nccl-healthcheck", "suspect", "cluster-health-scanner", Warning, "an NCCL test with another node failed"),

    // AKS documentation, "node problem detector" and "GPU health monitoring".
    sign(Condition, "GPUMissing", "True", "AKS", Exclude, "there are fewer GPUs than the machine should have"),
    sign(Condition, "NVLinkStatusInactive", "True", "AKS", Exclude, "an NVLink is down"),
    sign(Condition, "XIDErrors", "True", "AKS", Warning, "the driver reported XIDs"),
    sign(Condition, "IBLinkFlapping", "True", "AKS", Warning, "an InfiniBand link goes up and down"),
    sign(Condition, "UnhealthyNvidiaDevicePlugin", "True", "AKS", Warning, "the device plugin fails"),
    sign(Condition, "UnhealthyNvidiaDCGMServices", "True", "AKS", Warning, "DCGM fails"),
    sign(Condition, "FilesystemCorruptionProblem", "True", "AKS", Warning, "a file system is corrupt"),
    sign(Condition, "VMEventScheduled", "True", "AKS", Leaving, "the virtual machine will be stopped or moved"),

    // Nebius documentation, "health checks": its repair cordons, drains and replaces the node.
    sign(Condition, "NebiusGPUError", "True", "Nebius", Exclude, "a GPU check failed"),
    sign(Condition, "NebiusBootDiskIOError", "True", "Nebius", Exclude, "the boot disk fails"),

    // NVIDIA/NVSentinel: fault-quarantine (annotations, taints), syslog-health-monitor (conditions).
    sign(Annotation, "quarantineHealthEvent", "", "NVSentinel", Exclude, "the node is in quarantine"),
    sign(Taint, "nvidia.com/gpu-error", "", "NVSentinel", Exclude, "a GPU is faulty"),
    sign(Condition, "SysLogsXIDError", "True", "NVSentinel", Warning, "the driver reported an XID"),
    sign(Condition, "SysLogsSXIDError", "True", "NVSentinel", Warning, "an NVSwitch reported an error"),
    sign(Condition, "SysLogsGPUFallenOff", "True", "NVSentinel", Warning, "a GPU fell off the bus"),

    // SageMaker HyperPod documentation, "Kubernetes labels by SageMaker HyperPod".
    sign(Label, "sagemaker.amazonaws.com/node-health-status", "Unschedulable", "HyperPod", Exclude, "deep health checks run"),
    sign(Label, "sagemaker.amazonaws.com/node-health-status", "UnschedulablePendingReplacement", "HyperPod", Exclude, "the node will be replaced"),
    sign(Label, "sagemaker.amazonaws.com/node-health-status", "UnschedulablePendingReboot", "HyperPod", Exclude, "the node will be rebooted"),
    sign(Label, "sagemaker.amazonaws.com/deep-health-check-status", "Failed", "HyperPod", Exclude, "the deep health check failed"),

    // kubernetes/autoscaler; Karpenter documentation, "disruption"; aws/aws-node-termination-handler.
    sign(Taint, "ToBeDeletedByClusterAutoscaler", "", "cluster autoscaler", Leaving, "the node is being removed"),
    sign(Taint, "DeletionCandidateOfClusterAutoscaler", "", "cluster autoscaler", Warning, "the node may be removed soon"),
    sign(Taint, "karpenter.sh/disrupted", "", "Karpenter", Leaving, "the node is being removed"),
    sign(Taint, "karpenter.sh/disruption", "disrupting", "Karpenter before 1.0", Leaving, "the node is being removed"),
    sign(Taint, "aws-node-termination-handler/spot-itn", "", "AWS node termination handler", Leaving, "the spot instance will be interrupted"),
    sign(Taint, "aws-node-termination-handler/asg-lifecycle-termination", "", "AWS node termination handler", Leaving, "the instance will be terminated"),
    sign(Taint, "aws-node-termination-handler/scheduled-maintenance", "", "AWS node termination handler", Leaving, "maintenance will stop the instance"),
    sign(Taint, "aws-node-termination-handler/rebalance-recommendation", "", "AWS node termination handler", Warning, "the spot instance may be interrupted soon"),
];

/// Objects that others look after, or that a person has told Muster to keep off. Muster changes nothing on
/// them.
#[rustfmt::skip]
pub const LEFT_ALONE: &[Sign] = &[
    sign(Label, "muster.dev/managed", "false", "a person", Exclude, "Muster is to change nothing"),
    sign(Annotation, "quarantineHealthEvent", "", "NVSentinel", Exclude, "the node is in quarantine"),
    sign(Annotation, "quarantineHealthEventIsCordoned", "", "NVSentinel", Exclude, "NVSentinel has cordoned it"),
    sign(Taint, "nvidia.com/gpu-error", "", "NVSentinel", Exclude, "a GPU is faulty"),
    sign(Label, "sagemaker.amazonaws.com/node-health-status", "", "HyperPod", Exclude, "HyperPod repairs it"),
];

/// Kubernetes' own taints: a cordon, or one of the node's conditions, which Muster reads as such. Most of these only warn,
/// because the agent itself shows whether the node works.
const KUBERNETES: &str = "node.kubernetes.io/";

/// Whether another rule handles this taint: it excludes the node whatever a job tolerates, or is Kubernetes' own. All others
/// are for jobs to tolerate.
pub(super) fn handles(taint: &crate::node_report::taint::Taint) -> bool {
    let excludes = |sign: &&Sign| {
        let same = sign.place == Taint && sign.key == taint.key;
        same && (sign.value.is_empty() || sign.value == taint.value) && sign.meaning != Warning
    };
    taint.key.starts_with(KUBERNETES) || SIGNS.iter().find(excludes).is_some()
}

impl Place {
    pub fn word(self) -> &'static str {
        match self {
            Condition => "condition",
            Taint => "taint",
            Label => "label",
            Annotation => "annotation",
        }
    }
}

impl Meaning {
    /// The word of the guide.
    pub fn word(self) -> &'static str {
        match self {
            Warning => "warning",
            Exclude => "exclude",
            Leaving => "leaving",
        }
    }
}

impl Sign {
    /// The sign as people look for it: `taint karpenter.sh/disrupted`, `condition Ready=False`.
    pub fn name(&self) -> String {
        match (self.value, self.value.strip_prefix('!')) {
            ("", _) => format!("{} {}", self.place.word(), self.key),
            (_, Some(not)) => format!("{} {} is not {not}", self.place.word(), self.key),
            (value, None) => format!("{} {}={value}", self.place.word(), self.key),
        }
    }

    /// The sentence about a node that has it.
    pub fn sentence(&self) -> String {
        format!("{} ({}): {}", self.name(), self.by, self.words)
    }

    /// Whether the object has this sign. If a condition is one, what the condition says.
    pub(super) fn on<'a>(&self, object: &'a Raw) -> Option<Option<&'a super::Condition>> {
        let is = |value: &str| self.value.is_empty() || self.value == value;
        match self.place {
            Condition => {
                let mut conditions = object.conditions.iter();
                let found = conditions.find(|condition| condition.kind == self.key)?;
                let so = match self.value.strip_prefix('!') {
                    Some(not) => found.status.word() != not,
                    None => is(found.status.word()),
                };
                so.then_some(Some(found))
            }
            Taint => {
                let mut taints = object.taints.iter();
                let found = taints.any(|taint| taint.key == self.key && is(&taint.value));
                found.then_some(None)
            }
            Label => object
                .labels
                .get(self.key)
                .filter(|value| is(value))
                .map(|_| None),
            Annotation => {
                let value = object.annotations.get(self.key);
                value.filter(|value| is(value)).map(|_| None)
            }
        }
    }
}

impl Status {
    pub fn word(self) -> &'static str {
        match self {
            Status::True => "True",
            Status::False => "False",
            Status::Unknown => "Unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::node_object::{MUSTER_CONDITION, MUSTER_KEY};

    #[test]
    fn no_sign_is_of_muster_and_none_stands_twice() {
        let mut seen = BTreeSet::new();
        for sign in SIGNS {
            assert!(!sign.key.starts_with(MUSTER_KEY), "{}", sign.key);
            assert!(!sign.key.starts_with(MUSTER_CONDITION), "{}", sign.key);
            assert!(seen.insert((sign.place, sign.key, sign.value)), "{sign:?}");
            let is_status = ["True", "False", "!True"].contains(&sign.value);
            assert_eq!(sign.place == Condition, is_status, "{sign:?}");
        }
    }

    #[test]
    fn a_sign_is_named_as_people_look_for_it() {
        let name = |key: &str| SIGNS.iter().find(|sign| sign.key == key).unwrap().name();
        assert_eq!(name("Ready"), "condition Ready is not True");
        assert_eq!(name("GPUMissing"), "condition GPUMissing=True");
        assert_eq!(
            name("karpenter.sh/disrupted"),
            "taint karpenter.sh/disrupted"
        );
    }
}
