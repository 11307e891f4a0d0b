//! What a node's own verdict on its hardware means for jobs: which members must leave, which should
//! leave at a good moment, and where no new work may go.
//!
//! The agent makes the verdict ([`crate::health`]), and nothing is judged anew here. The verdict
//! says nothing about a job's fault. A node that is healthy again is used again. The signs of other
//! programs on the node's Kubernetes Node object ([`crate::node_object`]) count beside it.

use std::{collections::BTreeSet, fmt};

use crate::{
    fleet::{
        job::JobRecord,
        members::Member,
        pod_gpus,
        registry::{Liveness, Node, Registry},
        word,
    },
    health::{Finding, Severity, TERMINATION_NOTICE, WORKER_UNKILLABLE},
    id::NodeName,
    run::RunId,
};

/// What concerns a member, and the host that says so if the member is a worker pod.
type Concern<'a> = (&'a Finding, Option<&'a NodeName>);

/// The gravest finding about the GPUs of this member, or about its node. Of a worker pod's host only
/// the pod's GPUs count. A member without GPUs stays as long as its processes do. The stored report of
/// a node that was not heard since this coordinator started may be older than the generation, so it
/// does not count.
fn concerns<'a>(nodes: &'a Registry, node: &'a Node, member: &Member) -> Option<Concern<'a>> {
    let is_heard = |node: &Node| node.liveness != Liveness::Unknown;
    let of_pod = pod_gpus::gravest(nodes, node);
    if let Some((finding, host)) = of_pod.filter(|_| nodes.host_of(node).is_some_and(is_heard)) {
        return Some((finding, Some(host)));
    }
    if !is_heard(node) {
        return None;
    }
    let report = &node.report;
    let given = member.gpus.iter().map(|uuid| {
        report
            .gpu_of(uuid)
            .map_or(uuid.as_str(), |gpu| gpu.uuid.as_str())
    });
    given
        .filter_map(|uuid| report.health.of_gpu(uuid))
        .max_by_key(|finding| finding.severity)
        .map(|finding| (finding, None))
}

/// The check whose finding ends this member, and the finding in words: it cannot go on, or must not.
pub(crate) fn fails(nodes: &Registry, node: &Node, member: &Member) -> Option<(String, String)> {
    concerns(nodes, node, member)
        .filter(|(finding, _)| finding.severity >= Severity::FailNow)
        .map(|(finding, host)| (finding.check.clone(), pod_gpus::said(finding, host)))
}

/// Why nothing new may be placed on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoNewWork<'a> {
    Unhealthy(&'a Finding),
    /// Others keep new work away, by what its Node object says.
    Excluded(&'a str),
    /// Others make it leave.
    Leaving(&'a str),
    /// It is a worker pod, and its host says this of one of its GPUs.
    HoldsUnhealthy(&'a Finding, &'a NodeName),
}

impl fmt::Display for NoNewWork<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unhealthy(finding) => {
                write!(f, "unhealthy ({}: {})", finding.check, finding.reason)
            }
            Self::Excluded(why) => f.write_str(why),
            Self::Leaving(why) => write!(f, "leaving ({why})"),
            Self::HoldsUnhealthy(finding, host) => {
                write!(
                    f,
                    "holds an unhealthy GPU: {}",
                    pod_gpus::said(finding, Some(host))
                )
            }
        }
    }
}

/// Why nothing new may be placed on the node, by its own findings, its host's, or the word of others.
pub(crate) fn no_new_work<'a>(nodes: &'a Registry, node: &'a Node) -> Option<NoNewWork<'a>> {
    let of_pod = || {
        let (finding, host) = pod_gpus::gravest(nodes, node)?;
        let keeps_away = finding.severity >= Severity::Drain;
        keeps_away.then_some(NoNewWork::HoldsUnhealthy(finding, host))
    };
    bars(node)
        .or_else(|| bars(nodes.host_of(node)?))
        .or_else(of_pod)
}

