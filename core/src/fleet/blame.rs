//! Finds the primary failure of a broken generation, and who pays for it. A failure that causes others
//! ranks before one that follows from others; of two of one kind, the earlier. All other failures are
//! collateral, and are never charged.
//!
//! A node fault never spends a job's restart budget. Two kinds of break are doubtful and become the
//! job's if they repeat without progress: see [`blame`]. A failure that is charged to a job counts
//! against a node only if the job then lasts longer elsewhere.

mod hung_up;

use std::{cmp::Reverse, time::Duration};

use crate::{
    exit::{Exit, ExitClass, SIGKILL},
    fleet::receipt::{Cause, Charged},
    id::NodeName,
    time::Timestamp,
};

pub(crate) use hung_up::follows_a_break;

/// One fact about a broken generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    RankExit {
        node: NodeName,
        rank: u32,
        exit: Exit,
        class: ExitClass,
        at: Timestamp,
        error: Option<String>,
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
    Forgotten {
        node: NodeName,
        at: Timestamp,
    },
    /// The node's agent is silent. `since`: when its connection broke, or else when the agent was
    /// last heard. `heard`: its last sign of life.
    NodeSilent {
        node: NodeName,
        lost: bool,
        since: Timestamp,
        heard: Timestamp,
    },
    NodeRebooted {
        node: NodeName,
        at: Timestamp,
    },
    NodeDeleted {
        node: NodeName,
        at: Timestamp,
    },
    /// The node itself says that the hardware given to this member cannot go on.
    Unhealthy {
        node: NodeName,
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
    Refused {
        node: NodeName,
        reason: String,
    },
    StartTimeout {
        node: NodeName,
        at: Timestamp,
    },
    /// The workers were killed because their machine is taken away or their pod is deleted. `why` is
    /// the node's own text.
    Leaving {
        node: NodeName,
        why: String,
        at: Timestamp,
    },
    /// The software on this node does not match the other members', and the job refuses a mixture.
    /// `how` reads like `torch 2.14, not torch 2.15`.
    Unlike {
        node: NodeName,
        how: String,
        at: Timestamp,
    },
}

/// A silence may have caused a failure that was reported up to this long before it. One network cut
/// causes both, and chance decides which of two connections notices it first.
const SAME_CUT: Duration = Duration::from_millis(250);

/// A heartbeat that arrives up to this long after a failure may have been sent before it.
pub(crate) const UNDER_WAY: Duration = Duration::from_millis(250);

/// Whether no later report of the same burst can change the culprit: a rank was killed from outside,
/// all other evidence follows from that, and no member is silent. A silence may have begun before
/// the kill.
pub(crate) fn is_conclusive(evidence: &[Evidence]) -> bool {
    let killed = |e: &Evidence| {
        matches!(
            e,
            Evidence::RankExit {
                exit: Exit::Signal(SIGKILL),
                class: ExitClass::Killed,
                ..
            }
        )
    };
    evidence.iter().any(killed) && evidence.iter().all(|e| killed(e) || e.is_victim())
}

/// Selects the silences that began too late to be the cause: the node was still heard after the
/// first victim failed, or it reported a cause that is no network cut.
pub(crate) fn too_late(evidence: &[Evidence]) -> impl Fn(&Evidence) -> bool {
    let victims = evidence
        .iter()
        .filter(|e| e.is_victim())
        .map(Evidence::at)
        .filter(|at| *at > Timestamp::default());
    let first_failed = victims.min();
    let has_told = move |node: &NodeName| {
        evidence
            .iter()
            .any(|e| e.node() == node && e.has_a_cause_of_its_own())
    };
    move |e| match e {
        Evidence::NodeSilent {
            node, lost, heard, ..
        } => first_failed.is_some_and(|at| *heard > at + UNDER_WAY) || (!lost && has_told(node)),
        _ => false,
    }
}

impl Evidence {
    pub(crate) fn node(&self) -> &NodeName {
        match self {
            Evidence::RankExit { node, .. }
            | Evidence::TorchrunFailed { node, .. }
            | Evidence::Vanished { node, .. }
            | Evidence::Forgotten { node, .. }
            | Evidence::NodeSilent { node, .. }
            | Evidence::NodeRebooted { node, .. }
            | Evidence::NodeDeleted { node, .. }
            | Evidence::Unhealthy { node, .. }
            | Evidence::Fenced { node, .. }
            | Evidence::Refused { node, .. }
            | Evidence::StartTimeout { node, .. }
            | Evidence::Leaving { node, .. }
            | Evidence::Unlike { node, .. } => node,
        }
    }

