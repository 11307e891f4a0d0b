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
    /// A coordinator takes a node in that has obeyed a newer one.
    NewerTermIgnored,
    /// An agent is taken in whatever versions of the protocol it speaks.
    VersionUnchecked,
    /// A node obeys a message of an older session.
    OlderEpochObeyed,
    /// A node goes back to an older generation.
    OlderGenerationObeyed,
    /// A node persists what it obeys only after it has obeyed.
    LedgerSavedLast,
    /// A node starts a generation beside an older one of its job, and on GPUs in use.
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
    /// A started coordinator judges silence before it has listened.
    NoListening,
    /// Every failure is charged to the job.
    NodeFaultsCharged,
    /// Restarts beyond the budget are given.
    BudgetIgnored,
    /// Muster cordons as many nodes as it likes.
    CordonUncapped,
    /// A node that was silent a moment ago, and is heard again, is blamed for what breaks now.
    SilenceRemembered,
    /// One job's failures are enough for a cordon.
    CordonForOneJob,
    /// Nodes that are silent get new work.
    SuspectsPlaced,
    /// A gang smaller than the minimum will do.
    MinimumIgnored,
    /// What another job may still hold is given away.
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
    /// What workers of a fenced job live by counts from the answer, not from the question.
    LeaseFromAnswer,
    /// Workers that stop by themselves count as gone before their stop grace is over.
    FenceGraceForgotten,
    /// A fenced job is placed on nodes whose agents do not know of fences.
    FencedAnywhere,
    /// A node of which its agent says that nothing may be placed on it gets new work
    UnhealthyPlaced,
    /// A job is deleted although a node has not proven that its workers are dead.
    DeletedUnproven,
    /// However many nodes fall silent at once, the brake for mass losses is not put on.
    BrakeNeverPut,
    /// The brake is on, and what nobody can tell of is replaced all the same.
    BrakeIgnored,
    /// The brake is not let off when the nodes are back.
    BrakeKeptOn,
    /// It is not seen that a node knows more than the store.
    RollbackUnseen,
    /// A node that knows more than the store gets orders, and its jobs are decided on.
    HaltIgnored,
    /// A restart of the coordinator does for a person's word that an old store is the truth.
    HaltLifted,
    /// An agent that does not know what it was told on this boot is taken for the one that was
    /// told.
    StrangerTakenIn,
    /// A second machine that was up while the first was heard is taken for that one after a reboot.
    NamesakeTakenIn,
    /// A node's epoch is counted from what its disk says.
    EpochFromNode,
    /// The records of a commit become durable in the wrong order.
    WritesOutOfOrder,
    /// Muster makes a Node object schedulable that somebody else made unschedulable.
    ForeignCordonLifted,
    /// Muster cordons a node again at once that a person has uncordoned.
    HoldOffIgnored,
    /// A worker pod that the cluster does not know any more is taken for dead while its agent is heard.
    ForcedIsDead,
    /// What a worker pod itself says counts in full against its host.
    PodsWordCounts,
    /// A job that wants fewer nodes deletes a pod in which workers live.
    LivePodDeleted,
    /// A pod that is being deleted still counts as a place of its job.
    GoingPodCounts,
    /// If no answer says whether a pod was made, another one is made under a new name.
    PodMadeTwice,
    /// A job that cannot begin keeps the pods that it has for ever.
    PodsNeverGivenBack,
    /// A worker pod is heard about jobs that are not its own.
    PodsWordTaken,
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
