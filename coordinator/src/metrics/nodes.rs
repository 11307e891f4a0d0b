//! The metrics of nodes and their GPUs, from what the engine has published of them.

use std::{collections::BTreeMap, sync::Arc};

use muster_core::{
    fleet::{
        CordonedBy,
        view::{Liveness, NodeView},
    },
    node_report::Gpu,
};

use super::{catalogue::Family, jobs::Held, text::Page};

/// How many series there are of nodes that are not as they should be.
const EXCEPTIONS_MAX: usize = 1_000;

/// Agents choose these words themselves, so their number is bounded. An upgrade has two or three versions, and
/// the table of health rules some 150 checks.
const VERSIONS_MAX: usize = 32;
const FINDINGS_MAX: usize = 512;

/// Stands for those beyond such a bound.
const OTHER: &str = "other";

/// The most frequent, and the sum of the others, without a name.
fn most<K: Ord>(counts: BTreeMap<K, u64>, max: usize) -> Vec<(Option<K>, u64)> {
    let mut all: Vec<(K, u64)> = counts.into_iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let others: u64 = all.iter().skip(max).map(|(_, count)| count).sum();
    let others = (all.len() > max).then_some((None, others));
    all.truncate(max);
    let named = all.into_iter().map(|(key, count)| (Some(key), count));
    named.chain(others).collect()
}

fn word(liveness: Liveness) -> &'static str {
    match liveness {
        Liveness::Ready => "ready",
        Liveness::Suspect => "suspect",
        Liveness::Lost => "lost",
        Liveness::Unknown => "unknown",
    }
}

pub(super) fn put(page: &mut Page, nodes: &[Arc<NodeView>], held: &Held<'_>) {
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    let mut cordoned: BTreeMap<&str, u64> = BTreeMap::from([("muster", 0), ("person", 0)]);
    let mut agents: BTreeMap<&str, u64> = BTreeMap::new();
    let mut findings: BTreeMap<(&str, String), u64> = BTreeMap::new();
    let (mut excluded, mut exceptions) = (0_u64, Vec::new());
    for node in nodes {
        *states.entry(word(node.liveness)).or_default() += 1;
        if node.liveness == Liveness::Ready {
            *agents.entry(&node.report.agent_version).or_default() += 1;
        }
        if let Some(cordon) = &node.record.cordon {
            let by = match cordon.by {
                CordonedBy::Muster => "muster",
                CordonedBy::Other(_) => "person",
            };
            *cordoned.entry(by).or_default() += 1;
        }
        excluded += u64::from(node.no_new_work.is_some() && node.record.cordon.is_none());
        for finding in &node.report.health.findings {
            let of = (&*finding.check, finding.severity.to_string());
            *findings.entry(of).or_default() += 1;
        }
        exceptions.extend(kinds(node).map(|kind| (node.record.name.as_str(), kind)));
    }
    for (state, count) in states {
        page.put(Family::Nodes, &[state], count);
    }
    for (by, count) in cordoned {
        page.put(Family::NodesCordoned, &[by], count);
    }
    page.put(Family::NodesExcluded, &[], excluded);
    for (version, count) in most(agents, VERSIONS_MAX) {
        page.put(Family::Agents, &[version.unwrap_or(OTHER)], count);
    }
    for (of, count) in most(findings, FINDINGS_MAX) {
        let (check, severity) = of.unwrap_or((OTHER, OTHER.into()));
        page.put(Family::Findings, &[check, &severity], count);
    }
    for (name, kind) in exceptions.iter().take(EXCEPTIONS_MAX) {
        page.put(Family::NodeException, &[name, kind], 1_u64);
    }
    let omitted = exceptions.len().saturating_sub(EXCEPTIONS_MAX);
    page.put(Family::Omitted, &["node_exceptions"], omitted);
    let mass_loss = nodes.iter().any(|node| node.mass_loss);
    page.put(Family::MassLoss, &[], u64::from(mass_loss));
    gpus(page, nodes, held);
}

/// In which ways a node is not as it should be.
fn kinds(node: &NodeView) -> impl Iterator<Item = &'static str> {
    let silent = match node.liveness {
        Liveness::Suspect | Liveness::Lost => Some(word(node.liveness)),
        Liveness::Ready | Liveness::Unknown => None,
    };
    let record = &node.record;
    let others = [
        (record.cordon.is_some(), "cordoned"),
        (node.no_new_work.is_some(), "unhealthy"),
        (record.halt.is_some(), "halted"),
    ];
    let others = others.into_iter().filter(|(is, _)| *is);
    silent.into_iter().chain(others.map(|(_, kind)| kind))
}

/// What of a GPU can be placed: the GPU itself, or its MIG instances.
fn ids(gpu: &Gpu) -> impl Iterator<Item = &str> {
    let mig = gpu.mig.as_ref().filter(|mig| mig.enabled);
    let parts = mig.into_iter().flat_map(|mig| &mig.instances);
    let whole = mig.is_none().then_some(&*gpu.uuid);
    whole.into_iter().chain(parts.map(|part| &*part.uuid))
}

/// Each GPU once. Worker pods have those of their hosts.
fn gpus(page: &mut Page, nodes: &[Arc<NodeView>], held: &Held<'_>) {
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    let hosts = nodes.iter().filter(|node| node.record.pod_of.is_none());
    for node in hosts {
        let report = &node.report;
        let of_jobs = held.get(&node.record.name);
        let unheld = report.unheld_ids(|_| true);
        let whole_node = match () {
            () if node.liveness != Liveness::Ready => Some("unreachable"),
            () if node.record.cordon.is_some() => Some("cordoned"),
            () if node.no_new_work.is_some() => Some("unhealthy"),
            () => None,
        };
        for gpu in &report.gpus {
            let withheld = report.health.withholds(&gpu.uuid);
            for id in ids(gpu) {
                let is_busy = of_jobs.is_some_and(|gpus| gpus.contains(id));
                let taken = !withheld && !unheld.iter().any(|(_, uuid)| *uuid == id);
                let state = match whole_node {
                    _ if is_busy => "busy",
                    Some(state) => state,
                    None if withheld => "unhealthy",
                    None if taken => "busy",
                    None => "free",
                };
                *states.entry(state).or_default() += 1;
            }
        }
    }
    for (state, count) in states {
        page.put(Family::Gpus, &[state], count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_agents_are_bounded_and_nothing_is_lost() {
        let counts = BTreeMap::from([("a", 1), ("b", 5), ("c", 2), ("d", 1)]);
        assert_eq!(
            most(counts.clone(), 2),
            [(Some("b"), 5), (Some("c"), 2), (None, 2)]
        );
        assert_eq!(most(counts, 4).len(), 4);
    }
}
