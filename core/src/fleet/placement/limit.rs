//! How many GPUs the jobs of one namespace may hold together, as the operator says (`--gpus-max`).

use std::fmt;

use super::{demand::Demand, why::Shortfall};

/// A namespace's limit, and what its other jobs hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit<'a> {
    pub namespace: &'a str,
    pub most: u32,
    pub held: u32,
}

impl<'a> Limit<'a> {
    /// Makes the demand as small as the limit wants it. If even its minimum is too much, the error says it in GPUs.
    pub(crate) fn bound(self, demand: &mut Demand) -> Result<(), Shortfall<'a>> {
        let left = self.most.saturating_sub(self.held);
        let gpus = |demand: &Demand, size: u32| -> u32 {
            let counts = demand.counts(size);
            let roles = demand.roles.iter().zip(counts);
            roles.map(|(role, count)| role.gpus * count).sum()
        };
        let min = demand.min();
        let need = gpus(demand, min);
        // A job without GPUs takes none from others.
        if need > left && need > 0 {
            return Err(Shortfall {
                need,
                have: left,
                unit: "GPUs",
                within: None,
                excluded: Vec::new(),
                over: Some(self),
            });
        }
        while demand.wanted > min && gpus(demand, demand.wanted) > left {
            demand.wanted -= 1;
        }
        Ok(())
    }
}

impl fmt::Display for Limit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit {
            namespace,
            most,
            held,
        } = self;
        write!(
            f,
            "jobs of namespace {namespace} may hold {most} GPUs (--gpus-max of the coordinator): the others hold {held}"
        )
    }
}
