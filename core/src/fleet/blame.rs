//! Who broke a generation. The first cause is the primary failure. All failures that follow from it
//! are collateral, and are never charged.
//!
//! A node fault never spends a job's restart budget; a job fault never cordons a node.

use std::{cmp::Reverse, time::Duration};

use crate::{
    exit::{Exit, ExitClass, SIGKILL},
    fleet::receipt::{Cause, Charged},
    id::NodeName,
    time::Timestamp,
};

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
    LauncherFailed {
        node: NodeName,
        exit: Exit,
        at: Timestamp,
        error: Option<String>,
        /// At least one rank had been started.
        launched: bool,
    },
    /// The group is dead, and nobody knows how it ended, because its runner was killed. A program
    /// cannot cause that by failing.
    Vanished {
        node: NodeName,
        at: Timestamp,
        /// At least one rank had been started.
        launched: bool,
    },
    /// The member is proven dead, and its node has since forgotten how it ended. Whoever failed
    /// first may have been another.
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

/// Whether later reports of the same burst cannot change the culprit. That is so if a rank was
/// killed from outside and everything else is its victim. A silence may have begun before the kill,
/// so it leaves the question open.
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
/// first victim fell, or it has itself told that its group was killed. No cut kills a runner.
pub(crate) fn too_late(evidence: &[Evidence]) -> impl Fn(&Evidence) -> bool {
    let victims = evidence
        .iter()
        .filter(|e| e.is_victim())
        .map(Evidence::at)
        .filter(|at| *at > Timestamp::default());
    let fell = victims.min();
    let has_told = move |node: &NodeName| {
        evidence
            .iter()
            .any(|e| matches!(e, Evidence::Vanished { .. }) && e.node() == node)
    };
    move |e| match e {
        Evidence::NodeSilent {
            node, lost, heard, ..
        } => fell.is_some_and(|fell| *heard > fell + UNDER_WAY) || (!lost && has_told(node)),
        _ => false,
    }
}

impl Evidence {
    pub(crate) fn node(&self) -> &NodeName {
        match self {
            Evidence::RankExit { node, .. }
            | Evidence::LauncherFailed { node, .. }
            | Evidence::Vanished { node, .. }
            | Evidence::Forgotten { node, .. }
            | Evidence::NodeSilent { node, .. }
            | Evidence::NodeRebooted { node, .. }
            | Evidence::NodeDeleted { node, .. }
            | Evidence::Unhealthy { node, .. }
            | Evidence::Fenced { node, .. }
            | Evidence::Refused { node, .. }
            | Evidence::StartTimeout { node, .. }
            | Evidence::Unlike { node, .. } => node,
        }
    }

