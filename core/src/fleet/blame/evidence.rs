//! The facts that speak against a generation, each with what can be said of it alone: on which node,
//! when, whether it ends the generation, whether it can only follow from another. Which of them caused
//! the others is decided in `blame`.

use std::time::Duration;

use crate::{
    exit::{Exit, ExitClass},
    id::NodeName,
    run::{DueTo, RankException},
    stall::Why,
    time::Timestamp,
};

/// One fact that speaks against a generation. Not every one breaks it: see [`Evidence::breaks`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    RankExit {
        node: NodeName,
        rank: u32,
        /// The name of its member, if the node holds several.
        member: Option<String>,
        exit: Exit,
        class: ExitClass,
        at: Timestamp,
        error: Option<String>,
        /// The Python exception that `error` is about.
        exception: Option<Box<RankException>>,
    },
    /// This rank had ended well when, or shortly after, the first other rank lost a peer.
    EndedEarly {
        node: NodeName,
        rank: u32,
        member: Option<String>,
        at: Timestamp,
        /// The first one that failed for want of it.
        victim: Box<Evidence>,
    },
    /// Others gave up waiting for these ranks, with their nodes. They may still run.
    Awaited {
        ranks: Vec<(u32, NodeName)>,
        at: Timestamp,
        /// The first one that gave up.
        victim: Box<Evidence>,
    },
    /// torchrun failed, and no rank did.
    TorchrunFailed {
        node: NodeName,
        exit: Exit,
        at: Timestamp,
        error: Option<String>,
        /// At least one rank had been started.
        launched: bool,
    },
    /// The group is dead, and nobody knows how it ended, because its runner was killed. A program
    /// that fails does not cause that, unless it eats all memory.
    Vanished {
        node: NodeName,
        at: Timestamp,
        /// At least one rank had been started.
        launched: bool,
    },
    /// The member is proven dead, and its node has since forgotten how it ended. Another
    /// member may have failed first.
    ExitUnknown {
        node: NodeName,
        at: Timestamp,
    },
    /// Nothing has moved since `at`, and its time is over.
    Stalled {
        /// Where the first rank is that is named. Else any node of the generation.
        node: NodeName,
        /// That rank, with its node.
        named: Option<String>,
        of_node: bool,
        why: Why,
        sentence: String,
        symptom: Option<String>,
        at: Timestamp,
    },
    /// The node's agent is silent. `since`: when its connection broke, or else when the agent was
    /// last heard. `heard`: its last sign of life. `None`: this coordinator has never heard it.
    NodeSilent {
        node: NodeName,
        lost: bool,
        since: Timestamp,
        heard: Option<Timestamp>,
    },
    NodeRebooted {
        node: NodeName,
        at: Timestamp,
    },
    NodeDeleted {
        node: NodeName,
        at: Timestamp,
    },
    /// The node, or the host of a worker pod, says that this member's hardware cannot go on.
    Unhealthy {
        node: NodeName,
        /// The check that says so, as `xid:79`.
        check: String,
        /// The check, and what it found.
        reason: String,
        at: Timestamp,
    },
    /// The workers stopped by themselves, because their node heard nothing of the coordinator
    /// (`fenceAfter`). This is nobody's fault.
    Fenced {
        node: NodeName,
        at: Timestamp,
    },
    /// The node says that it cannot start the run, and why.
    StartRefused {
        node: NodeName,
        reason: String,
        due_to: DueTo,
    },
    StartTimeout {
        node: NodeName,
        at: Timestamp,
    },
    /// The workers were killed because their machine is taken away or their pod is deleted. `why`:
    /// the node's notice, or that its pod is being deleted.
    Leaving {
        node: NodeName,
        why: String,
        at: Timestamp,
    },
    /// The software on this node does not match the other members', and the job refuses a mixture.
    /// `how` reads like `torch 2.14, not torch 2.15`.
    MixedNodes {
        node: NodeName,
        how: String,
        at: Timestamp,
    },
}

/// A silence may have caused a failure that was reported up to this long before it. One network cut
/// causes both, and chance decides which of two connections notices it first.
const SAME_CUT: Duration = Duration::from_millis(250);

impl Evidence {
    pub(crate) fn node(&self) -> &NodeName {
        match self {
            Evidence::RankExit { node, .. }
            | Evidence::EndedEarly { node, .. }
            | Evidence::TorchrunFailed { node, .. }
            | Evidence::Vanished { node, .. }
            | Evidence::ExitUnknown { node, .. }
            | Evidence::Stalled { node, .. }
            | Evidence::NodeSilent { node, .. }
            | Evidence::NodeRebooted { node, .. }
            | Evidence::NodeDeleted { node, .. }
            | Evidence::Unhealthy { node, .. }
            | Evidence::Fenced { node, .. }
            | Evidence::StartRefused { node, .. }
            | Evidence::StartTimeout { node, .. }
            | Evidence::Leaving { node, .. }
            | Evidence::MixedNodes { node, .. } => node,
            Evidence::Awaited { ranks, victim, .. } => ranks
                .first()
                .map_or_else(|| victim.node(), |(_, node)| node),
        }
    }

    /// On a node that is leaving for this reason, a kill or a refusal becomes `Leaving`. Other facts stay.
    /// `answered`: a rank of this group is being started again alone. A group that is told to end meanwhile
    /// ends with the exit code of that failure.
    pub(crate) fn on_leaving(self, why: &str, answered: bool) -> Self {
        let is_killed = match &self {
            Evidence::RankExit { class, .. } => *class == ExitClass::Killed,
            Evidence::TorchrunFailed { exit, error, .. } => {
                answered || exit.class(error.as_deref()) == ExitClass::Killed
            }
            Evidence::Vanished { .. } | Evidence::StartRefused { .. } => true,
            _ => false,
        };
        match is_killed {
            true => Evidence::Leaving {
                node: self.node().clone(),
                why: why.to_owned(),
                at: self.at(),
            },
            false => self,
        }
    }

