//! What users see of the fleet: its jobs and nodes as they are now.

use crate::{
    fleet::{
        capacity, cordon, marking, pod_gpus,
        registry::{Liveness, Node},
        state::Fleet,
        view::{self, JobView, NodeView, PodPlace},
    },
    id::{JobUid, NodeName},
    node_report::holders::Holder,
};

impl Fleet {
    pub fn job_view(&self, uid: &JobUid) -> Option<JobView> {
        let mut view = view::job(self.jobs.get(uid)?, &self.nodes);
        let unneeded = self.pods.unneeded.get(uid);
        view.pods_unneeded = unneeded.cloned().unwrap_or_default();
        if let Some(live) = self.live.get(uid) {
            view.shortage = live.shortage;
            view.doubted_since = live.condition.doubt().map(|doubt| doubt.since);
        }
        Some(view)
    }

    pub fn node_view(&self, name: &NodeName) -> Option<NodeView> {
        let node = self.nodes.get(name)?;
        let is_ours = |holder: &Holder| self.pods.of_holder(holder).is_some();
        Some(NodeView {
            place: PodPlace::of(&self.nodes, node),
            bars_pods: pod_gpus::bars_new_pods(node, is_ours),
            mass_loss: self.is_lost_with_many(node),
            ..view::node(
                node,
                &self.jobs,
                capacity::slots_free(node, &self.jobs),
                self.conditions(node),
                capacity::no_new_work(&self.nodes, node).map(|why| why.to_string()),
                marking::due(node, self.brake.is_some(), &self.policy),
            )
        })
    }

    /// Whether the node was lost with many others. A coordinator that has just started does not know
    /// that of the nodes that an earlier one has lost, so it listens first.
    fn is_lost_with_many(&self, node: &Node) -> bool {
        let mut brake = self.brake.iter();
        let is_listened_for = node.liveness == Liveness::Unknown && self.presence.holds();
        is_listened_for || brake.any(|brake| brake.is_about(node, &self.policy))
    }

    pub fn job_views(&self) -> Vec<JobView> {
        self.jobs
            .keys()
            .filter_map(|uid| self.job_view(uid))
            .collect()
    }

    pub fn node_views(&self) -> Vec<NodeView> {
        self.nodes
            .names()
            .filter_map(|name| self.node_view(name))
            .collect()
    }

    /// What is unusual about a node's place in the fleet, told to people.
    fn conditions(&self, node: &Node) -> Vec<String> {
        let brake = self.brake.as_ref().filter(|_| !node.is_ready());
        let mass_loss = brake.map(|brake| format!("MassLoss: {}", brake.sentence(&self.policy)));
        let halt = node
            .record
            .halt
            .as_ref()
            .map(|halt| format!("StoreBehind: {}", halt.why));
        mass_loss
            .into_iter()
            .chain(halt)
            .chain(cordon_conditions(node))
            .chain(self.objects.conditions())
            .collect()
    }
}

/// What is unusual about a node's cordon, and what its Node object has to do with it.
fn cordon_conditions(node: &Node) -> impl Iterator<Item = String> {
    let withheld = node.withheld.as_ref();
    let withheld = withheld.map(|w| format!("CordonWithheld: {}, but {}", w.reason, w.veto));
    let hold_off = node.record.hold_off.as_ref();
    let hold_off = hold_off.map(|h| format!("HoldOff: {}", cordon::hold_off_sentence(h)));
    let object = node.object.as_ref();
    let excluded = object.and_then(|object| object.excluded(node.record.overruled));
    let excluded = excluded.map(|why| format!("Excluded: {why}"));
    let left_alone = object.and_then(|object| object.left_alone.as_ref());
    let left_alone = left_alone
        .map(|why| format!("LeftAlone: Muster changes nothing on its Node object: {why}"));
    [withheld, hold_off, excluded, left_alone]
        .into_iter()
        .flatten()
}
