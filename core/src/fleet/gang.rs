//! The gang that a job gets now: beside what jobs before it keep, and without slow nodes that it has left, where that pays.

use std::collections::BTreeSet;

use crate::{
    fleet::{
        candidates::Reserved,
        job_turn::Facts,
        limits::demand,
        live::{self, AVOID, Live},
        members::{Member, size},
        placement::{Demand, Placement, Shortfall},
    },
    id::NodeName,
};

#[cfg(test)]
std::thread_local! {
    /// How often a gang was found among the nodes with room alone.
    pub(crate) static LEFT_OUT: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

impl<'a> Facts<'a> {
    /// Asks placement for this job's next generation.
    pub(crate) fn place(self) -> Placement<'a> {
        match self.asks() {
            Ok(demand) => self.place_beside(&self.reserved(), &demand),
            Err(over) => Placement::Short(over),
        }
    }

    /// What the job asks of placement, within the limits of its namespace and queue.
    pub(crate) fn asks(self) -> Result<Demand, Shortfall<'a>> {
        let mut demand = demand(self.job);
        if let Some(limit) = self.limit() {
            limit.bound(&mut demand)?;
        }
        Ok(demand)
    }

    /// Asks placement for so much, beside what jobs before this one keep. Nodes that the job has left because they were slow are
    /// used only if it would get too little without them.
    pub(crate) fn place_beside(self, reserved: &[Reserved<'a>], demand: &Demand) -> Placement<'a> {
        let placed = self.place_anywhere(reserved, demand);
        let left = &self.job.left_slow;
        let slow: BTreeSet<&NodeName> = left.nodes(self.now).collect();
        let Placement::Gang(with) = &placed else {
            return placed;
        };
        if !with.iter().any(|member| slow.contains(&member.node)) {
            return placed;
        }
        let uses = |node: &NodeName| with.iter().any(|member| member.node == *node);
        match self.place_without(slow.into_iter(), reserved, demand) {
            Some(gang) if left.pays(size(&gang), size(with), uses, self.now) => {
                Placement::Gang(gang)
            }
            _ => placed,
        }
    }

    /// The gang that there is without any of these nodes. `None`: there is none.
    pub(crate) fn place_without<'n>(
        self,
        nodes: impl Iterator<Item = &'n NodeName>,
        reserved: &[Reserved<'a>],
        demand: &Demand,
    ) -> Option<Vec<Member>> {
        let without = nodes.map(|node| live::Avoided {
            node: node.clone(),
            until: self.now + AVOID,
            why: "a rank there made the others wait".into(),
        });
        let live = Live {
            avoided: self.live.avoided.iter().cloned().chain(without).collect(),
            ..Live::default()
        };
        match self
            .of_other(self.job, &live)
            .place_anywhere(reserved, demand)
        {
            Placement::Gang(gang) => Some(gang),
            Placement::Short(_) => None,
        }
    }

    fn place_anywhere(self, reserved: &[Reserved<'a>], demand: &Demand) -> Placement<'a> {
        let capacity = self.capacity;
        let of_all = || self.choose(capacity, self.candidates(capacity, reserved), demand);
        if let Some(few) = self.with_room(reserved, demand)
            && let gang @ Placement::Gang(_) = self.choose(capacity, few, demand)
        {
            debug_assert_eq!(gang, of_all(), "the others have no part in it");
            #[cfg(test)]
            LEFT_OUT.set(LEFT_OUT.get() + 1);
            return gang;
        }
        // There is none, and what is wrong with each node has to be said.
        of_all()
    }
}
