//! What goes wrong, by name. Each seed draws which faults it has, how often they strike, and what
//! they hit.

use std::fmt;

use crate::{
    plan::{Cut, Plan},
    rng::Rng,
};

macro_rules! faults {
    ($($name:ident: $words:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $(#[doc = $words] $name),*
        }

        impl Fault {
            pub const ALL: [Fault; [$(Fault::$name),*].len()] = [$(Fault::$name),*];

            /// The fault in words for people.
            pub fn words(self) -> &'static str {
                match self {
                    $(Fault::$name => $words),*
                }
            }
        }
    };
}

faults! {
    CoordinatorCrash: "the coordinator dies",
    CrashBeforeCommit: "the coordinator dies when it has decided and not yet committed",
    CrashAfterCommit: "the coordinator dies when it has committed and told nobody",
    CrashAmidEffects: "the coordinator dies when it has told some",
    CoordinatorPause: "the coordinator stands still, as in a suspended virtual machine",
    SecondLeader: "a second coordinator takes the term while the first goes on and believes to lead",
    StoreWriteFails: "a write to the store fails, and may have reached the disk all the same",
    StoreRestored: "an older copy of the coordinator's store is put back",
    AgentCrash: "the agent dies",
    AgentCrashAmidEffects: "the agent dies between two things it was about to do",
    AgentPause: "the agent stands still",
    LedgerWriteFails: "the agent's ledger cannot be written, or nobody knows whether it was",
    LedgerDamaged: "the ledger's file is torn; the agent refuses it until a person has helped",
    PowerCut: "the machine loses power; no process survives, no peer is told",
    RackLoss: "several machines lose power at once",
    RunnerKilled: "the holder of a worker group is killed, and the group with it",
    RunnerConnection: "the connection between agent and runner breaks; orders on their way come later",
    RankError: "a rank fails with an error of its own",
    RankSegfault: "a rank crashes",
    RankKilled: "a rank is killed",
    SickNode: "ranks keep failing on this machine, whatever the job",
    SessionBreak: "the session between agent and coordinator breaks",
    CutBoth: "nothing passes between this node and the coordinator, silently",
    CutUp: "the way from the agent to the coordinator is cut, silently",
    CutDown: "the way from the coordinator to the agent is cut, silently",
    SlowNetwork: "messages take up to two seconds",
    FabricCut: "two nodes' workers do not reach each other",
    Isolated: "the node reaches nobody: neither the coordinator nor its peers",
    PeerReset: "a connection between two members' workers is reset; each says that the other went away",
    HoldRefused: "the node cannot bring a runner up",
    StartRefused: "the node cannot start the workers",
    GpusHidden: "the driver shows no GPU for a while; who uses one goes on",
    Unkillable: "a group does not die for a while, whatever is done to it",
    Duplicate: "a message is delivered twice",
    Stale: "a message of a connection that is over is delivered all the same",
    ClockJump: "a coordinator starts with a wall clock that is up to two hours off",
    ClockDrift: "a coordinator's clock runs up to one percent too fast or too slow",
    Blackout: "the coordinator reaches no node but perhaps one, and none reaches it",
    MachineStands: "a machine stands still with all that is on it, and goes on in any order",
    StateDirSwapped: "the agent is started with another state directory, while what it held goes on",
    TerminationNotice: "the node is told that its machine will be taken away, and loses power some time later, or not",
    NicDown: "a node says that its network card is down, for a while; who runs there goes on",
    SlowDisk: "writes of an agent's ledger take up to fifteen seconds, for a while",
    ProcessLeft: "the holder of a worker group is killed, and a process of the group gets away with what it was given",
    NodeReplaced: "a machine makes place for a new one of its name with an empty disk, and comes back later",
    NameTaken: "the agent dies, and a second machine that was up all the time claims its name while its workers go on",
    CommitTorn: "the coordinator dies between two records of a commit; those before are stored",
    RankLeaves: "a rank leaves its process group and fails some seconds later; those that lose it end first",
    HostLies: "the agent of a host speaks of a job that was never on it",
    RankStalls: "a rank stands still and lives: it hangs, is stopped, waits for a device, or calls another collective",
    SlowSave: "ranks save for long, to where no node sees it",
    SlowWork: "ranks compute, print or write for long between two steps",
    PodDeleted: "somebody deletes a worker pod",
    PodForced: "somebody deletes a worker pod by force: it is gone from the books, and its workers live until its kubelet hears of it",
    PodEvicted: "a kubelet evicts a worker pod",
    KubeletCut: "a kubelet does not reach the API server, and perhaps nothing on its host reaches the coordinator",
    HostDeleted: "a host loses power and its Node object is deleted; the cluster collects its pods",
    ApiAway: "the API server does not answer",
    AnswersLost: "writes to the API server are done, or not, or done late, and nobody hears which",
    NoRoom: "the scheduler finds no room for any pod",
    WatchBroken: "the coordinators' watch of pods breaks, and what happens until the next list is never told",
    PodLies: "the agent in a worker pod speaks of another job than its own",
    GpuSick: "a GPU that a kubelet gives to pods is sick for a while; whoever uses it goes on",
}

