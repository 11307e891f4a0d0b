//! What a job lacked that could not be placed. A later job that asks for the same at the same moment of a turn gets this answer, and is
//! not placed. Of thousands of jobs that wait most ask for the same as others do: without this each would look at all nodes whenever
//! one becomes free.
//!
//! Two jobs ask for the same if placement would take in the same of both. That is so only for jobs that never had a node: others have
//! nodes that they keep or avoid. What is known here holds until anything of nodes, capacity or those that wait changes; `settle`
//! forgets it then.

use crate::{
    fleet::{
        capacity::Capacity,
        job::JobRecord,
        live::Live,
        placement::{Demand, Shortfall},
        shortage::Shortage,
    },
    id::{Generation, JobName},
    spec::{NodeMix, Selection},
};

/// So many different ones are known at most. A queue has fewer shapes of jobs, and each is compared with all.
const KNOWN_MAX: usize = 64;

/// What a job lacks that was not placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    pub sentence: String,
    pub word: Shortage,
    /// There is no node for it at all.
    pub no_nodes: bool,
}

/// What a job that never had a node asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    demand: Demand,
    selection: Selection,
    node_mix: NodeMix,
    image: Option<String>,
    /// A sentence names jobs of the own namespace only.
    namespace: String,
    /// Those that keep room from it, in their order.
    reserved: Vec<JobName>,
}

#[cfg(test)]
std::thread_local! {
    /// How often a job was answered without being placed.
    pub(crate) static ANSWERED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

#[derive(Debug, Default)]
pub(crate) struct EqualAsks(Vec<(Ask, Lack)>);

impl Lack {
    pub(crate) fn of(shortfall: &Shortfall<'_>) -> Self {
        Self {
            sentence: shortfall.to_string(),
            word: shortfall.shortage(),
            no_nodes: shortfall.excluded.is_empty(),
        }
    }
}

impl Ask {
    /// `None`: more than this counts in its placement.
    pub(crate) fn of<'r>(
        job: &JobRecord,
        live: &Live,
        capacity: &Capacity,
        demand: &Demand,
        reserved: impl Iterator<Item = &'r JobName>,
    ) -> Option<Self> {
        let never_had_a_node = job.last_generation == Generation(0)
            && live.avoided.is_empty()
            && job.left_slow.is_nothing()
            && capacity.held_by(&job.uid).next().is_none();
        let is_plain = never_had_a_node && job.spec.template.is_none();
        is_plain.then(|| Self {
            demand: demand.clone(),
            selection: job.spec.selection.clone(),
            node_mix: job.spec.node_mix,
            image: job.spec.image.clone(),
            namespace: job.name.namespace.clone(),
            reserved: reserved.cloned().collect(),
        })
    }
}

impl EqualAsks {
    /// What a job lacks that asks for this.
    pub(crate) fn lack_of(&self, ask: &Ask) -> Option<&Lack> {
        let mut known = self.0.iter().rev();
        let (_, lack) = known.find(|(known, _)| known == ask)?;
        #[cfg(test)]
        ANSWERED.set(ANSWERED.get() + 1);
        Some(lack)
    }

    pub(crate) fn remember(&mut self, ask: Ask, lack: Lack) {
        if self.0.len() < KNOWN_MAX {
            self.0.push((ask, lack));
        }
    }

    /// Something has changed that placement takes in.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}
