//! What is known of a job beyond its record. It is lost with the process, and learnt again.

use std::collections::BTreeSet;

use crate::{fleet::budget::Avoided, id::NodeName, time::Timestamp};

#[derive(Debug, Default)]
pub(crate) struct Live {
    /// A user scaled the job since the current generation was opened, so there is no cool-down.
    pub scaled: bool,
    /// When the first evidence of a break was seen.
    pub doubted: Option<Timestamp>,
    /// Since when every rank has ended well while torchrun processes still wait for each other.
    pub ranks_done: Option<Timestamp>,
    /// Why a broken generation is left as it is.
    pub left: Option<LeftAsItIs>,
    pub shared_silence: SharedSilence,
    /// Nodes that this job avoids for a while.
    pub avoided: Vec<Avoided>,
    /// When to look again if nothing happens before.
    pub wake: Option<Timestamp>,
    /// Nodes that were asked to get ready for this job while it trains.
    pub prewarm_asked: BTreeSet<NodeName>,
    /// The asked nodes that the job now waits for.
    pub prewarm_awaited: BTreeSet<NodeName>,
    /// More room would have changed nothing when the job was last settled.
    pub has_all_it_wants: bool,
}

/// A generation with silent members that is not replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeftAsItIs {
    /// There are too few nodes for another generation, and no member is dead. The text says what is
    /// missing.
    Stranded(String),
    /// Members were silent together. Some are back, and the others are given time to come back.
    SomeAreBack,
    /// None of its nodes can be heard, and many others cannot be heard either. The text says how
    /// many.
    Frozen(String),
}

/// Members that were silent together, for example because the coordinator was cut off. They come
/// back one by one. The return of the first must not cost the others their workers, so from then on
/// the coordinator waits for the rest as long as a restarted coordinator listens.
#[derive(Debug, Default)]
pub(crate) struct SharedSilence {
    /// The largest number of members that were silent while nothing could be done about it.
    pub silent_most: usize,
    /// Until when to wait for those that are still silent, after one has come back.
    pub until: Option<Timestamp>,
}

impl Live {
    /// No evidence speaks against the current generation any more.
    pub(crate) fn clear_doubt(&mut self) {
        (self.doubted, self.left, self.shared_silence) = (None, None, SharedSilence::default());
    }

    /// Whether the current generation is under doubt, or its ranks are done and its torchruns are
    /// not.
    pub(crate) fn is_undecided(&self) -> bool {
        self.doubted.is_some() || self.ranks_done.is_some()
    }
}
