//! What the members of a generation agree on, from what their nodes report at the moment it is
//! opened.

use std::collections::BTreeMap;

use crate::{
    fleet::{members::Member, registry::Registry},
    nccl::{
        mixture::Mismatch,
        profile::{self, Profile},
    },
    node_report::NodeReport,
};

/// The profile of a gang, and what about its nodes is known not to go together.
pub(crate) fn agree(nodes: &Registry, gang: &[Member]) -> (Profile, Vec<Mismatch>) {
    // A node that has been placed on has reported; nothing is what is known of one that has
    // not.
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
