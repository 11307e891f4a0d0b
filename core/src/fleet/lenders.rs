//! Did the nodes that lend to an MPI launcher stand when it ended well?
//!
//! The exit code of `mpirun` cannot be believed alone: Open MPI 5.0.11 returned 0 when a node with its
//! daemon and ranks was killed (measured). So a launcher's success counts only once every node that
//! lends to it was heard after it, and none had fallen before.

use crate::{
    fleet::{
        blame::{Evidence, UNDER_WAY},
        generation,
        job::GenerationRecord,
        registry::Registry,
    },
    id::{JobUid, NodeName},
    run::RunReport,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lenders {
    /// All did, or nobody lends.
    Stand,
    /// One had fallen before.
    Fell,
    /// One was not heard since, and may have fallen.
    Unheard,
}

/// `evidence`: all that speaks against the generation, whose other members have all ended well.
pub(crate) fn stand(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    evidence: &[Evidence],
) -> Lenders {
    if !generation.layout.has_slots() {
        return Lenders::Stand;
    }
    let ended = |(node, run): (&NodeName, Option<&RunReport>)| {
        let run = run.filter(|_| !generation.is_service(node))?;
        run.ranks.iter().filter_map(|rank| rank.exited_at).max()
    };
    let reports = generation::reports(nodes, job, generation);
    // What is dated a little later may have come first: the two nodes have different clocks.
    let until = reports.filter_map(ended).max().unwrap_or_default() + UNDER_WAY;
    let lenders = || {
        let members = generation.members.iter().map(|member| &member.node);
        members.filter(|node| generation.is_service(node))
    };
    let before = |node: &NodeName| {
        evidence
            .iter()
            .find(|e| e.node() == node && e.at() <= until)
    };
    if lenders().filter_map(before).any(Evidence::breaks) {
        return Lenders::Fell;
    }
    let told_later = |node: &NodeName| evidence.iter().any(|e| e.node() == node && e.at() > until);
    let heard = |node: &NodeName| nodes.get(node).is_none_or(|node| node.heard > until);
    match lenders().all(|node| told_later(node) || heard(node)) {
        true => Lenders::Stand,
        false => Lenders::Unheard,
    }
}
