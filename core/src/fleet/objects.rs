//! What Kubernetes Node objects say about the fleet's nodes: labels, what others think of the node,
//! and what became of Muster's own marks.
//!
//! An object may be read before its agent first connects, or long after. A node whose object is
//! gone keeps its labels until it reports anew; what others said of it is over at once. A
//! coordinator that starts keeps the labels of the stored reports until it has read the objects. If
//! they cannot be read or written, nothing stops: the failure is one event, and a condition of
//! every node until it is over.
//!
//! What a cordon of Muster on an object means depends on its time and on the node's record:
//! - *Same time as the cordon in the record*: it is that cordon. A person who makes the node
//!   schedulable overrules it.
//! - *Newer than every cordon in the record*: the record has lost it, because the store was lost or
//!   is an old copy. It is adopted.
//! - *Ended in the record*: it is lifted.
//! - *Ended by a person*: only the annotations are removed. A later `unschedulable` is the
//!   person's.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    fleet::{
        changes::Changes,
        cordon, health_events,
        input::ObjectNews,
        job::JobRecord,
        node_record::{Cordon, NodeRecord},
        policy::{CordonMode, Policy},
        registry::{Node, Registry},
        scratch::Scratch,
        unhealthy,
    },
    id::{JobUid, NodeName},
    node_object::NodeObject,
    node_report::NodeReport,
    time::Timestamp,
};

#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// By node, whether or not its agent was ever heard. Nodes and views share them.
    all: BTreeMap<NodeName, Arc<NodeObject>>,
    /// This coordinator has read all objects once. From then on a node that is not in `all` has no
    /// object.
    listed: bool,
    /// Why the objects cannot be read at present.
    unreadable: Option<String>,
    /// Why an object cannot be written at present.
    unwritable: Option<String>,
}

/// What a cordon on an object means for the record of its node.
enum Meaning {
    /// A person has ended the cordon.
    Overruled,
    /// The record has lost this cordon.
    Lost(Cordon),
}

impl Objects {
    /// A new report of this node, with the labels and taints of its object. `before` is its previous report.
    pub(crate) fn add_to(
        &self,
        name: &NodeName,
        before: &NodeReport,
        report: NodeReport,
    ) -> NodeReport {
        let (object_labels, object_taints) = match self.all.get(name) {
            Some(object) => (object.labels.clone(), object.taints.clone()),
            None if self.listed => Default::default(),
            None => (before.object_labels.clone(), before.object_taints.clone()),
        };
        NodeReport {
            object_labels,
            object_taints,
            ..report
        }
    }

    pub(crate) fn conditions(&self) -> impl Iterator<Item = String> {
        let unreadable = self.unreadable.as_ref().map(|why| {
            format!(
                "LabelsStale: its labels may be old, Kubernetes Node objects cannot be read: {why}"
            )
        });
        let unwritable = self.unwritable.as_ref().map(|why| {
            format!("MarksStale: Kubernetes Node objects cannot be written, and may lack a cordon: {why}")
        });
        unreadable.into_iter().chain(unwritable)
    }

    pub(crate) fn read(
        &mut self,
        news: ObjectNews,
        nodes: &mut Registry,
        jobs: &BTreeMap<JobUid, JobRecord>,
        policy: &Policy,
        scratch: &mut Scratch,
    ) {
        match news {
            ObjectNews::Listed(all) => {
                (self.all, self.listed) = (all, true);
                let names: Vec<NodeName> = nodes.names().cloned().collect();
                for name in &names {
                    self.hear(name, nodes, jobs, policy, scratch);
                }
            }
            ObjectNews::Applied(name, object) => {
                self.all.insert(name.clone(), object);
                self.hear(&name, nodes, jobs, policy, scratch);
            }
            ObjectNews::Deleted(name) => {
                self.all.remove(&name);
                self.hear(&name, nodes, jobs, policy, scratch);
            }
            ObjectNews::Followed => {
                if self.unreadable.take().is_some() {
                    let message = "Kubernetes Node objects are read again";
                    scratch.events.note("NodeLabelsFresh", message.to_owned());
                    touch_all(nodes, &mut scratch.changes);
                }
            }
            ObjectNews::Unreadable(why) => {
                let message = format!(
                    "Kubernetes Node objects cannot be read: {why}; nodes keep the labels they have"
                );
                scratch.events.warn("NodeLabelsStale", message);
                self.unreadable = Some(why);
                touch_all(nodes, &mut scratch.changes);
            }
            ObjectNews::Written => {
                if self.unwritable.take().is_some() {
                    let message = "no write on a Kubernetes Node object fails any more";
                    scratch.events.note("NodeMarksFresh", message.to_owned());
                    touch_all(nodes, &mut scratch.changes);
                }
            }
            ObjectNews::Unwritable { why, known } => {
                if !known {
                    let message = format!(
                        "Kubernetes Node objects cannot be written: {why}; cordons count for Muster's jobs all the same"
                    );
                    scratch.events.warn("NodeMarksStale", message);
                }
                self.unwritable = Some(why);
                touch_all(nodes, &mut scratch.changes);
            }
        }
    }

