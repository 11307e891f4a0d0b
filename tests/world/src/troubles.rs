//! What truly happens to machines and runs, each with its kind and its time, so that a blame can be
//! compared with it.

use muster_core::{run::RunId, time::Timestamp};

use crate::world::World;

macro_rules! kinds {
    ($($name:ident: $words:literal),* $(,)?) => {
        /// What can happen to a machine or a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Kind {
            $(#[doc = $words] $name),*
        }

        impl Kind {
            /// The kind in words for people.
            pub(crate) fn words(self) -> &'static str {
                match self {
                    $(Kind::$name => $words),*
                }
            }
        }
    };
}

kinds! {
    SessionBroke: "the session of its agent broke",
    SessionRefused: "its agent was refused a session",
    Cut: "nothing passed between it and the coordinator",
    Slow: "its messages were late",
    AgentDead: "its agent was dead",
    AgentStood: "its agent stood still",
    MachineStood: "the machine stood still",
    SlowDisk: "what its agent obeyed was not on disk yet",
    NoPower: "the machine lost power",
    OtherCoordinator: "its agent spoke with a coordinator whose term was over",
    Unkillable: "its workers could not be killed",
    RankFailed: "the rank failed by itself",
    RunnerKilled: "the runner was killed",
    Refused: "the node refused the run",
    PeersParted: "the network between members failed",
    StruckOff: "an operator struck the node off",
    Leaving: "it was to be taken away",
    SickGpu: "a GPU of the pod was sick",
    Fenced: "its workers stopped, as nothing was heard of the coordinator",
}

impl Kind {
    /// Whether the coordinator may not hear the node while this lasts.
    pub(crate) fn silences(self) -> bool {
        use Kind::*;
        matches!(
            self,
            SessionBroke
                | SessionRefused
                | Cut
                | Slow
                | AgentDead
                | AgentStood
                | MachineStood
                | NoPower
                | OtherCoordinator
        )
    }

    /// Whether the agent must say hello again before it is heard.
    fn ends_the_session(self) -> bool {
        matches!(
            self,
            Kind::SessionBroke
                | Kind::SessionRefused
                | Kind::AgentDead
                | Kind::NoPower
                | Kind::OtherCoordinator
        )
    }
}

/// One thing that happened to a machine.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) kind: Kind,
    pub(crate) from: Timestamp,
    /// When it was over.
    over: Option<Timestamp>,
    /// When its node was heard again after that.
    pub(crate) until: Option<Timestamp>,
}

/// What a run's workers on one machine did, or what was done to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deed {
    pub(crate) kind: Kind,
    pub(crate) machine: usize,
    /// The global rank and its attempt, if only one rank is concerned.
    pub(crate) rank: Option<(u32, u32)>,
    pub(crate) at: Timestamp,
}

impl World {
    /// Something begins that ends with [`World::ends`].
    pub(crate) fn begins(&mut self, machine: usize, kind: Kind) {
        let from = self.now;
        self.truth
            .troubles
            .entry(machine)
            .or_default()
            .push(Trouble {
                kind,
                from,
                over: None,
                until: None,
            });
    }

    pub(crate) fn ends(&mut self, machine: usize, kind: Kind) {
        let now = self.now;
        let troubles = self.truth.troubles.entry(machine).or_default();
        troubles
            .iter_mut()
            .filter(|trouble| trouble.kind == kind)
            .for_each(|trouble| {
                trouble.over.get_or_insert(now);
            });
    }

    /// Something happens at one moment. The node is silent until it is heard again.
    pub(crate) fn befalls(&mut self, machine: usize, kind: Kind) {
        self.begins(machine, kind);
        self.ends(machine, kind);
    }

    /// Something lasts until a known time.
    pub(crate) fn lasts(&mut self, machine: usize, kind: Kind, until: Timestamp) {
        let from = self.now;
        let trouble = Trouble {
            kind,
            from,
            over: Some(until),
            until: Some(until),
        };
        self.truth
            .troubles
            .entry(machine)
            .or_default()
            .push(trouble);
    }

    /// The leading coordinator hears the agent of this machine over a connection that is whole.
    pub(crate) fn is_heard(&mut self, machine: usize, hello: bool) {
        let now = self.now;
        let Some(troubles) = self.truth.troubles.get_mut(&machine) else {
            return;
        };
        for trouble in troubles
            .iter_mut()
            .filter(|t| t.over.is_some() && t.until.is_none())
        {
            if hello || !trouble.kind.ends_the_session() {
                trouble.until = Some(now);
            }
        }
    }

    /// A run's workers on this machine do something, or something is done to them.
    pub(crate) fn did(
        &mut self,
        machine: usize,
        run: &RunId,
        kind: Kind,
        rank: Option<(u32, u32)>,
    ) {
        let at = self.now;
        self.truth.deeds.entry(run.clone()).or_default().push(Deed {
            kind,
            machine,
            rank,
            at,
        });
    }
}
