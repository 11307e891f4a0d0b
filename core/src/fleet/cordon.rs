//! Cordons. A person sets one, or Muster does, when a restart storm counts against a node and no
//! limit forbids it. If a person uncordons the Node object in Kubernetes, the cordon
//! ends here too, and Muster holds off for a day.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fleet::{
        brake::Brake,
        budget,
        changes::Changes,
        fault_ledger,
        job::JobRecord,
        node_record::{Cordon, CordonedBy, HoldOff, NodeRecord},
        policy::Policy,
        registry::{Registry, Withheld},
        scratch::Scratch,
    },
    id::{JobUid, NodeName},
    node_object::same_but_numbers,
    period,
    time::Timestamp,
};

/// How often withheld cordons are considered again. Vetoes last for minutes.
pub(crate) const AGAIN: Duration = Duration::from_secs(60);

/// Sets a node's cordon, or removes it.
pub(crate) fn set(
    nodes: &mut Registry,
    jobs: &BTreeMap<JobUid, JobRecord>,
    name: &NodeName,
    cordon: Option<Cordon>,
    scratch: &mut Scratch,
) {
    match &cordon {
        Some(Cordon { by, reason, .. }) => scratch
            .events
            .warn("NodeCordoned", format!("{name} cordoned by {by}: {reason}")),
        None => scratch
            .events
            .note("NodeUncordoned", format!("{name} uncordoned")),
    }
    .on_node(name);
    put(nodes, jobs, name, cordon, &mut scratch.changes);
}

/// A person has uncordoned the node in Kubernetes. That ends every cordon of ours, and for a while
/// Muster does not set one itself.
pub(crate) fn overruled(
    nodes: &mut Registry,
    jobs: &BTreeMap<JobUid, JobRecord>,
    name: &NodeName,
    policy: &Policy,
    scratch: &mut Scratch,
) {
    let hold_off = HoldOff {
        since: scratch.now,
        until: scratch.now + policy.cordon_hold_off,
    };
    let message = format!(
        "{name} uncordoned in Kubernetes: somebody made it schedulable again. Muster does not cordon it by itself before {}",
        hold_off.until.rfc3339_seconds()
    );
    scratch.events.note("NodeUncordoned", message).on_node(name);
    put(nodes, jobs, name, None, &mut scratch.changes);
    if let Some(node) = nodes.get_mut(name) {
        node.record.hold_off = Some(hold_off);
    }
}

fn put(
    nodes: &mut Registry,
    jobs: &BTreeMap<JobUid, JobRecord>,
    name: &NodeName,
    cordon: Option<Cordon>,
    changes: &mut Changes,
) {
    changes.touch_node(nodes, name);
    let Some(node) = nodes.get_mut(name) else {
        return;
    };
    let over = node.record.cordon.as_ref().map(|cordon| cordon.at);
    node.record.ended = node.record.ended.max(over);
    if cordon.is_none() {
        // A person has looked at the node, so the old evidence no longer counts.
        node.record.marks.clear();
    }
    (node.record.cordon, node.withheld) = (cordon, None);
    changes.node_changed(nodes, jobs, name);
}

/// The time of a new cordon of this node. It names the cordon, so it is later than that of every
/// cordon before it, even if clocks differ.
pub(crate) fn moment(record: &NodeRecord, now: Timestamp) -> Timestamp {
    let after = |last: Timestamp| last + Duration::from_micros(1);
    now.max(record.last_cordon().map_or(now, after))
}

/// Cordons a node if enough failures count against it, unless something forbids it.
pub(crate) fn consider(
    nodes: &mut Registry,
    jobs: &BTreeMap<JobUid, JobRecord>,
    name: &NodeName,
    brake: Option<&Brake>,
    policy: &Policy,
    scratch: &mut Scratch,
) {
    let Some(node) = nodes.get(name).filter(|node| node.record.cordon.is_none()) else {
        return;
    };
    let storm = fault_ledger::storm(&node.record, policy, scratch.now);
    let veto = storm.as_ref().and_then(|_| {
        let records = nodes.iter().map(|node| &node.record);
        hold_off_veto(&node.record, scratch.now)
            .or_else(|| brake.map(|brake| brake.sentence(policy)))
            .or_else(|| budget::cordon_veto(records, policy, scratch.now))
    });
    let withheld = storm.clone().zip(veto);
    let withheld = withheld.map(|(reason, veto)| Withheld { reason, veto });
    if node.withheld != withheld {
        scratch.changes.touch_node(nodes, name);
        let node = nodes.get_mut(name).expect("found above");
        let before = std::mem::replace(&mut node.withheld, withheld.clone());
        // The numbers in the sentence change all the time.
        if let Some(Withheld { reason, veto }) = &withheld
            && before.is_none_or(|before| !same_but_numbers(&before.veto, veto))
        {
            let message = format!("{name} should be cordoned ({reason}), but {veto}");
            scratch.events.warn("CordonWithheld", message).on_node(name);
        }
    }
    let (Some(reason), None) = (storm, withheld) else {
        return;
    };
    let cordon = Cordon {
        by: CordonedBy::Muster,
        reason,
        at: moment(&nodes[name].record, scratch.now),
        jobs: fault_ledger::accusers(&nodes[name].record, policy, scratch.now),
    };
    set(nodes, jobs, name, Some(cordon), scratch);
}

/// Considers all nodes again that have enough marks, and forgets what is over: a veto ends with
/// time, and so does a storm.
pub(crate) fn consider_again(
    nodes: &mut Registry,
    jobs: &BTreeMap<JobUid, JobRecord>,
    brake: Option<&Brake>,
    policy: &Policy,
    scratch: &mut Scratch,
) {
    let now = scratch.now;
    let held_off = |record: &NodeRecord| record.hold_off.is_some();
    let concerned = nodes.iter().filter(|node| {
        let marked = node.record.marks.len() >= policy.storm_failures;
        node.withheld.is_some() || held_off(&node.record) || marked
    });
    let names: Vec<NodeName> = concerned.map(|node| node.record.name.clone()).collect();
    for name in &names {
        consider(nodes, jobs, name, brake, policy, scratch);
        let is_over = |hold_off: &HoldOff| now >= hold_off.until;
        if nodes[name].record.hold_off.as_ref().is_some_and(is_over) {
            scratch.changes.touch_node(nodes, name);
            let node = nodes.get_mut(name).expect("it is there");
            node.record.hold_off = None;
        }
    }
}

fn hold_off_veto(record: &NodeRecord, now: Timestamp) -> Option<String> {
    let hold_off = record.hold_off.as_ref();
    let hold_off = hold_off.filter(|hold_off| now < hold_off.until)?;
    Some(hold_off_sentence(hold_off))
}

/// Until when Muster holds off, and why.
pub(crate) fn hold_off_sentence(hold_off: &HoldOff) -> String {
    format!(
        "somebody uncordoned it in Kubernetes at {}, and Muster does not cordon it by itself for {}, until {}",
        hold_off.since.rfc3339_seconds(),
        period::format(hold_off.until.since(hold_off.since)),
        hold_off.until.rfc3339_seconds()
    )
}
