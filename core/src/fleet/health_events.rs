//! Events about a node: what keeps work away from its hardware, and what others say of it on its
//! Kubernetes Node object.

use crate::{
    fleet::{registry::Node, scratch::Scratch, unhealthy},
    health::{Finding, Health, Severity},
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
pub(crate) fn tell_health(node: &Node, before: &Health, out: &mut Scratch) {
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
    out.tell(warning, reason, message).on_node(name);
}

/// Writes one event if others now say on the Node object that work must stay away or leave, or do
/// not say so any more. Also a coordinator that starts anew does not repeat it.
pub(crate) fn tell_object(node: &mut Node, out: &mut Scratch) {
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
    out.tell(warning, reason, message).on_node(name);
    node.record.told_excluded = now;
}
