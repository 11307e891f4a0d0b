//! Mistakes put into the world on purpose, so that the checks can be seen going red. None touches the rules under test: each
//! replaces a promise that the shell around them must keep.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// The coordinator acts on a decision first and commits it afterwards.
    ActsBeforeCommit,
    /// A commit is acknowledged and lost with the next crash.
    CommitNotDurable,
    /// A restarted coordinator goes on under the old term.
    TermNotRaised,
    /// A retried submission is passed on as a new one.
    RetryIsNew,
    /// The ledger is written, not synced: a crash brings an older one back.
    LedgerNotSynced,
    /// A restarted agent does not look what still runs.
    InventoryForgotten,
    /// A stop is reported as death before it is proven.
    StopIsDeath,
    /// The agent makes up a boot id at each start of its process.
    BootIdPerProcess,
    /// An agent that hears nothing from the coordinator stops its workers.
    SilenceKills,
    /// The line that tells a victim from a culprit gets lost.
    ErrorLinesLost,
    /// A node claims one slot more than it has.
    SlotTooMany,
    /// After a while changes of runs are not reported any more.
    ReportsStop,
}

impl Planted {
    pub const ALL: [Planted; 12] = [
        Planted::ActsBeforeCommit,
        Planted::CommitNotDurable,
        Planted::TermNotRaised,
        Planted::RetryIsNew,
        Planted::LedgerNotSynced,
        Planted::InventoryForgotten,
        Planted::StopIsDeath,
        Planted::BootIdPerProcess,
        Planted::SilenceKills,
        Planted::ErrorLinesLost,
        Planted::SlotTooMany,
        Planted::ReportsStop,
    ];
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
