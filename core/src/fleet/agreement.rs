//! What the members of a generation agree on. It is decided from what their nodes report when the
//! generation is opened.

use std::collections::BTreeMap;

use crate::{
    fleet::{members::Member, registry::Registry},
    nccl::{
        mixture::Mismatch,
        profile::{self, Profile},
    },
    node_report::NodeReport,
};

/// The profile of these members, and which of their nodes do not go together.
pub(crate) fn agree(nodes: &Registry, gang: &[Member]) -> (Profile, Vec<Mismatch>) {
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
    profile::decide(&members)
}
