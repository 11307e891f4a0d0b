//! Mistakes that tests can put into the rules, to check that `tests/world` finds each of them. Only
//! that crate enables the feature `planted`. Without the feature there are no mistakes: [`on`] is
//! the constant `false`.

macro_rules! mistakes {
    ($($(#[doc = $words:literal])* $name:ident),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mistake {
            $($(#[doc = $words])* $name),*
        }

        impl Mistake {
            pub const ALL: [Mistake; [$(Mistake::$name),*].len()] = [$(Mistake::$name),*];

            /// The mistake as a sentence for people.
            pub fn words(self) -> &'static str {
                match self {
                    $(Mistake::$name => concat!($($words),*)),*
                }
            }
        }
    };
}

mistakes! {
    /// A coordinator takes in a node that has obeyed a newer coordinator.
    NewerTermIgnored,
    /// An agent is taken in although it speaks no known version of the protocol.
    VersionUnchecked,
    /// A node obeys a message of an older session.
    OlderEpochObeyed,
    /// A node goes back to an older generation.
    OlderGenerationObeyed,
    /// A node writes its ledger only after it has obeyed.
    LedgerSavedLast,
    /// A node starts a generation beside an older one of its job, or on GPUs in use.
    WaitsForNobody,
    /// The next generation starts although nothing proves that the one before is inert.
    NextStartsAtOnce,
    /// A generation whose members are all silent counts as broken, with nobody proven dead.
    RingBreakWithoutProof,
    /// `progress: independent` is taken for synchronous.
    IndependentIgnored,
    /// A node that is lost is taken for dead.
    LostIsDead,
    /// A new boot is not taken for a proof of death.
    BootIgnored,
    /// A coordinator that has just started judges silence before it has listened.
    NoListening,
    /// Every failure is charged to the job.
    NodeFaultsCharged,
    /// Restarts beyond the budget are given.
    BudgetIgnored,
    /// A rule of a job restarts it more often than its limit says.
    RuleLimitIgnored,
    /// Of a job's rules that match, the last decides.
    LastRuleDecides,
    /// A job's rules about its own failures are asked about node faults too.
    RulesTakeNodeFaults,
    /// Time in which a job was suspended counts for its deadline.
    SuspendedTimeCounts,
    /// Muster cordons as many nodes as it likes.
    CordonUncapped,
    /// A node that was silent a moment ago and is heard again is blamed for the next break.
    SilenceRemembered,
    /// One job's failures are enough for a cordon.
    CordonForOneJob,
    /// Nodes that are silent get new work.
    SuspectsPlaced,
    /// A gang smaller than the minimum will do.
    MinimumIgnored,
    /// A job gets a slot or GPU that another job may still hold.
    HeldIsFree,
    /// A generation keeps the number of the one before.
    NumberKept,
    /// A job grows whenever it can.
    CooldownIgnored,
    /// A growth waits for ever for a node that does not say whether it is ready.
    SilenceAwaited,
    /// An end that was reported is never acknowledged.
    EndsUnacknowledged,
    /// A submission is known by its name only.
    RequestIdIgnored,
    /// A job that is over can be cancelled.
    TerminalReopened,
    /// The fence of a job counts from the coordinator's answer, not from the node's question.
    LeaseFromAnswer,
    /// Workers that stop by themselves count as gone before their stop grace is over.
    FenceGraceForgotten,
    /// A role gets fewer nodes than its minimum, as long as the job has enough in all.
    RoleUnfilled,
    /// A node gets new work although its agent says that nothing may be placed on it.
    UnhealthyPlaced,
    /// A job is deleted although a node has not proven that its workers are dead.
    DeletedUnproven,
    /// The brake for mass losses is never put on, however many nodes fall silent at once.
    BrakeNeverPut,
    /// A generation that is wholly silent is replaced although the brake is on.
    BrakeIgnored,
    /// The brake stays on when the nodes are back.
    BrakeKeptOn,
    /// A node that knows more than the store is not noticed.
    RollbackUnseen,
    /// A node that knows more than the store gets orders, and its jobs are decided on.
    HaltIgnored,
    /// A restart of the coordinator counts as an operator's consent to an old store.
    HaltLifted,
    /// An agent that does not know what it was told on this boot is taken for the one that was
    /// told.
    StrangerTakenIn,
    /// A second machine that was up while the first was heard is taken for the first after a reboot.
    NamesakeTakenIn,
    /// A node's epoch is counted on from the epoch on the node's disk.
    EpochFromNode,
    /// The records of a commit become durable in the wrong order.
    WritesOutOfOrder,
    /// Muster makes a Node object schedulable although somebody else made it unschedulable.
    ForeignCordonLifted,
    /// Muster cordons a node again at once after a person has uncordoned it.
    HoldOffIgnored,
    /// A worker pod that the cluster does not know any more is taken for dead while its agent is heard.
    ForcedIsDead,
    /// The findings that a worker pod itself reports count in full against its host.
    PodsWordCounts,
    /// A job that wants fewer nodes deletes a pod in which workers live.
    LivePodDeleted,
    /// A pod that is being deleted still counts as a place of its job.
    GoingPodCounts,
    /// If no answer says whether a pod was made, another one is made under a new name.
    PodMadeTwice,
    /// A job that cannot begin keeps its pods for ever.
    PodsNeverGivenBack,
    /// A worker pod is heard about jobs that are not its own.
    PodsWordTaken,
    /// A sick GPU of a worker pod ends no generation.
    PodsGpuIgnored,
    /// Every GPU of its host that somebody holds counts as a worker pod's own.
    NeighboursGpuCounts,
}

#[cfg(feature = "planted")]
thread_local! {
    static ON: std::cell::Cell<Option<Mistake>> = const { std::cell::Cell::new(None) };
}

/// Puts this mistake into all decisions of this thread. `None` removes it.
#[cfg(feature = "planted")]
pub fn plant(mistake: Option<Mistake>) {
    ON.set(mistake);
}

#[cfg(feature = "planted")]
pub(crate) fn on(mistake: Mistake) -> bool {
    ON.get() == Some(mistake)
}

#[cfg(not(feature = "planted"))]
pub(crate) const fn on(_: Mistake) -> bool {
    false
}
