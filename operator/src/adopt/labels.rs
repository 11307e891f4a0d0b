//! The labels of worker pods by which users of the kind find a member: its group, its index, and who is
//! the first.
//!
//! A pod keeps its name, and takes whatever place of the world its node gets. So these labels follow the
//! members of the newest generation.

use std::collections::BTreeMap;

use muster_core::{
    fleet::{
        view::JobView,
        worker_pod::{is_pod, node_of},
    },
    id::NodeName,
};
use muster_foreign::adopt::Adoptable;
use serde_json::{Map, Value, json};

/// The member that each pod of a job was labelled as, by the pod's name.
pub(super) type Labelled = BTreeMap<String, Place>;

/// A member's place in the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// As `worker-1`.
    pub(super) member: String,
    /// No other member has a lower rank.
    pub(super) is_first: bool,
}

/// The next pod whose labels should be others, and its place.
pub(super) fn next(
    kind: &Adoptable,
    view: &JobView,
    labelled: &Labelled,
) -> Option<(String, Place)> {
    if kind.labels.of_job("").is_empty() || view.record.phase.is_over() {
        return None;
    }
    let namespace = &view.record.name.namespace;
    let places = view.members.iter().filter_map(|member| {
        let place = Place {
            member: member.role.clone()?,
            is_first: member.node_rank == 0,
        };
        Some((pod(&member.node, namespace)?, place))
    });
    let mut lacking = places.filter(|(pod, place)| labelled.get(pod) != Some(place));
    lacking.next()
}

/// The name of the pod that is this node.
fn pod(node: &NodeName, namespace: &str) -> Option<String> {
    if !is_pod(node) {
        return None;
    }
    let (pod, _) = node.as_str().split_once('.')?;
    (node_of(namespace, pod) == *node).then(|| pod.to_owned())
}

/// The merge patch for a pod.
pub(super) fn patch(kind: &Adoptable, place: &Place) -> Value {
    let labels = kind.labels.of_member(&place.member, place.is_first);
    let labels: Map<String, Value> = labels
        .into_iter()
        .map(|(name, value)| (name, json!(value)))
        .collect();
    json!({ "metadata": { "labels": labels } })
}
