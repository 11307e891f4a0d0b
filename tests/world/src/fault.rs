//! What goes wrong, by name. Each seed draws which kinds it has, how often, and what of the world they hit.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    CoordinatorCrash,
    /// It dies when it has decided and not yet committed.
    CrashBeforeCommit,
    /// It dies when it has committed and told nobody.
    CrashAfterCommit,
    /// It dies when it has told some.
    CrashAmidEffects,
    /// The whole process stands still, as a suspended virtual machine.
    CoordinatorPause,
    AgentCrash,
    /// The agent dies between two effects of one turn.
    AgentCrashAmidEffects,
    AgentPause,
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
}

impl Fault {
    pub const ALL: [Fault; 29] = [
        Fault::CoordinatorCrash,
        Fault::CrashBeforeCommit,
        Fault::CrashAfterCommit,
        Fault::CrashAmidEffects,
        Fault::CoordinatorPause,
        Fault::AgentCrash,
        Fault::AgentCrashAmidEffects,
        Fault::AgentPause,
        Fault::PowerCut,
        Fault::RackLoss,
        Fault::RunnerKilled,
        Fault::RunnerConnection,
        Fault::RankError,
        Fault::RankSegfault,
        Fault::RankKilled,
        Fault::SessionBreak,
        Fault::CutBoth,
        Fault::CutUp,
        Fault::CutDown,
        Fault::SlowNetwork,
        Fault::FabricCut,
        Fault::Isolated,
        Fault::PeerReset,
        Fault::HoldRefused,
        Fault::StartRefused,
        Fault::GpusHidden,
        Fault::Unkillable,
        Fault::Duplicate,
        Fault::Stale,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
