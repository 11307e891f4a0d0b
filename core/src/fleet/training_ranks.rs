//! The ranks that make a generation's progress, as far as their nodes tell of them.

use std::collections::BTreeSet;

use crate::{
    exit::Exit,
    fleet::{generation, job::GenerationRecord, registry::Registry},
    id::{JobUid, NodeName},
    run::{RankReport, RunPhase},
    stall::Still,
};

/// The ranks of a generation that make its progress.
pub(crate) struct Ranks<'a> {
    pub living: Vec<(&'a NodeName, &'a RankReport)>,
    /// Those that have ended well.
    pub ended: Vec<(u32, NodeName)>,
}

impl Ranks<'_> {
    pub(crate) fn still(&self) -> impl Iterator<Item = Option<Still>> {
        self.living.iter().map(|(_, rank)| rank.still)
    }

    pub(crate) fn busy(&self) -> BTreeSet<u32> {
        let busy = |rank: &&RankReport| rank.still.is_none_or(|still| still.idle_since.is_none());
        let ranks = self.living.iter().map(|(_, rank)| *rank);
        ranks.filter(busy).map(|rank| rank.rank).collect()
    }
}

/// The ranks that make a generation's progress. `None`: not all of them are known to train, so nothing can be said. A service
/// waits by nature, and what an MPI launcher has started is not known.
pub(crate) fn ranks<'a>(
    nodes: &'a Registry,
    job: &JobUid,
    generation: &'a GenerationRecord,
) -> Option<Ranks<'a>> {
    if generation.layout.has_slots() {
        return None;
    }
    let (mut living, mut ended) = (Vec::new(), Vec::new());
    for (node, run) in generation::reports(nodes, job, generation) {
        let is_heard = nodes.get(node).is_some_and(|node| node.is_ready());
        let run = run.filter(|run| is_heard && run.phase == RunPhase::Running)?;
        if (run.ranks.len() as u32) < generation.procs_on(node) {
            return None;
        }
        let serves = |rank: &RankReport| {
            let number = generation.number_of(rank.rank);
            number.is_some_and(|number| generation.serves(number))
        };
        for rank in run.ranks.iter().filter(|rank| !serves(rank)) {
            match rank.exit {
                None => living.push((node, rank)),
                Some(exit) if Exit::is_success(exit) => ended.push((rank.rank, node.clone())),
                // Whoever judges failures has the word.
                Some(_) => return None,
            }
        }
    }
    Some(Ranks { living, ended })
}
