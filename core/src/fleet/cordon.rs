//! Cordons. A person sets one, or Muster does, when a restart storm counts against a node and no
//! limit forbids it.

use std::collections::BTreeMap;

use crate::{
    fleet::{
        brake::Brake,
        budget::{self, MUSTER},
        fault_ledger,
        job::JobRecord,
        node_record::Cordon,
        policy::Policy,
        registry::Registry,
        scratch::Scratch,
    },
    id::{JobUid, NodeName},
};

/// Sets a node's cordon, or removes it.
pub(crate) fn set(
    nodes: &mut Registry,
    jobs: &BTreeMap<JobUid, JobRecord>,
    name: &NodeName,
    cordon: Option<Cordon>,
    out: &mut Scratch,
) {
    out.touch_node(nodes, name);
    let Some(node) = nodes.nodes.get_mut(name) else {
        return;
    };
    match &cordon {
        Some(Cordon { by, reason, .. }) => {
            out.warn("NodeCordoned", format!("{name} cordoned by {by}: {reason}"))
        }
        None => out.note("NodeUncordoned", format!("{name} uncordoned")),
    }
    .on_node(name);
    if cordon.is_none() {
        // A person has looked at the node, so the old evidence no longer counts.
        node.record.marks.clear();
    }
    node.record.cordon = cordon;
    out.node_changed(nodes, jobs, name);
}

/// Cordons a node if enough failures count against it, unless something forbids it.
pub(crate) fn consider(
    nodes: &mut Registry,
    jobs: &BTreeMap<JobUid, JobRecord>,
    name: &NodeName,
    brake: Option<&Brake>,
    policy: &Policy,
    out: &mut Scratch,
) {
    let Some(node) = nodes.get(name).filter(|node| node.record.cordon.is_none()) else {
        return;
    };
    let Some(reason) = fault_ledger::storm(&node.record, policy, out.now) else {
        return;
    };
    let records = nodes.nodes.values().map(|node| &node.record);
    let veto = brake
        .map(|brake| brake.sentence(policy))
        .or_else(|| budget::cordon_veto(records, policy, out.now));
    if let Some(veto) = veto {
        let message = format!("{name} should be cordoned ({reason}), but {veto}");
        out.warn("CordonWithheld", message).on_node(name);
        return;
    }
    let cordon = Cordon {
        by: MUSTER.into(),
        reason,
        at: out.now,
    };
    set(nodes, jobs, name, Some(cordon), out);
}
