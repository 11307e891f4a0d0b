//! What is known of a job beyond its record. Lost with the process, and learnt again.

use std::collections::BTreeSet;

use crate::{fleet::budget::Avoided, id::NodeName, time::Timestamp};

#[derive(Debug, Default)]
pub(crate) struct Live {
    /// A user scaled since the current generation was opened: no cool-down.
    pub scaled: bool,
    /// When the first evidence of a break was seen.
    pub doubted: Option<Timestamp>,
    /// Since when every rank has ended well while torchrun processes still wait for each other.
    pub ranks_done: Option<Timestamp>,
    /// Why a broken generation is left as it is.
    pub left: Option<LeftAsItIs>,
    pub shared_silence: SharedSilence,
    /// Nodes that this job does not go to for a while.
    pub avoided: Vec<Avoided>,
    /// When to look again without any news.
    pub wake: Option<Timestamp>,
    /// Nodes that were asked to get ready for it while it trains.
    pub prewarm_asked: BTreeSet<NodeName>,
    /// Those of them that are awaited.
    pub prewarm_awaited: BTreeSet<NodeName>,
    /// More room would change nothing for it, as it was settled last.
    pub has_all_it_wants: bool,
}

/// A generation with silent members that is not replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeftAsItIs {
    /// There are too few nodes for another, and nobody of it is dead: what is missing.
    Stranded(String),
    /// None of its nodes can be heard, and many others cannot be heard either: how many.
    Frozen(String),
}

/// Members that were silent together, as when the coordinator itself was cut off, come back one by
/// one. The first of them must not cost the others their workers: from then on the rest has the
/// time that a restarted coordinator gives.
#[derive(Debug, Default)]
pub(crate) struct SharedSilence {
    /// How many were silent at most while nothing could be done about it.
    pub silent_most: usize,
    /// How long those who are still silent are waited for, once one has come back.
    pub until: Option<Timestamp>,
}

impl Live {
    /// Nothing speaks against the current generation any more.
    pub(crate) fn clear_doubt(&mut self) {
        (self.doubted, self.left, self.shared_silence) = (None, None, SharedSilence::default());
    }

    /// A generation is opened, or has ended: what was known of the one before is over.
    pub(crate) fn is_undecided(&self) -> bool {
        self.doubted.is_some() || self.ranks_done.is_some()
    }
}
