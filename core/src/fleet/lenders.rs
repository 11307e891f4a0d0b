//! Whether the nodes that lend to an MPI launcher outlived it.
//!
//! The exit code of `mpirun` cannot be believed alone: Open MPI 5.0.11 returned 0 when a node with its
//! daemon and ranks was killed (measured). So a launcher's success counts only once every node that
//! lends to it was heard after the launcher's end, and none had failed before.

use std::time::Duration;

use crate::{
    fleet::{
        blame::Evidence,
        generation,
        job::GenerationRecord,
        members::Member,
        registry::{Node, Registry},
    },
    id::{JobUid, NodeName},
    run::RunReport,
    time::Timestamp,
};

/// A reported time may be too late by this much. Times arrive as ages, and the way of the report
/// is added.
const REPORT_DELAY: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Survival {
    /// All lenders outlived the launcher, or nobody lends.
    Survived,
    /// One failed before the launcher's end. Or it is lost or failed since, and nothing proves that it
    /// outlived the launcher.
    Failed,
    /// One has not been heard since, and nothing breaking speaks against it yet.
    Unconfirmed,
}

/// Whether all lenders of this generation outlived its launcher, which has ended well.
/// `evidence`: all that speaks against the generation.
pub(crate) fn survival(
    nodes: &Registry,
    job: &JobUid,
    generation: &GenerationRecord,
    evidence: &[Evidence],
) -> Survival {
    if !generation.layout.has_slots() {
        return Survival::Survived;
    }
    let ended = |(node, run): (&NodeName, Option<&RunReport>)| {
        let run = run.filter(|_| !generation.is_service(node))?;
        run.ranks.iter().filter_map(|rank| rank.exited_at).max()
    };
    let reports = generation::reports(nodes, job, generation);
    let end = reports.filter_map(ended).max().unwrap_or_default() + REPORT_DELAY;
    let of = |member: &Member| of_lender(nodes.get(&member.node), member, evidence, end);
    let lenders = generation.members.iter();
    let lenders = lenders.filter(|member| generation.is_service(&member.node));
    lenders.fold(Survival::Survived, |all, member| match (all, of(member)) {
        (Survival::Failed, _) | (_, Survival::Failed) => Survival::Failed,
        (Survival::Unconfirmed, _) => Survival::Unconfirmed,
        (Survival::Survived, one) => one,
    })
}

/// Whether one lender was alive at `end`, the launcher's end. A message of the node after `end`, in
/// the same boot, proves it. So does a rank's exit after `end`. Other evidence after `end` does not,
/// because its time says when the coordinator learned of it.
fn of_lender(
    node: Option<&Node>,
    member: &Member,
    evidence: &[Evidence],
    end: Timestamp,
) -> Survival {
    let own = || evidence.iter().filter(|e| e.node() == &member.node);
    if own().any(|e| e.breaks() && e.at() <= end) {
        return Survival::Failed;
    }
    if own().any(|e| matches!(e, Evidence::RankExit { .. })) {
        return Survival::Survived;
    }
    let dead_unseen = |e: &Evidence| {
        matches!(
            e,
            Evidence::Vanished { .. }
                | Evidence::ExitUnknown { .. }
                | Evidence::NodeRebooted { .. }
                | Evidence::NodeDeleted { .. }
        )
    };
    if own().any(dead_unseen) {
        return Survival::Failed;
    }
    let spoke = node
        .filter(|node| node.record.boot_id == member.boot_id)
        .and_then(|node| node.spoke);
    if spoke.is_some_and(|at| at > end) {
        return Survival::Survived;
    }
    match own().any(Evidence::breaks) {
        true => Survival::Failed,
        false => Survival::Unconfirmed,
    }
}