    /// The same fact on a node that is leaving, for this reason: what was killed there was ended with
    /// it.
    pub(crate) fn on_leaving(self, why: &str) -> Self {
        let is_killed = match &self {
            Evidence::RankExit { class, .. } => *class == ExitClass::Killed,
            Evidence::TorchrunFailed { exit, error, .. } => {
                exit.class(error.as_deref()) == ExitClass::Killed
            }
            Evidence::Vanished { .. } => true,
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
    /// the limit. A suspicion does not.
    pub(crate) fn breaks(&self) -> bool {
        !matches!(self, Evidence::NodeSilent { lost: false, .. })
    }

    /// Whether this is no cause: at most it says that another member went away.
    pub(crate) fn is_victim(&self) -> bool {
        match self {
            Evidence::Forgotten { .. } => true,
            Evidence::RankExit { class, .. } => *class == ExitClass::PeerLost,
            Evidence::TorchrunFailed { exit, error, .. } => {
                exit.class(error.as_deref()) == ExitClass::PeerLost
            }
            _ => false,
        }
    }

    /// Whether this names a cause other than a network cut: the runner was killed, or a program
    /// crashed, or ended with an error of its own.
    fn has_a_cause_of_its_own(&self) -> bool {
        match self {
            Evidence::Vanished { .. } | Evidence::Leaving { .. } => true,
            Evidence::RankExit { exit, error, .. }
            | Evidence::TorchrunFailed { exit, error, .. } => {
                (error.is_some() || exit.is_crash()) && !self.is_victim()
            }
            _ => false,
        }
    }

    /// Whether this says only that nothing was heard from a node.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(
            self,
            Evidence::NodeSilent { .. } | Evidence::StartTimeout { .. }
        )
    }

    /// The time at which this is ranked among the others. A silence is ranked a little before it was
    /// noticed (see [`SAME_CUT`]), and a refusal, which has no time, first.
    pub(crate) fn at(&self) -> Timestamp {
        match self {
            Evidence::RankExit { at, .. }
            | Evidence::TorchrunFailed { at, .. }
            | Evidence::Vanished { at, .. }
            | Evidence::Forgotten { at, .. }
            | Evidence::NodeRebooted { at, .. }
            | Evidence::NodeDeleted { at, .. }
            | Evidence::Unhealthy { at, .. }
            | Evidence::Fenced { at, .. }
            | Evidence::StartTimeout { at, .. }
            | Evidence::Leaving { at, .. }
            | Evidence::Unlike { at, .. } => *at,
            Evidence::NodeSilent { since, .. } => *since - SAME_CUT,
            Evidence::Refused { .. } => Timestamp::default(),
        }
    }

