//! What a job that has too few nodes lacks, as one word. The sentence beside it has the names and the numbers.
//!
//! The cluster gives its reasons as texts: the API server why it makes no pod, the scheduler why it places
//! none, a kubelet why a container does not start. Each is read here, and nowhere else. A text that is not
//! known gets the word of its source, and the sentence still has it whole.

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;

use crate::fleet::worker_pod::PodWait;

/// The cause of a shortage of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Shortage {
    // No pod is made.
    /// A quota of the namespace is used up.
    QuotaExceeded,
    /// The coordinator has no right to it.
    RightMissing,
    /// The namespace's Pod Security level forbids what the template says.
    PodSecurity,
    /// An admission policy or webhook refuses it.
    PolicyRefused,
    /// The template is no pod.
    InvalidTemplate,
    /// The namespace has more worker pods than are kept of it, so that nobody knows what the job has.
    NamespaceCrowded,
    /// For another reason.
    PodsRefused,

    // Pods are not placed.
    TooFewGpus,
    TooFewResources,
    /// Selectors and affinities fit too few nodes.
    SelectorMatchesTooFew,
    NodesTainted,
    NodesCordoned,
    Unschedulable,

    // Pods do not run.
    ImagePull,
    /// A container cannot be made as the template says, as for a Secret that is not there.
    ContainerInvalid,
    ContainerFails,
    PodEnded,
    /// They come up, as always.
    PodsStarting,
    AgentNotHeard,

    // Nodes do not take the job.
    NodesSilent,
    NodesOccupied,
    /// Jobs that come first wait for the room that there is.
    NodesReserved,
    /// The jobs of its namespace hold as many GPUs as the operator allows.
    NamespaceGpusMax,
    /// The jobs of its user do.
    UserGpusMax,
    /// The quota of its queue is used up, and it can borrow too little.
    QueueQuota,
    NodesExcluded,
    MixedNodes,
    /// Enough nodes would do, and no domain of the topology has as many.
    TopologyTooSmall,
    AgentTooOld,
    StoreBehind,
    /// None is known.
    NoNodes,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Shortage {
    /// Whether it passes within moments at every start, so that nobody need be told.
    pub(crate) fn is_usual(self) -> bool {
        self == Self::PodsStarting
    }

    /// Why no pod is made, from the words of the API server.
    pub(crate) fn of_refusal(text: &str) -> Self {
        let says = |words: &[&str]| words.iter().any(|words| text.contains(words));
        if says(&[
            "exceeded quota",
            "must specify limits",
            "must specify requests",
        ]) {
            Self::QuotaExceeded
        } else if says(&[" cannot create ", " cannot get ", " cannot patch "]) {
            Self::RightMissing
        } else if says(&["than its share of what this coordinator keeps"]) {
            Self::NamespaceCrowded
        } else if says(&["violates PodSecurity"]) {
            Self::PodSecurity
        } else if says(&["denied request", "denied the request", "admission webhook"]) {
            Self::PolicyRefused
        } else if says(&["(422)", "(400)", "Invalid value", "unknown field"]) {
            Self::InvalidTemplate
        } else {
            Self::PodsRefused
        }
    }

    /// Why a pod waits.
    pub(crate) fn of_wait(wait: &PodWait) -> Self {
        match &*wait.reason {
            "Unschedulable" => of_scheduler(&wait.message),
            "SchedulerError" | "SchedulingGated" => Self::Unschedulable,
            "ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "ImageInspectError"
            | "RegistryUnavailable"
            | "SignatureValidationFailed" => Self::ImagePull,
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
                Self::ContainerInvalid
            }
            "CrashLoopBackOff" => Self::ContainerFails,
            "ContainerCreating" | "PodInitializing" => Self::PodsStarting,
            _ => Self::PodEnded,
        }
    }
}

/// What holds for most. The first in the list of words decides a tie, so that it does not change to and fro.
pub(crate) fn most(all: impl Iterator<Item = (Shortage, u32)>) -> Option<Shortage> {
    let mut counts: BTreeMap<Shortage, u32> = BTreeMap::new();
    for (word, count) in all {
        *counts.entry(word).or_default() += count;
    }
    let most = counts.values().max().copied()?;
    let mut found = counts.into_iter().filter(|(_, count)| *count == most);
    found.next().map(|(word, _)| word)
}

