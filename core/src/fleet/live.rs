//! What is known of a job beyond its record. It is lost with the process, and learnt again.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    fleet::{
        shortage::Shortage,
        voluntary::{Later, Saves},
    },
    id::NodeName,
    slow,
    stall::Watch,
    time::Timestamp,
};

#[derive(Debug, Default)]
pub(crate) struct Live {
    /// A user scaled the job since the current generation was opened, so there is no cool-down.
    pub scaled: bool,
    pub condition: Condition,
    /// Nodes that this job avoids for a while.
    pub avoided: Vec<Avoided>,
    /// When to look again if nothing happens before.
    pub wake: Option<Timestamp>,
    /// Nodes that were asked to get ready for this job while it trains.
    pub prewarm_asked: BTreeSet<NodeName>,
    /// The asked nodes that the job now waits for.
    pub prewarm_awaited: BTreeSet<NodeName>,
    /// The asked nodes that are ready for the job, which waits for something else.
    pub prewarm_ready: BTreeSet<NodeName>,
    /// Since when the job could begin, and waits for more of its pods.
    pub pods_since: Option<Timestamp>,
    /// What the job lacks to become smaller, as a user asked.
    pub cannot_shrink: Option<String>,
    /// The rank that has ended well, because of which the job keeps its size to the end.
    pub ends: Option<String>,
    /// The job would change its nodes, and puts that off for this reason.
    pub later: Option<Later>,
    pub saves: Saves,
    /// Why the job has too few nodes. `None`: it has enough, or nothing is known.
    pub shortage: Option<Shortage>,
    /// What was last told of it, since the job has too few.
    pub shortage_told: Option<Shortage>,
    /// What is known of a generation of which nothing moves.
    pub stall: Watch,
    /// How many ranks used a processor when the current generation was found to stall.
    pub busy_in_stall: Option<usize>,
    /// Which ranks of the current generation make the others wait, and since when.
    pub slow: slow::Watch,
    /// When to ask next for room to leave slow nodes. `None`: it was not asked in vain.
    pub slow_asks_at: Option<Timestamp>,
    /// More room would have changed nothing when the job was last settled.
    pub has_all_it_wants: bool,
}

/// What `judge` last made of the current generation.
///
/// A generation begins *Sound*, and is so again when nothing speaks against it any more. It is
/// *Doubted* from the first evidence of a break on, until it breaks or is Sound again. *RanksDone*:
/// every rank ended well, and some torchrun processes still wait for each other. *Won*: the job has
/// succeeded by a rule, and no evidence changes that. Only `judge` and
/// the opening of a generation set this.
#[derive(Debug, Default)]
pub(crate) enum Condition {
    #[default]
    Sound,
    /// Since when every rank has ended well.
    RanksDone {
        since: Timestamp,
    },
    /// A rule says that one member's success is the job's, and the others have some time left.
    Won,
    Doubted(Doubt),
}

impl Condition {
    pub(crate) fn is_sound(&self) -> bool {
        matches!(self, Condition::Sound)
    }

    pub(crate) fn doubt(&self) -> Option<&Doubt> {
        match self {
            Condition::Doubted(doubt) => Some(doubt),
            Condition::Sound | Condition::RanksDone { .. } | Condition::Won => None,
        }
    }

    pub(crate) fn doubt_mut(&mut self) -> Option<&mut Doubt> {
        match self {
            Condition::Doubted(doubt) => Some(doubt),
            Condition::Sound | Condition::RanksDone { .. } | Condition::Won => None,
        }
    }

    /// Why a doubted generation is left as it is, if it is.
    pub(crate) fn left(&self) -> Option<&LeftAsItIs> {
        self.doubt()?.left.as_ref()
    }
}

/// The evidence against a generation that has not broken it yet.
#[derive(Clone, Debug)]
pub(crate) struct Doubt {
    /// When the first of it was seen.
    pub since: Timestamp,
    /// Why the generation is left as it is.
    pub left: Option<LeftAsItIs>,
    pub shared_silence: SharedSilence,
}

impl Doubt {
    pub(crate) fn new(since: Timestamp) -> Self {
        Self {
            since,
            left: None,
            shared_silence: SharedSilence::default(),
        }
    }
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

impl LeftAsItIs {
    pub(crate) fn is_frozen(&self) -> bool {
        matches!(self, LeftAsItIs::Frozen(_))
    }
}

/// Members that were silent together, for example because the coordinator was cut off. They come
/// back one by one. The return of the first must not cost the others their workers, so from then on
/// the coordinator waits for the rest as long as a restarted coordinator listens.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedSilence {
    /// The largest number of members that were silent while nothing could be done about it.
    pub silent_most: usize,
    /// Until when to wait for those that are still silent, after one has come back.
    pub until: Option<Timestamp>,
}

impl SharedSilence {
    /// So many members are silent, and nothing can be done about it.
    pub(crate) fn grows(&mut self, silent: usize) {
        self.silent_most = self.silent_most.max(silent);
        self.until = None;
    }
}

/// How long a job avoids a node on which it could not start. A longer time would starve small
/// fleets.
pub(crate) const AVOID: Duration = Duration::from_secs(60);

/// A node that a job avoids, until when, and why.
#[derive(Clone, Debug)]
pub(crate) struct Avoided {
    pub node: NodeName,
    pub until: Timestamp,
    pub why: String,
}