    /// How well this explains the others: lower explains more. Of one kind, the earliest explains
    /// most.
    fn order(&self) -> (u8, Timestamp) {
        let kind = match self {
            Evidence::NodeRebooted { .. }
            | Evidence::NodeDeleted { .. }
            | Evidence::Unhealthy { .. }
            | Evidence::Fenced { .. } => 0,
            Evidence::Forgotten { .. } => 5,
            victim if victim.is_victim() => 5,
            Evidence::RankExit { .. }
            | Evidence::NodeSilent { .. }
            | Evidence::Vanished { .. }
            | Evidence::Leaving { .. } => 1,
            Evidence::Refused { .. } | Evidence::Unlike { .. } => 2,
            Evidence::TorchrunFailed { .. } => 3,
            Evidence::StartTimeout { .. } => 4,
        };
        (kind, self.at())
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Evidence::RankExit { node, rank, .. } => format!("rank {rank} on {node}"),
            other => other.node().to_string(),
        }
    }

    /// When it happened, as far as is known.
    fn happened(&self) -> Timestamp {
        match self {
            Evidence::NodeSilent { since, .. } => *since,
            other => other.at(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blame {
    pub cause: Cause,
    pub message: String,
    /// The end of the program that failed first, without naming the place. `None` if no program of
    /// the job failed.
    pub symptom: Option<String>,
    /// The exit of the rank that failed first. `None`: no rank did, or it is a victim.
    pub exit: Option<Exit>,
    /// The rank that failed first. `None`: no rank did, or it is a victim.
    pub rank: Option<u32>,
    pub charged: Charged,
    /// `None`: every known failure is a victim of another.
    pub culprit: Option<String>,
    pub node: Option<NodeName>,
    pub collateral: Vec<String>,
    pub event_at: Timestamp,
    /// The blame may be wrong: the job itself can cause what looks like this.
    pub doubtful: bool,
}

/// Judges all evidence of one generation together. Without evidence the answer is `None`.
///
/// If every member says that another went away, and every node is heard, the network between them
/// failed, and nobody pays. If a group vanished with its runner, the node pays. Both are doubtful:
/// a program that cannot reach something else uses the same words, and a program that eats all
/// memory may take its runner along. So the job pays if this has happened `in_vain`, repeatedly and
/// without a new step. Otherwise such a job would restart for ever.
pub(crate) fn blame(evidence: &[Evidence], members: usize, in_vain: bool) -> Option<Blame> {
    let (late, follows) = (too_late(evidence), follows_a_break(evidence));
    let primary = evidence
        .iter()
        .min_by_key(|e| (late(e) || follows(e), e.order(), Reverse(e.breaks())))?;
    let (cause, charged, message) = cause_and_payer(primary, evidence, members, in_vain);
    let named = !primary.is_victim() && !matches!(primary, Evidence::Fenced { .. });
    // A member that fenced itself is neither to blame nor a victim. One that was left out for its
    // software is no victim of what happened to others.
    let failed = evidence
        .iter()
        .filter(|e| !matches!(e, Evidence::Fenced { .. } | Evidence::Unlike { .. }));
    let collateral = failed
        .filter(|e| !named || e.name() != primary.name())
        .map(Evidence::name)
        .collect();
    Some(Blame {
        cause,
        message,
        symptom: symptom(primary),
        exit: own_end(primary).map(|(_, exit)| exit),
        rank: own_end(primary).map(|(rank, _)| rank),
        charged,
        culprit: named.then(|| primary.name()),
        node: named.then(|| primary.node().clone()),
        collateral,
        event_at: primary.happened(),
        doubtful: primary.is_victim() || matches!(primary, Evidence::Vanished { .. }),
    })
}

/// The rank that failed first, and its exit.
fn own_end(primary: &Evidence) -> Option<(u32, Exit)> {
    match primary {
        Evidence::RankExit { rank, exit, .. } if !primary.is_victim() => Some((*rank, *exit)),
        _ => None,
    }
}

/// What the primary failure was, who pays for it, and the sentence that says so.
fn cause_and_payer(
    primary: &Evidence,
    evidence: &[Evidence],
    members: usize,
    in_vain: bool,
) -> (Cause, Charged, String) {
    let refused_everywhere = evidence
        .iter()
        .filter(|e| matches!(e, Evidence::Refused { .. }))
        .count()
        == members;
    let unless_in_vain = |spared| if in_vain { Charged::Job } else { spared };
    match primary {
        Evidence::Forgotten { node, .. } => (
            Cause::PeersLost,
            unless_in_vain(Charged::Nobody),
            format!("the worker group on {node} is dead, and its node has forgotten how it ended"),
        ),
        victim if victim.is_victim() => {
            let error = match victim {
                Evidence::RankExit {
                    error: Some(error), ..
                }
                | Evidence::TorchrunFailed {
                    error: Some(error), ..
                } => error,
                _ => "no error",
            };
            let name = victim.name();
            (
                Cause::PeersLost,
                unless_in_vain(Charged::Nobody),
                format!(
                    "members lost each other while every node was heard; first {name}: {error}"
                ),
            )
        }
        Evidence::RankExit {
            node,
            rank,
            exit,
            class,
            error,
            ..
        } => {
            let cause = if *class == ExitClass::Killed {
                Cause::WorkerKilled
            } else {
                Cause::WorkerFailed
            };
            let error = error
                .as_ref()
                .map(|text| format!(": {text}"))
                .unwrap_or_default();
            (
                cause,
                Charged::Job,
                format!("rank {rank} on {node} ended with {exit}{error}"),
            )
        }
        Evidence::TorchrunFailed {
            node,
            exit,
            error,
            launched,
            ..
        } => {
            let cause = match exit.class(error.as_deref()) {
                _ if !launched => Cause::StartFailed,
                ExitClass::Killed => Cause::WorkerKilled,
                _ => Cause::WorkerFailed,
            };
            let error = error
                .as_ref()
                .map(|text| format!(": {text}"))
                .unwrap_or_default();
            (
                cause,
                Charged::Job,
                format!("torchrun on {node} ended with {exit} before any rank failed{error}"),
            )
        }
        Evidence::Vanished { node, launched, .. } => {
            let cause = if *launched {
                Cause::WorkerKilled
            } else {
                Cause::StartFailed
            };
            (
                cause,
                unless_in_vain(Charged::Node),
                format!("the worker group on {node} was killed together with its runner"),
            )
        }
        Evidence::NodeSilent {
            node, lost: true, ..
        } => (Cause::NodeLost, Charged::Node, format!("{node} is silent")),
        Evidence::NodeSilent { node, .. } => (
            Cause::NodeLost,
            Charged::Node,
            format!("{node} lost its connection, and its peers' connections to it broke"),
        ),
        Evidence::NodeRebooted { node, .. } => (
            Cause::NodeRebooted,
            Charged::Node,
            format!("{node} was booted anew"),
        ),
        Evidence::Unhealthy { node, reason, .. } => (
            Cause::NodeUnhealthy,
            Charged::Node,
            format!("{node} is unhealthy: {reason}"),
        ),
        Evidence::NodeDeleted { node, .. } => (
            Cause::NodeDeleted,
            Charged::Nobody,
            format!("{node} was deleted by an operator"),
        ),
        Evidence::Fenced { node, .. } => {
            let message = format!(
                "{node} and the coordinator heard nothing of each other, so its workers stopped (fenceAfter)"
            );
            (Cause::Fenced, Charged::Nobody, message)
        }
        Evidence::Refused { node, reason } => {
            let charged = if refused_everywhere {
                Charged::Job
            } else {
                Charged::Node
            };
            (
                Cause::StartFailed,
                charged,
                format!("{node} cannot start it: {reason}"),
            )
        }
        Evidence::StartTimeout { node, .. } => (
            Cause::StartTimeout,
            Charged::Node,
            format!("{node} did not get ready in time"),
        ),
        Evidence::Leaving { node, why, .. } => (
            Cause::NodeLeaving,
            Charged::Nobody,
            format!("what ran on {node} was ended with it: {why}"),
        ),
        Evidence::Unlike { .. } => (
            Cause::MixedNodes,
            Charged::Nobody,
            unlike(evidence, members),
        ),
    }
}

/// The end of the program that failed first, without naming the place.
fn symptom(primary: &Evidence) -> Option<String> {
    match primary {
        victim if victim.is_victim() => None,
        Evidence::RankExit { exit, error, .. } | Evidence::TorchrunFailed { exit, error, .. } => {
            Some(
                error
                    .as_ref()
                    .map_or_else(|| exit.to_string(), |error| format!("{exit}: {error}")),
            )
        }
        Evidence::Refused { reason, .. } => Some(reason.clone()),
        _ => None,
    }
}

/// Says how many members do not go with the others, and how the first few differ.
fn unlike(evidence: &[Evidence], members: usize) -> String {
    // A few names help, a thousand do not.
    const NAMED: usize = 8;
    let odd = evidence.iter().filter_map(|e| match e {
        Evidence::Unlike { node, how, .. } => Some(format!("{node} ({how})")),
        _ => None,
    });
    let odd: Vec<String> = odd.collect();
    let more = odd.len().saturating_sub(NAMED);
    let more = if more == 0 {
        String::new()
    } else {
        format!(", and {more} more")
    };
    format!(
        "{} of {members} nodes not taken, as they do not go with the others: {}{more}",
        odd.len(),
        odd[..odd.len().min(NAMED)].join(", ")
    )
}

#[cfg(test)]
mod tests;