    /// Notes that the ranks of this generation had been started. The node's report may no longer
    /// say so: a restarted agent knows of a lost runner only what the runner had written down.
    pub(crate) fn had_launched(&mut self) {
        if let Evidence::LauncherFailed { launched, .. } | Evidence::Vanished { launched, .. } =
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

    /// Whether this explains nothing: it says only that another member went away, or not even that.
    pub(crate) fn is_victim(&self) -> bool {
        match self {
            Evidence::Forgotten { .. } => true,
            Evidence::RankExit { class, .. } => *class == ExitClass::PeerLost,
            Evidence::LauncherFailed { exit, error, .. } => {
                exit.class(error.as_deref()) == ExitClass::PeerLost
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

    fn at(&self) -> Timestamp {
        match self {
            Evidence::RankExit { at, .. }
            | Evidence::LauncherFailed { at, .. }
            | Evidence::Vanished { at, .. }
            | Evidence::Forgotten { at, .. }
            | Evidence::NodeRebooted { at, .. }
            | Evidence::NodeDeleted { at, .. }
            | Evidence::Unhealthy { at, .. }
            | Evidence::Fenced { at, .. }
            | Evidence::StartTimeout { at, .. }
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
            Evidence::RankExit { .. } | Evidence::NodeSilent { .. } | Evidence::Vanished { .. } => {
                1
            }
            Evidence::Refused { .. } | Evidence::Unlike { .. } => 2,
            Evidence::LauncherFailed { .. } => 3,
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
pub(crate) struct Verdict {
    pub cause: Cause,
    pub message: String,
    /// How the program that failed first ended, without naming the place. `None` if no program of
    /// the job failed.
    pub symptom: Option<String>,
    pub charged: Charged,
    /// `None`: every known failure is a victim of another.
    pub culprit: Option<String>,
    pub node: Option<NodeName>,
    pub collateral: Vec<String>,
    pub event_at: Timestamp,
    /// The job is probably not at fault, but its own doing can look like this.
    pub doubtful: bool,
}

/// Judges all evidence of one generation together. Without evidence the answer is `None`.
///
/// If every member says that another went away, and every node is heard, the network between them
/// failed, and nobody pays. If a group vanished with its runner, the node pays. Both are doubtful:
/// a program that cannot reach something else uses the same words, and a program that eats all
/// memory may take its runner along. So the job pays if this has happened `in_vain`, repeatedly and
/// without a new step. Otherwise such a job would restart for ever.
pub(crate) fn judge(evidence: &[Evidence], members: usize, in_vain: bool) -> Option<Verdict> {
    let late = too_late(evidence);
    let primary = evidence
        .iter()
        .min_by_key(|e| (late(e), e.order(), Reverse(e.breaks())))?;
    let refused_everywhere = evidence
        .iter()
        .filter(|e| matches!(e, Evidence::Refused { .. }))
        .count()
        == members;
    let unless_in_vain = |spared| if in_vain { Charged::Job } else { spared };
    let (cause, charged, message) = match primary {
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
                | Evidence::LauncherFailed {
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
        Evidence::LauncherFailed {
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
        Evidence::Unlike { .. } => (
            Cause::MixedNodes,
            Charged::Nobody,
            unlike(evidence, members),
        ),
    };
    let symptom = match primary {
        victim if victim.is_victim() => None,
        Evidence::RankExit { exit, error, .. } | Evidence::LauncherFailed { exit, error, .. } => {
            Some(
                error
                    .as_ref()
                    .map_or_else(|| exit.to_string(), |error| format!("{exit}: {error}")),
            )
        }
        Evidence::Refused { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    let named = !primary.is_victim() && !matches!(primary, Evidence::Fenced { .. });
    // A member that fenced itself, or was not let in, is neither to blame nor a victim.
    let fell = evidence
        .iter()
        .filter(|e| !matches!(e, Evidence::Fenced { .. } | Evidence::Unlike { .. }));
    let collateral = fell
        .filter(|e| !named || e.name() != primary.name())
        .map(Evidence::name)
        .collect();
    Some(Verdict {
        cause,
        message,
        symptom,
        charged,
        culprit: named.then(|| primary.name()),
        node: named.then(|| primary.node().clone()),
        collateral,
        event_at: primary.happened(),
        doubtful: primary.is_victim() || matches!(primary, Evidence::Vanished { .. }),
    })
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
mod tests {
    use super::*;

    fn exit(node: &str, rank: u32, exit: Exit, error: Option<&str>, ms: u64) -> Evidence {
        let at = Timestamp(ms * 1000);
        Evidence::RankExit {
            node: node.into(),
            rank,
            exit,
            class: exit.class(error),
            at,
            error: error.map(str::to_owned),
        }
    }

    fn silent(node: &str, lost: bool, ms: u64) -> Evidence {
        let at = Timestamp(ms * 1000);
        Evidence::NodeSilent {
            node: node.into(),
            lost,
            since: at,
            heard: at,
        }
    }

    const PEER: Option<&str> = Some(
        "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1",
    );

    #[test]
    fn the_rank_that_failed_by_itself_is_to_blame_even_if_a_victim_was_seen_first() {
        let verdict = judge(
            &[
                exit("b", 1, Exit::Code(1), PEER, 1000),
                exit("a", 0, Exit::Signal(11), None, 1003),
            ],
            2,
            false,
        )
        .unwrap();
        assert_eq!(
            (verdict.cause, verdict.charged, verdict.culprit.as_deref()),
            (Cause::WorkerFailed, Charged::Job, Some("rank 0 on a"))
        );
        assert_eq!(verdict.collateral, ["rank 1 on b"]);
    }

    #[test]
    fn a_cut_node_explains_its_peers_deaths_and_costs_the_job_nothing() {
        let evidence = [
            exit("b", 1, Exit::Code(1), PEER, 1000),
            exit("c", 2, Exit::Code(1), None, 1001),
            silent("a", false, 1020),
        ];
        let verdict = judge(&evidence, 3, false).unwrap();
        assert_eq!(
            (verdict.cause, verdict.charged, verdict.culprit.as_deref()),
            (Cause::NodeLost, Charged::Node, Some("a"))
        );
        assert_eq!(verdict.collateral, ["rank 1 on b", "rank 2 on c"]);
    }

    #[test]
    fn who_was_heard_after_the_victims_fell_did_not_fell_them() {
        let victims = [
            exit("b", 1, Exit::Code(1), PEER, 1000),
            exit("c", 2, Exit::Code(1), PEER, 1001),
        ];
        let with = |heard| {
            judge(
                &[victims.as_slice(), &[silent("a", true, heard)]].concat(),
                3,
                false,
            )
            .unwrap()
        };
        let verdict = with(1240);
        assert_eq!(
            (verdict.cause, verdict.culprit.as_deref()),
            (Cause::NodeLost, Some("a"))
        );
        let verdict = with(1260);
        assert_eq!(
            (verdict.cause, verdict.charged, verdict.culprit),
            (Cause::PeersLost, Charged::Nobody, None)
        );
        assert_eq!(verdict.collateral, ["rank 1 on b", "rank 2 on c", "a"]);
        // One node is silent by now. The sentence is about the time when the first victim fell.
        let told = "members lost each other while every node was heard; first rank 1 on b: ";
        assert!(verdict.message.starts_with(told), "{}", verdict.message);
    }

    #[test]
    fn a_failure_long_before_a_silence_is_not_the_silences_fault() {
        let verdict = judge(
            &[
                exit("b", 1, Exit::Code(3), None, 1000),
                silent("a", false, 2000),
            ],
            2,
            false,
        )
        .unwrap();
        assert_eq!(verdict.charged, Charged::Job);
    }

    #[test]
    fn a_group_that_vanished_with_its_runner_costs_the_job_nothing() {
        let vanished = |launched| Evidence::Vanished {
            node: "a".into(),
            at: Timestamp(900_000),
            launched,
        };
        let verdict = judge(
            &[exit("b", 1, Exit::Code(1), PEER, 1000), vanished(true)],
            2,
            false,
        )
        .unwrap();
        assert_eq!(
            (verdict.cause, verdict.charged, verdict.culprit.as_deref()),
            (Cause::WorkerKilled, Charged::Node, Some("a"))
        );
        assert_eq!(
            judge(&[vanished(false)], 1, false).unwrap().cause,
            Cause::StartFailed,
            "it is not tried there again at once"
        );
    }

    #[test]
    fn who_forgot_how_its_group_ended_is_not_blamed_for_that() {
        let forgotten = Evidence::Forgotten {
            node: "b".into(),
            at: Timestamp(2_000_000),
        };
        let verdict = judge(std::slice::from_ref(&forgotten), 2, false).unwrap();
        assert_eq!(
            (verdict.cause, verdict.charged, verdict.culprit.as_deref()),
            (Cause::PeersLost, Charged::Nobody, None)
        );
        let told = "the worker group on b is dead, and its node has forgotten how it ended";
        assert_eq!(verdict.message, told);
        let verdict = judge(&[forgotten, silent("a", true, 1000)], 2, false).unwrap();
        assert_eq!(verdict.culprit.as_deref(), Some("a"));
    }

    #[test]
    fn a_node_that_told_how_its_group_died_was_not_cut_off_before() {
        let vanished = Evidence::Vanished {
            node: "a".into(),
            at: Timestamp(900_000),
            launched: true,
        };
        let evidence = [vanished, silent("a", false, 1100)];
        let verdict = judge(&evidence, 1, false).unwrap();
        assert_eq!(
            (verdict.cause, verdict.charged, verdict.culprit.as_deref()),
            (Cause::WorkerKilled, Charged::Node, Some("a"))
        );
    }

    #[test]
    fn a_launcher_that_ends_under_its_ranks_did_not_fail_to_start() {
        let failed = |exit, launched| {
            let evidence = Evidence::LauncherFailed {
                node: "a".into(),
                exit,
                at: Timestamp(900_000),
                error: None,
                launched,
            };
            judge(&[evidence], 2, false).unwrap()
        };
        assert_eq!(failed(Exit::Code(1), false).cause, Cause::StartFailed);
        assert_eq!(failed(Exit::Code(1), true).cause, Cause::WorkerFailed);
        assert_eq!(
            failed(Exit::Signal(SIGKILL), true).cause,
            Cause::WorkerKilled
        );
        assert_eq!(
            failed(Exit::Signal(SIGKILL), false).cause,
            Cause::StartFailed
        );
    }

    #[test]
    fn victims_of_each_other_name_nobody_and_pay_only_if_it_is_in_vain() {
        let evidence = [
            exit("a", 0, Exit::Code(1), PEER, 1000),
            exit("b", 1, Exit::Code(1), PEER, 1001),
        ];
        let verdict = judge(&evidence, 2, false).unwrap();
        assert_eq!(
            (
                verdict.cause,
                verdict.charged,
                verdict.culprit,
                verdict.node
            ),
            (Cause::PeersLost, Charged::Nobody, None, None)
        );
        assert_eq!(verdict.collateral, ["rank 0 on a", "rank 1 on b"]);
        assert_eq!(judge(&evidence, 2, true).unwrap().charged, Charged::Job);
    }

    #[test]
    fn a_refusal_everywhere_is_the_jobs_fault_elsewhere_the_nodes() {
        let refused = |node: &str| Evidence::Refused {
            node: node.into(),
            reason: "no such script".into(),
        };
        assert_eq!(
            judge(&[refused("a"), refused("b")], 2, false)
                .unwrap()
                .charged,
            Charged::Job
        );
        assert_eq!(
            judge(&[refused("a")], 2, false).unwrap().charged,
            Charged::Node
        );
    }

    #[test]
    fn only_a_kill_from_outside_needs_nothing_more_to_be_judged() {
        let (killed, victim) = (
            exit("a", 0, Exit::Signal(9), None, 1000),
            exit("b", 1, Exit::Code(1), PEER, 1001),
        );
        assert!(
            is_conclusive(std::slice::from_ref(&killed))
                && is_conclusive(&[victim.clone(), killed.clone()])
        );
        assert!(!is_conclusive(&[victim]), "of whom is yet to come");
        assert!(
            !is_conclusive(&[killed.clone(), silent("c", false, 1000)]),
            "its node may have fallen before"
        );
        for may_be_a_victim in [Exit::Code(1), Exit::Signal(11), Exit::Signal(15)] {
            assert!(
                !is_conclusive(&[exit("a", 0, may_be_a_victim, None, 1000)]),
                "{may_be_a_victim}: its last words may say nothing"
            );
        }
        assert!(
            !is_conclusive(&[killed, exit("b", 1, Exit::Code(1), None, 999)]),
            "that one fell first"
        );
    }

    #[test]
    fn a_suspicion_alone_breaks_nothing() {
        assert!(!silent("a", false, 1).breaks());
        assert!(silent("a", true, 1).breaks());
    }
}