impl Fault {
    /// Faults that were added later. They are drawn separately, so that histories without them stay
    /// the same.
    pub(crate) const LATER: [Fault; 9] = [
        Fault::Blackout,
        Fault::MachineStands,
        Fault::StateDirSwapped,
        Fault::NodeReplaced,
        Fault::TerminationNotice,
        Fault::NicDown,
        Fault::SlowDisk,
        Fault::ProcessLeft,
        Fault::NameTaken,
    ];

    /// Faults that were added when even a draw more would have changed too many histories. Each
    /// draws from a source of its own.
    pub(crate) const LAST: [Fault; 14] = [
        Fault::CommitTorn,
        Fault::PodDeleted,
        Fault::PodForced,
        Fault::PodEvicted,
        Fault::KubeletCut,
        Fault::HostDeleted,
        Fault::ApiAway,
        Fault::AnswersLost,
        Fault::NoRoom,
        Fault::WatchBroken,
        Fault::PodLies,
        Fault::GpuSick,
        Fault::RankLeaves,
        Fault::HostLies,
    ];

    /// Only worlds whose runners notice which ranks move have these.
    pub(crate) const OF_STALLS: [Fault; 3] = [Fault::RankStalls, Fault::SlowSave, Fault::SlowWork];

    /// Whether it happens to machines, and not to pods on them: to their hardware, their disks, or by
    /// a person who looks after them. The name of a pod is proven by its token.
    pub(crate) fn is_of_machines(self) -> bool {
        matches!(
            self,
            Fault::LedgerDamaged
                | Fault::StateDirSwapped
                | Fault::NodeReplaced
                | Fault::NameTaken
                | Fault::TerminationNotice
                | Fault::NicDown
                | Fault::HostLies
        )
    }

    /// Whether only worlds with worker pods have it.
    pub(crate) fn is_of_pods(self) -> bool {
        self >= Fault::PodDeleted
    }

    /// Those later faults that this seed has.
    pub(crate) fn later(seed: u64, plan: &Plan, cut: &Cut) -> Vec<Fault> {
        // These bytes spell "more".
        let mut more = Rng::new(seed ^ 0x6d6f_7265);
        let kept = |fault: &Fault| cut.faults.as_ref().is_none_or(|kept| kept.contains(fault));
        let share = |fault: &Fault| {
            if plan.fences && *fault == Fault::MachineStands {
                40
            } else {
                fault.share()
            }
        };
        let mut later: Vec<Fault> = Self::LATER
            .into_iter()
            .filter(|fault| more.percent(share(fault)) && kept(fault))
            .collect();
        if plan.fences
            && more.percent(40)
            && !plan.has(Fault::SecondLeader)
            && kept(&Fault::SecondLeader)
        {
            later.push(Fault::SecondLeader);
        }
        for (number, fault) in Self::LAST.into_iter().enumerate() {
            // These bytes spell "last".
            let mut last = Rng::new(seed ^ 0x6c61_7374 ^ (number as u64) << 32);
            let is_here = plan.pods || !fault.is_of_pods();
            if is_here && last.percent(fault.share()) && kept(&fault) {
                later.push(fault);
            }
        }
        later
    }

    /// How many seeds in a hundred have this fault.
    pub(crate) fn share(self) -> u64 {
        match self {
            // A tenth of all histories has two leaders.
            Fault::SecondLeader => 10,
            // After this fault the world mostly waits for a person.
            Fault::StoreRestored => 4,
            Fault::LedgerDamaged => 10,
            Fault::SickNode => 25,
            Fault::Blackout | Fault::MachineStands => 15,
            Fault::StateDirSwapped
            | Fault::TerminationNotice
            | Fault::NicDown
            | Fault::SlowDisk
            | Fault::ProcessLeft
            | Fault::NameTaken
            | Fault::CommitTorn => 30,
            Fault::NodeReplaced | Fault::HostLies => 10,
            _ => 50,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
