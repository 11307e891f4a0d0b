//! A worker pod: a pod of a Kubernetes cluster that holds one job's place, in the job's own image. Its
//! agent is a node of its own, and only its job gets that node.

use std::collections::BTreeSet;

use crate::{
    id::{JobName, JobUid, NodeName},
    time::Timestamp,
};

/// The node name of a worker pod ends in this. A host of such a name is never given work.
pub const SUFFIX: &str = ".pod";

/// A pod as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerPod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The job that it was made for, as its label says.
    pub job: JobUid,
    pub created: Timestamp,
    /// The node on which it is, once the cluster's scheduler has chosen one.
    pub host: Option<NodeName>,
    /// Hosts to which it must not go, by what was known when it was made.
    pub avoids: BTreeSet<NodeName>,
    pub stage: PodStage,
    /// It was deleted, and its containers are being stopped.
    pub deleting: bool,
    /// Why it does not run yet, for people.
    pub waits: Option<PodWait>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodStage {
    /// It has no node yet, or its containers are being made.
    Waiting,
    Running,
    /// All its containers have ended, and none starts again.
    Ended,
}

/// Why a pod does not run yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodWait {
    /// The cluster's word, as `Unschedulable` or `ImagePullBackOff`.
    pub reason: String,
    pub message: String,
}

impl PodWait {
    /// Whether it says no more than that the containers are being made.
    pub fn is_usual(&self) -> bool {
        ["PodInitializing", "ContainerCreating"].contains(&&*self.reason)
    }
}

impl WorkerPod {
    /// Whether it waits for something that does not come by itself: it has no host, or the cluster says
    /// what is wrong, such as a missing image.
    pub fn cannot_begin(&self) -> bool {
        let is_odd = |wait: &PodWait| !wait.is_usual();
        let lacks = self.host.is_none() || self.waits.as_ref().is_some_and(is_odd);
        self.stage == PodStage::Waiting && lacks
    }

    /// The name of the node that the pod is.
    pub fn node(&self) -> NodeName {
        node_of(&self.namespace, &self.name)
    }

    /// Whether it may be a member of a job of this name and uid. A user who may make pods in a
    /// namespace can write any label, but only there.
    pub fn is_of(&self, name: &JobName, uid: &JobUid) -> bool {
        self.job == *uid && self.namespace == name.namespace
    }
}

/// The name of the node that this pod is.
pub fn node_of(namespace: &str, pod: &str) -> NodeName {
    format!("{pod}.{namespace}{SUFFIX}").into()
}

/// The namespace of the pod that is this node. `None`: it is no pod.
pub(crate) fn namespace_of(node: &NodeName) -> Option<&str> {
    let pod = node.as_str().strip_suffix(SUFFIX)?;
    // Names of pods may have dots, and those of namespaces have none.
    pod.rsplit_once('.').map(|(_, namespace)| namespace)
}

/// Whether a node of this name is a worker pod.
pub fn is_pod(node: &NodeName) -> bool {
    node.as_str().ends_with(SUFFIX)
}
