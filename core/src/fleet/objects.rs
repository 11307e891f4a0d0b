//! What Kubernetes Node objects say about the fleet's nodes: labels only, and nothing is decided
//! from them.
//!
//! An object may be read before its agent first connects, or long after. A node whose object is
//! gone keeps its labels until it reports anew. A coordinator that starts keeps the labels of the
//! stored reports until it has read the objects. If they cannot be read, nothing stops: the failure
//! is one event, and a condition of every node until they can be read again.

use std::collections::BTreeMap;

use crate::{
    fleet::{
        input::ObjectNews,
        job::JobRecord,
        registry::{Node, Registry},
        scratch::Scratch,
    },
    id::{JobUid, NodeName},
    node_report::{NodeReport, labels::Labels},
};

#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// The labels by node, whether or not its agent was ever heard. Reports share them.
    labels: BTreeMap<NodeName, Labels>,
    /// This coordinator has read all objects once. From then on a node that is not in `labels` has
    /// no object.
    listed: bool,
    /// Why the objects cannot be read at present.
    unreadable: Option<String>,
}

impl Objects {
    /// The labels for a new report of this node. `before` is its previous report.
    pub(crate) fn of(&self, name: &NodeName, before: &NodeReport) -> Labels {
        match self.labels.get(name) {
            Some(labels) => labels.clone(),
            None if self.listed => Labels::default(),
            None => before.object_labels.clone(),
        }
    }

    pub(crate) fn condition(&self) -> Option<String> {
        let why = self.unreadable.as_ref()?;
        Some(format!(
            "LabelsStale: its labels may be old, Kubernetes Node objects cannot be read: {why}"
        ))
    }
}

impl Objects {
    pub(crate) fn read(
        &mut self,
        news: ObjectNews,
        nodes: &mut Registry,
        jobs: &BTreeMap<JobUid, JobRecord>,
        out: &mut Scratch,
    ) {
        match news {
            ObjectNews::Listed(all) => {
                (self.labels, self.listed) = (all, true);
                let names: Vec<NodeName> = nodes.nodes.keys().cloned().collect();
                for name in &names {
                    self.relabel(name, nodes, jobs, out);
                }
            }
            ObjectNews::Applied(name, labels) => {
                self.labels.insert(name.clone(), labels);
                self.relabel(&name, nodes, jobs, out);
            }
            ObjectNews::Deleted(name) => drop(self.labels.remove(&name)),
            ObjectNews::Followed => {
                if self.unreadable.take().is_some() {
                    let message = "Kubernetes Node objects are read again";
                    out.note("NodeLabelsFresh", message.to_owned());
                    touch_all(nodes, out);
                }
            }
            ObjectNews::Unreadable(why) => {
                let message = format!(
                    "Kubernetes Node objects cannot be read: {why}; nodes keep the labels they have"
                );
                out.warn("NodeLabelsStale", message);
                self.unreadable = Some(why);
                touch_all(nodes, out);
            }
        }
    }

    /// Gives a node the labels of its object, if it has one.
    fn relabel(
        &self,
        name: &NodeName,
        nodes: &mut Registry,
        jobs: &BTreeMap<JobUid, JobRecord>,
        out: &mut Scratch,
    ) {
        let Some(labels) = self.labels.get(name) else {
            return;
        };
        let differs = |node: &&mut Node| node.report.object_labels != *labels;
        let Some(node) = nodes.nodes.get_mut(name).filter(differs) else {
            return;
        };
        node.report = NodeReport {
            object_labels: labels.clone(),
            ..(*node.report).clone()
        }
        .into();
        out.publish.insert(name.clone());
        out.node_changed(nodes, jobs, name);
    }
}

fn touch_all(nodes: &Registry, out: &mut Scratch) {
    for name in nodes.nodes.keys() {
        out.touch_node(nodes, name);
    }
}
