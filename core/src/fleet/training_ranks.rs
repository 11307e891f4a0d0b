//! The ranks that make a generation's progress, as far as their nodes tell of them, and how it usually moves.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    exit::Exit,
    fleet::{generation, job::GenerationRecord, registry::Registry},
    id::{JobUid, NodeName},
    run::{RankReport, RunPhase},
    stall::{Habit, Still},
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

/// How the job moves, by the rank that has come furthest in this generation.
pub(crate) fn habit(ranks: &Ranks<'_>, longest: Duration) -> Habit {
    let furthest = ranks.living.iter().max_by_key(|(_, rank)| rank.last_step);
    let shown = furthest.and_then(|(_, rank)| {
        let steps = rank.last_step?.checked_sub(rank.first_step?)?;
        let time = rank.last_step_at?.since(rank.first_step_at?);
        Some((steps, time))
    });
    let (steps, time) = shown.unwrap_or_default();
    Habit {
        steps,
        usual: (steps > 0).then(|| time / u32::try_from(steps).unwrap_or(u32::MAX)),
        longest,
    }
}