/// `0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu. preemption: ...`
fn of_scheduler(message: &str) -> Shortage {
    let Some((_, reasons)) = message.split_once("are available: ") else {
        return Shortage::Unschedulable;
    };
    let reasons = reasons.split(". ").next().unwrap_or_default();
    let reasons = reasons.split(", ").filter_map(|part| {
        let (count, why) = part.trim().split_once(' ')?;
        Some((of_scheduler_reason(why), count.parse().ok()?))
    });
    most(reasons).unwrap_or(Shortage::Unschedulable)
}

fn of_scheduler_reason(why: &str) -> Shortage {
    match why.strip_prefix("Insufficient ") {
        Some(resource) if resource.contains("gpu") => return Shortage::TooFewGpus,
        Some(_) => return Shortage::TooFewResources,
        None => {}
    }
    if why.contains("were unschedulable") {
        Shortage::NodesCordoned
    } else if why.contains("untolerated taint") {
        Shortage::NodesTainted
    } else if why.contains("didn't match") || why.contains("didn't satisfy") {
        Shortage::SelectorMatchesTooFew
    } else {
        Shortage::Unschedulable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_server_says_why_it_makes_no_pod() {
        for (text, word) in [
            (
                "exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2",
                Shortage::QuotaExceeded,
            ),
            (
                "User \"me\" cannot create resource \"pods\" in API group \"\" in the namespace \"a\"; manifests/components/worker-pods has the right",
                Shortage::RightMissing,
            ),
            (
                "read the DaemonSet muster-system/muster-agent: daemonsets.apps \"muster-agent\" is forbidden: User \"me\" cannot get resource",
                Shortage::RightMissing,
            ),
            (
                "violates PodSecurity \"restricted:latest\": hostPath volumes",
                Shortage::PodSecurity,
            ),
            (
                "ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no hostPath",
                Shortage::PolicyRefused,
            ),
            (
                "admission webhook \"theirs\" denied the request: no",
                Shortage::PolicyRefused,
            ),
            (
                "spec.volumes[4].name: Invalid value: \"\" (422)",
                Shortage::InvalidTemplate,
            ),
            (
                "there are more worker pods in namespace a than its share of what this coordinator keeps",
                Shortage::NamespaceCrowded,
            ),
            ("no connection", Shortage::PodsRefused),
        ] {
            assert_eq!(Shortage::of_refusal(text), word, "{text}");
        }
    }

    #[test]
    fn the_scheduler_and_kubelets_say_why_a_pod_waits() {
        let word = |reason: &str, message: &str| {
            Shortage::of_wait(&PodWait {
                reason: reason.into(),
                message: message.into(),
            })
        };
        let scheduler = |message: &str| word("Unschedulable", message);
        let preemption =
            "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.";
        for (reasons, expected) in [
            ("3 Insufficient nvidia.com/gpu", Shortage::TooFewGpus),
            (
                "1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu",
                Shortage::TooFewGpus,
            ),
            ("3 Insufficient cpu", Shortage::TooFewResources),
            (
                "3 node(s) didn't match Pod's node affinity/selector",
                Shortage::SelectorMatchesTooFew,
            ),
            (
                "1 node(s) had untolerated taint {a: b}, 2 node(s) were unschedulable",
                Shortage::NodesCordoned,
            ),
            ("3 node(s) had untolerated taint(s)", Shortage::NodesTainted),
            ("3 something new", Shortage::Unschedulable),
        ] {
            let message = format!("0/3 nodes are available: {reasons}. {preemption}");
            assert_eq!(scheduler(&message), expected, "{message}");
        }
        assert_eq!(scheduler("pod has unbound claims"), Shortage::Unschedulable);
        assert_eq!(word("ImagePullBackOff", ""), word("ErrImagePull", ""));
        assert_eq!(word("CrashLoopBackOff", ""), Shortage::ContainerFails);
        assert_eq!(word("Evicted", "low on memory"), Shortage::PodEnded);
        assert!(word("ContainerCreating", "").is_usual());
    }

    #[test]
    fn a_tie_is_decided_the_same_way_each_time() {
        use Shortage::{NodesCordoned, NodesOccupied, NodesSilent};
        let word = |all: &[(Shortage, u32)]| most(all.iter().copied());
        assert_eq!(word(&[]), None);
        let two = [(NodesOccupied, 1), (NodesCordoned, 1)];
        assert_eq!(word(&two), Some(NodesCordoned));
        let three = [(NodesSilent, 1), (NodesOccupied, 1), (NodesOccupied, 1)];
        assert_eq!(word(&three), Some(NodesOccupied));
    }
}