/// What the node alone says: its own finding, or the word of others on its Node object.
fn bars(node: &Node) -> Option<NoNewWork<'_>> {
    let own = node.report.health.withholds_node();
    own.map(NoNewWork::Unhealthy).or_else(|| {
        let object = node.object.as_ref()?;
        let excluded = object.excluded(node.record.overruled);
        let leaving = || object.leaving.as_deref().map(NoNewWork::Leaving);
        excluded.map(NoNewWork::Excluded).or_else(leaving)
    })
}

/// Why the node will soon be gone with all that runs on it, by its own word or its pod's. Processes
/// on such a node may be killed at any time.
pub(crate) fn leaves(node: &Node) -> Option<String> {
    let own = notice(node).map(|finding| finding.reason.clone());
    let deleting = node.pod.as_ref().is_some_and(|pod| pod.deleting);
    own.or_else(|| deleting.then(|| "its pod is being deleted".to_owned()))
}

/// If an operator's rules make the notice less severe, the node still takes work, and a job that
/// left would come back.
fn notice(node: &Node) -> Option<&Finding> {
    let mut findings = node.report.health.findings.iter();
    findings.find(|f| f.check == TERMINATION_NOTICE && f.severity >= Severity::Drain)
}

/// What others say on the Node object to keep new work away, or to make it leave.
pub(crate) fn word_of_others(node: &Node) -> Option<String> {
    let object = node.object.as_ref()?;
    let excluded = || object.excluded(node.record.overruled).map(str::to_owned);
    object.leaving.clone().or_else(excluded)
}

/// Whether what this job stops is free only when a person has come: its workers cannot be killed, or a node that knows
/// more than the store holds it up.
pub(crate) fn frees_nothing(
    halted: &BTreeSet<NodeName>,
    nodes: &Registry,
    job: &JobRecord,
) -> bool {
    word::halted_by(halted, nodes, job).is_some() || unkillable(nodes, job).is_some()
}

/// The sentence about workers of this job that cannot be killed, on a node that can be asked.
pub(crate) fn unkillable(nodes: &Registry, job: &JobRecord) -> Option<String> {
    job.unproven_generations().find_map(|generation| {
        let run = RunId {
            job: job.uid.clone(),
            generation: generation.number,
        };
        let there = generation
            .members
            .iter()
            .filter(|member| !generation.has_stopped(&member.node));
        let mut there =
            there.filter_map(|member| nodes.get(&member.node).filter(|node| node.is_ready()));
        there.find_map(|node| {
            let of_run =
                |finding: &&Finding| finding.check == WORKER_UNKILLABLE && finding.is_about(&run);
            let finding = node.report.health.findings.iter().find(of_run)?;
            Some(format!(
                "the workers on {} are not dead, and it needs a reboot: {}",
                node.record.name, finding.reason
            ))
        })
    })
}

/// A member whose machine will be taken away, and the notice that says so.
pub(crate) fn leaving<'a>(
    nodes: &'a Registry,
    job: &'a JobRecord,
) -> Option<(&'a NodeName, &'a str)> {
    let members = &job.current.as_ref()?.members;
    members.iter().find_map(|member| {
        let node = nodes.get(&member.node)?;
        let notice = notice(node).map(|finding| &finding.reason);
        // A worker pod's notice stands on its host's Node object.
        let object = nodes.blamed(node).object.as_ref();
        let notice = notice.or_else(|| object?.leaving.as_ref())?;
        Some((&member.node, notice.as_str()))
    })
}

/// A member that should leave at the next good moment, and why.
pub(crate) fn ailing(nodes: &Registry, job: &JobRecord) -> Option<(NodeName, String)> {
    let members = &job.current.as_ref()?.members;
    members.iter().find_map(|member| {
        let (finding, host) = concerns(nodes, nodes.get(&member.node)?, member)
            .filter(|(finding, _)| finding.severity >= Severity::Drain)?;
        Some((member.node.clone(), pod_gpus::said(finding, host)))
    })
}
