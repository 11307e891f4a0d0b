//! Judges whether a job can never start. A script that is not there, an interpreter without torch or a
//! typing error is no better at the next start, and a restart budget only hides it for a while.
//!
//! Two witnesses are needed: two nodes that say the same, or the same node, or another, a second time. A
//! job of which a step was ever seen is never judged so, and a node's refusal says nothing of a job that was started
//! before: what it needs was there, and may come back.

use crate::{
    exit::{Exit, NO_RANK_BEGAN},
    fleet::{blame::Evidence, crash_loop, job::FailedStart},
    run::DueTo,
};

/// A shell's exit codes for a command that it cannot execute, and that it does not find
/// (POSIX, Shell Command Language, 2.8.2).
const NOT_A_COMMAND: [i32; 2] = [126, 127];
/// Exceptions of Python that tell that the program itself cannot be read, or that a package is not
/// installed.
const UNREADABLE: [&str; 4] = [
    "SyntaxError",
    "IndentationError",
    "TabError",
    "ModuleNotFoundError",
];

/// Why the job can never start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CannotStart {
    /// All of so many nodes say the same.
    OnEachNode(u32),
    /// So many starts in a row failed alike.
    AtEachStart(u32),
}

impl CannotStart {
    pub(crate) fn sentence(&self) -> String {
        match self {
            CannotStart::OnEachNode(nodes) => {
                format!("all {nodes} nodes say the same, so it cannot start")
            }
            CannotStart::AtEachStart(times) => {
                format!("{times} starts failed alike, so it cannot start")
            }
        }
    }
}

/// How a start has failed, if it failed in a way that does not change by itself. `None`: another
/// start may succeed. `primary`: the failure that explains the others. `started`: some generation of the job was
/// started before.
pub(crate) fn failed_start(
    primary: &Evidence,
    evidence: &[Evidence],
    members: usize,
    started: bool,
) -> Option<FailedStart> {
    if primary.is_victim() {
        return None;
    }
    match primary {
        Evidence::StartRefused { .. } if !started => refused_by_all(evidence, members),
        // torchrun, or what stands in its place, has ended before it started a rank.
        Evidence::TorchrunFailed {
            launched: false,
            exit: exit @ Exit::Code(_),
            error,
            ..
        } => Some(once(format!("torchrun: {}", words(*exit, error)))),
        Evidence::RankExit {
            exit: exit @ Exit::Code(code),
            error,
            node,
            ..
        } => {
            if no_rank_began(primary) {
                // MPI's programs say on which host they are.
                return Some(once(words(*exit, error).replace(node.as_str(), "it")));
            }
            let error_is = |name: &&str| error.as_ref().is_some_and(|e| e.starts_with(*name));
            let definite = NOT_A_COMMAND.contains(code) || UNREADABLE.iter().any(error_is);
            definite.then(|| once(words(*exit, error)))
        }
        _ => None,
    }
}

/// Whether an `mpirun` has ended before it asked any host to start something. It has refused its own words, or
/// lacks something on its node.
pub(crate) fn no_rank_began(primary: &Evidence) -> bool {
    matches!(primary, Evidence::RankExit { exit: Exit::Code(_), error: Some(error), .. } if error.starts_with(NO_RANK_BEGAN))
}

fn once(symptom: String) -> FailedStart {
    FailedStart {
        symptom,
        nodes: 1,
        times: 1,
    }
}

fn words(exit: Exit, error: &Option<String>) -> String {
    match error {
        Some(error) => format!("{exit}: {error}"),
        None => exit.to_string(),
    }
}

/// The refusal that all members share. A member that got ready, or has not answered, may be able to start
/// the job.
fn refused_by_all(evidence: &[Evidence], members: usize) -> Option<FailedStart> {
    let mut said = evidence.iter().filter_map(|found| match found {
        Evidence::StartRefused {
            node,
            reason,
            due_to: DueTo::Job | DueTo::Account,
        } => Some(reason.replace(node.as_str(), "it")),
        _ => None,
    });
    let symptom = said.next()?;
    let others = said.filter(|other| crash_loop::similar(other, &symptom));
    let nodes = 1 + others.count();
    (nodes == members).then(|| FailedStart {
        nodes: nodes as u32,
        ..once(symptom)
    })
}

