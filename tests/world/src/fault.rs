//! What goes wrong, by name. Each seed draws which kinds it has, how often, and what of the world they hit.

use std::fmt;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[$doc])* $name),*
        }

        impl Fault {
            pub const ALL: [Fault; [$(Fault::$name),*].len()] = [$(Fault::$name),*];
        }
    };
}

faults! {
    CoordinatorCrash,
    /// It dies when it has decided and not yet committed.
    CrashBeforeCommit,
    /// It dies when it has committed and told nobody.
    CrashAfterCommit,
    /// It dies when it has told some.
    CrashAmidEffects,
    /// The whole process stands still, as a suspended virtual machine.
    CoordinatorPause,
    /// A second coordinator takes the term while the first goes on and believes to lead.
    SecondLeader,
    /// The store's disk is full or broken: a commit fails, and may have reached the disk all the same.
    StoreWriteFails,
    /// An older copy of the coordinator's store is put back.
    StoreRestored,
    AgentCrash,
    /// The agent dies between two effects of one turn.
    AgentCrashAmidEffects,
    AgentPause,
    /// The agent's disk is full or broken: a ledger cannot be written, or nobody knows whether it was.
    LedgerWriteFails,
    /// The ledger's file is torn; the agent refuses it until a person has helped.
    LedgerDamaged,
    /// No process survives, no peer is told; another boot follows.
    PowerCut,
    /// Several machines lose power at once.
    RackLoss,
    /// The holder of a worker group is killed, and the group with it.
    RunnerKilled,
    /// The connection between agent and runner breaks; orders on their way come later.
    RunnerConnection,
    RankError,
    RankSegfault,
    RankKilled,
    /// A machine on which ranks keep failing, whatever the job.
    SickNode,
    SessionBreak,
    /// Nothing passes between one node and the coordinator, silently.
    CutBoth,
    CutUp,
    CutDown,
    SlowNetwork,
    /// Two nodes' workers do not reach each other.
    FabricCut,
    /// A node reaches nobody: neither the coordinator nor its peers.
    Isolated,
    /// A connection between two members' workers is reset; each says that the other went away.
    PeerReset,
    HoldRefused,
    StartRefused,
    /// The driver shows no GPU for a while; who uses one goes on.
    GpusHidden,
    /// A group that does not die for a while, whatever is done to it.
    Unkillable,
    /// Levels are delivered twice.
    Duplicate,
    /// Messages of a connection that is over are delivered all the same.
    Stale,
    /// A coordinator starts with a wall clock that is hours off.
    ClockJump,
    /// Clocks run up to one percent too fast or too slow.
    ClockDrift,
}

impl Fault {
    /// How many seeds of a hundred know it.
    pub(crate) fn share(self) -> u64 {
        match self {
            // Two leaders in a tenth of all histories.
            Fault::SecondLeader => 10,
            // What follows is mostly waiting for a person.
            Fault::StoreRestored => 4,
            Fault::LedgerDamaged => 10,
            Fault::SickNode => 25,
            _ => 50,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
