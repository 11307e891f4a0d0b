//! What a job that waits keeps of a node from those behind it.

/// What a job that waits could use of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keeps {
    pub gpus: Keep,
    pub slots: Keep,
}

/// How much a job that waits could use of one node's GPUs, or slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Keep {
    #[default]
    Nothing,
    /// So many members at most, if all other jobs were gone, each with so much.
    Members { most: u32, each: u32 },
    /// Its members differ, so all of it.
    All,
}

impl Keeps {
    /// How many members fit on the node at most. 0: they differ.
    pub(crate) fn members(self) -> u32 {
        self.gpus.members() + self.slots.members()
    }

    /// How much of so much that is free is of use to it at this moment.
    pub(crate) fn of_use(self, gpus: u32, slots: u32) -> u32 {
        match self.gpus {
            // GPUs are what nodes have few of.
            Keep::All if gpus > 0 => gpus,
            _ => self.gpus.of_use(gpus) + self.slots.of_use(slots),
        }
    }
}

impl Keep {
    /// How much it keeps of so much that is free. If as many of its members fit now as ever will, the rest is of no use to
    /// it. Otherwise it might have a member more as soon as another job ends, and then all that is free now counts.
    pub(crate) fn of(self, free: u32) -> u32 {
        match self {
            Keep::Nothing => 0,
            Keep::All => free,
            Keep::Members { most, each } => match free / each.max(1) >= most {
                true => most * each,
                false => free,
            },
        }
    }

    fn members(self) -> u32 {
        match self {
            Keep::Members { most, .. } => most,
            Keep::Nothing | Keep::All => 0,
        }
    }

    /// The members that fit now, with all that each needs.
    fn of_use(self, free: u32) -> u32 {
        match self {
            Keep::Nothing => 0,
            Keep::All => free,
            Keep::Members { most, each } => (free / each.max(1)).min(most) * each,
        }
    }
}
