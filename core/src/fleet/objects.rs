//! What Kubernetes Node objects say of the fleet's nodes: labels, and nothing that is decided from.
//!
//! An object may be read before its agent has ever connected, or long after. A node whose object is
//! gone keeps the labels it had until it reports anew; a coordinator that starts keeps those of the
//! stored reports until it has read the objects. That they cannot be read stops nothing: it is one
//! event, and a condition of every node until they can.

use std::collections::BTreeMap;

use crate::{
    fleet::{Fleet, turn::Scratch},
    id::NodeName,
    node_report::{NodeReport, labels::Labels},
    time::Timestamp,
};

/// What the shell has read, or could not. An object is its node's by its name.
#[derive(Clone, Debug)]
pub enum ObjectNews {
    /// All there are.
    Listed(BTreeMap<NodeName, Labels>),
    /// This one is new, or has changed.
    Applied(NodeName, Labels),
    Deleted(NodeName),
    /// They are followed again, after they could not be read.
    Followed,
    /// They cannot be read, and why.
    Unreadable(String),
}

#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// By node, whether its agent has ever been heard or not; shared with the reports.
    labels: BTreeMap<NodeName, Labels>,
    /// All of them have been read once by this coordinator: a node that is not in `labels` has no
    /// object.
    listed: bool,
    /// Why they cannot be read at present.
    unreadable: Option<String>,
}

impl Objects {
    /// The labels that a new report of this node gets, whose report before it is `before`.
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

impl Fleet {
    pub(crate) fn objects_read(&mut self, news: ObjectNews, now: Timestamp, scratch: &mut Scratch) {
        match news {
            ObjectNews::Listed(all) => {
                (self.objects.labels, self.objects.listed) = (all, true);
                let names: Vec<NodeName> = self.nodes.nodes.keys().cloned().collect();
                names.iter().for_each(|name| self.relabel(name, scratch));
            }
            ObjectNews::Applied(name, labels) => {
                self.objects.labels.insert(name.clone(), labels);
                self.relabel(&name, scratch);
            }
            ObjectNews::Deleted(name) => drop(self.objects.labels.remove(&name)),
            ObjectNews::Followed => {
                if self.objects.unreadable.take().is_some() {
                    self.event(
                        scratch,
                        now,
                        false,
                        "NodeLabelsFresh",
                        "Kubernetes Node objects are read again".into(),
                        None,
                        None,
                    );
                    self.touch_all_nodes(scratch);
                }
            }
            ObjectNews::Unreadable(why) => {
                let message = format!(
                    "Kubernetes Node objects cannot be read: {why}; nodes keep the labels they have"
                );
                self.event(scratch, now, true, "NodeLabelsStale", message, None, None);
                self.objects.unreadable = Some(why);
                self.touch_all_nodes(scratch);
            }
        }
    }

    /// Gives a node the labels of its object, if it has one.
    fn relabel(&mut self, name: &NodeName, scratch: &mut Scratch) {
        let Some(labels) = self.objects.labels.get(name) else {
            return;
        };
        let Some(node) = self
            .nodes
            .nodes
            .get_mut(name)
            .filter(|node| node.report.object_labels != *labels)
        else {
            return;
        };
        node.report = NodeReport {
            object_labels: labels.clone(),
            ..(*node.report).clone()
        }
        .into();
        scratch.publish.insert(name.clone());
        self.node_changed(name, scratch);
    }

    fn touch_all_nodes(&mut self, scratch: &mut Scratch) {
        let names: Vec<NodeName> = self.nodes.nodes.keys().cloned().collect();
        names.iter().for_each(|name| self.touch_node(name, scratch));
    }
}
