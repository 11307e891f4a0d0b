//! What the members of a generation agree on. It is decided from what their nodes report when the
//! generation is opened.

use std::collections::BTreeMap;

use crate::{
    fleet::{members::Member, pod_gpus, registry::Registry},
    nccl::{
        mixture::{self, Mismatch},
        profile::{self, Profile},
    },
    node_report::NodeReport,
    spec::JobSpec,
};

/// The profile of these members, and which of their nodes do not go together. Members of a role
/// without GPUs take no part. A worker pod's GPUs are given to it by its kubelet and not by Muster, so
/// that `spec` tells whether there are any.
pub(crate) fn agree(nodes: &Registry, spec: &JobSpec, gang: &[Member]) -> (Profile, Vec<Mismatch>) {
    // Placement chooses only nodes that have reported. A node without a report counts as an empty
    // one.
    let nothing = NodeReport::default();
    let reports: BTreeMap<_, _> = gang
        .iter()
        .map(|member| {
            (
                &member.node,
                nodes
                    .get(&member.node)
                    .map_or(&nothing, |node| &*node.report),
            )
        })
        .collect();
    let members: Vec<profile::Member<'_>> = gang
        .iter()
        .map(|member| profile::Member {
            node: &member.node,
            report: reports[&member.node],
            gpus: &member.gpus,
        })
        .collect();
    let has_gpus = |member: &Member| {
        let held = nodes
            .get(&member.node)
            .and_then(|node| pod_gpus::of(nodes, node));
        held.is_some_and(|held| !held.ids.is_empty())
    };
    if spec.gpus_max() == 0 && !gang.iter().any(has_gpus) {
        return (Profile::default(), Vec::new());
    }
    let mut with_gpus = members.clone();
    with_gpus.retain(|member| !member.gpus.is_empty());
    let members = if with_gpus.is_empty() {
        members
    } else {
        with_gpus
    };
    (
        profile::decide(&members),
        // Members of one role need equally much. Nodes that hold different numbers of them do not.
        mixture::mismatches(&members, spec.roles.is_empty() && !spec.packs()),
    )
}
