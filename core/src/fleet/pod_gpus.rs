//! The GPUs of a worker pod. The kubelet of its host has given them to it, and the host's agent reports
//! who holds what, and how healthy it is. A pod's own agent sees no GPU.
//!
//! Nothing is guessed: if the host is not known, or its kubelet was not asked or has not answered, a pod
//! has no GPUs here. Only what the host says of the pod's own GPUs concerns the pod. A sick GPU of a
//! neighbour does not.

use crate::{
    fleet::{
        registry::{Node, Registry},
        worker_pod::PodStage,
    },
    health::{Finding, Subject},
    id::NodeName,
    node_report::{
        Gpu,
        holders::{Holder, Holders},
    },
};

/// What a worker pod holds, by UUID of GPU or MIG instance, and the host that says so.
#[derive(Clone, Debug)]
pub(crate) struct PodGpus<'a> {
    pub host: &'a Node,
    pub ids: Vec<&'a str>,
}

/// `None`: the node is no worker pod, or nothing is known of its host.
pub(crate) fn of<'a>(nodes: &'a Registry, node: &'a Node) -> Option<PodGpus<'a>> {
    let host = nodes.host_of(node)?;
    let pod = node.pod.as_ref()?;
    let holders = &host.report.holders;
    let mut ids: Vec<&str> = holders.of_pod(&pod.namespace, &pod.name).collect();
    // Before Kubernetes 1.34 a kubelet names holders that have ended.
    if pod.stage == PodStage::Ended {
        ids.clear();
    }
    Some(PodGpus { host, ids })
}

impl<'a> PodGpus<'a> {
    /// The GPUs, or those whose parts it holds, in the order of the host's report.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = &'a Gpu> {
        let all = self.host.report.gpus.iter();
        all.filter(|gpu| self.ids.iter().any(|id| gpu.has(id)))
    }

    /// What of these GPUs it holds: whole ones, or MIG instances.
    pub(crate) fn shares(&self) -> impl Iterator<Item = Gpu> {
        let share = |gpu: &Gpu| match self.ids.iter().any(|id| *id == gpu.uuid) {
            true => vec![gpu.clone()],
            false => gpu.parts(),
        };
        let held = |part: &Gpu| self.ids.iter().any(|id| *id == part.uuid);
        self.gpus().flat_map(share).filter(held)
    }

    /// What the host says about these GPUs.
    pub(crate) fn findings(&self) -> impl Iterator<Item = &'a Finding> {
        let about = |finding: &&Finding| match &finding.subject {
            Subject::Gpu(uuid) => self.gpus().any(|gpu| gpu.uuid == *uuid),
            Subject::Node | Subject::Nic(_) => false,
        };
        self.host.report.health.findings.iter().filter(about)
    }
}

/// The gravest finding about a GPU of this worker pod, and the host that says so.
pub(crate) fn gravest<'a>(
    nodes: &'a Registry,
    node: &'a Node,
) -> Option<(&'a Finding, &'a NodeName)> {
    let held = of(nodes, node)?;
    let gravest = held.findings().max_by_key(|finding| finding.severity)?;
    Some((gravest, &held.host.record.name))
}

/// What was found, in words. `host`: the node that says so of a GPU, if it is another one.
pub(crate) fn said(finding: &Finding, host: Option<&NodeName>) -> String {
    let Finding { check, reason, .. } = finding;
    match (host, &finding.subject) {
        (Some(host), Subject::Gpu(uuid)) => format!("{check}: {reason} ({uuid} on {host})"),
        _ => format!("{check}: {reason}"),
    }
}

/// Why no new worker pod should go to a host that is fit as a whole: one of its GPUs is unhealthy, and
/// its kubelet could give it away. What a pod of others holds it cannot. `is_ours`: the holder is a
/// worker pod, or is over.
pub(crate) fn bars_new_pods(host: &Node, is_ours: impl Fn(&Holder) -> bool) -> Option<String> {
    let report = &host.report;
    if !matches!(report.holders, Holders::Known(_)) {
        return None;
    }
    let grave = |gpu: &&Gpu| report.health.withholds(&gpu.uuid);
    let mut grave = report.gpus.iter().filter(grave);
    let gpu = grave.find(|gpu| report.holders_of(gpu).all(&is_ours))?;
    let finding = report.health.of_gpu(&gpu.uuid)?;
    Some(format!("{} is unhealthy ({})", gpu.uuid, finding.check))
}
