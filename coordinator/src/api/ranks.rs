//! The ranks that a call is about, of a job that runs.

use muster_core::{
    fleet::job::{GenerationRecord, JobRecord},
    id::NodeName,
};
use tonic::Status;

use super::status;

/// The generation whose ranks run now.
pub(super) fn running(record: &JobRecord) -> Result<&GenerationRecord, Status> {
    let running = record
        .latest()
        .filter(|generation| generation.started && !generation.all_dead());
    running.filter(|_| !record.phase.is_over()).ok_or_else(|| {
        Status::failed_precondition(format!(
            "job {} is {:?}: no rank of it runs",
            record.name, record.phase
        ))
    })
}

/// The ranks that are asked for, with their nodes.
pub(super) fn wanted(
    generation: &GenerationRecord,
    rank: Option<u32>,
    node: &str,
) -> Result<Vec<(u32, NodeName)>, Status> {
    let number = generation.number;
    let node = (!node.is_empty()).then(|| NodeName::from(node));
    let node = node.as_ref();
    if let Some(node) = node.filter(|node| !generation.has(node)) {
        let message = format!("is {node}, which has no rank of generation {number}");
        return Err(status::invalid("node", message));
    }
    let world = generation.world_size();
    if let Some(rank) = rank.filter(|rank| *rank >= world) {
        let last = world.saturating_sub(1);
        let message = format!("is {rank}, generation {number} has ranks 0 to {last}");
        return Err(status::invalid("rank", message));
    }
    let ranks: Vec<(u32, NodeName)> = (0..world)
        .filter(|other| rank.is_none_or(|rank| rank == *other))
        .filter_map(|rank| Some((rank, generation.node_of(rank)?.clone())))
        .filter(|(_, on)| node.is_none_or(|node| node == on))
        .collect();
    match ranks.is_empty() {
        true => Err(status::invalid("node", "does not have that rank")),
        false => Ok(ranks),
    }
}