    /// Gives a node what its object says, if that is new. Also called when the node itself is new.
    pub(crate) fn hear(
        &self,
        name: &NodeName,
        nodes: &mut Registry,
        jobs: &BTreeMap<JobUid, JobRecord>,
        policy: &Policy,
        scratch: &mut Scratch,
    ) {
        let object = self.all.get(name).cloned();
        let Some(node) = nodes.get(name) else {
            return;
        };
        let told = || {
            let unknown = object.is_none() && !self.listed;
            unknown || node.record.told_excluded == unhealthy::word_of_others(node)
        };
        if node.object == object && told() {
            return;
        }
        scratch.changes.touch_node(nodes, name);
        let node = nodes.get_mut(name).expect("found above");
        let before = work(node);
        node.object = object;
        let meaning =
            (node.object.as_ref()).and_then(|object| meaning(&node.record, object, policy));
        if let Some(object) = &node.object {
            hear_undone(&mut node.record, object);
        }
        health_events::tell_object(node, &mut scratch.events);
        let is_known = node.object.is_some() || self.listed;
        let relabelled = is_known && relabel(node);
        let matters = relabelled || before != work(node);
        if relabelled {
            scratch.changes.publish.insert(name.clone());
        }
        if matters {
            scratch.changes.node_changed(nodes, jobs, name);
            for pod in nodes.pods_on(name) {
                scratch.changes.node_changed(nodes, jobs, pod);
            }
        }
        match meaning {
            Some(Meaning::Overruled) => cordon::overruled(nodes, jobs, name, policy, scratch),
            Some(Meaning::Lost(cordon)) => cordon::set(nodes, jobs, name, Some(cordon), scratch),
            None => {}
        }
    }
}

/// Whether others keep new work away, and whether they make it leave.
fn work(node: &Node) -> (bool, bool) {
    let object = node.object.as_ref();
    let excluded = object.and_then(|object| object.excluded(node.record.overruled));
    let leaving = object.is_some_and(|object| object.leaving.is_some());
    (excluded.is_some(), leaving)
}

/// Records that somebody made the node schedulable and left our annotations: Muster itself changes
/// both in one write. Once the annotations are gone, only a late write of a coordinator that was
/// replaced can bring them back, and then the whole cordon is Muster's.
fn hear_undone(record: &mut NodeRecord, object: &NodeObject) {
    let there = object.marking.cordon.as_ref();
    let at = there.and_then(|there| Timestamp::from_rfc3339(&there.at));
    let undone = at.filter(|_| !object.unschedulable);
    record.ended = record.ended.max(undone);
    record.overruled = match at {
        Some(_) => record.overruled.max(undone),
        None => None,
    };
}

/// Gives a node the labels and taints of its object. Without one it keeps the labels until it reports anew, and no taint: that
/// would keep jobs away. True: something is new.
fn relabel(node: &mut Node) -> bool {
    let report = &node.report;
    let (object_labels, object_taints) = match &node.object {
        Some(object) => (object.labels.clone(), object.taints.clone()),
        None => (report.object_labels.clone(), Vec::new()),
    };
    if report.object_labels == object_labels && report.object_taints == object_taints {
        return false;
    }
    node.report = NodeReport {
        object_labels,
        object_taints,
        ..(*node.report).clone()
    }
    .into();
    true
}

fn meaning(record: &NodeRecord, object: &NodeObject, policy: &Policy) -> Option<Meaning> {
    let there = object.marking.cordon.as_ref()?;
    let at = Timestamp::from_rfc3339(&there.at)?;
    let present = record.cordon.as_ref();
    if present.is_some_and(|cordon| cordon.at == at) {
        return (!object.unschedulable).then_some(Meaning::Overruled);
    }
    let lost = object.unschedulable && Some(at) > record.last_cordon();
    let cordon = || Cordon {
        by: there.by.as_str().into(),
        reason: there.reason.clone(),
        at,
        jobs: Vec::new(),
    };
    (lost && policy.kubernetes_cordon != CordonMode::Off).then(|| Meaning::Lost(cordon()))
}

fn touch_all(nodes: &Registry, changes: &mut Changes) {
    for name in nodes.names() {
        changes.touch_node(nodes, name);
    }
}