/// The verdict about a failed start, and what to remember of it. `before`: what was remembered. `others`:
/// nodes that have not been asked could take the job. One rack without its file system ends no job that
/// others can start, so the next start is theirs.
pub(crate) fn judge(
    before: Option<&FailedStart>,
    now: FailedStart,
    others: bool,
) -> (FailedStart, Option<CannotStart>) {
    let alike = before.filter(|before| crash_loop::similar(&before.symptom, &now.symptom));
    let times = 1 + alike.map_or(0, |before| before.times);
    let verdict = match (now.nodes, times) {
        (2.., 1) if !others => Some(CannotStart::OnEachNode(now.nodes)),
        (_, 2..) => Some(CannotStart::AtEachStart(times)),
        _ => None,
    };
    (FailedStart { times, ..now }, verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{exit::ExitClass, id::NodeName, time::Timestamp};

    fn refused(node: &str, reason: &str) -> Evidence {
        Evidence::StartRefused {
            node: NodeName::from(node),
            reason: format!("{reason} on {node}"),
            due_to: DueTo::Job,
        }
    }

    fn ended(code: i32, error: Option<&str>) -> Evidence {
        Evidence::RankExit {
            node: NodeName::from("a"),
            rank: 0,
            member: None,
            exit: Exit::Code(code),
            class: ExitClass::Fault,
            at: Timestamp(1),
            error: error.map(str::to_owned),
            exception: None,
        }
    }

    fn of(evidence: &[Evidence], members: usize) -> Option<FailedStart> {
        failed_start(&evidence[0], evidence, members, false)
    }

    #[test]
    fn a_refusal_counts_if_no_member_may_be_able_to_start() {
        let both = [refused("a", "no t.py"), refused("b", "no t.py")];
        let start = of(&both, 2).unwrap();
        assert_eq!((start.symptom.as_str(), start.nodes), ("no t.py on it", 2));
        assert_eq!(of(&both, 3), None, "the third may have it");
        assert_eq!(
            of(&[refused("a", "no t.py"), refused("b", "no torch")], 2),
            None
        );
        let of_node = Evidence::StartRefused {
            node: NodeName::from("a"),
            reason: "no /dev/nvidiactl".into(),
            due_to: DueTo::Node,
        };
        assert_eq!(of(&[of_node], 1), None);
        assert_eq!(failed_start(&both[0], &both, 2, true), None);
    }

    #[test]
    fn only_ends_that_do_not_change_by_themselves_count() {
        for (code, error) in [
            (127, None),
            (126, Some("bash: ./run: Permission denied")),
            (1, Some("SyntaxError: invalid syntax")),
            (1, Some("ModuleNotFoundError: No module named 'torch'")),
        ] {
            assert!(of(&[ended(code, error)], 4).is_some(), "{code} {error:?}");
        }
        for (code, error) in [
            (1, None),
            (1, Some("RuntimeError: SyntaxError")),
            (2, Some("FileNotFoundError: data")),
        ] {
            assert_eq!(of(&[ended(code, error)], 4), None, "{code} {error:?}");
        }
        let torchrun = |launched| Evidence::TorchrunFailed {
            node: NodeName::from("a"),
            exit: Exit::Code(2),
            at: Timestamp(1),
            error: None,
            launched,
        };
        assert!(of(&[torchrun(false)], 1).is_some());
        assert_eq!(of(&[torchrun(true)], 1), None);
    }

    #[test]
    fn an_mpirun_that_refuses_its_own_words_counts_on_whichever_node() {
        let refuses = |node: &str, pid: u32| {
            let words = format!("{NO_RANK_BEGAN}[{node}:{pid}] prterun: unknown option");
            let Evidence::RankExit {
                rank,
                member,
                exit,
                class,
                at,
                ..
            } = ended(213, None)
            else {
                unreachable!("it is the end of a rank");
            };
            Evidence::RankExit {
                node: NodeName::from(node),
                rank,
                member,
                exit,
                class,
                at,
                error: Some(words),
                exception: None,
            }
        };
        let first = of(&[refuses("gpu-a", 7)], 3).unwrap();
        let (known, verdict) = judge(None, first, true);
        assert_eq!(verdict, None, "another node is asked first");
        let second = of(&[refuses("cpu-b", 88)], 3).unwrap();
        assert_eq!(
            judge(Some(&known), second, false).1,
            Some(CannotStart::AtEachStart(2))
        );
        // What a rank prints is no such word, and neither is any other end of mpirun.
        assert_eq!(of(&[ended(213, Some("prterun: unknown option"))], 3), None);
        assert_eq!(
            of(&[ended(1, Some("last output: no rank began: x"))], 3),
            None
        );
    }

    #[test]
    fn two_nodes_or_two_starts_are_enough() {
        let on_one = of(&[refused("a", "no t.py")], 1).unwrap();
        let (known, verdict) = judge(None, on_one, true);
        assert_eq!(verdict, None);
        let elsewhere = of(&[refused("b", "no t.py")], 1).unwrap();
        let (known, verdict) = judge(Some(&known), elsewhere, true);
        assert_eq!(verdict, Some(CannotStart::AtEachStart(2)));
        // Another failure begins anew.
        let other = of(&[ended(127, None)], 1).unwrap();
        let (known, verdict) = judge(Some(&known), other.clone(), false);
        assert_eq!((known.times, verdict), (1, None));
        let both = of(&[refused("a", "no t.py"), refused("b", "no t.py")], 2).unwrap();
        assert_eq!(
            judge(None, both.clone(), true).1,
            None,
            "others may have it"
        );
        assert_eq!(judge(None, both, false).1, Some(CannotStart::OnEachNode(2)));
    }
}
