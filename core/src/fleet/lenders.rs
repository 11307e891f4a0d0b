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
        members::Member,
        registry::{Node, Registry},
    },
    id::{JobUid, NodeName},
    run::RunReport,
    time::Timestamp,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lenders {
    /// All did, or nobody lends.
    Stand,
    /// One had fallen before, or is dead at an unknown time.
    Fell,
    /// One was not heard since, and may have fallen.
    Unconfirmed,
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
    // The clocks of two nodes differ a little.
    let until = reports.filter_map(ended).max().unwrap_or_default() + UNDER_WAY;
    let stood = |member: &Member| stood(nodes.get(&member.node), member, evidence, until);
    let lenders = generation.members.iter();
    let lenders = lenders.filter(|member| generation.is_service(&member.node));
    lenders.fold(Lenders::Stand, |all, member| match (all, stood(member)) {
        (Lenders::Fell, _) | (_, Lenders::Fell) => Lenders::Fell,
        (Lenders::Unconfirmed, _) => Lenders::Unconfirmed,
        (Lenders::Stand, one) => one,
    })
}

/// Whether one lender stood until then. Only its own later word says so: a message of the node in the
/// same boot, or the end of its rank with a later time. What the coordinator concludes from silence, or
/// is told by an operator, has the time of that conclusion, and proves nothing.
fn stood(node: Option<&Node>, member: &Member, evidence: &[Evidence], until: Timestamp) -> Lenders {
    let own = || evidence.iter().filter(|e| e.node() == &member.node);
    if own().any(|e| e.breaks() && e.at() <= until) {
        return Lenders::Fell;
    }
    if own().any(|e| matches!(e, Evidence::RankExit { .. })) {
        return Lenders::Stand;
    }
    let dead_unseen = |e: &Evidence| {
        matches!(
            e,
            Evidence::Vanished { .. }
                | Evidence::Forgotten { .. }
                | Evidence::NodeRebooted { .. }
                | Evidence::NodeDeleted { .. }
        )
    };
    if own().any(dead_unseen) {
        return Lenders::Fell;
    }
    let spoke = node
        .filter(|node| node.record.boot_id == member.boot_id)
        .and_then(|node| node.spoke);
    if spoke.is_some_and(|at| at > until) {
        return Lenders::Stand;
    }
    match own().any(Evidence::breaks) {
        true => Lenders::Fell,
        false => Lenders::Unconfirmed,
    }
}
