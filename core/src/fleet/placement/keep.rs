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
    /// How many of its members fit into so much that is free. If they differ: how many GPUs are of use to it, or how many
    /// slots of a node without GPUs.
    pub(crate) fn room_in(self, has_gpus: bool, gpus: u32, slots: u32) -> u32 {
        match (self.gpus, self.slots) {
            (Keep::All, _) if has_gpus => gpus,
            (Keep::Nothing, on_slots) | (Keep::All, on_slots) => on_slots.room_in(slots),
            (on_gpus, _) => on_gpus.room_in(gpus),
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

    fn room_in(self, free: u32) -> u32 {
        match self {
            Keep::Nothing => 0,
            Keep::All => free,
            Keep::Members { most, each } => (free / each.max(1)).min(most),
        }
    }
}