    /// Notes that the ranks of this generation had been started. The node's report may no longer
    /// say so: a restarted agent knows of a lost runner only what the runner had written down.
    pub(crate) fn had_launched(&mut self) {
        if let Evidence::TorchrunFailed { launched, .. } | Evidence::Vanished { launched, .. } =
            self
        {
            *launched = true;
        }
    }

    /// Whether this alone ends the generation. A member's death does, and so does silence beyond
    /// the limit. A suspicion does not, nor does what only explains the end of others.
    pub(crate) fn breaks(&self) -> bool {
        !matches!(
            self,
            Evidence::NodeSilent { lost: false, .. }
                | Evidence::EndedEarly { .. }
                | Evidence::Awaited { .. }
        )
    }

    /// Whether the node refused the run for what is neither its own doing nor wrong with the job: a process
    /// that no job started is in the way, or the job's owner has no account there.
    pub(super) fn is_nobodys(&self) -> bool {
        let due_to_others = |due_to: &DueTo| matches!(due_to, DueTo::Stranger | DueTo::Account);
        matches!(self, Evidence::StartRefused { due_to, .. } if due_to_others(due_to))
    }

    /// Whether a rank, or torchrun, has ended with words about other ranks.
    pub(crate) fn is_victims_end(&self) -> bool {
        let is_end = matches!(
            self,
            Evidence::RankExit { .. } | Evidence::TorchrunFailed { .. }
        );
        is_end && self.is_victim()
    }

    /// Whether a rank, or torchrun, gave up waiting for another rank.
    pub(crate) fn gave_up_waiting(&self) -> bool {
        match self {
            Evidence::RankExit { class, .. } => *class == ExitClass::GaveUpWaiting,
            Evidence::TorchrunFailed { exit, error, .. } => {
                exit.class(error.as_deref()) == ExitClass::GaveUpWaiting
            }
            _ => false,
        }
    }

    /// Whether this is no cause: at most it says that another member went away.
    pub(crate) fn is_victim(&self) -> bool {
        match self {
            Evidence::ExitUnknown { .. } => true,
            Evidence::RankExit { class, .. } => is_victims(*class),
            Evidence::TorchrunFailed { exit, error, .. } => {
                is_victims(exit.class(error.as_deref()))
            }
            _ => false,
        }
    }

    /// Whether the node reports a cause other than a network cut: it is leaving, its runner was killed,
    /// or a program crashed or ended with an error of its own.
    pub(super) fn has_a_cause_of_its_own(&self) -> bool {
        match self {
            Evidence::Vanished { .. } | Evidence::Leaving { .. } => true,
            Evidence::RankExit { exit, error, .. }
            | Evidence::TorchrunFailed { exit, error, .. } => {
                (error.is_some() || exit.is_crash()) && !self.is_victim()
            }
            _ => false,
        }
    }

    /// Whether this says only that nothing came from a node: no heartbeat, or no word that it is ready.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(
            self,
            Evidence::NodeSilent { .. } | Evidence::StartTimeout { .. }
        )
    }

    /// The time at which this is ranked among the others. A silence is ranked a little before it was
    /// noticed (see [`SAME_CUT`]). Evidence of unknown time, such as a refusal, is ranked first.
    pub(crate) fn at(&self) -> Timestamp {
        match self {
            Evidence::RankExit { at, .. }
            | Evidence::EndedEarly { at, .. }
            | Evidence::Awaited { at, .. }
            | Evidence::TorchrunFailed { at, .. }
            | Evidence::Vanished { at, .. }
            | Evidence::ExitUnknown { at, .. }
            | Evidence::Stalled { at, .. }
            | Evidence::NodeRebooted { at, .. }
            | Evidence::NodeDeleted { at, .. }
            | Evidence::Unhealthy { at, .. }
            | Evidence::Fenced { at, .. }
            | Evidence::StartTimeout { at, .. }
            | Evidence::Leaving { at, .. }
            | Evidence::MixedNodes { at, .. } => *at,
            Evidence::NodeSilent { since, .. } => *since - SAME_CUT,
            Evidence::StartRefused { .. } => Timestamp::default(),
        }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Evidence::RankExit {
                node,
                rank,
                member: Some(member),
                ..
            }
            | Evidence::EndedEarly {
                node,
                rank,
                member: Some(member),
                ..
            } => format!("rank {rank} ({member}) on {node}"),
            Evidence::RankExit { node, rank, .. } | Evidence::EndedEarly { node, rank, .. } => {
                format!("rank {rank} on {node}")
            }
            Evidence::Awaited { ranks, .. } => ranks_named(ranks),
            Evidence::Stalled {
                named: Some(named), ..
            } => named.clone(),
            other => other.node().to_string(),
        }
    }

    /// When it happened, as far as is known.
    pub(super) fn happened(&self) -> Timestamp {
        match self {
            Evidence::NodeSilent { since, .. } => *since,
            other => other.at(),
        }
    }
}

/// Whether an end of this class is no cause.
fn is_victims(class: ExitClass) -> bool {
    matches!(class, ExitClass::PeerLost | ExitClass::GaveUpWaiting)
}

/// Names the first few: `rank 1 on b`, or `rank 1 on b, rank 2 on b and 6 more`.
fn ranks_named(ranks: &[(u32, NodeName)]) -> String {
    // A few names help, a thousand do not.
    const NAMED: usize = 8;
    let named = ranks.iter().take(NAMED);
    let named: Vec<String> = named
        .map(|(rank, node)| format!("rank {rank} on {node}"))
        .collect();
    match ranks.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
