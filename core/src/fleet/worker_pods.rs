//! All worker pods that the cluster has told of, and why jobs lack more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    fleet::{
        job::JobRecord,
        pod_plan,
        registry::{Node, Registry},
        shortage::Shortage,
        worker_pod::{PodStage, WorkerPod, namespace_of, node_of},
    },
    id::{JobUid, NodeName},
    node_report::holders::Holder,
};

/// All worker pods that exist, by the name of their node.
#[derive(Debug, Default)]
pub(crate) struct WorkerPods {
    pub all: BTreeMap<NodeName, Arc<WorkerPod>>,
    /// This coordinator has read all pods once. From then on a node that is named as a worker pod and
    /// is not in `all` has no pod.
    pub listed: bool,
    /// Namespaces of which not all pods are told. One that is not in `all` may exist there.
    pub crowded: BTreeSet<String>,
    /// Pods of those namespaces that are gone, as the cluster has said: so far as there is such a node.
    pub gone: BTreeSet<NodeName>,
    /// Pods, by uid, that are about to be deleted. Nothing new is placed on them.
    pub unneeded: BTreeMap<JobUid, BTreeSet<String>>,
    /// Pods have ended, or are no longer known to have, since `capacity` last looked.
    pub ends_changed: bool,
    /// Why jobs cannot have the pods that they lack.
    pub refused: BTreeMap<JobUid, String>,
}

impl WorkerPods {
    /// Takes what was listed. Pods in crowded namespaces that are not among it stay as they were.
    pub(crate) fn list(
        &mut self,
        all: BTreeMap<NodeName, Arc<WorkerPod>>,
        crowded: BTreeSet<String>,
        nodes: &Registry,
    ) {
        let before = std::mem::replace(&mut self.all, all);
        self.ends_changed = true;
        for (name, pod) in before {
            if crowded.contains(&pod.namespace) && nodes.get(&name).is_some() {
                self.all.entry(name).or_insert(pod);
            }
        }
        (self.crowded, self.listed) = (crowded, true);
        let crowded = &self.crowded;
        self.gone.retain(|name| is_in(name, crowded));
    }

    /// The cluster says this of a pod. `None`: it has none of this name any more.
    pub(crate) fn say(&mut self, name: &NodeName, pod: Option<Arc<WorkerPod>>) {
        let ended = |pod: &Option<Arc<WorkerPod>>| {
            let pod = pod.as_ref();
            pod.is_some_and(|pod| pod.stage == PodStage::Ended)
        };
        let now = ended(&pod);
        let before = match pod {
            Some(pod) => self.all.insert(name.clone(), pod),
            None => self.all.remove(name),
        };
        self.ends_changed |= now != ended(&before);
    }

    /// Whether the cluster has no pod of this node's name.
    pub(crate) fn is_missing(&self, name: &NodeName) -> bool {
        let is_known = !is_in(name, &self.crowded) || self.gone.contains(name);
        self.listed && !self.all.contains_key(name) && is_known
    }

    /// Why nothing new is placed on this node, if it is a pod that will not stay.
    pub(crate) fn why_going(&self, node: &Node) -> Option<&'static str> {
        let pod = node.pod.as_ref()?;
        match self.is_unneeded(pod) {
            _ if pod.deleting => Some("is a pod that is being deleted"),
            true => Some("is a pod that its job does not need"),
            false => None,
        }
    }

    /// How many pods of this job are up, or will be: the cluster's scheduler has put them on a host
    /// that may have work, and nobody has deleted them.
    pub(crate) fn with_host(&self, job: &JobRecord, nodes: &Registry) -> usize {
        let cordoned =
            |host: &NodeName| nodes.get(host).is_some_and(|host| nodes.is_cordoned(host));
        let comes = |pod: &&Arc<WorkerPod>| {
            let has_host = pod.host.as_ref().is_some_and(|host| !cordoned(host));
            has_host && pod.stage != PodStage::Ended && !pod.deleting && !self.is_unneeded(pod)
        };
        self.of(job).filter(comes).count()
    }

    /// Whether this holder of a GPU is a worker pod that is over, though its kubelet still names it.
    pub(crate) fn is_over(&self, holder: &Holder) -> bool {
        let pod = self.of_holder(holder);
        pod.is_some_and(|pod| pod.stage == PodStage::Ended)
    }

    /// The worker pod that this holder of a GPU is, if it is one.
    pub(crate) fn of_holder(&self, holder: &Holder) -> Option<&Arc<WorkerPod>> {
        // Most clusters have none.
        let some = &self.all;
        (!some.is_empty()).then(|| some.get(&node_of(&holder.namespace, &holder.pod)))?
    }

    fn is_unneeded(&self, pod: &WorkerPod) -> bool {
        let unneeded = self.unneeded.get(&pod.job);
        unneeded.is_some_and(|uids| uids.contains(&pod.uid))
    }

    fn of(&self, job: &JobRecord) -> impl Iterator<Item = &Arc<WorkerPod>> {
        self.all
            .values()
            .filter(|pod| pod.is_of(&job.name, &job.uid))
    }

    /// Why this job lacks pods, or why those that it has do not run yet.
    pub(crate) fn why_waiting(
        &self,
        job: &JobRecord,
        nodes: &Registry,
    ) -> Option<(Shortage, String)> {
        job.spec.template.as_ref()?;
        if let Some(why) = self.refused.get(&job.uid) {
            let sentence = format!("its pods cannot be made: {why}");
            return Some((Shortage::of_refusal(why), sentence));
        }
        let own: Vec<&WorkerPod> = self.of(job).map(|pod| &**pod).collect();
        pod_plan::waits(own.iter().copied()).or_else(|| agent_not_ready(&own, nodes))
    }
}

/// Whether the node of this name is a pod in one of these namespaces.
fn is_in(name: &NodeName, namespaces: &BTreeSet<String>) -> bool {
    namespace_of(name).is_some_and(|namespace| namespaces.contains(namespace))
}

/// A pod that runs without its agent being heard, for a sentence.
fn agent_not_ready(pods: &[&WorkerPod], nodes: &Registry) -> Option<(Shortage, String)> {
    let is_heard = |pod: &WorkerPod| nodes.get(&pod.node()).is_some_and(|node| node.is_ready());
    let mut running = pods.iter().filter(|pod| pod.stage == PodStage::Running);
    let pod = running.find(|pod| !is_heard(pod))?;
    let sentence = format!(
        "pod {} runs, and its agent is not heard: see `kubectl -n {} logs {} -c muster-agent`; it must reach the coordinator",
        pod.name, pod.namespace, pod.name
    );
    Some((Shortage::AgentNotHeard, sentence))
}
