//! Events about a node: what keeps work away from its hardware, and what others say of it on its
//! Kubernetes Node object. Also the XIDs of GPUs that worker pods hold.

use std::collections::BTreeMap;

use crate::{
    fleet::{
        event_log::EventLog,
        job::JobRecord,
        pod_gpus,
        registry::{Node, Registry},
        unhealthy,
    },
    health::{Finding, Health, Severity},
    id::{JobUid, NodeName},
};

/// The findings that keep work away from a GPU or the node.
fn grave(health: &Health) -> impl Iterator<Item = &Finding> {
    health
        .findings
        .iter()
        .filter(|finding| finding.severity >= Severity::Drain)
}

/// Writes one event per report if something new keeps work away from a node, or if nothing does any
/// more.
pub(crate) fn tell_health(node: &Node, before: &Health, events: &mut EventLog) {
    let name = &node.record.name;
    let known = |finding: &&Finding| {
        grave(before).any(|old| (&old.check, &old.subject) == (&finding.check, &finding.subject))
    };
    let news: Vec<&Finding> = grave(&node.report.health)
        .filter(|finding| !known(finding))
        .collect();
    let (warning, reason, message) = if let Some(first) = news.first() {
        let others = if news.len() > 1 {
            format!("; and {} more", news.len() - 1)
        } else {
            String::new()
        };
        (
            true,
            "NodeUnhealthy",
            format!(
                "{name}: {} ({}): {}{others}",
                first.check, first.severity, first.reason
            ),
        )
    } else if grave(before).next().is_some() && grave(&node.report.health).next().is_none() {
        (
            false,
            "NodeHealthy",
            format!("{name}: nothing keeps work away from its hardware any more"),
        )
    } else {
        return;
    };
    events.tell(warning, reason, message).on_node(name);
}

/// Writes one event if others now say on the Node object that work must stay away or leave, or do
/// not say so any more. Also a coordinator that starts anew does not repeat it.
pub(crate) fn tell_object(node: &mut Node, events: &mut EventLog) {
    let now = unhealthy::word_of_others(node);
    if node.record.told_excluded == now {
        return;
    }
    let name = &node.record.name;
    let (warning, reason, message) = match &now {
        Some(why) => (
            true,
            "NodeExcluded",
            format!("{name} gets no new work: {why}"),
        ),
        None => (
            false,
            "NodeIncluded",
            format!("{name}: nothing in Kubernetes keeps work away from it any more"),
        ),
    };
    events.tell(warning, reason, message).on_node(name);
    node.record.told_excluded = now;
}

/// Tells each job whose pod holds a GPU of new XIDs of this GPU.
pub(crate) fn tell_xids(
    host: &NodeName,
    before: &Health,
    nodes: &Registry,
    jobs: &BTreeMap<JobUid, JobRecord>,
    events: &mut EventLog,
) {
    let known = |finding: &&Finding| {
        let same = |old: &Finding| {
            (&old.check, &old.subject, &old.reason)
                == (&finding.check, &finding.subject, &finding.reason)
        };
        before.findings.iter().any(same)
    };
    for name in nodes.pods_on(host) {
        let node = nodes.get(name);
        let job = node.and_then(|node| {
            let pod = node.pod.as_ref()?;
            let job = jobs.get(&pod.job)?;
            pod.is_of(&job.name, &job.uid).then_some(job)
        });
        let (Some(node), Some(job)) = (node, job) else {
            continue;
        };
        let Some(held) = pod_gpus::of(nodes, node) else {
            continue;
        };
        let xids = held.findings().filter(|f| f.check.starts_with("xid"));
        for finding in xids.filter(|finding| !known(finding)) {
            let message = format!("{name}: {}", pod_gpus::said(finding, Some(host)));
            let event = events.tell(finding.severity > Severity::Note, "Xid", message);
            event.of_job(&job.uid, &job.name).on_node(host);
            if let Some(current) = job.current.as_ref().filter(|current| current.has(name)) {
                event.in_generation(current.number);
            }
        }
    }
}
