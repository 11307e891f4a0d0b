//! Mistakes that are put in on purpose, so that the checks can be seen to fail. The mistakes of the
//! shells are here, those of the brains in `muster_planted`: without the feature `planted` there are
//! none. One mistake at a time applies to the worlds of this thread.

use std::{cell::Cell, fmt};

#[cfg(feature = "planted")]
use muster_core::planted::Mistake;

macro_rules! planted {
    ($($(#[doc = $words:literal])* $name:ident),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Planted {
            $($(#[doc = $words])* $name,)*
            /// A mistake in a brain.
            #[cfg(feature = "planted")]
            Core(Mistake),
        }

        impl Planted {
            const SHELL: &'static [Planted] = &[$(Planted::$name),*];

            /// The mistake in words for people.
            pub fn words(self) -> String {
                let words = match self {
                    $(Planted::$name => concat!($($words),*),)*
                    #[cfg(feature = "planted")]
                    Planted::Core(mistake) => mistake.words(),
                };
                words.trim().trim_end_matches('.').to_owned()
            }
        }
    };
}

planted! {
    /// The coordinator acts on a decision first and commits it afterwards.
    ActsBeforeCommit,
    /// A commit is acknowledged and lost with the next crash.
    CommitNotDurable,
    /// A restarted coordinator goes on under the old term.
    TermNotRaised,
    /// The store takes the commits of a coordinator whose term is over.
    StoreUnfenced,
    /// A retried submission is passed on as a new one.
    RetryIsNew,
    /// The ledger is written but not synced, so a crash brings an older one back.
    LedgerNotSynced,
    /// An agent that cannot write its ledger obeys all the same.
    LedgerErrorIgnored,
    /// A restarted agent does not look which runs still go on.
    InventoryForgotten,
    /// A stop is reported as death before it is proven.
    StopIsDeath,
    /// Workers are taken for dead although their runner was killed and the agent cannot see them.
    LeftUntoldIsDead,
    /// A process that outlives its runner counts as dead once it was told to end.
    LeftKilledIsDead,
    /// An agent that is started anew does not look for processes that have outlived their runner.
    LeftUnlooked,
    /// The agent makes up a boot id at each start of its process.
    BootIdPerProcess,
    /// An agent does not say which generations it has obeyed.
    GenerationsUntold,
    /// An agent that hears nothing from the coordinator stops its workers.
    SilenceKills,
    /// The line that tells a victim from a culprit gets lost.
    ErrorLinesLost,
    /// A node claims one slot more than it has.
    SlotTooMany,
    /// After a while an agent reports no changes of its runs.
    ReportsStop,
    /// Every generation's TCPStore has the same port on its node.
    PortReused,
    /// A coordinator whose term is over goes on answering heartbeats.
    DeposedAnswers,
    /// Workers of a fenced job live from their start, however old the word is on which they are
    /// started.
    StartIsAWord,
    /// Workers that must stop have their stop grace from when their runner notices.
    GraceFromWaking,
    /// The clock of a fence stops while its machine stands still.
    FenceSleeps,
    /// The fence of a job counts from the coordinator's answer, not from the node's question.
    LeaseFromAnswer,
}

impl Planted {
    /// The mistakes that this build has.
    pub fn all() -> impl Iterator<Item = Planted> {
        let all = Self::SHELL.iter().copied();
        #[cfg(feature = "planted")]
        let all = all.chain(Mistake::ALL.iter().copied().map(Planted::Core));
        all
    }
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            #[cfg(feature = "planted")]
            Planted::Core(mistake) => fmt::Debug::fmt(mistake, f),
            shell => fmt::Debug::fmt(shell, f),
        }
    }
}

thread_local! {
    static ON: Cell<Option<Planted>> = const { Cell::new(None) };
}

pub(crate) fn plant(planted: Option<Planted>) {
    ON.set(planted);
    #[cfg(feature = "planted")]
    muster_core::planted::plant(match planted {
        Some(Planted::Core(mistake)) => Some(mistake),
        _ => None,
    });
}

/// Whether this is the mistake planted in the present world.
pub(crate) fn on(planted: Planted) -> bool {
    ON.get() == Some(planted)
}
